//! One question, "may this pass?", as every door asks it.

use super::limit::Limit;
use super::time::Cells;

/// One named value of a descriptor. Both are bytes: what a client sends need not be text, and is limited all the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What the value is: `api_key`, `remote_address`.
    pub key: &'a [u8],
    /// The value itself, all of it. Untrusted.
    pub value: &'a [u8],
    /// What is known of the value.
    pub kind: ValueKind,
}

/// What is known of an entry's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueKind {
    /// Nothing: it is as it was sent.
    #[default]
    Sent,
    /// It was sent to `/v1/forward`, where paths are normalised by default.
    Forwarded,
    /// It is a path in its normal form.
    Path,
}

impl<'a> Entry<'a> {
    /// An entry as it was sent.
    ///
    /// ```
    /// use tidegate_core::pure::Entry;
    /// assert_eq!(Entry::new("api_key", "abc").value, b"abc");
    /// assert_eq!(Entry::new("api_key", b"\xff").value, [0xff]);
    /// ```
    #[inline]
    pub fn new<K, V>(key: &'a K, value: &'a V) -> Self
    where
        K: AsRef<[u8]> + ?Sized,
        V: AsRef<[u8]> + ?Sized,
    {
        Self {
            key: key.as_ref(),
            value: value.as_ref(),
            kind: ValueKind::Sent,
        }
    }
}

/// A list of entries that is matched against the rules as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// In the order in which rules nest.
    pub entries: &'a [Entry<'a>],
    /// Overrides the cost of the check; zero looks without consuming.
    pub cost: Option<Cells>,
    /// Gives the cost back instead of using it. Always passes.
    pub refund: bool,
    /// The limit that the caller carries: it holds instead of any rule of a known domain.
    pub limit: Option<Limit>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor that uses what the check does, under the rules.
    pub const fn of(entries: &'a [Entry<'a>]) -> Self {
        Self {
            entries,
            cost: None,
            refund: false,
            limit: None,
        }
    }
}

/// One check: it passes if every descriptor does, and then uses its cost on every rule that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// Which rules to ask.
    pub domain: &'a str,
    /// What to ask them about.
    pub descriptors: &'a [Descriptor<'a>],
    /// Cells it uses. Zero looks without consuming; a door turns an absent cost into one.
    pub cost: Cells,
    /// Look, whatever the costs say.
    pub peek: bool,
}

impl Check<'_> {
    /// What `descriptor` uses on each rule it meets.
    pub fn cost_of(&self, descriptor: &Descriptor<'_>) -> Cells {
        match self.peek {
            true => Cells::ZERO,
            false => descriptor.cost.unwrap_or(self.cost),
        }
    }
}
