//! How far a pod believes what it hears on the news channel, which anybody may publish on: never further than the
//! store confirms.

use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip, SyncActions};
use tidegate_core::engine::{CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::sync::{
    Call, Grouping, HeartbeatReply, News, NewsKind, Share, StoreKey, StoreReply, StoreState,
};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Nanos, Rules, Span, Unit};
use tidegate_testing::engine::{SECOND, START, ask, reporting_engine};
use tidegate_testing::rules::one_rule;

const MS: u64 = SECOND / 1_000;
const HOUR: Span = Span::seconds(3_600);

/// A pod with a store that the test plays.
struct Pod {
    engine: Engine,
    rounds: PodSync,
    now: u64,
    heartbeats: usize,
    settled: Cells,
}

impl Pod {
    fn new(rules: Rules) -> Self {
        let pace = Pace {
            interval: Span::seconds(1),
            accuracy: Share::even(10),
        };
        Self {
            engine: reporting_engine(1_024, rules),
            rounds: PodSync::new(pace, 1_024, Grouping::Whole),
            // The first minute of an hour.
            now: START / HOUR.get() * HOUR.get() + SECOND,
            heartbeats: 0,
            settled: Cells::ZERO,
        }
    }

    /// Of ten an hour.
    fn hourly(algorithm: Algorithm) -> Self {
        let limit = Limit::new(10, Unit::Hour, 1, None).expect("a sound limit");
        Self::new(one_rule(limit, algorithm))
    }

    fn allowed(&self) -> bool {
        ask(&self.engine, ("key", "a"), 1, self.now).allowed()
    }

    fn key(&self) -> StoreKey {
        let answer = ask(&self.engine, ("key", "a"), 0, self.now);
        let hit = answer.decisive().expect("a hit").clone();
        let moment = Moment::at(self.now);
        let store_state = self.engine.store_key(&answer, &hit, moment);
        store_state.expect("a key that is told").0
    }

    fn receive_news(&mut self, key: StoreKey, kind: NewsKind) {
        let moment = Moment::at(self.now);
        self.rounds
            .news_received(&self.engine, News { key, kind }, moment);
    }

    /// Takes turns for so many milliseconds. Heartbeats are answered; reports of keys are returned.
    fn turns(&mut self, millis: u64) -> Vec<Call> {
        let mut store_state = Vec::new();
        for _ in 0..millis {
            self.now += MS;
            let SyncActions {
                calls, heartbeat, ..
            } = self.rounds.turn(&self.engine, Moment::at(self.now));
            if heartbeat.is_some() {
                self.heartbeats += 1;
                self.heartbeat_answered(0, Vec::new());
            }
            for call in calls {
                match call.deltas.is_empty() {
                    true => self.reply(&call, Vec::new()),
                    false => store_state.push(call),
                }
            }
        }
        store_state
    }

    fn heartbeat_answered(&mut self, resets: u64, reset_keys: Vec<StoreKey>) {
        let heartbeat_answered = HeartbeatReply {
            pods: 1,
            resets,
            reset_keys,
        };
        let moment = Moment::at(self.now);
        self.rounds
            .heartbeat_answered(&self.engine, &heartbeat_answered, moment);
    }

    fn reply(&mut self, call: &Call, store_state: Vec<StoreState>) {
        let gross = call.deltas.iter().map(|delta| delta.gross);
        self.settled = gross.fold(self.settled, Cells::plus);
        let reply = StoreReply {
            applied: !call.deltas.is_empty(),
            sequence: call.sequence,
            gross: self.settled,
            states: store_state,
            repaired: 0,
        };
        let trip = RoundTrip {
            sent: Nanos::new(self.now),
            back: Moment::at(self.now),
        };
        self.rounds
            .call_answered(&self.engine, call.id(), &reply, trip);
    }

    /// What the store says of a key that has so many of its ten cells in use.
    fn used(&self, algorithm: Algorithm, cells: u64) -> StoreState {
        match algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                StoreState::Level {
                    level: Span::seconds(360).times(Cells::new(cells)),
                    demand: 0,
                    capped: false,
                }
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow | Algorithm::SlidingLog => {
                StoreState::Window {
                    current: Cells::new(cells),
                    previous: Cells::ZERO,
                    left: Span::nanos(HOUR.get() - self.now % HOUR.get()),
                }
            }
        }
    }
}

fn full(pod: &Pod) -> NewsKind {
    NewsKind::Full(Span::nanos(HOUR.get() - pod.now % HOUR.get()))
}

#[test]
fn news_of_a_full_key_denies_until_the_store_says_otherwise() {
    for algorithm in Algorithm::ALL {
        let mut pod = Pod::hourly(algorithm);
        assert!(pod.allowed());
        let store_state = pod.turns(10);
        pod.reply(&store_state[0], vec![pod.used(algorithm, 1)]);
        pod.receive_news(pod.key(), full(&pod));
        assert!(!pod.allowed(), "{algorithm:?}");
        let asked = pod.turns(50);
        assert_eq!((asked.len(), asked[0].deltas.len()), (1, 1));
        assert_eq!(asked[0].deltas[0].gross, Cells::ZERO, "{algorithm:?}");
        pod.reply(&asked[0], vec![pod.used(algorithm, 1)]);
        assert!(pod.allowed(), "{algorithm:?}: the store knows better");
        // Whoever was wrong is not listened to again.
        pod.receive_news(pod.key(), full(&pod));
        assert!(pod.allowed(), "{algorithm:?}");
    }
}

