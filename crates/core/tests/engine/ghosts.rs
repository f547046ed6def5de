//! Keys that are remembered and not held: what is used, refunded and reported of them while the table is full.

use tidegate_core::engine::{Answer, CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::rule::{Report, RuleSpec};
use tidegate_core::pure::sync::StoreState;
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Rules, Span, Unit};
use tidegate_testing::engine::{SECOND, START, admits, ask, engine, left};
use tidegate_testing::rules::{node, one_rule, rule, rules};

use crate::refund::{Pod, an_hour, refund};

const HOUR: u64 = 3_600 * SECOND;
/// The first second of an hour.
const AT: u64 = START / HOUR * HOUR + SECOND;

const WINDOWED: [Algorithm; 3] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

fn always(limit: Limit, algorithm: Algorithm) -> Rules {
    let spec = RuleSpec {
        report: Report::Always,
        ..rule(limit, algorithm)
    };
    rules(vec![node("key", spec)])
}

/// An engine that is full of keys in use.
fn full_engine(limit: Limit, algorithm: Algorithm, at: u64) -> Engine {
    let engine = engine(16, one_rule(limit, algorithm));
    fill(&engine, at);
    engine
}

fn fill(engine: &Engine, at: u64) {
    for nth in 0..16 {
        assert!(admits(engine, &nth.to_string(), at));
    }
}

/// No key may leave while its cells are on their way to the store. One that finds no place is held to its limit all the same.
#[test]
fn a_key_without_a_place_is_held_to_its_limit() {
    for algorithm in Algorithm::ALL {
        let mut pod = Pod::holding(1, always(an_hour(5), algorithm));
        pod.now = AT;
        assert!(admits(&pod.engine, "a", pod.now));
        assert_eq!(pod.turns(20).0.len(), 1, "on its way");
        let admitted = (0..50).filter(|_| admits(&pod.engine, "b", pod.now));
        assert_eq!(admitted.count(), 5, "{algorithm:?}");
    }
}

#[test]
fn a_key_that_is_not_held_gets_back_what_it_is_refunded() {
    for algorithm in Algorithm::ALL {
        let engine = full_engine(an_hour(10), algorithm, AT);
        assert!(ask(&engine, ("key", "a"), 10, AT).allowed());
        assert!(!admits(&engine, "a", AT), "{algorithm:?}");
        refund(&engine, &[("a", true)], 4, AT);
        assert_eq!(left(&engine, ("key", "a"), AT), 4, "{algorithm:?}");
        refund(&engine, &[("a", true)], u64::MAX, AT);
        assert!(!ask(&engine, ("key", "a"), 11, AT).allowed());
        assert!(
            ask(&engine, ("key", "a"), 10, AT).allowed(),
            "{algorithm:?}"
        );
    }
}

#[test]
fn a_limit_of_a_caller_that_is_not_held_is_refunded() {
    let engine = engine(16, one_rule(an_hour(1), Algorithm::Gcra));
    let limit = Limit::from_caller(10, 1, 60).expect("a sound limit");
    let throttle = |key: &[u8], cost, refund| -> Answer {
        let cost = Cells::new(cost);
        let throttle = Throttle {
            key,
            limit,
            cost,
            refund,
        };
        match engine.begin(Question::Throttle(&throttle), Moment::at(START)) {
            CheckStep::Decided(answer) => answer,
            CheckStep::NeedsStore(_) => unreachable!("there is no store"),
        }
    };
    assert!(throttle(b"a", 4, false).allowed());
    for nth in 0..40_u8 {
        assert!(throttle(&[nth], 10, false).allowed());
    }
    assert!(!throttle(b"a", 10, false).allowed(), "remembered");
    throttle(b"a", 4, true);
    assert!(throttle(b"a", 10, false).allowed());
}

