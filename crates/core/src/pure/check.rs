//! A check, the question "may this pass?", in the form that every door asks it.

use super::limit::Limit;
use super::time::Cells;

/// One named value of a descriptor. Key and value are bytes: what a client sends need not be text, and is limited too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// The name of the value: `api_key`, `remote_address`.
    pub key: &'a [u8],
    /// The whole value. Untrusted.
    pub value: &'a [u8],
    /// Where the value comes from, and its form.
    pub kind: ValueKind,
}

/// Where an entry's value comes from, and its form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ValueKind {
    /// The value is as the client sent it.
    #[default]
    Sent,
    /// The client sent the value to `/v1/forward`, where paths are normalised by default.
    Forwarded,
    /// The value is a path in its normal form.
    Path,
}

impl<'a> Entry<'a> {
    /// An entry as the client sent it.
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

/// A list of entries that is matched against the rules as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor<'a> {
    /// In the order in which rules nest.
    pub entries: &'a [Entry<'a>],
    /// Overrides the cost of the check. Zero looks without using cells.
    pub cost: Option<Cells>,
    /// Whether to refund the cost instead of using it. A refund always passes.
    pub refund: bool,
    /// The caller-supplied limit. It holds instead of any rule of a known domain.
    pub limit: Option<Limit>,
}

impl<'a> Descriptor<'a> {
    /// A descriptor with the cost of the check, under the limits of the rules.
    pub const fn of(entries: &'a [Entry<'a>]) -> Self {
        Self {
            entries,
            cost: None,
            refund: false,
            limit: None,
        }
    }
}

/// One check. It passes if every descriptor passes, and then uses its cost on every rule that matched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check<'a> {
    /// The domain, which names the rules.
    pub domain: &'a str,
    /// The descriptors to match against the rules.
    pub descriptors: &'a [Descriptor<'a>],
    /// The cells it uses. Zero looks without using cells; a door turns an absent cost into one.
    pub cost: Cells,
    /// Whether to look without using cells, whatever the costs are.
    pub peek: bool,
}

impl Check<'_> {
    /// The cells that `descriptor` uses on each rule that it matches.
    pub fn cost_of(&self, descriptor: &Descriptor<'_>) -> Cells {
        match self.peek {
            true => Cells::ZERO,
            false => descriptor.cost.unwrap_or(self.cost),
        }
    }
}
