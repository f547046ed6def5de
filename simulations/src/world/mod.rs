//! A fleet in one thread: pods, the network, the store, and the faults. All events are in one heap, so the same seed
//! always gives the same run.
//!
//! The pods run the sidecar's own engine and sync. This folder replaces `sync/driver.rs`: it carries calls and answers,
//! times out, and wakes the sync when it asked for it.

mod books;
mod events;
mod faults;
mod heartbeats;
mod network;
mod news;
mod pod;
mod refunds;

use tidegate_core::engine::sync::RoundTrip;
use tidegate_core::pure::sync::{Call, CallId, StoreReply};
use tidegate_core::pure::{Check, Moment, Rules};

use crate::policy::{Cost, Policy};
use crate::random::SeededRandom;
use crate::scenario::{FaultKind, Scenario, ScenarioFault};
use crate::store::{Ablation, SimulatedStore};
use crate::workload::Arrival;
use events::{Event, EventQueue, PlannedEvent};
use network::{Network, NetworkFaults};
pub use pod::EPOCH;
use pod::SimulatedPod;

const SECOND: u64 = 1_000_000_000;
/// The longest that a leaving pod may take.
const DRAIN: u64 = 10 * SECOND;
/// The most pods for which the heartbeat interval is one second; see `engine/sync/membership.rs`.
const PODS_PER_SECOND: u64 = 200;

/// The fleet.
#[derive(Debug)]
pub struct World<'a> {
    scenario: &'a Scenario,
    rules: Rules,
    /// By number; a stopped pod leaves `None`.
    pods: Vec<Option<SimulatedPod>>,
    /// The pods that get checks.
    alive: Vec<usize>,
    store: SimulatedStore,
    network: Network,
    random: SeededRandom,
    faults: Vec<ScenarioFault>,
    /// The error of the store's clock, and of the pods' calendars.
    store_clock: i64,
    calendar: i64,
    /// Nanoseconds before the start, in which the pods learn of each other.
    before: u64,
    now: u64,
    events: EventQueue,
    cost: Cost,
    lost: u64,
    violations: Vec<String>,
    /// The pod of the last check.
    last_pod: usize,
}

impl<'a> World<'a> {
    /// The fleet of `scenario`. All pods know of each other.
    pub fn new(scenario: &'a Scenario, seed: u64, ablation: Option<Ablation>) -> Self {
        let mut random = SeededRandom::new(seed, 1);
        let faults = faults::drawn(scenario, &mut random);
        let fails_over = faults
            .iter()
            .any(|fault| matches!(fault.what, FaultKind::Failover(_)));
        let heartbeats = (scenario.pods as u64).div_ceil(PODS_PER_SECOND);
        let mut world = Self {
            scenario,
            rules: scenario.rules.clone(),
            pods: Vec::new(),
            alive: Vec::new(),
            store: SimulatedStore::new(scenario.redis, ablation, fails_over),
            network: Network {
                settings: scenario.network,
                faults: NetworkFaults::default(),
                random: SeededRandom::new(seed, 2),
            },
            random,
            faults,
            store_clock: 0,
            calendar: 0,
            before: 4 * heartbeats * SECOND,
            now: 0,
            events: EventQueue::default(),
            cost: Cost::default(),
            lost: 0,
            violations: Vec::new(),
            last_pod: 0,
        };
        for _ in 0..scenario.pods {
            let at = world.random.below(SECOND);
            world.join(at);
        }
        for number in 0..world.faults.len() {
            let at = world.before + world.faults[number].at;
            world.plan(at, Event::Fault { number });
        }
        world.happen_until(world.before);
        world.cost = Cost::default();
        world
    }

    /// Adds a pod that starts at `at`.
    fn join(&mut self, at: u64) {
        let pod = SimulatedPod::new(self.scenario, &self.rules, &mut self.random);
        let number = self.pods.len();
        self.pods.push(Some(pod));
        self.plan(at, Event::Start { pod: number });
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.events.plan(at.max(self.now), event);
    }

