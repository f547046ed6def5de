//! A fleet in one thread: pods, the way to the store, the store, and the checks that arrive.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate::engine::rounds::{Pace, Rounds, Trip};
use tidegate::engine::{Engine, FleetKey, Setup};
use tidegate::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
use tidegate::pure::sync::{Beat, Beaten, Call, Lane, News, Reply, Share};
use tidegate::pure::{
    Addresses, Cells, Check, Descriptor, Entry, Limit, Moment, Nanos, Rules, Span,
};

use super::model::{Kept, Model};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000 * MS;
const START: u64 = 1_000_000 * SECOND;
/// From a check that wants a round until the rounds take their turn.
const WAKES_AFTER: u64 = 30_000;

/// Random numbers with a seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn roll(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.roll() % bound.max(1)
    }

    /// The time to the next of events that come at `rate` a second on average.
    pub fn wait(&mut self, rate: f64) -> u64 {
        let uniform = ((self.roll() >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
        (-uniform.ln() / rate * 1e9) as u64
    }
}

#[derive(Debug)]
enum Event {
    Check {
        pod: usize,
        key: u32,
    },
    Turn {
        pod: usize,
    },
    AtStore {
        pod: usize,
        sent: u64,
        call: Call,
    },
    Beat {
        pod: usize,
        beat: Beat,
    },
    Beaten {
        pod: usize,
        beaten: Beaten,
    },
    Answer {
        pod: usize,
        lane: Lane,
        reply: Option<Reply>,
        sent: u64,
    },
    News {
        pod: usize,
        news: News,
    },
}

pub struct Pod {
    pub engine: Engine,
    pub rounds: Rounds,
    rung: Arc<AtomicBool>,
    turn_at: u64,
}

/// How the way to the store is.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub rtt: u64,
    /// Of a thousand, so many requests, and so many answers, do not arrive.
    pub lost: u64,
    /// From when until when nothing arrives.
    pub cut: (u64, u64),
}

impl Way {
    pub const GOOD: Self = Self {
        rtt: MS,
        lost: 0,
        cut: (0, 0),
    };
}

/// One decision.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    pub at: u64,
    pub allowed: bool,
}

pub struct World {
    pub pods: Vec<Pod>,
    pub store: Model,
    pub way: Way,
    pub dice: Dice,
    pub decided: Vec<Decided>,
    pub updates: u64,
    /// By how much the pods' calendars are ahead of the store's.
    pub calendar: i64,
    now: u64,
    number: u64,
    events: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<(u64, u64), Event>,
}

impl World {
    /// `pods` pods with one rule of `limit`, steady: each knows of all.
    pub fn new(pods: usize, spec: &RuleSpec, way: Way, seed: u64) -> Self {
        let mut world = Self {
            pods: (0..pods).map(|_| pod(spec)).collect(),
            store: Model::default(),
            way,
            dice: Dice::new(seed),
            decided: Vec::new(),
            updates: 0,
            calendar: 0,
            now: 0,
            number: 0,
            events: BinaryHeap::new(),
            what: BTreeMap::new(),
        };
        for pod in 0..pods {
            let at = world.dice.below(SECOND);
            world.plan(at, Event::Turn { pod });
        }
        world.run_until(4 * SECOND);
        world
    }

    /// The time since the beginning.
    pub const fn now(&self) -> u64 {
        self.now
    }

    /// Checks of `key` that arrive at `pod`, `rate` a second, for `span` from `from` on.
    pub fn load(&mut self, pod: usize, key: u32, rate: f64, (from, span): (u64, u64)) {
        let mut at = from + self.dice.wait(rate);
        while at < from + span {
            self.plan(at, Event::Check { pod, key });
            at += self.dice.wait(rate);
        }
    }

