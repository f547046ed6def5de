//! envoyproxy/ratelimit: a counter for each key and fixed window in the store, and a call for every check.
//!
//! Modelled: the pod calls `INCRBY` before it knows the answer, so a denied check counts as well. The window is that of
//! the moment at which the call reaches the store. With the optional local cache, the pod remembers a key that is over its
//! limit until the window ends, and denies it without a call once the answer has come. A check without an answer passes,
//! which is Envoy's default. The store's own queue, and so how long a caller waits, is not modelled.

use tidegate_core::pure::{Check, Limit};

use super::key_map::KeyMap;
use super::outages::Outages;
use super::{key, pod, window};
use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// The requested cells of a window.
#[derive(Debug, Default)]
struct WindowCount {
    window: u64,
    cells: u64,
}

/// The window in which a key is over its limit, and since when the pod knows it.
#[derive(Debug, Default)]
struct OverLimit {
    window: u64,
    since: u64,
}

/// The fleet and its store.
#[derive(Debug)]
pub struct Central {
    limit: Limit,
    way: u64,
    outages: Outages,
    store: KeyMap<WindowCount>,
    /// By pod.
    over: Vec<KeyMap<OverLimit>>,
    cost: Cost,
    /// The pod of the last check.
    last_pod: usize,
}

impl Central {
    pub fn new(scenario: &Scenario, limit: Limit) -> Self {
        Self {
            limit,
            way: scenario.network.rtt.nanos() / 2,
            outages: Outages::of(scenario),
            store: KeyMap::new(),
            over: (0..scenario.pods).map(|_| KeyMap::new()).collect(),
            cost: Cost::default(),
            last_pod: 0,
        }
    }

    /// Counts `arrival` in the store. Returns the window, and whether the count is within the limit.
    fn count(&mut self, arrival: &Arrival) -> (u64, bool) {
        let (window, _) = window(&self.limit, arrival.at + self.way);
        let count = self
            .store
            .entry(key(arrival), |count| count.window == window);
        if count.window != window {
            *count = WindowCount { window, cells: 0 };
        }
        count.cells = count.cells.saturating_add(arrival.cost);
        (window, count.cells <= self.limit.requests())
    }
}

impl Policy for Central {
    fn run_until(&mut self, _at: u64) {}

    fn check(&mut self, arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        let pod = pod(arrival, self.over.len());
        self.last_pod = pod;
        let (now, _) = window(&self.limit, arrival.at);
        let known = |over: &OverLimit| over.window == now && over.since <= arrival.at;
        if self.over[pod].get(key(arrival)).is_some_and(known) {
            return Some(false);
        }
        self.cost.calls += 1;
        self.cost.updates += 1;
        self.cost.waits += 1;
        if self.outages.cut_off(pod, arrival.at) {
            self.cost.lost += arrival.cost;
            return Some(true);
        }
        let (window, allowed) = self.count(arrival);
        if !allowed {
            let over = self.over[pod].entry(key(arrival), |over| over.window >= now);
            if over.window != window {
                *over = OverLimit {
                    window,
                    since: arrival.at + 2 * self.way,
                };
            }
        }
        Some(allowed)
    }

    /// `hits_addend` of the same descriptor, negative: a call like any other. It counts in the window that it comes in.
    fn refund(&mut self, pod: usize, arrival: &Arrival, _check: &Check<'_>) {
        self.cost.calls += 1;
        self.cost.updates += 1;
        if self.outages.cut_off(pod, arrival.at) {
            return;
        }
        let (window, _) = window(&self.limit, arrival.at + self.way);
        let count = self
            .store
            .entry(key(arrival), |count| count.window == window);
        if count.window == window {
            count.cells = count.cells.saturating_sub(arrival.cost);
        }
        // The pod forgets that the key was over its limit, so that the count decides again.
        self.over[pod].entry(key(arrival), |_| true).window = 0;
    }

    fn last_pod(&self) -> usize {
        self.last_pod
    }

    fn cost(&self) -> Cost {
        self.cost
    }
}

#[cfg(test)]
mod tests {
    use crate::baselines::Baseline::Central;
    use crate::baselines::trial::{Trial, at};

    #[test]
    fn it_is_exact_inside_a_window_whatever_the_pod() {
        let mut trial = Trial::new(Central, 4, "10/second", "");
        let asked = (0..40).map(|nth| at(100 + nth).pod(nth));
        assert_eq!(asked.map(|asked| trial.ask(asked)).sum::<u64>(), 10);
        assert_eq!(trial.ask(at(999).pod(0)), 0);
        assert_eq!(
            trial.ask(at(1_000).times(30)),
            10,
            "and starts anew with the next"
        );
    }

    #[test]
    fn nobody_waits_for_a_denial_that_is_known() {
        let mut trial = Trial::new(Central, 2, "10/second", "");
        trial.ask(at(100).pod(0).times(13));
        assert_eq!(trial.cost().waits, 13, "the answer is not there yet");
        trial.ask(at(101).pod(0).times(50));
        assert_eq!(trial.cost().waits, 13);
        trial.ask(at(101).pod(1).times(1));
        assert_eq!(trial.cost().waits, 14, "another pod has to ask");
        trial.ask(at(1_000).pod(0).times(1));
        assert_eq!(
            trial.cost().waits,
            15,
            "and in the next window so has this one"
        );
        let cost = trial.cost();
        assert_eq!((cost.calls, cost.updates), (15, 15));
    }

    #[test]
    fn a_denied_check_counts() {
        let mut trial = Trial::new(Central, 1, "10/second", "");
        assert_eq!(trial.ask(at(0).cells(11)), 0);
        assert_eq!(trial.ask(at(0).cells(1)), 0);
    }

    #[test]
    fn without_a_store_everything_passes() {
        let mut trial = Trial::new(
            Central,
            2,
            "10/second",
            "faults: [{ at: 2s, for: 1s, restart: kept }]",
        );
        assert_eq!(trial.ask(at(1_990).times(100)), 10);
        assert_eq!(trial.ask(at(2_000).times(100)), 100);
        assert_eq!(trial.cost().lost, 100);
        assert_eq!(trial.ask(at(3_000).times(100)), 10);
    }

    #[test]
    fn only_the_first_pods_may_be_cut_off() {
        let mut trial = Trial::new(
            Central,
            2,
            "10/second",
            "faults: [{ at: 0s, for: 1s, cut: { some: 1 } }]",
        );
        assert_eq!(trial.ask(at(0).pod(0).times(100)), 100);
        assert_eq!(trial.ask(at(0).pod(1).times(100)), 10);
    }
}
