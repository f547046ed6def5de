//! Cells that are given back: never beyond empty, never of a denied check, and told to the store only if that knows of
//! them.

use tidegate::engine::rounds::{Pace, Rounds, Trip, Turn};
use tidegate::engine::{Answer, Begun, Engine, Setup, Throttle};
use tidegate::pure::rule::{Report, RuleSpec};
use tidegate::pure::sync::{Beaten, Call, Reply, Share, Take, Told};
use tidegate::pure::{
    Algorithm, Cells, Check, Descriptor, Entry, Limit, Moment, Nanos, Rules, Span, Unit,
};

use crate::world::{
    SECOND, START, a_second, ask, engine, left, node, one_rule, rule, rules, setup,
};

fn refund(engine: &Engine, values: &[(&str, bool)], cost: u64, nanos: u64) -> Answer {
    let entries: Vec<[Entry<'_>; 1]> = values
        .iter()
        .map(|(value, _)| [Entry { key: "key", value }])
        .collect();
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .zip(values)
        .map(|(entries, (_, refund))| Descriptor {
            refund: *refund,
            ..Descriptor::of(entries)
        })
        .collect();
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::new(cost),
        peek: false,
    };
    engine.check(&check, Moment::at(nanos))
}

#[test]
fn what_is_given_back_can_be_used_again_and_no_more() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(10, Unit::Hour, 1, None).expect("a sound limit");
        let engine = engine(64, one_rule(limit, algorithm));
        let at = START / (3_600 * SECOND) * 3_600 * SECOND + SECOND;
        assert!(ask(&engine, ("key", "a"), 10, at).allowed());
        assert!(!ask(&engine, ("key", "a"), 1, at).allowed());
        let answer = refund(&engine, &[("a", true)], 4, at + 1);
        assert!(answer.allowed(), "{algorithm:?}");
        let hit = answer.decisive().expect("a hit");
        assert_eq!(hit.standing.remaining, Cells::new(4), "{algorithm:?}");
        drop(answer);
        refund(&engine, &[("a", true)], u64::MAX, at + 2);
        assert_eq!(left(&engine, ("key", "a"), at + 2), 10, "{algorithm:?}");
        assert!(!ask(&engine, ("key", "a"), 11, at + 2).allowed());
        assert!(ask(&engine, ("key", "a"), 10, at + 2).allowed());
    }
}

#[test]
fn a_key_without_a_bucket_stays_so() {
    let engine = engine(64, one_rule(a_second(10, 10), Algorithm::Gcra));
    assert!(refund(&engine, &[("a", true)], 4, START).allowed());
    assert_eq!(
        (engine.keys_held(), left(&engine, ("key", "a"), START)),
        (0, 10)
    );
}

#[test]
fn a_denied_check_gives_nothing_back_and_one_that_passes_uses_its_other_part() {
    let engine = engine(64, one_rule(a_second(10, 10), Algorithm::Gcra));
    for value in ["a", "b"] {
        assert!(ask(&engine, ("key", value), 10, START).allowed());
    }
    assert!(!refund(&engine, &[("a", true), ("b", false)], 3, START).allowed());
    assert_eq!(left(&engine, ("key", "a"), START), 0);
    assert!(refund(&engine, &[("a", true), ("c", false)], 3, START).allowed());
    assert_eq!(left(&engine, ("key", "a"), START), 3);
    assert_eq!(left(&engine, ("key", "c"), START), 7);
}

#[test]
fn a_limit_that_is_carried_is_refunded_at_its_own_price() {
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let slow = Limit::carried(10, 1, 60).expect("a sound limit");
    let fast = Limit::carried(60, 1, 1).expect("a sound limit");
    let throttle = |limit, cost, refund| {
        let cost = Cells::new(cost);
        let throttle = Throttle {
            key: b"k",
            limit,
            cost,
            refund,
        };
        match engine.begin_throttle(&throttle, Moment::at(START)) {
            Begun::Decided(answer) => answer.decisive().map(|hit| hit.standing.remaining.get()),
            Begun::Asking(_) => None,
        }
    };
    assert_eq!(throttle(slow, 10, false), Some(0));
    assert_eq!(throttle(fast, 120, true), Some(0), "two minutes of ten");
    assert_eq!(throttle(slow, 0, false), Some(2));
    assert_eq!(throttle(slow, u64::MAX, true), Some(10));
}