    fn happen_until(&mut self, end: u64) {
        while let Some(PlannedEvent { at, event, .. }) = self.events.next(end) {
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn moment(&self, pod: &SimulatedPod) -> Moment {
        pod.moment(self.now, self.calendar)
    }

    fn store_us(&self) -> u64 {
        (EPOCH + self.now).saturating_add_signed(self.store_clock) / 1_000
    }

    fn happen(&mut self, event: Event) {
        if let Event::Turn { pod }
        | Event::Answer { pod, .. }
        | Event::HeartbeatReply { pod, .. }
        | Event::GivenBack { pod, .. } = &event
        {
            match self.pods[*pod].as_ref().map(|pod| pod.paused_until) {
                None => return, // it is gone
                Some(until) if until > self.now => return self.plan(until, event),
                Some(_) => {}
            }
        }
        match event {
            Event::Start { pod } => {
                let stays = |pod: &SimulatedPod| !pod.leaving;
                if self.pods[pod].as_ref().is_some_and(stays) && !self.alive.contains(&pod) {
                    self.alive.push(pod);
                    self.wake(pod, self.now);
                }
            }
            Event::Turn { pod } => self.turn(pod),
            Event::AtStore { pod, sent, call } => self.at_store(pod, sent, call),
            Event::Served { pod, sent, call } => self.served(pod, sent, *call),
            Event::Answer {
                pod,
                id,
                sent,
                reply,
            } => self.answer(pod, id, sent, reply),
            Event::HeartbeatAtStore {
                pod,
                sent,
                heartbeat,
            } => self.heartbeat_at_store(pod, sent, &heartbeat),
            Event::HeartbeatReply {
                pod,
                heartbeat_answered,
            } => self.heartbeat_answered(pod, heartbeat_answered),
            Event::RefundAtStore { pod, sent, refund } => self.refund_at_store(pod, sent, refund),
            Event::RefundServed { pod, sent, refund } => self.refund_served(pod, sent, refund),
            Event::GivenBack {
                pod,
                sent,
                refund,
                store_state,
            } => self.given_back(pod, sent, &refund, store_state),
            Event::News { group, news } => self.news(group, &news),
            Event::Fault { number } => self.fault(number),
            Event::Replace { pod } => {
                self.leave(pod);
                self.join(self.now);
            }
            Event::Stop { pod } => self.stop(pod),
        }
    }

    /// Plans the pod's next turn at `at`, unless it has one before that.
    fn wake(&mut self, number: usize, at: u64) {
        let Some(pod) = &mut self.pods[number] else {
            return;
        };
        if pod.turn_at > at {
            pod.turn_at = at;
            self.plan(at, Event::Turn { pod: number });
        }
    }

    /// Plans the pod's next turn for when its sync wants it.
    fn wake_in_time(&mut self, number: usize) {
        if let Some(pod) = &self.pods[number] {
            let next = pod.rounds.next_turn(pod.at(self.now));
            self.wake(number, pod.world_time(next).max(self.now));
        }
    }

    fn turn(&mut self, number: usize) {
        let now = self.now;
        let Some(pod) = self.pods[number].as_mut().filter(|pod| pod.turn_at <= now) else {
            return; // it has taken it already
        };
        let moment = pod.moment(now, self.calendar);
        let turn = pod.rounds.turn(&pod.engine, moment);
        let next = pod
            .world_time(pod.rounds.next_turn(moment.now))
            .max(now + 1);
        pod.turn_at = u64::MAX;
        let sent = turn.calls.len() + usize::from(turn.heartbeat.is_some()) + turn.give_back.len();
        pod.under_way += sent;
        self.wake(number, next);
        for refund in turn.give_back {
            self.give_back(number, refund);
        }
        for call in turn.calls {
            self.cost.calls += 1;
            self.cost.updates += call.deltas.len() as u64;
            let at = self.arrival(number, now);
            match self.network.loses_request(number, now) {
                true => self.unanswered(number, call.id(), now),
                false => self.plan(
                    at,
                    Event::AtStore {
                        pod: number,
                        sent: now,
                        call: Box::new(call),
                    },
                ),
            }
        }
        if let Some(heartbeat) = turn.heartbeat {
            self.cost.calls += 1;
            let at = now + self.network.hop();
            match self.network.loses_request(number, now) {
                true => self.heartbeat_failed(number, now),
                false => self.plan(
                    at,
                    Event::HeartbeatAtStore {
                        pod: number,
                        sent: now,
                        heartbeat,
                    },
                ),
            }
        }
        self.stop_when_done(number);
    }

    /// When a call that a pod sends now arrives at the store. Its calls share a connection, so none overtakes another.
    fn arrival(&mut self, number: usize, now: u64) -> u64 {
        let at = now + self.network.hop();
        let Some(pod) = &mut self.pods[number] else {
            return at;
        };
        pod.last_arrival = at.max(pod.last_arrival + 1);
        pod.last_arrival
    }

    /// The pod gives up a call that it sent at `sent`.
    fn unanswered(&mut self, pod: usize, id: CallId, sent: u64) {
        let at = sent + self.network.settings.timeout.nanos();
        self.plan(
            at,
            Event::Answer {
                pod,
                id,
                sent,
                reply: None,
            },
        );
    }

    fn at_store(&mut self, pod: usize, sent: u64, call: Box<Call>) {
        if self.now < self.network.faults.down_until {
            // No server listens: the refusal comes at once.
            let at = self.now + self.network.hop();
            return self.plan(
                at,
                Event::Answer {
                    pod,
                    id: call.id(),
                    sent,
                    reply: None,
                },
            );
        }
        let ready = self.network.faults.hung_until;
        let served =
            self.store.served(call.deltas.len(), self.now, ready) + self.network.slowness(self.now);
        self.plan(served, Event::Served { pod, sent, call });
    }

    fn served(&mut self, number: usize, sent: u64, call: Call) {
        let (id, now) = (call.id(), self.now);
        if now < self.network.faults.down_until {
            return self.unanswered(number, id, sent); // the store went down during the call
        }
        let Some(incarnation) = self.pods[number].as_ref().map(|pod| pod.incarnation) else {
            return; // the sender is gone: a crash may lose calls in flight
        };
        let now_us = self.store_us();
        let (reply, news) = self.store.apply(incarnation, call, now, now_us);
        self.publish(news);
        let back = now + self.network.hop();
        match back > sent + self.network.settings.timeout.nanos()
            || self.network.loses_answer(number, now)
        {
            true => self.unanswered(number, id, sent),
            false => self.plan(
                back,
                Event::Answer {
                    pod: number,
                    id,
                    sent,
                    reply: Some(Box::new(reply)),
                },
            ),
        }
    }

    fn answer(&mut self, number: usize, id: CallId, sent: u64, reply: Option<Box<StoreReply>>) {
        let (now, calendar, jitter) = (self.now, self.calendar, self.random.roll());
        if let Some(pod) = &mut self.pods[number] {
            pod.under_way -= 1;
            let back = pod.moment(now, calendar);
            match reply {
                Some(reply) => {
                    let trip = RoundTrip {
                        sent: pod.at(sent),
                        back,
                    };
                    pod.rounds.call_answered(&pod.engine, id, &reply, trip);
                }
                None => pod.rounds.call_failed(&pod.engine, id, back.now, jitter),
            }
        }
        self.check_books_now_and_then(number);
        self.wake_in_time(number);
        self.stop_when_done(number);
    }

    /// A pod gets no more checks; it reports its pending cells, and stops.
    fn leave(&mut self, number: usize) {
        self.alive.retain(|alive| *alive != number);
        let (now, calendar) = (self.now, self.calendar);
        if let Some(pod) = &mut self.pods[number] {
            pod.leaving = true;
            pod.rounds.drain(&pod.engine, pod.moment(now, calendar));
            self.plan(now + DRAIN, Event::Stop { pod: number });
            self.wake(number, now);
        }
    }

    fn stop_when_done(&mut self, number: usize) {
        let done =
            |pod: &SimulatedPod| pod.leaving && pod.under_way == 0 && pod.rounds.is_settled();
        if self.pods[number].as_ref().is_some_and(done) {
            self.stop(number);
        }
    }

    /// Removes a pod. Its unreported cells are lost.
    fn stop(&mut self, number: usize) {
        self.check_books(number);
        self.alive.retain(|alive| *alive != number);
        if let Some(pod) = self.pods[number].take() {
            self.lost += pod.lost();
        }
    }
}

impl Policy for World<'_> {
    fn run_until(&mut self, at: u64) {
        self.happen_until(self.before + at);
    }

    fn check(&mut self, arrival: &Arrival, check: &Check<'_>) -> Option<bool> {
        let alive = self.alive.len() as u64;
        let nth = arrival.pod.checked_rem(alive)?;
        let number = *self.alive.get(usize::try_from(nth).ok()?)?;
        let now = self.now;
        self.last_pod = number;
        let pod = self.pods[number].as_mut()?;
        let answer = pod.engine.check(check, pod.moment(now, self.calendar));
        pod.note(&answer);
        let (allowed, woken) = (answer.allowed(), pod.take_wake());
        drop(answer);
        if woken {
            self.wake(number, now + self.network.settings.wakes.nanos());
        }
        Some(allowed)
    }

    fn last_pod(&self) -> usize {
        self.last_pod
    }

    /// A pod that is gone or paused takes no refund.
    fn refund(&mut self, number: usize, _arrival: &Arrival, check: &Check<'_>) {
        let (now, calendar) = (self.now, self.calendar);
        let pod = self.pods.get(number).and_then(Option::as_ref);
        let Some(pod) = pod.filter(|pod| pod.paused_until <= now) else {
            return;
        };
        drop(pod.engine.check(check, pod.moment(now, calendar)));
        if pod.take_wake() {
            self.wake(number, now + self.network.settings.wakes.nanos());
        }
    }

    fn cost(&self) -> Cost {
        let live = self.pods.iter().flatten();
        Cost {
            lost: self.lost + live.map(SimulatedPod::lost).sum::<u64>(),
            ..self.cost
        }
    }

    fn end(&mut self) -> Vec<String> {
        self.check_settled();
        std::mem::take(&mut self.violations)
    }
}
