//! A fleet in one thread: pods, the way to the store, the store, and what goes wrong. Everything that happens has its
//! place in one heap, so the same seed always gives the same run.
//!
//! The pods' engines and rounds are the sidecar's own. What stands in for `sync/driver.rs` is here: it carries calls and
//! answers, gives up after a time, and wakes the rounds when they asked for it.

mod agenda;
mod books;
mod faults;
mod network;
mod pod;
mod refunds;

use std::rc::Rc;

use tidegate_core::engine::sync::RoundTrip;
use tidegate_core::pure::sync::{Call, Heartbeat, HeartbeatReply, Lane, News, Reply};
use tidegate_core::pure::{Check, Moment, Rules};

use crate::dice::Dice;
use crate::policy::{Cost, Policy};
use crate::scenario::{Fault, Scenario, What};
use crate::store::{Store, Without};
use crate::workload::Arrival;
use agenda::{Agenda, Event, Planned};
use network::{Network, Weather};
pub use pod::EPOCH;
use pod::Pod;

const SECOND: u64 = 1_000_000_000;
/// News reaches pods in as many groups, each at its own time.
const NEWS_GROUPS: usize = 8;
/// How long a pod that leaves may take.
const DRAIN: u64 = 10 * SECOND;
/// Pods that one second of signs of life is enough for; see `engine/rounds/fleet.rs`.
const PODS_PER_SECOND: u64 = 200;

/// The fleet.
#[derive(Debug)]
pub struct World<'a> {
    scenario: &'a Scenario,
    rules: Rules,
    /// By number; those that stopped stay empty.
    pods: Vec<Option<Pod>>,
    /// Those that checks are asked of.
    alive: Vec<usize>,
    store: Store,
    network: Network,
    dice: Dice,
    faults: Vec<Fault>,
    /// By how much the store's clock and the pods' calendars are off.
    store_clock: i64,
    calendar: i64,
    /// Nanoseconds before the start in which the pods get to know each other.
    before: u64,
    now: u64,
    agenda: Agenda,
    cost: Cost,
    lost: u64,
    violations: Vec<String>,
    /// The pod that was asked last.
    asked: usize,
}

impl<'a> World<'a> {
    /// The fleet of `scenario`, all of whose pods know of each other.
    pub fn new(scenario: &'a Scenario, seed: u64, without: Option<Without>) -> Self {
        let mut dice = Dice::new(seed, 1);
        let faults = faults::drawn(scenario, &mut dice);
        let fails_over = faults
            .iter()
            .any(|fault| matches!(fault.what, What::Failover(_)));
        let heartbeats = (scenario.pods as u64).div_ceil(PODS_PER_SECOND);
        let mut world = Self {
            scenario,
            rules: scenario.rules.clone(),
            pods: Vec::new(),
            alive: Vec::new(),
            store: Store::new(scenario.redis, without, fails_over),
            network: Network {
                settings: scenario.network,
                weather: Weather::default(),
                dice: Dice::new(seed, 2),
            },
            dice,
            faults,
            store_clock: 0,
            calendar: 0,
            before: 4 * heartbeats * SECOND,
            now: 0,
            agenda: Agenda::default(),
            cost: Cost::default(),
            lost: 0,
            violations: Vec::new(),
            asked: 0,
        };
        for _ in 0..scenario.pods {
            let at = world.dice.below(SECOND);
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

    /// A pod that starts at `at`.
    fn join(&mut self, at: u64) {
        let pod = Pod::new(self.scenario, &self.rules, &mut self.dice);
        let number = self.pods.len();
        self.pods.push(Some(pod));
        self.plan(at, Event::Start { pod: number });
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.agenda.plan(at.max(self.now), event);
    }

    fn happen_until(&mut self, end: u64) {
        while let Some(Planned { at, event, .. }) = self.agenda.next(end) {
            self.now = at;
            self.happen(event);
        }
        self.now = end;
    }

    fn moment(&self, pod: &Pod) -> Moment {
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
                let stays = |pod: &Pod| !pod.leaving;
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
                lane,
                sent,
                reply,
            } => self.answer(pod, lane, sent, reply),
            Event::BeatAtStore {
                pod,
                sent,
                heartbeat,
            } => self.beat_at_store(pod, sent, &heartbeat),
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

    /// Takes the pod's turn at `at`, unless it takes one before.
    fn wake(&mut self, number: usize, at: u64) {
        let Some(pod) = &mut self.pods[number] else {
            return;
        };
        if pod.turn_at > at {
            pod.turn_at = at;
            self.plan(at, Event::Turn { pod: number });
        }
    }

    /// Takes the pod's turn when its rounds want it.
    fn wake_in_time(&mut self, number: usize) {
        if let Some(pod) = &self.pods[number] {
            let next = pod.rounds.next_turn(pod.at(self.now));
            self.wake(number, pod.back(next).max(self.now));
        }
    }

    fn turn(&mut self, number: usize) {
        let now = self.now;
        let Some(pod) = self.pods[number].as_mut().filter(|pod| pod.turn_at <= now) else {
            return; // it has taken it already
        };
        let moment = pod.moment(now, self.calendar);
        let turn = pod.rounds.turn(&pod.engine, moment);
        let next = pod.back(pod.rounds.next_turn(moment.now)).max(now + 1);
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
            let at = now + self.network.hop();
            match self.network.loses_request(number, now) {
                true => self.unanswered(number, call.lane, now),
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
                    Event::BeatAtStore {
                        pod: number,
                        sent: now,
                        heartbeat,
                    },
                ),
            }
        }
        self.stop_when_done(number);
    }

