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

/// A book group: lanes whose batches share one record in the store, and so one sequence of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Group {
    lane: Lane,
    split: bool,
}

impl Group {
    /// The lane that holds its record.
    pub const fn lane(self) -> Lane {
        self.lane
    }

    /// Its number among the groups of its pod.
    pub fn index(self) -> usize {
        usize::from(self.lane.number())
    }

    /// Whether its pod started with one group for all lanes. Its record has another name than that group's had.
    pub const fn is_split(self) -> bool {
        self.split
    }
}

/// How a pod groups the lanes of its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grouping {
    /// All lanes in one group, for a single server: a call may have keys of every lane.
    Whole,
    /// Each lane for itself, for a cluster: the keys of a call are in one slot.
    PerLane,
    /// The same, after a server refused a call with keys of several slots.
    Split,
}

impl Grouping {
    /// The group of a lane.
    pub const fn group_of(self, lane: Lane) -> Group {
        let (lane, split) = match self {
            Self::Whole => (Lane::new(0), false),
            Self::PerLane => (lane, false),
            Self::Split => (lane, true),
        };
        Group { lane, split }
    }

    /// Every group, in the order of their numbers.
    pub fn groups(self) -> impl Iterator<Item = Group> {
        let lanes = match self {
            Self::Whole => 1,
            Self::PerLane | Self::Split => LANES,
        };
        (0..lanes).map(move |lane| self.group_of(Lane(lane)))
    }

    /// The number of lanes in each group.
    pub fn lanes_each(self) -> usize {
        match self {
            Self::Whole => usize::from(LANES),
            Self::PerLane | Self::Split => 1,
        }
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
