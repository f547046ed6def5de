//! Gubernator's GLOBAL behaviour with leaky buckets: an owner for each key, and a copy on every other pod.
//!
//! Modelled: a pod that does not own the key decides by its own copy, which drains at the full rate, and queues the
//! hits, denied ones as well; every 100 ms it sends them to the owners, one call each. The owner applies them with
//! `DRAIN_OVER_LIMIT`: what does not fit is forgotten, so there is no debt. Every 100 ms the owner broadcasts the level
//! of each key that was hit, in whole cells, to all others, which put it in place of their own and so forget what they
//! have admitted since. Hits that cannot be sent are dropped. Left out: batches are not cut at 1000 keys, and an owner
//! that is slow delays nobody.

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::pure::{Limit, Span};

use super::Key;
use super::levels::Levels;
use super::mailbox::{Mailbox, MailboxCheck, PeriodicDesign};
use crate::random::mix;
use crate::scenario::Scenario;

const MS: u64 = 1_000_000;

/// Requested cells, and the admitted part of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct QueuedHits {
    requested: u64,
    admitted: u64,
}

#[derive(Debug)]
struct GubernatorPod {
    levels: Levels,
    /// The queued hits on keys of other pods, by owner.
    hits: BTreeMap<usize, BTreeMap<Key, QueuedHits>>,
    /// Own keys to broadcast.
    hit: BTreeSet<Key>,
}

/// A message from pod to pod.
#[derive(Debug)]
pub enum GubernatorMessage {
    Hits {
        owner: usize,
        of: BTreeMap<Key, QueuedHits>,
    },
    /// The level of each key, for all but their owner.
    Levels { owner: usize, of: Vec<(Key, u64)> },
}

/// The fleet. It has no store.
#[derive(Debug)]
pub struct Gubernator {
    limit: Limit,
    pods: Vec<GubernatorPod>,
}

impl Gubernator {
    pub fn new(scenario: &Scenario, limit: Limit) -> Self {
        let pod = |_| GubernatorPod {
            levels: Levels::new(limit),
            hits: BTreeMap::new(),
            hit: BTreeSet::new(),
        };
        Self {
            limit,
            pods: (0..scenario.pods).map(pod).collect(),
        }
    }

    fn owner(&self, (load, key): Key) -> usize {
        let hash = mix((load as u64) << 32 ^ u64::from(key));
        usize::try_from(hash % (self.pods.len() as u64).max(1)).unwrap_or(0)
    }

    /// Sends the queued hits, one call to each owner.
    fn send_hits(&mut self, number: usize, mailbox: &mut Mailbox<GubernatorMessage>) {
        for (owner, of) in std::mem::take(&mut self.pods[number].hits) {
            if mailbox.calls(number, of.len()) && mailbox.passes(owner) {
                mailbox.send(GubernatorMessage::Hits { owner, of });
            } else {
                mailbox.cost.lost += of.values().map(|hits| hits.admitted).sum::<u64>();
            }
        }
    }

    /// Broadcasts the levels of the keys that were hit.
    fn broadcast(&mut self, owner: usize, mailbox: &mut Mailbox<GubernatorMessage>) {
        let keys = std::mem::take(&mut self.pods[owner].hit);
        if keys.is_empty() || !mailbox.passes(owner) {
            return;
        }
        mailbox.cost.news += 1;
        mailbox.cost.messages += self.pods.len() as u64 - 1;
        let level = |key: Key| self.whole_cells(self.pods[owner].levels.level(key, mailbox.now));
        let of = keys.into_iter().map(|key| (key, level(key))).collect();
        mailbox.send(GubernatorMessage::Levels { owner, of });
    }

    /// Rounds a level up, so that a whole number of cells is left.
    fn whole_cells(&self, level: u64) -> u64 {
        let left = self.limit.room(Span::nanos(level));
        self.limit
            .capacity()
            .less(self.limit.interval().times(left))
            .get()
    }
}

impl PeriodicDesign for Gubernator {
    type Message = GubernatorMessage;
    const EVERY: u64 = 100 * MS;

