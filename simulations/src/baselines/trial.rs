//! Runs a few checks against a baseline: common to the tests of all baselines.

use std::path::Path;

use tidegate_core::pure::{Cells, Check};

use super::{Baseline, fleet};
use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;

const MS: u64 = 1_000_000;

/// A fleet under test.
pub struct Trial(Box<dyn Policy>);

/// One check, repeated so many times.
#[derive(Clone, Copy)]
pub struct TrialChecks {
    arrival: Arrival,
    times: u64,
}

/// One check of one cell at pod 0, so many milliseconds after the start. The start is the start of a second, and of every
/// window of up to 20 seconds that the tests use.
pub const fn at(ms: u64) -> TrialChecks {
    TrialChecks {
        arrival: Arrival {
            at: ms * MS,
            pod: 0,
            load: 0,
            subject: 0,
            key: 0,
            cost: 1,
        },
        times: 1,
    }
}

impl TrialChecks {
    pub const fn pod(mut self, pod: u64) -> Self {
        self.arrival.pod = pod;
        self
    }

    pub const fn key(mut self, key: u32) -> Self {
        self.arrival.key = key;
        self
    }

    pub const fn cells(mut self, cells: u64) -> Self {
        self.arrival.cost = cells;
        self
    }

    pub const fn times(mut self, times: u64) -> Self {
        self.times = times;
        self
    }
}

impl Trial {
    /// So many pods with one limit; `more` are more sections of the scenario.
    pub fn new(baseline: Baseline, pods: usize, limit: &str, more: &str) -> Self {
        let text = format!(
            "why: To try it.\npods: {pods}\nlasts: 60s\n\
             rules: [{{ domain: api, descriptors: [{{ key: client, rate_limit: {limit} }}] }}]\n\
             load: [{{ checks_per_second: 1 }}]\nexpect: []\n{more}\n"
        );
        let scenario = Scenario::parse(Path::new("trial.yaml"), &text).unwrap();
        let limit = scenario.only_limit().unwrap();
        Self(fleet(baseline, &scenario, limit, 1))
    }

    /// The number of admitted checks.
    pub fn ask(&mut self, checks: TrialChecks) -> u64 {
        let arrival = checks.arrival;
        let check = Check {
            domain: "api",
            cost: Cells::new(arrival.cost),
            peek: false,
            descriptors: &[],
        };
        self.0.run_until(arrival.at);
        let decisions = (0..checks.times).map(|_| self.0.check(&arrival, &check));
        decisions.filter(|decision| *decision == Some(true)).count() as u64
    }

    pub fn run_until(&mut self, ms: u64) {
        self.0.run_until(ms * MS);
    }

    pub fn cost(&self) -> Cost {
        self.0.cost()
    }
}
