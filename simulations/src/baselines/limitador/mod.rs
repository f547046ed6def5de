//! Limitador's `redis_cached`: fixed windows, counted in each pod's cache and brought to the store once a second.
//!
//! Modelled: a pod decides by its own count of the window. It sends only admitted cells, at most 100 counters in a call and
//! one call at a time. The answer is the window's total, to which the pod adds the cells that it has admitted since. It
//! calls every second, at once when 100 counters wait, and at once for an urgent counter (`requires_fast_flush`): one that
//! was never answered, or whose window ends within that second. So a limit by the second is always urgent, and costs about
//! a call for each round trip. Overshoot and unsent cells are forgotten with their window. While the store is unreachable,
//! each pod counts alone and retries once a second. Windows are aligned to the epoch; Limitador's begin with a key's first
//! check.

use std::collections::BTreeSet;

use tidegate_core::pure::Limit;

use super::key_map::KeyMap;
use super::mailbox::{Mailbox, MailboxCheck, PeriodicDesign};
use super::{Key, window};
use crate::scenario::Scenario;

const SECOND: u64 = 1_000_000_000;
/// Counters in one call.
const BATCH_MAX: usize = 100;

/// What a pod knows of a key in one window.
#[derive(Debug, Default)]
struct LimitadorCounter {
    window: u64,
    /// All cells, the unsent ones included.
    cells: u64,
    unsent: u64,
    /// Whether the store ever answered.
    answered: bool,
}

/// What the store knows of a key in one window.
#[derive(Debug, Default)]
struct WindowTotal {
    window: u64,
    cells: u64,
}

#[derive(Debug)]
struct LimitadorPod {
    counters: KeyMap<LimitadorCounter>,
    /// The keys with unsent cells.
    pending: BTreeSet<Key>,
    /// Whether one of them was urgent at its last check.
    urgent: bool,
    /// Whether a call is in flight, or failed since the last turn. In both cases the pod makes no other call.
    under_way: bool,
    failed: bool,
}

/// Cells of a key, in one window.
#[derive(Clone, Copy, Debug)]
pub struct WindowCells {
    key: Key,
    window: u64,
    cells: u64,
}

/// A message from a pod with cells to add, or to it with totals.
#[derive(Debug)]
pub enum LimitadorMessage {
    Add { pod: usize, of: Vec<WindowCells> },
    Totals { pod: usize, of: Vec<WindowCells> },
}

/// The fleet and its store.
#[derive(Debug)]
pub struct Limitador {
    limit: Limit,
    pods: Vec<LimitadorPod>,
    store: KeyMap<WindowTotal>,
}

impl Limitador {
    pub fn new(scenario: &Scenario, limit: Limit) -> Self {
        let pod = |_| LimitadorPod {
            counters: KeyMap::new(),
            pending: BTreeSet::new(),
            urgent: false,
            under_way: false,
            failed: false,
        };
        Self {
            limit,
            pods: (0..scenario.pods).map(pod).collect(),
            store: KeyMap::new(),
        }
    }

    /// Sends the next batch, if it is urgent or full and no call is in flight.
    fn send_early(&mut self, number: usize, mailbox: &mut Mailbox<LimitadorMessage>) {
        let pod = &self.pods[number];
        let free = !pod.under_way && !pod.failed;
        if free && (pod.urgent || pod.pending.len() >= BATCH_MAX) {
            self.send(number, mailbox);
        }
    }

    fn send(&mut self, number: usize, mailbox: &mut Mailbox<LimitadorMessage>) {
        let (now, ends) = window(&self.limit, mailbox.now);
        let pod = &mut self.pods[number];
        pod.urgent = false;
        let (mut urgent, mut others) = (Vec::new(), Vec::new());
        for key in std::mem::take(&mut pod.pending) {
            let Some(counter) = pod.counters.get_mut(key) else {
                continue;
            };
            if counter.window != now {
                mailbox.cost.lost += std::mem::take(&mut counter.unsent);
                continue;
            }
            pod.pending.insert(key);
            match counter.is_urgent(ends - mailbox.now) {
                true => urgent.push(key),
                false => others.push(key),
            }
        }
        urgent.extend(others);
        urgent.truncate(BATCH_MAX);
        if urgent.is_empty() {
            return;
        }
        pod.failed = !mailbox.calls(number, urgent.len());
        if !pod.failed {
            pod.under_way = true;
            let of = urgent.into_iter().filter_map(|key| pod.take(key)).collect();
            mailbox.send(LimitadorMessage::Add { pod: number, of });
        }
    }

    fn add(&mut self, cells: WindowCells, now: u64) -> WindowCells {
        let total = self.store.entry(cells.key, |total| total.window >= now);
        if total.window < cells.window {
            *total = WindowTotal {
                window: cells.window,
                cells: 0,
            };
        }
        if total.window == cells.window {
            total.cells = total.cells.saturating_add(cells.cells);
        }
        WindowCells {
            window: total.window,
            cells: total.cells,
            ..cells
        }
    }
}

impl LimitadorPod {
    /// Takes the unsent cells of `key`.
    fn take(&mut self, key: Key) -> Option<WindowCells> {
        self.pending.remove(&key);
        let counter = self.counters.get_mut(key)?;
        let cells = std::mem::take(&mut counter.unsent);
        Some(WindowCells {
            key,
            window: counter.window,
            cells,
        })
    }

    fn fold(&mut self, total: WindowCells) {
        if let Some(counter) = self.counters.get_mut(total.key) {
            counter.answered = true;
            if counter.window == total.window {
                counter.cells = total.cells.saturating_add(counter.unsent);
            }
        }
    }
}

impl LimitadorCounter {
    /// Whether it must be sent at once; its window ends in `ends_in`.
    const fn is_urgent(&self, ends_in: u64) -> bool {
        !self.answered || ends_in <= Limitador::EVERY
    }
}

impl PeriodicDesign for Limitador {
    type Message = LimitadorMessage;
    const EVERY: u64 = SECOND;

    fn check(
        &mut self,
        number: usize,
        check: MailboxCheck,
        mailbox: &mut Mailbox<LimitadorMessage>,
    ) -> bool {
        let MailboxCheck { key, cells } = check;
        let (now, ends) = window(&self.limit, mailbox.now);
        let pod = &mut self.pods[number];
        let counter = pod
            .counters
            .entry(key, |counter| counter.window == now || counter.unsent > 0);
        if counter.window != now {
            mailbox.cost.lost += counter.unsent;
            *counter = LimitadorCounter {
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
        pod.urgent |= counter.is_urgent(ends - mailbox.now);
        self.send_early(number, mailbox);
        true
    }

    fn turn(&mut self, number: usize, mailbox: &mut Mailbox<LimitadorMessage>) {
        let pod = &mut self.pods[number];
        pod.failed = false;
        match pod.under_way {
            true => pod.urgent = true, // right after it
            false => self.send(number, mailbox),
        }
    }

    fn arrived(&mut self, message: LimitadorMessage, mailbox: &mut Mailbox<LimitadorMessage>) {
        let (now, _) = window(&self.limit, mailbox.now);
        match message {
            LimitadorMessage::Add { pod, of } => {
                let of = of.into_iter().map(|cells| self.add(cells, now)).collect();
                mailbox.send(LimitadorMessage::Totals { pod, of });
            }
            LimitadorMessage::Totals { pod, of } => {
                self.pods[pod].under_way = false;
                of.into_iter().for_each(|total| self.pods[pod].fold(total));
                self.send_early(pod, mailbox);
            }
        }
    }
}

#[cfg(test)]
mod tests;
