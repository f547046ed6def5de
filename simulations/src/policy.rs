//! What is compared: something that decides checks as they arrive.

use tidegate_core::pure::Check;

use crate::workload::Arrival;

/// A limiter of a whole fleet, under a clock that it is told.
pub trait Policy {
    /// Lets everything happen that is due until `at`, in nanoseconds since the start.
    fn run_until(&mut self, at: u64);

    /// Decides a check that arrives now. `None` if there is nobody to ask.
    fn check(&mut self, arrival: &Arrival, check: &Check<'_>) -> Option<bool>;

    /// Who was asked last: whom to give cells back to.
    fn asked(&self) -> usize {
        0
    }

    /// Takes back the cells of a check that passed, from whoever it was `asked` of. `check` is the refund of it. One that
    /// knows no refunds keeps them.
    fn refund(&mut self, _asked: usize, _arrival: &Arrival, _check: &Check<'_>) {}

    /// What it has cost so far.
    fn cost(&self) -> Cost;

    /// The run is over: which invariants were broken, and when.
    fn end(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// What a policy costs the store, and callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Keys told or asked.
    pub updates: u64,
    /// Calls; several keys may share one.
    pub calls: u64,
    /// Pieces of news published, and how often one was delivered.
    pub news: u64,
    pub messages: u64,
    /// Checks that waited for the network.
    pub waits: u64,
    /// Cells that no store will hear of.
    pub lost: u64,
}

impl Cost {
    /// What it has cost since it was `earlier`.
    pub const fn since(&self, earlier: &Self) -> Self {
        Self {
            updates: self.updates - earlier.updates,
            calls: self.calls - earlier.calls,
            news: self.news - earlier.news,
            messages: self.messages - earlier.messages,
            waits: self.waits - earlier.waits,
            lost: self.lost.saturating_sub(earlier.lost),
        }
    }
}