    /// The cells by which the only key is in use, as the store has it; of a limit of one cell a second.
    pub fn level_in_store(&self) -> u64 {
        let now_us = (START + self.now) / 1_000;
        let levels = self.store.keys.values().map(|kept| match kept {
            Kept::Level(level) => level.tat.saturating_sub(now_us).div_ceil(1_000_000),
            Kept::Windows(_) | Kept::Poison => 0,
        });
        levels.max().unwrap_or(0)
    }

    pub fn run_until(&mut self, end: u64) {
        while let Some(Reverse(place)) = self.events.peek().copied()
            && place.0 <= end
        {
            self.events.pop();
            self.now = place.0;
            if let Some(event) = self.what.remove(&place) {
                self.happen(event);
            }
        }
        self.now = end;
    }

    fn plan(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.events.push(Reverse((at, self.number)));
        self.what.insert((at, self.number), event);
    }

    fn moment(&self) -> Moment {
        let unix = (START + self.now).saturating_add_signed(self.calendar);
        Moment {
            unix: Span::nanos(unix),
            ..Moment::at(START + self.now)
        }
    }

    fn is_lost(&mut self) -> bool {
        let (from, to) = self.way.cut;
        (from..to).contains(&self.now) || self.dice.below(1_000) < self.way.lost
    }

    fn hop(&mut self) -> u64 {
        self.way.rtt / 2 + self.dice.below(self.way.rtt / 10 + 1)
    }

    fn happen(&mut self, event: Event) {
        let moment = self.moment();
        match event {
            Event::Check { pod, key } => self.check(pod, key),
            Event::Turn { pod } => {
                if self.pods[pod].turn_at <= self.now {
                    self.turn(pod);
                }
            }
            Event::AtStore { pod, sent, call } => self.at_store(pod, sent, &call),
            Event::Beat { pod, beat } => {
                let pods = self.pods.len() as u64;
                let beaten = Beaten {
                    pods,
                    resets: 0,
                    reset_keys: Vec::new(),
                };
                assert!(!beat.leaving);
                let at = self.now + self.hop();
                self.plan(at, Event::Beaten { pod, beaten });
            }
            Event::Beaten { pod, beaten } => {
                let Pod { engine, rounds, .. } = &mut self.pods[pod];
                rounds.beaten(engine, &beaten, moment);
                self.wake(pod, 0);
            }
            Event::Answer {
                pod,
                lane,
                reply,
                sent,
            } => {
                let jitter = self.dice.roll();
                let Pod { engine, rounds, .. } = &mut self.pods[pod];
                let trip = Trip {
                    sent: Nanos::new(START + sent),
                    back: moment,
                };
                match reply {
                    Some(reply) => rounds.answered(engine, lane, &reply, trip),
                    None => rounds.failed(engine, lane, moment.now, jitter),
                }
                self.wake(pod, 0);
            }
            Event::News { pod, news } => {
                let Pod { engine, rounds, .. } = &mut self.pods[pod];
                rounds.heard(engine, news, moment);
                self.wake(pod, 0);
            }
        }
    }

    fn check(&mut self, pod: usize, key: u32) {
        let value = key.to_string();
        let entries = [Entry {
            key: "key",
            value: &value,
        }];
        let descriptors = [Descriptor {
            entries: &entries,
            cost: None,
        }];
        let check = Check {
            domain: "api",
            cost: Cells::ONE,
            peek: false,
            descriptors: &descriptors,
        };
        let allowed = self.pods[pod].engine.check(&check, self.moment()).allowed();
        self.decided.push(Decided {
            at: self.now,
            allowed,
        });
        if self.pods[pod].rung.swap(false, Ordering::Relaxed) {
            self.wake(pod, WAKES_AFTER);
        }
    }

    fn wake(&mut self, pod: usize, after: u64) {
        let at = self.now + after;
        if self.pods[pod].turn_at > at {
            self.pods[pod].turn_at = at;
            self.plan(at, Event::Turn { pod });
        }
    }