/// The store may never have heard of the cells of a key that is not held: it is not to give back another pod's.
#[test]
fn of_a_refund_of_a_key_that_is_not_held_nothing_is_told() {
    for algorithm in Algorithm::ALL {
        let mut pod = Pod::holding(16, always(an_hour(10), algorithm));
        pod.now = AT;
        fill(&pod.engine, pod.now);
        assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
        refund(&pod.engine, &[("a", true)], 4, pod.now);
        assert_eq!(left(&pod.engine, ("key", "a"), pod.now), 4);
        assert_eq!(pod.turns(20).1, vec![], "{algorithm:?}");
        // Under another limit, too.
        pod.engine.reload(always(an_hour(20), algorithm));
        refund(&pod.engine, &[("a", true)], 2, pod.now);
        assert!(left(&pod.engine, ("key", "a"), pod.now) >= 10);
        assert_eq!(pod.turns(20).1, vec![], "{algorithm:?}");
    }
}

/// A clock that was set back by years denies a key for a window or two, not until the calendar is there again.
#[test]
fn a_calendar_set_back_denies_nobody_for_long() {
    let years = 3 * 365 * 24 * HOUR;
    for algorithm in WINDOWED {
        let engine = full_engine(an_hour(10), algorithm, AT + years);
        assert!(ask(&engine, ("key", "a"), 10, AT + years).allowed());
        for half in 0..5 {
            admits(&engine, "a", AT + half * HOUR / 2);
            assert!(left(&engine, ("key", "a"), AT + half * HOUR / 2) <= 10);
        }
        assert!(admits(&engine, "a", AT + 3 * HOUR), "{algorithm:?}");
        // One that is only looked at, too.
        assert!(ask(&engine, ("key", "b"), 10, AT + years).allowed());
        left(&engine, ("key", "b"), AT);
        let later = left(&engine, ("key", "b"), AT + 3 * HOUR);
        assert_eq!(later, 10, "{algorithm:?}");
    }
}

/// A clock that was set back by a moment, into the window before, gives nobody another limit.
#[test]
fn a_clock_that_steps_back_gives_nothing() {
    let before = AT - 2 * SECOND;
    for algorithm in WINDOWED {
        let engine = full_engine(an_hour(10), algorithm, AT);
        assert!(ask(&engine, ("key", "a"), 9, AT).allowed());
        let admitted = (0..10).filter(|_| admits(&engine, "a", before)).count();
        assert_eq!(admitted, 1, "{algorithm:?}");
        let admitted = (0..10).filter(|_| admits(&engine, "a", AT)).count();
        assert_eq!(admitted, 0, "{algorithm:?}");
    }
}

/// A limit with a shorter window comes into force: what is remembered of the longer one is over with the first short window.
#[test]
fn a_ghost_of_a_longer_window_ends_with_the_new_one() {
    for algorithm in WINDOWED {
        let monthly = Limit::new(10, Unit::Month, 1, None).expect("a sound limit");
        let engine = full_engine(monthly, algorithm, AT);
        assert!(ask(&engine, ("key", "a"), 10, AT).allowed());
        engine.reload(one_rule(an_hour(10), algorithm));
        assert!(!admits(&engine, "a", AT + 1), "{algorithm:?}");
        assert!(admits(&engine, "a", AT + 3 * HOUR), "{algorithm:?}");
    }
}

/// A key that comes back was reported before it left: what the store says of it is no news.
#[test]
fn what_was_told_of_a_key_is_not_counted_twice() {
    for algorithm in WINDOWED {
        let mut pod = Pod::holding(1, always(an_hour(10), algorithm));
        pod.now = AT;
        let mut store_state = [0_u64; 2];
        for round in 0..6 {
            let nth = round % 2;
            let value = ["a", "b"][nth];
            // Whoever is not held comes twice before it gets the place.
            assert!(admits(&pod.engine, value, pod.now), "{algorithm:?} {round}");
            for call in pod.turns(20).0 {
                store_state[nth] += call.deltas[0].billed.get();
                let answer = StoreState::Window {
                    current: Cells::new(store_state[nth]),
                    previous: Cells::ZERO,
                    left: Span::nanos(HOUR - pod.now % HOUR),
                };
                pod.reply(&call, vec![answer]);
            }
        }
        for value in ["a", "b"] {
            let left = left(&pod.engine, ("key", value), pod.now);
            assert!(left >= 7, "{algorithm:?}: {left} of {value} are left");
        }
    }
}
