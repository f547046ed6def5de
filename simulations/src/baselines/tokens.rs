//! Envoy's local limit: independent token buckets for each key and pod, filled in steps. `even_split.rs` and `per_pod.rs`
//! say how much a step fills.
//!
//! A pod fills all its buckets at the same instants, every window of the limit since its start; buckets start full. Later
//! versions of Envoy fill continuously at the same rate; the steps are those of the version that was read.

use tidegate_core::pure::{Check, Limit};

use super::key_map::KeyMap;
use super::{Key, key, pod};
use crate::policy::{Cost, Policy};
use crate::random::SeededRandom;
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// The random stream for the start times of the pods.
const STARTS: u64 = 0xf111;

/// The tokens that a bucket lacks, as of a step.
#[derive(Debug, Default)]
struct TokenBucket {
    lacks: u64,
    step: u64,
}

impl TokenBucket {
    const fn lacks(&self, step: u64, fill: u64) -> u64 {
        self.lacks
            .saturating_sub(fill.saturating_mul(step - self.step))
    }
}

#[derive(Debug)]
struct TokenPod {
    /// Its age at the first check.
    age: u64,
    buckets: KeyMap<TokenBucket>,
}

/// A fleet of pods that limit alone.
#[derive(Debug)]
pub struct TokenFleet {
    every: u64,
    /// Tokens for each step, and at most.
    fill: u64,
    max: u64,
    pods: Vec<TokenPod>,
}

impl TokenFleet {
    /// A fleet with `limit`, each pod of which gets `fill` tokens in each of its windows.
    pub fn new(scenario: &Scenario, limit: Limit, fill: u64, seed: u64) -> Self {
        let mut random = SeededRandom::new(seed, STARTS);
        let every = limit.window().get();
        let pod = |_| TokenPod {
            age: random.below(every),
            buckets: KeyMap::new(),
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
        *bucket = TokenBucket {
            lacks: if fits { lacks + cells } else { lacks },
            step,
        };
        fits
    }
}

impl Policy for TokenFleet {
    fn run_until(&mut self, _at: u64) {}

    fn check(&mut self, arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        let pod = pod(arrival, self.pods.len());
        Some(self.admit(pod, key(arrival), arrival.cost, arrival.at))
    }

    fn cost(&self) -> Cost {
        Cost::default()
    }
}