    /// A call that was sent at `sent` is given up.
    fn unanswered(&mut self, pod: usize, lane: Lane, sent: u64) {
        let at = sent + self.network.settings.timeout.nanos();
        self.plan(
            at,
            Event::Answer {
                pod,
                lane,
                sent,
                reply: None,
            },
        );
    }

    fn heartbeat_failed(&mut self, pod: usize, sent: u64) {
        let at = sent + self.network.settings.timeout.nanos();
        self.plan(
            at,
            Event::HeartbeatReply {
                pod,
                heartbeat_answered: None,
            },
        );
    }

    fn at_store(&mut self, pod: usize, sent: u64, call: Box<Call>) {
        if self.now < self.network.weather.down_until {
            // Nobody listens there: the refusal comes at once.
            let at = self.now + self.network.hop();
            return self.plan(
                at,
                Event::Answer {
                    pod,
                    lane: call.lane,
                    sent,
                    reply: None,
                },
            );
        }
        let ready = self.network.weather.hung_until;
        let served =
            self.store.served(call.deltas.len(), self.now, ready) + self.network.slowness(self.now);
        self.plan(served, Event::Served { pod, sent, call });
    }

    fn served(&mut self, number: usize, sent: u64, call: Call) {
        let (lane, now) = (call.lane, self.now);
        if now < self.network.weather.down_until {
            return self.unanswered(number, lane, sent); // it went down with the call in its hands
        }
        let Some(incarnation) = self.pods[number].as_ref().map(|pod| pod.incarnation) else {
            return; // its sender is gone; a crash loses what is under way, or not
        };
        let now_us = self.store_us();
        let (reply, news) = self.store.apply(incarnation, call, now, now_us);
        self.publish(news);
        let back = now + self.network.hop();
        match back > sent + self.network.settings.timeout.nanos()
            || self.network.loses_answer(number, now)
        {
            true => self.unanswered(number, lane, sent),
            false => self.plan(
                back,
                Event::Answer {
                    pod: number,
                    lane,
                    sent,
                    reply: Some(Box::new(reply)),
                },
            ),
        }
    }

    fn publish(&mut self, news: Vec<News>) {
        if news.is_empty() {
            return;
        }
        let pods = self.pods.iter().flatten().count();
        self.cost.news += 1;
        self.cost.messages += pods as u64;
        self.store.note_pods(pods, self.now);
        let news: Rc<[News]> = news.into();
        for group in 0..NEWS_GROUPS.min(self.pods.len()) {
            let at = self.now + self.network.hop();
            self.plan(
                at,
                Event::News {
                    group,
                    news: Rc::clone(&news),
                },
            );
        }
    }

    fn news(&mut self, group: usize, news: &[News]) {
        for number in (group..self.pods.len()).step_by(NEWS_GROUPS) {
            if self.pods[number].is_none() || self.network.loses_news(number, self.now) {
                continue;
            }
            let (now, calendar) = (self.now, self.calendar);
            if let Some(pod) = self.pods[number]
                .as_mut()
                .filter(|pod| pod.paused_until <= now)
            {
                let moment = pod.moment(now, calendar);
                for one in news {
                    pod.rounds.news_received(&pod.engine, *one, moment);
                }
            }
            self.wake_in_time(number);
        }
    }

