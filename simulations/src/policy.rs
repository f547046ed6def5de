//! The interface of everything that is compared: a limiter of a whole fleet.

use tidegate_core::pure::Check;

use crate::workload::Arrival;

/// A limiter of a whole fleet. The caller sets its clock.
pub trait Policy {
    /// Runs everything that is due until `at`, in nanoseconds since the start.
    fn run_until(&mut self, at: u64);

    /// Decides a check that arrives now. `None` if no pod is alive.
    fn check(&mut self, arrival: &Arrival, check: &Check<'_>) -> Option<bool>;

    /// The pod that decided the last check; a refund goes to the same pod.
    fn last_pod(&self) -> usize {
        0
    }

    /// Refunds the cells of a check that `_pod` allowed; `_check` is the refund. A limiter without refunds ignores it.
    fn refund(&mut self, _pod: usize, _arrival: &Arrival, _check: &Check<'_>) {}

    /// The cost so far.
    fn cost(&self) -> Cost;

    /// Ends the run. Returns the invariants that were broken, and when.
    fn end(&mut self) -> Vec<String> {
        Vec::new()
    }
}

/// What a policy costs the store and the callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Keys reported or read.
    pub updates: u64,
    /// Calls; several keys may share one.
    pub calls: u64,
    /// News published, and its deliveries.
    pub news: u64,
    pub messages: u64,
    /// Checks that waited for the network.
    pub waits: u64,
    /// Cells that are never reported.
    pub lost: u64,
}

impl Cost {
    /// The cost since `earlier`.
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
