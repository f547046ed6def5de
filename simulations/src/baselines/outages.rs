//! The times at which nothing passes between a pod and the store, or, in a fleet without a store, between the pods.
//!
//! The baselines support these faults of the scenario: a cut, and a store that hangs, restarts or fails over. The store is
//! then unreachable for that time and keeps its data. The other faults, and the random ones, are left out: they would only
//! make a peer worse.

use crate::scenario::{FaultKind, FaultTarget, Scenario};

/// The start, the end, and the first pod number that is not affected.
#[derive(Debug)]
pub struct Outages(Vec<(u64, u64, usize)>);

impl Outages {
    pub fn of(scenario: &Scenario) -> Self {
        let cut_off = |what: &FaultKind| match what {
            FaultKind::Cut(FaultTarget::Some(pods)) => Some(*pods),
            FaultKind::Cut(FaultTarget::All)
            | FaultKind::Hang
            | FaultKind::Restart(_)
            | FaultKind::Failover(_) => Some(usize::MAX),
            FaultKind::Lose(_)
            | FaultKind::LoseAnswers(_)
            | FaultKind::LoseNews(_)
            | FaultKind::Slow(_)
            | FaultKind::Join(_)
            | FaultKind::Leave(_)
            | FaultKind::Crash(_)
            | FaultKind::Pause(_)
            | FaultKind::Roll(_)
            | FaultKind::StoreClock(_)
            | FaultKind::Calendars(_)
            | FaultKind::Reload(_)
            | FaultKind::Reset(_)
            | FaultKind::Forge(..) => None,
        };
        let faults = scenario.faults.iter();
        Self(
            faults
                .filter_map(|fault| Some((fault.at, fault.to, cut_off(&fault.what)?)))
                .collect(),
        )
    }

    /// Whether nothing passes to or from `pod` at `at`.
    pub fn cut_off(&self, pod: usize, at: u64) -> bool {
        self.0
            .iter()
            .any(|(from, to, below)| (*from..*to).contains(&at) && pod < *below)
    }
}
