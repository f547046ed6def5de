//! The queue of keys that want a round is bounded. A key that finds it full loses no cell and asks again.

use tidegate_core::engine::sync::{Pace, PodSync};
use tidegate_core::engine::{CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::rule::{Report, RuleSpec};
use tidegate_core::pure::sync::{Grouping, Share};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Span};
use tidegate_testing::engine::{SECOND, START, admits, reporting_engine};
use tidegate_testing::rules;

/// The queue of an engine of this size has room for a quarter of it.
const KEYS_MAX: usize = 4_000;
const QUEUED_MAX: u64 = 1_000;
const KEYS: u64 = 1_500;

fn engine(algorithm: Algorithm) -> Engine {
    let rule = RuleSpec {
        report: Report::Always,
        ..rules::rule(rules::a_second(1_000, 1_000), algorithm)
    };
    reporting_engine(KEYS_MAX, rules::rules(vec![rules::node("key", rule)]))
}

/// Admits one cell of each key, then takes a turn of the sync. Answers the keys that it knows of and the cells of its books.
fn round(
    engine: &Engine,
    sync: &mut PodSync,
    now: u64,
    admit: impl Fn(&Engine, u64, u64) -> bool,
) -> (u64, u64) {
    for key in 0..KEYS {
        assert!(admit(engine, key, now));
    }
    let _ = sync.turn(engine, Moment::at(now));
    let figures = sync.figures_now(engine);
    let books = figures.books;
    assert_eq!(books.lost, Cells::ZERO);
    let accounted = books.pending.plus(books.in_flight).plus(books.settled);
    (figures.keys, accounted.get())
}

fn check(engine: &Engine, admit: impl Fn(&Engine, u64, u64) -> bool) {
    let pace = Pace {
        interval: Span::seconds(1),
        accuracy: Share::of(1, 10),
    };
    let mut sync = PodSync::new(pace, 100_000, Grouping::Whole);
    let first = round(engine, &mut sync, START, &admit);
    assert_eq!(
        first,
        (QUEUED_MAX, KEYS),
        "the others stay in their buckets"
    );
    let second = round(engine, &mut sync, START + SECOND, &admit);
    assert_eq!(second, (KEYS, 2 * KEYS), "and ask again");
}

fn admit_by_rule(engine: &Engine, key: u64, now: u64) -> bool {
    admits(engine, &key.to_string(), now)
}

#[test]
fn level_keys_ask_again_after_a_full_queue() {
    check(&engine(Algorithm::Gcra), admit_by_rule);
}

#[test]
fn windowed_keys_ask_again_after_a_full_queue() {
    check(&engine(Algorithm::FixedWindow), admit_by_rule);
}

#[test]
fn keys_with_a_callers_limit_ask_again_after_a_full_queue() {
    check(&engine(Algorithm::Gcra), |engine, key, now| {
        let throttle = Throttle {
            key: &key.to_le_bytes(),
            limit: Limit::from_caller(1_000, 1_000, 1).expect("a sound limit"),
            cost: Cells::ONE,
            refund: false,
        };
        match engine.begin(Question::Throttle(&throttle), Moment::at(now)) {
            CheckStep::Decided(answer) => answer.allowed(),
            CheckStep::NeedsStore(_) => false,
        }
    });
}
