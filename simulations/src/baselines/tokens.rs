//! Token buckets that are filled in steps, one for each key and pod, which know nothing of each other: Envoy's local
//! limit. `even_split.rs` and `per_pod.rs` say how much a step is.
//!
//! A pod's buckets are filled at the same instants, every window of the limit since the pod started, and start full.
//! Later versions of Envoy fill all the time at the same rate; the steps are those of the version that was read.

use tidegate_core::pure::{Check, Limit};

use super::kept::Kept;
use super::{Key, key, pod};
use crate::dice::Dice;
use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// The stream of random numbers that says when pods started.
const STARTS: u64 = 0xf111;

/// A bucket lacks so many tokens since so many steps.
#[derive(Debug, Default)]
struct Bucket {
    lacks: u64,
    step: u64,
}

impl Bucket {
    const fn lacks(&self, step: u64, fill: u64) -> u64 {
        self.lacks
            .saturating_sub(fill.saturating_mul(step - self.step))
    }
}

#[derive(Debug)]
struct Pod {
    /// How long before the first check it started.
    age: u64,
    buckets: Kept<Bucket>,
}

/// A fleet of pods that limit alone.
#[derive(Debug)]
pub struct Tokens {
    every: u64,
    /// Tokens for each step, and at most.
    fill: u64,
    max: u64,
    pods: Vec<Pod>,
}

impl Tokens {
    /// A fleet with `limit`, each pod of which gets `fill` tokens in each of its windows.
    pub fn new(scenario: &Scenario, limit: Limit, fill: u64, seed: u64) -> Self {
        let mut dice = Dice::new(seed, STARTS);
        let every = limit.window().get();
        let pod = |_| Pod {
            age: dice.below(every),
            buckets: Kept::new(),
        };
        Self {
            every,
            fill,
            max: limit.burst().get(),
            pods: (0..scenario.pods).map(pod).collect(),
        }
    }

    fn admit(&mut self, pod: usize, key: Key, cells: u64, at: u64) -> bool {
        let pod = &mut self.pods[pod];
        let (step, fill) = ((pod.age + at) / self.every, self.fill);
        let bucket = pod
            .buckets
            .entry(key, |bucket| bucket.lacks(step, fill) > 0);
        let lacks = bucket.lacks(step, fill);
        let fits = cells <= self.max.saturating_sub(lacks);
        *bucket = Bucket {
            lacks: if fits { lacks + cells } else { lacks },
            step,
        };
        fits
    }
}

impl Policy for Tokens {
    fn run_until(&mut self, _at: u64) {}

    fn check(&mut self, arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        let pod = pod(arrival, self.pods.len());
        Some(self.admit(pod, key(arrival), arrival.cost, arrival.at))
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }
}
