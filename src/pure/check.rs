//! One question, "may this pass?", as every door asks it.

use super::limit::Limit;
use super::time::Cells;

/// One named value of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// What the value is: `api_key`, `remote_address`.
    pub key: &'a str,
    /// The value itself. Untrusted.
    pub value: &'a str,
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