#[test]
fn what_the_store_does_not_confirm_within_a_second_is_forgotten() {
    for algorithm in Algorithm::ALL {
        let mut pod = Pod::hourly(algorithm);
        assert!(pod.allowed());
        let store_state = pod.turns(10);
        pod.reply(&store_state[0], vec![pod.used(algorithm, 1)]);
        pod.receive_news(pod.key(), full(&pod));
        assert!(!pod.allowed());
        let _ = pod.turns(900);
        assert!(!pod.allowed(), "{algorithm:?}: it may be true");
        let _ = pod.turns(200);
        assert!(pod.allowed(), "{algorithm:?}: nobody says that it is");
    }
}

#[test]
fn what_the_store_confirms_holds_for_its_whole_length_and_costs_one_read() {
    for algorithm in Algorithm::ALL {
        let mut pod = Pod::hourly(algorithm);
        pod.receive_news(pod.key(), full(&pod));
        let mut reads = 0;
        for _ in 0..30 {
            assert!(!pod.allowed(), "{algorithm:?}");
            let asked = pod.turns(1_000);
            reads += asked.len();
            for call in &asked {
                pod.reply(call, vec![pod.used(algorithm, 10)]);
            }
            pod.receive_news(pod.key(), full(&pod));
        }
        assert_eq!(reads, 1, "{algorithm:?}");
    }
}

#[test]
fn a_key_that_nobody_asks_for_costs_nothing_and_is_denied_when_it_is() {
    let mut pod = Pod::hourly(Algorithm::Gcra);
    let key = StoreKey {
        name: 77,
        ..pod.key()
    };
    pod.receive_news(key, full(&pod));
    assert_eq!(pod.turns(5_000).len(), 0);
    pod.receive_news(pod.key(), full(&pod));
    let _ = pod.turns(5_000);
    assert!(!pod.allowed());
}

#[test]
fn news_of_a_key_whose_callers_bring_the_limit_is_asked_about_too() {
    let other = Pod::hourly(Algorithm::Gcra);
    let mut pod = Pod::hourly(Algorithm::Gcra);
    let limit = Limit::from_caller(10, 10, 3_600).expect("a sound limit");
    let throttle = |pod: &Pod| {
        let throttle = Throttle {
            key: b"k",
            limit,
            cost: Cells::ONE,
            refund: false,
        };
        match pod
            .engine
            .begin(Question::Throttle(&throttle), Moment::at(pod.now))
        {
            CheckStep::Decided(answer) => answer,
            CheckStep::NeedsStore(_) => unreachable!("nothing is strict"),
        }
    };
    let answer = throttle(&other);
    let hit = answer.decisive().expect("a hit").clone();
    let moment = Moment::at(other.now);
    let store_state = other.engine.store_key(&answer, &hit, moment);
    drop(answer);
    pod.receive_news(
        store_state.expect("a key that is told").0,
        NewsKind::Full(HOUR),
    );
    assert!(!throttle(&pod).allowed());
    let asked = pod.turns(50);
    assert_eq!(asked.len(), 1);
    pod.reply(&asked[0], vec![pod.used(Algorithm::Gcra, 0)]);
    assert!(throttle(&pod).allowed());
}

#[test]
fn news_of_a_reset_frees_nothing_and_brings_the_next_sign_of_life_forward() {
    let mut pod = Pod::hourly(Algorithm::Gcra);
    let _ = pod.turns(10);
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    let before = pod.heartbeats;
    pod.receive_news(pod.key(), NewsKind::Reset);
    assert!(!pod.allowed());
    let _ = pod.turns(2);
    assert_eq!(pod.heartbeats, before + 1);
    assert!(!pod.allowed(), "there is no reset in the log");
    // A flood of it is answered ten times a second, beside the regular one.
    for _ in 0..1_000 {
        pod.receive_news(pod.key(), NewsKind::Reset);
        let _ = pod.turns(1);
    }
    assert!(pod.heartbeats <= before + 12, "{}", pod.heartbeats - before);
    pod.heartbeat_answered(1, vec![pod.key()]);
    assert!(pod.allowed());
}

#[test]
fn keys_that_are_only_said_to_be_live_leave_room_for_those_in_use() {
    let mut pod = Pod::hourly(Algorithm::Gcra);
    let known = pod.key();
    for name in 0..5_000 {
        let key = StoreKey { name, ..known };
        pod.receive_news(key, NewsKind::Live(HOUR));
    }
    let _ = pod.turns(100);
    assert!(pod.rounds.figures_now(&pod.engine).keys <= 500);
    assert!(pod.allowed());
    assert_eq!(pod.turns(10).len(), 1, "it is told");
}