    fn check(
        &mut self,
        number: usize,
        check: MailboxCheck,
        mailbox: &mut Mailbox<GubernatorMessage>,
    ) -> bool {
        let MailboxCheck { key, cells } = check;
        let owner = self.owner(key);
        let pod = &mut self.pods[number];
        let admitted = pod.levels.admit(key, cells, mailbox.now);
        if owner == number {
            pod.hit.insert(key);
        } else {
            let hits = pod.hits.entry(owner).or_default().entry(key).or_default();
            hits.requested += cells;
            hits.admitted += if admitted { cells } else { 0 };
        }
        admitted
    }

    fn turn(&mut self, pod: usize, mailbox: &mut Mailbox<GubernatorMessage>) {
        self.send_hits(pod, mailbox);
        self.broadcast(pod, mailbox);
    }

    fn arrived(&mut self, message: GubernatorMessage, mailbox: &mut Mailbox<GubernatorMessage>) {
        let now = mailbox.now;
        match message {
            GubernatorMessage::Hits { owner, of } => {
                let owner = &mut self.pods[owner];
                for (key, hits) in of {
                    owner.levels.fill(key, hits.requested, now);
                    owner.hit.insert(key);
                }
            }
            GubernatorMessage::Levels { owner, of } => {
                let others = self
                    .pods
                    .iter_mut()
                    .enumerate()
                    .filter(|(number, _)| *number != owner);
                for (_, pod) in others.filter(|(number, _)| mailbox.passes(*number)) {
                    for (key, level) in &of {
                        pod.levels.set(*key, *level, now);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::baselines::Baseline::Gubernator;
    use crate::baselines::trial::{Trial, at};
    use crate::random::mix;

    /// What so many pods admit of a key in ten seconds, each of them asked every millisecond.
    fn admitted(trial: &mut Trial, pods: u64) -> u64 {
        let asked = (0..10_000).flat_map(|ms| (0..pods).map(move |pod| at(ms).pod(pod)));
        asked.map(|asked| trial.ask(asked)).sum()
    }

    #[test]
    fn one_pod_alone_is_exact() {
        let mut trial = Trial::new(Gubernator, 1, "100/second", "");
        assert_eq!(admitted(&mut trial, 1), 100 + 999);
        assert_eq!(trial.cost().calls, 0);
    }

    #[test]
    fn what_does_not_fit_is_forgotten_for_ever() {
        let mut trial = Trial::new(Gubernator, 5, "100/second", "");
        let admitted = admitted(&mut trial, 5);
        // Every copy drains at the full rate between two broadcasts.
        assert!(admitted > 4 * 1_000, "{admitted} of 1100");
    }

    #[test]
    fn a_broadcast_overwrites_the_pods_own_level() {
        let mut trial = Trial::new(Gubernator, 2, "100/minute", "network: { rtt: 2s }");
        let key = (0..100)
            .find(|key| mix(u64::from(*key)).is_multiple_of(2))
            .unwrap();
        trial.ask(at(0).key(key).pod(0));
        assert_eq!(trial.ask(at(0).key(key).pod(1).times(200)), 100);
        // The owner's one cell arrives while the hundred are still on their way to it.
        assert_eq!(trial.ask(at(1_150).key(key).pod(1).times(200)), 99);
        // What the owner says next has them.
        assert_eq!(trial.ask(at(3_200).key(key).pod(1).times(200)), 1);
    }

    #[test]
    fn a_cut_drops_hits_and_news() {
        let fault = "faults: [{ at: 0s, for: 10s, cut: all }]";
        let mut trial = Trial::new(Gubernator, 3, "100/second", fault);
        assert_eq!(admitted(&mut trial, 3), 3 * 1_099, "each pod for itself");
        assert!(
            trial.cost().lost > 2_000 && trial.cost().news == 0,
            "{:?}",
            trial.cost()
        );
    }

    #[test]
    fn a_broadcast_goes_to_all_others_and_hits_of_a_turn_share_a_call() {
        let mut trial = Trial::new(Gubernator, 4, "100/second", "");
        (0..4).for_each(|pod| {
            trial.ask(at(0).pod(pod).times(3));
        });
        trial.run_until(99);
        trial.run_until(150);
        let cost = trial.cost();
        assert_eq!(
            (cost.calls, cost.updates, cost.waits),
            (3, 3, 0),
            "all but the owner"
        );
        assert_eq!(cost.messages, 3 * cost.news);
        assert!(
            (1..=2).contains(&cost.news),
            "{} of an owner in two turns at most",
            cost.news
        );
    }
}
