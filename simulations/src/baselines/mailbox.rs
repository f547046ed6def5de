//! The common part of fleets that sync at regular intervals: the turns of the pods, and the messages in flight.
//!
//! A [`PeriodicDesign`] says what a pod does in its turn and when a message arrives. [`Periodic`] gives every pod its
//! turns, spread over the interval at random, and delivers the messages.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;

use tidegate_core::pure::Check;

use super::outages::Outages;
use super::{Key, key, pod};
use crate::policy::{Cost, Policy};
use crate::random::SeededRandom;
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// The random stream for the phases of the pods.
const PHASES: u64 = 0xba5e;

/// A way of limiting a fleet whose pods have a turn at regular intervals.
pub trait PeriodicDesign {
    type Message;
    /// Nanoseconds between two turns of a pod.
    const EVERY: u64;

    /// Decides a check at `pod`.
    fn check(
        &mut self,
        pod: usize,
        check: MailboxCheck,
        mailbox: &mut Mailbox<Self::Message>,
    ) -> bool;

    fn turn(&mut self, pod: usize, mailbox: &mut Mailbox<Self::Message>);

    fn arrived(&mut self, message: Self::Message, mailbox: &mut Mailbox<Self::Message>);
}

/// A check of one key.
#[derive(Clone, Copy, Debug)]
pub struct MailboxCheck {
    pub key: Key,
    pub cells: u64,
}

/// The time, the messages in flight, and the cost so far.
#[derive(Debug)]
pub struct Mailbox<M> {
    pub now: u64,
    pub cost: Cost,
    outages: Outages,
    /// How long one way takes.
    way: u64,
    /// By arrival, then in the order of sending.
    under_way: BTreeMap<(u64, u64), M>,
    sent: u64,
}

impl<M> Mailbox<M> {
    /// Sends `message`, which always arrives: call [`Mailbox::passes`] first.
    pub fn send(&mut self, message: M) {
        self.sent += 1;
        self.under_way
            .insert((self.now + self.way, self.sent), message);
    }

    /// Counts a call that reports so many keys. Returns whether it passes.
    pub fn calls(&mut self, pod: usize, keys: usize) -> bool {
        self.cost.calls += 1;
        self.cost.updates += keys as u64;
        self.passes(pod)
    }

    pub fn passes(&self, pod: usize) -> bool {
        !self.outages.cut_off(pod, self.now)
    }

    fn next(&self) -> Option<u64> {
        self.under_way.first_key_value().map(|((at, _), _)| *at)
    }
}

/// A fleet that syncs at regular intervals.
#[derive(Debug)]
pub struct Periodic<D: PeriodicDesign> {
    design: D,
    pods: usize,
    mailbox: Mailbox<D::Message>,
    turns: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<D: PeriodicDesign> Periodic<D> {
    pub fn new(design: D, scenario: &Scenario, seed: u64) -> Self {
        let mut random = SeededRandom::new(seed, PHASES);
        let turns = (0..scenario.pods).map(|pod| Reverse((random.below(D::EVERY), pod)));
        Self {
            design,
            pods: scenario.pods,
            turns: turns.collect(),
            mailbox: Mailbox {
                now: 0,
                cost: Cost::default(),
                outages: Outages::of(scenario),
                way: scenario.network.rtt.nanos() / 2,
                under_way: BTreeMap::new(),
                sent: 0,
            },
        }
    }

    /// Delivers a message or takes a turn, whichever is due first until `end`.
    fn step(&mut self, end: u64) -> bool {
        let turn = self.turns.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let arrival = self.mailbox.next().unwrap_or(u64::MAX);
        if turn.min(arrival) > end {
            return false;
        }
        self.mailbox.now = turn.min(arrival);
        if arrival <= turn {
            if let Some((_, message)) = self.mailbox.under_way.pop_first() {
                self.design.arrived(message, &mut self.mailbox);
            }
        } else if let Some(Reverse((at, pod))) = self.turns.pop() {
            self.turns.push(Reverse((at + D::EVERY, pod)));
            self.design.turn(pod, &mut self.mailbox);
        }
        true
    }
}

impl<D: PeriodicDesign> Policy for Periodic<D> {
    fn run_until(&mut self, at: u64) {
        while self.step(at) {}
        self.mailbox.now = at;
    }

    fn check(&mut self, arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        let pod = pod(arrival, self.pods);
        let check = MailboxCheck {
            key: key(arrival),
            cells: arrival.cost,
        };
        Some(self.design.check(pod, check, &mut self.mailbox))
    }

    fn cost(&self) -> Cost {
        self.mailbox.cost
    }
}
