//! envoyproxy/ratelimit: a counter for each key and fixed window in the store, and a call for every check.
//!
//! Modelled: `INCRBY` whatever the answer will be, so a denied check counts as well; the window is that of the moment
//! at which the call is at the store; a key that was over its limit is remembered by the pod until its window ends
//! (the optional local cache), and denied without a call from the moment the answer came. A check that gets no answer
//! passes, which is Envoy's default. The store's own queue, and so how long a caller waits, is not modelled.

use tidegate_core::pure::{Check, Limit};

use super::kept::Kept;
use super::outages::Outages;
use super::{key, pod, window};
use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// Cells that were asked for in a window.
#[derive(Debug, Default)]
struct Count {
    window: u64,
    cells: u64,
}

/// A window in which a key is over its limit, and since when the pod knows.
#[derive(Debug, Default)]
struct Over {
    window: u64,
    since: u64,
}

/// The fleet and its store.
#[derive(Debug)]
pub struct Central {
    limit: Limit,
    way: u64,
    outages: Outages,
    store: Kept<Count>,
    /// By pod.
    over: Vec<Kept<Over>>,
    cost: Cost,
    /// The pod that was asked last.
    asked: usize,
}

impl Central {
    pub fn new(scenario: &Scenario, limit: Limit) -> Self {
        Self {
            limit,
            way: scenario.network.rtt.nanos() / 2,
            outages: Outages::of(scenario),
            store: Kept::new(),
            over: (0..scenario.pods).map(|_| Kept::new()).collect(),
            cost: Cost::default(),
            asked: 0,
        }
    }

    /// Counts `arrival` in the store, and answers the window and whether it is within the limit.
    fn count(&mut self, arrival: &Arrival) -> (u64, bool) {
        let (window, _) = window(&self.limit, arrival.at + self.way);
        let count = self
            .store
            .entry(key(arrival), |count| count.window == window);
        if count.window != window {
            *count = Count { window, cells: 0 };
        }
        count.cells = count.cells.saturating_add(arrival.cost);
        (window, count.cells <= self.limit.requests())
    }
}

impl Policy for Central {
    fn run_until(&mut self, _at: u64) {}

    fn check(&mut self, arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        let pod = pod(arrival, self.over.len());
        self.asked = pod;
        let (now, _) = window(&self.limit, arrival.at);
        let known = |over: &Over| over.window == now && over.since <= arrival.at;
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
                *over = Over {
                    window,
                    since: arrival.at + 2 * self.way,
                };
            }
        }
        Some(allowed)
    }

    /// `hits_addend` of the same descriptor, negative: a call like any other. It counts in the window that it comes in.
    fn refund(&mut self, asked: usize, arrival: &Arrival, _check: &Check<'_>) {
        self.cost.calls += 1;
        self.cost.updates += 1;
        if self.outages.cut_off(asked, arrival.at) {
            return;
        }
        let (window, _) = window(&self.limit, arrival.at + self.way);
        let count = self
            .store
            .entry(key(arrival), |count| count.window == window);
        if count.window == window {
            count.cells = count.cells.saturating_sub(arrival.cost);
        }
        // What the pod remembers of a key that was over its limit goes by the count again.
        self.over[asked].entry(key(arrival), |_| true).window = 0;
    }

    fn asked(&self) -> usize {
        self.asked
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
