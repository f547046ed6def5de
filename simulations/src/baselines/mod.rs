//! Other limiters, modelled from their documentation and source, to run against the same checks.
//!
//! Each model covers the decisions and the traffic. Where a model is simpler than the peer, that favours the peer. All of
//! them have one limit, and pods neither join nor leave. Only the central one takes refunds: the others have none. The
//! network takes half a round trip each way, without jitter, and loses nothing; `outages.rs` says when nothing passes.

mod central;
mod debt_only;
mod even_split;
mod gubernator;
mod key_map;
mod levels;
mod limitador;
mod mailbox;
mod outages;
mod per_pod;
mod tokens;
#[cfg(test)]
mod trial;

use tidegate_core::pure::{Check, Limit};

use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;
use crate::world::EPOCH;
use central::Central;
use debt_only::DebtOnly;
use gubernator::Gubernator;
use limitador::Limitador;
use mailbox::Periodic;

/// A key: the number of its load, and its own there.
type Key = (usize, u32);

/// Another way of limiting a fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Baseline {
    Limitador,
    Gubernator,
    EvenSplit,
    PerPod,
    Central,
    DebtOnly,
}

impl Baseline {
    pub const ALL: [Self; 6] = [
        Self::Limitador,
        Self::Gubernator,
        Self::EvenSplit,
        Self::PerPod,
        Self::Central,
        Self::DebtOnly,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Limitador => "periodic sync, fixed windows (Limitador redis_cached)",
            Self::Gubernator => "mirror without debt (Gubernator GLOBAL)",
            Self::EvenSplit => "even split 1/N (Envoy local cluster limit)",
            Self::PerPod => "per-pod limits (Envoy local)",
            Self::Central => "central, a call per check (envoyproxy/ratelimit)",
            Self::DebtOnly => "debt only (Databricks, bucket4j)",
        }
    }

    /// Its name on the command line.
    pub const fn short(self) -> &'static str {
        match self {
            Self::Limitador => "limitador",
            Self::Gubernator => "gubernator",
            Self::EvenSplit => "even-split",
            Self::PerPod => "per-pod",
            Self::Central => "central",
            Self::DebtOnly => "debt-only",
        }
    }
}

/// A fleet under this baseline, in which every key has `limit`.
pub fn fleet(baseline: Baseline, scenario: &Scenario, limit: Limit, seed: u64) -> Box<dyn Policy> {
    match baseline {
        Baseline::Limitador => Box::new(Periodic::new(
            Limitador::new(scenario, limit),
            scenario,
            seed,
        )),
        Baseline::Gubernator => Box::new(Periodic::new(
            Gubernator::new(scenario, limit),
            scenario,
            seed,
        )),
        Baseline::EvenSplit => Box::new(even_split::fleet(scenario, limit, seed)),
        Baseline::PerPod => Box::new(per_pod::fleet(scenario, limit, seed)),
        Baseline::Central => Box::new(Central::new(scenario, limit)),
        Baseline::DebtOnly => Box::new(Periodic::new(
            DebtOnly::new(scenario, limit),
            scenario,
            seed,
        )),
    }
}

const fn key(arrival: &Arrival) -> Key {
    (arrival.subject, arrival.key)
}

/// The pod of a check, among so many.
fn pod(arrival: &Arrival, pods: usize) -> usize {
    usize::try_from(arrival.pod % (pods as u64).max(1)).unwrap_or(0)
}

/// The number of the window of `limit` that `at` is in, and when it ends. Windows are aligned to the Unix epoch.
const fn window(limit: &Limit, at: u64) -> (u64, u64) {
    let length = limit.window().get();
    let number = (EPOCH + at) / length;
    (number, (number + 1).saturating_mul(length) - EPOCH)
}

impl Policy for Box<dyn Policy> {
    fn run_until(&mut self, at: u64) {
        (**self).run_until(at);
    }

    fn check(&mut self, arrival: &Arrival, check: &Check<'_>) -> Option<bool> {
        (**self).check(arrival, check)
    }

    fn last_pod(&self) -> usize {
        (**self).last_pod()
    }

    fn refund(&mut self, pod: usize, arrival: &Arrival, check: &Check<'_>) {
        (**self).refund(pod, arrival, check);
    }

    fn cost(&self) -> Cost {
        (**self).cost()
    }

    fn end(&mut self) -> Vec<String> {
        (**self).end()
    }
}