    fn answer(&mut self, number: usize, lane: Lane, sent: u64, reply: Option<Box<Reply>>) {
        let (now, calendar, jitter) = (self.now, self.calendar, self.dice.roll());
        if let Some(pod) = &mut self.pods[number] {
            pod.under_way -= 1;
            let back = pod.moment(now, calendar);
            match reply {
                Some(reply) => {
                    let trip = RoundTrip {
                        sent: pod.at(sent),
                        back,
                    };
                    pod.rounds.call_answered(&pod.engine, lane, &reply, trip);
                }
                None => pod.rounds.call_failed(&pod.engine, lane, back.now, jitter),
            }
        }
        self.check_books_now_and_then(number);
        self.wake_in_time(number);
        self.stop_when_done(number);
    }

    fn beat_at_store(&mut self, number: usize, sent: u64, heartbeat: &Heartbeat) {
        let Some(incarnation) = self.pods[number].as_ref().map(|pod| pod.incarnation) else {
            return;
        };
        let weather = &self.network.weather;
        let unreachable = self.now < weather.down_until || self.now < weather.hung_until;
        if unreachable || self.network.loses_answer(number, self.now) {
            return self.heartbeat_failed(number, sent);
        }
        let heartbeat_answered = self
            .store
            .heartbeat(incarnation, heartbeat, self.store_us());
        let at = self.now + self.network.hop() + self.network.slowness(self.now);
        self.plan(
            at,
            Event::HeartbeatReply {
                pod: number,
                heartbeat_answered: Some(Box::new(heartbeat_answered)),
            },
        );
    }

    fn heartbeat_answered(
        &mut self,
        number: usize,
        heartbeat_answered: Option<Box<HeartbeatReply>>,
    ) {
        let (now, calendar, jitter) = (self.now, self.calendar, self.dice.roll());
        if let Some(pod) = &mut self.pods[number] {
            pod.under_way -= 1;
            let moment = pod.moment(now, calendar);
            match heartbeat_answered {
                Some(heartbeat_answered) => {
                    pod.rounds
                        .heartbeat_answered(&pod.engine, &heartbeat_answered, moment)
                }
                None => pod.rounds.heartbeat_failed(&pod.engine, moment.now, jitter),
            }
        }
        self.wake_in_time(number);
        self.stop_when_done(number);
    }

    /// Checks are no longer asked of a pod; it tells what it has to tell, and stops.
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
        let done = |pod: &Pod| pod.leaving && pod.under_way == 0 && pod.rounds.is_settled();
        if self.pods[number].as_ref().is_some_and(done) {
            self.stop(number);
        }
    }

    /// A pod is gone, with what it has not told.
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
        self.asked = number;
        let pod = self.pods[number].as_mut()?;
        let answer = pod.engine.check(check, pod.moment(now, self.calendar));
        pod.note(&answer);
        let (allowed, woken) = (answer.allowed(), pod.was_rung());
        drop(answer);
        if woken {
            self.wake(number, now + self.network.settings.wakes.nanos());
        }
        Some(allowed)
    }

    fn asked(&self) -> usize {
        self.asked
    }

    /// Whoever asks a pod that is gone, or stands still, gives nothing back.
    fn refund(&mut self, asked: usize, _arrival: &Arrival, check: &Check<'_>) {
        let (now, calendar) = (self.now, self.calendar);
        let pod = self.pods.get(asked).and_then(Option::as_ref);
        let Some(pod) = pod.filter(|pod| pod.paused_until <= now) else {
            return;
        };
        drop(pod.engine.check(check, pod.moment(now, calendar)));
        if pod.was_rung() {
            self.wake(asked, now + self.network.settings.wakes.nanos());
        }
    }

    fn cost(&self) -> Cost {
        let live = self.pods.iter().flatten();
        Cost {
            lost: self.lost + live.map(Pod::lost).sum::<u64>(),
            ..self.cost
        }
    }

    fn end(&mut self) -> Vec<String> {
        self.check_settled();
        std::mem::take(&mut self.violations)
    }
}
