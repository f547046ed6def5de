//! Databricks' limiter of 2025, and bucket4j's delayed sync with time alone: each pod mirrors the whole bucket and reports
//! its admitted cells every 100 ms; the bucket in the store can go negative.
//!
//! Modelled: a pod decides by its own TAT, as if the whole bucket were its own. Every 100 ms it reports, in one call, each
//! key of which it admitted cells, and adds the cells that it has admitted since to the answer. The store books every
//! reported cell as debt without a cap. No call comes early, and there is no news, so a pod without a report learns
//! nothing. While the store is unreachable, pods decide by what they know and keep their unreported cells; bucket4j would
//! forget them.

use std::collections::{BTreeMap, VecDeque};

use tidegate_core::pure::Limit;

use super::Key;
use super::levels::Levels;
use super::mailbox::{Mailbox, MailboxCheck, PeriodicDesign};
use crate::scenario::Scenario;

const MS: u64 = 1_000_000;

#[derive(Debug)]
struct DebtPod {
    levels: Levels,
    /// Unreported cells.
    unsent: BTreeMap<Key, u64>,
    /// The cells of unanswered calls, the oldest first. Answers come in the order of the calls.
    unanswered: VecDeque<BTreeMap<Key, u64>>,
}

impl DebtPod {
    /// The cells admitted since the last answered call.
    fn since(&self, key: Key) -> u64 {
        let unreported = self.unanswered.iter().chain([&self.unsent]);
        unreported.filter_map(|cells| cells.get(&key)).sum()
    }
}

/// A message from a pod with cells, or to it with levels.
#[derive(Debug)]
pub enum DebtMessage {
    Cells {
        pod: usize,
        of: BTreeMap<Key, u64>,
    },
    Levels {
        pod: usize,
        of: BTreeMap<Key, u64>,
        asof: u64,
    },
}

/// The fleet and its store.
#[derive(Debug)]
pub struct DebtOnly {
    pods: Vec<DebtPod>,
    store: Levels,
}

impl DebtOnly {
    pub fn new(scenario: &Scenario, limit: Limit) -> Self {
        let pod = |_| DebtPod {
            levels: Levels::new(limit),
            unsent: BTreeMap::new(),
            unanswered: VecDeque::new(),
        };
        Self {
            pods: (0..scenario.pods).map(pod).collect(),
            store: Levels::new(limit),
        }
    }
}

impl PeriodicDesign for DebtOnly {
    type Message = DebtMessage;
    const EVERY: u64 = 100 * MS;

    fn check(
        &mut self,
        pod: usize,
        check: MailboxCheck,
        mailbox: &mut Mailbox<DebtMessage>,
    ) -> bool {
        let MailboxCheck { key, cells } = check;
        let pod = &mut self.pods[pod];
        let admitted = pod.levels.admit(key, cells, mailbox.now);
        if admitted {
            *pod.unsent.entry(key).or_default() += cells;
        }
        admitted
    }

    fn turn(&mut self, number: usize, mailbox: &mut Mailbox<DebtMessage>) {
        let pod = &mut self.pods[number];
        if !pod.unsent.is_empty() && mailbox.calls(number, pod.unsent.len()) {
            let of = std::mem::take(&mut pod.unsent);
            pod.unanswered.push_back(of.clone());
            mailbox.send(DebtMessage::Cells { pod: number, of });
        }
    }

    fn arrived(&mut self, message: DebtMessage, mailbox: &mut Mailbox<DebtMessage>) {
        let now = mailbox.now;
        match message {
            DebtMessage::Cells { pod, mut of } => {
                for (key, cells) in &mut of {
                    *cells = self.store.owe(*key, *cells, now);
                }
                mailbox.send(DebtMessage::Levels { pod, of, asof: now });
            }
            DebtMessage::Levels { pod, of, asof } => {
                let pod = &mut self.pods[pod];
                pod.unanswered.pop_front();
                for (key, level) in of {
                    let since = pod.levels.price(pod.since(key));
                    pod.levels.set(key, level.saturating_add(since), asof);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::baselines::Baseline::DebtOnly;
    use crate::baselines::trial::{Trial, at};

    #[test]
    fn what_was_too_much_is_paid_back() {
        let mut trial = Trial::new(DebtOnly, 4, "10/second", "");
        let asked = (0..4).map(|pod| at(0).pod(pod).times(100));
        assert_eq!(
            asked.map(|asked| trial.ask(asked)).sum::<u64>(),
            40,
            "at first nobody knows"
        );
        let later = (1..200).map(|nth| at(nth * 50).pod(nth));
        let admitted: u64 = later.map(|asked| trial.ask(asked)).sum();
        assert!(
            (65..=75).contains(&admitted),
            "{admitted}: of 110 in ten seconds, 40 were gone"
        );
    }

    #[test]
    fn only_admitted_cells_are_reported_and_in_one_call() {
        let mut trial = Trial::new(DebtOnly, 2, "10/second", "");
        trial.ask(at(0).pod(0).times(100));
        trial.ask(at(0).pod(0).key(1).times(100));
        trial.ask(at(1).pod(1).cells(11));
        trial.run_until(5_000);
        let cost = trial.cost();
        assert_eq!(
            (cost.calls, cost.updates, cost.waits, cost.news),
            (1, 2, 0, 0)
        );
    }

    #[test]
    fn unreported_cells_stay_in_the_level() {
        // The answer takes a second: what is admitted meanwhile must not be forgotten when it comes.
        let mut trial = Trial::new(DebtOnly, 1, "100/minute", "network: { rtt: 1s }");
        assert_eq!(trial.ask(at(0).times(50)), 50);
        assert_eq!(trial.ask(at(500).times(30)), 30, "it is under way");
        assert_eq!(
            trial.ask(at(1_200).times(100)),
            21,
            "one cell has drained since the store was told"
        );
    }

    #[test]
    fn without_a_store_each_pod_grants_the_whole_limit_and_owes_it_afterwards() {
        let fault = "faults: [{ at: 0s, for: 2s, cut: all }]";
        let mut trial = Trial::new(DebtOnly, 2, "10/second", fault);
        let asked = |trial: &mut Trial, ms| {
            (0..2)
                .map(|pod| trial.ask(at(ms).pod(pod).times(100)))
                .sum::<u64>()
        };
        assert_eq!(asked(&mut trial, 0), 20);
        assert_eq!(asked(&mut trial, 1_000), 20);
        assert_eq!(asked(&mut trial, 1_950), 18);
        assert_eq!(
            asked(&mut trial, 2_200),
            0,
            "the store has 58 cells, and each pod's share of them"
        );
        assert_eq!(trial.cost().lost, 0);
    }
}