/// A pod with a store that the test plays.
struct Pod {
    engine: Engine,
    rounds: Rounds,
    now: u64,
}

impl Pod {
    fn new(rules: Rules) -> Self {
        let pace = Pace {
            interval: Span::seconds(1),
            accuracy: Share::even(10),
        };
        let reporting = true;
        Self {
            engine: Engine::new(
                Setup {
                    reporting,
                    ..setup(64)
                },
                rules,
            ),
            rounds: Rounds::new(pace, 64),
            now: START,
        }
    }

    /// Takes turns for `millis`, and says what was to be sent.
    fn turns(&mut self, millis: u64) -> (Vec<Call>, Vec<Take>) {
        let (mut all, mut back) = (Vec::new(), Vec::new());
        for _ in 0..millis {
            self.now += SECOND / 1_000;
            let Turn {
                calls, give_back, ..
            } = self.rounds.turn(&self.engine, Moment::at(self.now));
            all.extend(calls.into_iter().filter(|call| !call.deltas.is_empty()));
            back.extend(give_back);
        }
        (all, back)
    }

    /// Answers a call as a store does that has nothing else.
    fn answer(&mut self, call: &Call) {
        let gross = call.deltas.iter().map(|delta| delta.gross);
        let told = |price| Told::Level {
            level: price,
            demand: 0,
            capped: false,
        };
        let reply = Reply {
            applied: true,
            sequence: call.sequence,
            gross: gross.fold(Cells::ZERO, Cells::plus),
            told: call.deltas.iter().map(|delta| told(delta.price)).collect(),
            repaired: 0,
        };
        let trip = Trip {
            sent: Nanos::new(self.now),
            back: Moment::at(self.now),
        };
        self.rounds.answered(&self.engine, call.lane, &reply, trip);
    }
}

fn always(limit: Limit) -> Rules {
    let spec = RuleSpec {
        report: Report::Always,
        ..rule(limit, Algorithm::Gcra)
    };
    rules(vec![node("key", spec)])
}

fn an_hour(requests: u64) -> Limit {
    Limit::new(requests, Unit::Hour, 1, None).expect("a sound limit")
}

#[test]
fn what_was_not_told_yet_is_not_told_at_all() {
    let mut pod = Pod::new(always(an_hour(100)));
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    refund(&pod.engine, &[("a", true)], 4, pod.now);
    let (calls, back) = pod.turns(20);
    let told: Vec<u64> = calls[0]
        .deltas
        .iter()
        .map(|delta| delta.gross.get())
        .collect();
    assert_eq!((told, back), (vec![6], vec![]));
}

#[test]
fn what_was_told_is_given_back_once_nothing_is_on_its_way() {
    let mut pod = Pod::new(always(an_hour(100)));
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    let (calls, _) = pod.turns(20);
    assert_eq!(calls.len(), 1);
    refund(&pod.engine, &[("a", true)], 4, pod.now);
    refund(&pod.engine, &[("a", true)], 3, pod.now);
    assert_eq!(pod.turns(20), (vec![], vec![]), "its batch is on its way");
    pod.answer(&calls[0]);
    let (_, back) = pod.turns(20);
    let delta = &calls[0].deltas[0];
    let given_back: Vec<_> = back.iter().map(|take| (take.key, take.cost)).collect();
    assert_eq!(given_back, [(delta.key, Cells::new(7))]);
    assert_eq!(pod.turns(20).1, vec![], "once");
}

#[test]
fn what_this_pod_was_silent_of_the_store_hears_nothing_of() {
    let mut pod = Pod::new(one_rule(an_hour(100), Algorithm::Gcra));
    for _ in 0..20 {
        // It is sure of how many pods there are.
        let moment = Moment::at(pod.now);
        pod.rounds.beaten(&pod.engine, &beaten(), moment);
        pod.turns(1_000);
    }
    assert!(ask(&pod.engine, ("key", "a"), 20, pod.now).allowed());
    assert_eq!(pod.turns(20), (vec![], vec![]), "a fifth, and it is alone");
    refund(&pod.engine, &[("a", true)], 15, pod.now);
    assert_eq!(pod.turns(2_000), (vec![], vec![]));
    assert_eq!(left(&pod.engine, ("key", "a"), pod.now), 95);
}

fn beaten() -> Beaten {
    Beaten {
        pods: 1,
        resets: 0,
        reset_keys: Vec::new(),
    }
}
