//! When nothing passes between a pod and the store, or in a fleet without a store between a pod and the others.
//!
//! Of the scenario's faults these are known: a cut, and a store that hangs, restarts or fails over. The store is then
//! away for that time and still has what it had. The other faults, and those that are drawn by lot, are left out: they
//! would only make a peer worse.

use crate::scenario::{Scenario, What, Whom};

/// From when until when, and for the pods below which number.
#[derive(Debug)]
pub struct Outages(Vec<(u64, u64, usize)>);

impl Outages {
    pub fn of(scenario: &Scenario) -> Self {
        let cut_off = |what: &What| match what {
            What::Cut(Whom::Some(pods)) => Some(*pods),
            What::Cut(Whom::All) | What::Hang | What::Restart(_) | What::Failover(_) => {
                Some(usize::MAX)
            }
            What::Lose(_)
            | What::LoseAnswers(_)
            | What::LoseNews(_)
            | What::Slow(_)
            | What::Join(_)
            | What::Leave(_)
            | What::Crash(_)
            | What::Pause(_)
            | What::Roll(_)
            | What::StoreClock(_)
            | What::Calendars(_)
            | What::Reload(_)
            | What::Reset(_)
            | What::Forge(..) => None,
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
