//! The name of a key in the store, and the lane that holds it.
//!
//! Every pod computes the same name for the same key. `src/sync/codec.rs` writes it as a Redis key.

/// The number of lanes.
pub const LANES: u8 = 64;

/// One part of the store: a Redis hash tag. All keys of a lane are in one slot of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    /// The lane of that number, wrapped into the range.
    pub const fn new(number: u8) -> Self {
        Self(number & 63)
    }

    /// The lane of the key `name`.
    pub const fn of(name: u128) -> Self {
        let [.., low] = name.to_be_bytes();
        Self::new(low)
    }

    /// Its number, below [`LANES`].
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Every lane, in the order of their numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANES).map(Self)
    }
}

/// How the store counts a key. The kind is part of the key's name there, so two kinds never share a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketKind {
    /// A level under the limit of a rule.
    Level,
    /// A level under caller-supplied limits. The store never rescales it, because no rule gives it a scale.
    Caller,
    /// Counts per window.
    Window,
}

impl BucketKind {
    /// Whether callers supply the limit, which may differ from check to check.
    pub const fn has_limits_of_callers(self) -> bool {
        matches!(self, Self::Caller)
    }

    /// Whether the store counts in windows.
    pub const fn is_windowed(self) -> bool {
        matches!(self, Self::Window)
    }
}

/// The name of a key in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    /// How the store counts it.
    pub kind: BucketKind,
    /// The hash of its rule's identity.
    pub rule: u64,
    /// The hash of its values.
    pub name: u128,
}

impl StoreKey {
    /// A key of a level rule.
    pub const fn level(rule: u64, name: u128) -> Self {
        let kind = BucketKind::Level;
        Self { kind, rule, name }
    }

    /// A key with a caller-supplied limit.
    pub const fn caller(rule: u64, name: u128) -> Self {
        let kind = BucketKind::Caller;
        Self { kind, rule, name }
    }

    /// A key of a windowed rule.
    pub const fn window(rule: u64, name: u128) -> Self {
        let kind = BucketKind::Window;
        Self { kind, rule, name }
    }

    /// Whether the store counts it in windows.
    pub const fn is_windowed(&self) -> bool {
        self.kind.is_windowed()
    }

    /// The lane that holds it.
    pub const fn lane(&self) -> Lane {
        Lane::of(self.name)
    }
}
