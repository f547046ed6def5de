//! What fleets that sync by the clock have in common: turns, and messages under way.
//!
//! A [`Design`] says what a pod does in its turn, and what happens when a message arrives. [`Periodic`] gives every pod
//! its turns, spread over the interval by lot, and carries the messages.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::collections::BinaryHeap;

use tidegate_core::pure::Check;

use super::outages::Outages;
use super::{Key, key, pod};
use crate::dice::Dice;
use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::workload::Arrival;

/// The stream of random numbers that phases are drawn from.
const PHASES: u64 = 0xba5e;

/// A way of limiting a fleet whose pods have a turn at regular intervals.
pub trait Design {
    type Message;
    /// Nanoseconds between two turns of a pod.
    const EVERY: u64;

    /// Decides a check of `cells` that is asked of `pod`.
    fn check(&mut self, pod: usize, check: (Key, u64), post: &mut Post<Self::Message>) -> bool;

    fn turn(&mut self, pod: usize, post: &mut Post<Self::Message>);

    fn arrived(&mut self, message: Self::Message, post: &mut Post<Self::Message>);
}

/// The time, the messages under way, and what has been spent.
#[derive(Debug)]
pub struct Post<M> {
    pub now: u64,
    pub cost: Cost,
    outages: Outages,
    /// How long one way takes.
    way: u64,
    /// By when they arrive, and in the order in which they were sent.
    under_way: BTreeMap<(u64, u64), M>,
    sent: u64,
}

impl<M> Post<M> {
    /// Sends `message`. It arrives: what may not pass is asked of [`Post::passes`] before.
    pub fn send(&mut self, message: M) {
        self.sent += 1;
        self.under_way
            .insert((self.now + self.way, self.sent), message);
    }

    /// Counts a call that tells of so many keys, and answers whether it passes.
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

/// A fleet that syncs by the clock.
#[derive(Debug)]
pub struct Periodic<D: Design> {
    design: D,
    pods: usize,
    post: Post<D::Message>,
    turns: BinaryHeap<Reverse<(u64, usize)>>,
}

impl<D: Design> Periodic<D> {
    pub fn new(design: D, scenario: &Scenario, seed: u64) -> Self {
        let mut dice = Dice::new(seed, PHASES);
        let turns = (0..scenario.pods).map(|pod| Reverse((dice.below(D::EVERY), pod)));
        Self {
            design,
            pods: scenario.pods,
            turns: turns.collect(),
            post: Post {
                now: 0,
                cost: Cost::default(),
                outages: Outages::of(scenario),
                way: scenario.network.rtt.nanos() / 2,
                under_way: BTreeMap::new(),
                sent: 0,
            },
        }
    }

    /// A message arrives, or a pod has its turn: whichever is due first until `end`.
    fn step(&mut self, end: u64) -> bool {
        let turn = self.turns.peek().map_or(u64::MAX, |Reverse((at, _))| *at);
        let arrival = self.post.next().unwrap_or(u64::MAX);
        if turn.min(arrival) > end {
            return false;
        }
        self.post.now = turn.min(arrival);
        if arrival <= turn {
            if let Some((_, message)) = self.post.under_way.pop_first() {
                self.design.arrived(message, &mut self.post);
            }
        } else if let Some(Reverse((at, pod))) = self.turns.pop() {
            self.turns.push(Reverse((at + D::EVERY, pod)));
            self.design.turn(pod, &mut self.post);
        }
        true
    }
}

impl<D: Design> Policy for Periodic<D> {
    fn run_until(&mut self, at: u64) {
        while self.step(at) {}
        self.post.now = at;
    }

    fn check(&mut self, arrival: &Arrival, _check: &Check<'_>) -> Option<bool> {
        let pod = pod(arrival, self.pods);
        Some(
            self.design
                .check(pod, (key(arrival), arrival.cost), &mut self.post),
        )
    }

    fn cost(&self) -> Cost {
        self.post.cost
    }
}