    fn turn(&mut self, pod: usize) {
        let moment = self.moment();
        let Pod { engine, rounds, .. } = &mut self.pods[pod];
        let turn = rounds.turn(engine, moment);
        let next = rounds.next_turn(moment.now).get() - START;
        self.pods[pod].turn_at = u64::MAX;
        self.wake(pod, next.saturating_sub(self.now).max(1));
        let sent = self.now;
        for call in turn.calls {
            self.updates += call.deltas.len() as u64;
            let at = sent + self.hop();
            if self.is_lost() {
                let lane = call.lane;
                self.fail(pod, lane, sent);
            } else {
                self.plan(at, Event::AtStore { pod, sent, call });
            }
        }
        if let Some(beat) = turn.beat {
            let at = sent + self.hop();
            self.plan(at, Event::Beat { pod, beat });
        }
    }

    fn fail(&mut self, pod: usize, lane: Lane, sent: u64) {
        let event = Event::Answer {
            pod,
            lane,
            reply: None,
            sent,
        };
        self.plan(sent + 250 * MS, event);
    }

    fn at_store(&mut self, pod: usize, sent: u64, call: &Call) {
        let now_us = (START + self.now) / 1_000;
        let reply = self.store.apply(pod as u128, call, now_us);
        for news in std::mem::take(&mut self.store.news) {
            for pod in 0..self.pods.len() {
                let at = self.now + self.hop();
                self.plan(at, Event::News { pod, news });
            }
        }
        if self.is_lost() {
            self.fail(pod, call.lane, sent);
            return;
        }
        let at = self.now + self.hop();
        let event = Event::Answer {
            pod,
            lane: call.lane,
            reply: Some(reply),
            sent,
        };
        self.plan(at, event);
    }
}

fn pod(spec: &RuleSpec) -> Pod {
    let node = NodeSpec {
        key: "key".to_owned(),
        value: None,
        share_threshold: false,
        rule: Some(spec.clone()),
        children: Vec::new(),
    };
    let domain = DomainSpec {
        name: "api".to_owned(),
        matching: Matching::Specific,
        nodes: vec![node],
    };
    let setup = Setup {
        keys_max: 10_000,
        fleet: FleetKey::derived(b"fleet"),
        seeds: [1, 2],
        reporting: true,
    };
    let engine = Engine::new(setup, Rules::compile(vec![domain], Addresses::default()));
    let rung = Arc::new(AtomicBool::new(false));
    let bell = Arc::clone(&rung);
    engine.set_alarm(Box::new(move || bell.store(true, Ordering::Relaxed)));
    let pace = Pace {
        interval: Span::seconds(1),
        accuracy: Share::of(1, 10),
    };
    Pod {
        engine,
        rounds: Rounds::new(pace, 10_000),
        rung,
        turn_at: 0,
    }
}

/// How far a fleet was off, of one key.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    pub asked: u64,
    pub admitted: u64,
    /// What one limiter that sees everything admits of the same checks.
    pub exact: u64,
    /// The most cells that were ever admitted above the burst and the rate.
    pub overshoot: u64,
}

/// Judges decisions, in the order of their time.
pub fn judge(decided: &[Decided], limit: &Limit) -> Judged {
    let (interval, capacity) = (limit.interval().get(), limit.capacity().get());
    let (mut exact_tat, mut tat, mut over) = (0, 0, 0);
    let mut judged = Judged {
        asked: 0,
        admitted: 0,
        exact: 0,
        overshoot: 0,
    };
    for check in decided {
        judged.asked += 1;
        let after = check.at.max(exact_tat) + interval;
        if after - check.at <= capacity {
            exact_tat = after;
            judged.exact += 1;
        }
        if check.allowed {
            judged.admitted += 1;
            tat = check.at.max(tat) + interval;
            over = over.max((tat - check.at).saturating_sub(capacity));
        }
    }
    judged.overshoot = over.div_ceil(interval);
    judged
}
