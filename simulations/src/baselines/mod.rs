//! What others do, from their documentation and source: to be run against the same checks.

use tidegate::pure::Check;

use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// Somebody else's way of limiting a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    PerPod,
}

impl Baseline {
    pub const ALL: [Self; 1] = [Self::PerPod];

    pub const fn name(self) -> &'static str {
        match self {
            Self::PerPod => "per-pod limits (Envoy local)",
        }
    }
}

/// A fleet that is limited that way.
pub fn fleet(baseline: Baseline, scenario: &Scenario, seed: u64) -> Box<dyn Policy> {
    let _ = (baseline, scenario, seed);
    Box::new(Nothing)
}

struct Nothing;

impl Policy for Nothing {
    fn run_until(&mut self, _at: u64) {}
    fn check(&mut self, _arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        Some(true)
    }
    fn cost(&self) -> Cost {
        Cost::default()
    }
}

impl Policy for Box<dyn Policy> {
    fn run_until(&mut self, at: u64) {
        (**self).run_until(at);
    }

    fn check(&mut self, arrival: &Arrival, check: &Check<'_>) -> Option<bool> {
        (**self).check(arrival, check)
    }

    fn cost(&self) -> Cost {
        (**self).cost()
    }
}
