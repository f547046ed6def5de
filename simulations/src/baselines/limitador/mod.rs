//! Limitador's `redis_cached`: fixed windows, counted in each pod's cache and brought to the store once a second.
//!
//! Modelled: a pod decides by what it knows of the window; only what it admitted is sent, at most 100 counters in a
//! call and one call at a time; the answer is the window's total, to which what was admitted since is added. A call goes
//! out every second, at once when 100 counters wait for it, and at once for a counter that is urgent
//! (`requires_fast_flush`): one that was never answered, or whose window ends within that second. So a limit by the
//! second is always urgent, and then costs about a call for each round trip. What is too much is forgotten with its
//! window, and so is what was not sent. While the store is away each pod goes on alone and tries once a second.
//! Windows are aligned to the epoch; Limitador's begin with a key's first check.

use std::collections::BTreeSet;

use tidegate_core::pure::Limit;

use super::kept::Kept;
use super::post::{Design, Post};
use super::{Key, window};
use crate::scenario::Scenario;

const SECOND: u64 = 1_000_000_000;
/// Counters in one call.
const BATCH_MAX: usize = 100;

/// What a pod knows of a key in one window.
#[derive(Debug, Default)]
struct Counter {
    window: u64,
    /// Cells, with those that were not sent.
    cells: u64,
    unsent: u64,
    /// Whether the store ever answered.
    answered: bool,
}

/// What the store knows of a key in one window.
#[derive(Debug, Default)]
struct Total {
    window: u64,
    cells: u64,
}

#[derive(Debug)]
struct Pod {
    counters: Kept<Counter>,
    /// Of which something is unsent.
    pending: BTreeSet<Key>,
    /// Whether one of them was urgent when it was last added to.
    urgent: bool,
    /// Whether a call is under way, or failed since the last turn: no other is made.
    under_way: bool,
    failed: bool,
}

/// Cells of a key, in one window.
#[derive(Clone, Copy, Debug)]
pub struct Cells {
    key: Key,
    window: u64,
    cells: u64,
}

/// From a pod or to it: cells to add, or totals.
#[derive(Debug)]
pub enum Message {
    Add { pod: usize, of: Vec<Cells> },
    Totals { pod: usize, of: Vec<Cells> },
}

/// The fleet and its store.
#[derive(Debug)]
pub struct Limitador {
    limit: Limit,
    pods: Vec<Pod>,
    store: Kept<Total>,
}

impl Limitador {
    pub fn new(scenario: &Scenario, limit: Limit) -> Self {
        let pod = |_| Pod {
            counters: Kept::new(),
            pending: BTreeSet::new(),
            urgent: false,
            under_way: false,
            failed: false,
        };
        Self {
            limit,
            pods: (0..scenario.pods).map(pod).collect(),
            store: Kept::new(),
        }
    }

    /// Sends the next batch, if there is a reason to and nothing in the way.
    fn send_early(&mut self, number: usize, post: &mut Post<Message>) {
        let pod = &self.pods[number];
        let free = !pod.under_way && !pod.failed;
        if free && (pod.urgent || pod.pending.len() >= BATCH_MAX) {
            self.send(number, post);
        }
    }

    fn send(&mut self, number: usize, post: &mut Post<Message>) {
        let (now, ends) = window(&self.limit, post.now);
        let pod = &mut self.pods[number];
        pod.urgent = false;
        let (mut urgent, mut others) = (Vec::new(), Vec::new());
        for key in std::mem::take(&mut pod.pending) {
            let Some(counter) = pod.counters.get_mut(key) else {
                continue;
            };
            if counter.window != now {
                post.cost.lost += std::mem::take(&mut counter.unsent);
                continue;
            }
            pod.pending.insert(key);
            match counter.is_urgent(ends - post.now) {
                true => urgent.push(key),
                false => others.push(key),
            }
        }
        urgent.extend(others);
        urgent.truncate(BATCH_MAX);
        if urgent.is_empty() {
            return;
        }
        pod.failed = !post.calls(number, urgent.len());
        if !pod.failed {
            pod.under_way = true;
            let of = urgent.into_iter().filter_map(|key| pod.take(key)).collect();
            post.send(Message::Add { pod: number, of });
        }
    }

    fn add(&mut self, cells: Cells, now: u64) -> Cells {
        let total = self.store.entry(cells.key, |total| total.window >= now);
        if total.window < cells.window {
            *total = Total {
                window: cells.window,
                cells: 0,
            };
        }
        if total.window == cells.window {
            total.cells = total.cells.saturating_add(cells.cells);
        }
        Cells {
            window: total.window,
            cells: total.cells,
            ..cells
        }
    }
}

impl Pod {
    /// What there is to send of `key`.
    fn take(&mut self, key: Key) -> Option<Cells> {
        self.pending.remove(&key);
        let counter = self.counters.get_mut(key)?;
        let cells = std::mem::take(&mut counter.unsent);
        Some(Cells {
            key,
            window: counter.window,
            cells,
        })
    }

    fn fold(&mut self, total: Cells) {
        if let Some(counter) = self.counters.get_mut(total.key) {
            counter.answered = true;
            if counter.window == total.window {
                counter.cells = total.cells.saturating_add(counter.unsent);
            }
        }
    }
}

impl Counter {
    /// Whether it is to be sent at once, in a window that ends so soon.
    const fn is_urgent(&self, ends_in: u64) -> bool {
        !self.answered || ends_in <= Limitador::EVERY
    }
}

impl Design for Limitador {
    type Message = Message;
    const EVERY: u64 = SECOND;

    fn check(&mut self, number: usize, (key, cells): (Key, u64), post: &mut Post<Message>) -> bool {
        let (now, ends) = window(&self.limit, post.now);
        let pod = &mut self.pods[number];
        let counter = pod
            .counters
            .entry(key, |counter| counter.window == now || counter.unsent > 0);
        if counter.window != now {
            post.cost.lost += counter.unsent;
            *counter = Counter {
                window: now,
                cells: 0,
                unsent: 0,
                answered: counter.answered,
            };
            pod.pending.remove(&key);
        }
        if counter.cells.saturating_add(cells) > self.limit.requests() {
            return false;
        }
        counter.cells += cells;
        counter.unsent += cells;
        pod.pending.insert(key);
        pod.urgent |= counter.is_urgent(ends - post.now);
        self.send_early(number, post);
        true
    }

    fn turn(&mut self, number: usize, post: &mut Post<Message>) {
        let pod = &mut self.pods[number];
        pod.failed = false;
        match pod.under_way {
            true => pod.urgent = true, // right after it
            false => self.send(number, post),
        }
    }

    fn arrived(&mut self, message: Message, post: &mut Post<Message>) {
        let (now, _) = window(&self.limit, post.now);
        match message {
            Message::Add { pod, of } => {
                let of = of.into_iter().map(|cells| self.add(cells, now)).collect();
                post.send(Message::Totals { pod, of });
            }
            Message::Totals { pod, of } => {
                self.pods[pod].under_way = false;
                of.into_iter().for_each(|total| self.pods[pod].fold(total));
                self.send_early(pod, post);
            }
        }
    }
}

#[cfg(test)]
mod tests;
