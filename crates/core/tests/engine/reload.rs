//! Rules that change while keys are known.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config;
use tidegate_core::pure::rule::{NodeSpec, RuleSpec};
use tidegate_core::pure::{Algorithm, Limit};
use tidegate_testing::engine::{SECOND, START, admits, ask, engine, left};
use tidegate_testing::rules::{a_second, exact, node, one_rule, rule, rules};

const KEY: (&str, &str) = ("key", "k");

fn by(limit: Limit) -> tidegate_core::pure::Rules {
    one_rule(limit, Algorithm::Gcra)
}

#[test]
fn an_unchanged_rule_keeps_its_state() {
    for algorithm in Algorithm::ALL {
        let engine = engine(100, one_rule(a_second(10, 10), algorithm));
        assert!(ask(&engine, KEY, 7, START).allowed());
        engine.reload(one_rule(a_second(10, 10), algorithm));
        assert_eq!(left(&engine, KEY, START), 3, "{}", algorithm.name());
        assert!(!ask(&engine, KEY, 4, START).allowed());
        assert!(ask(&engine, KEY, 3, START).allowed());
    }
}

#[test]
fn half_full_stays_half_full() {
    for algorithm in Algorithm::ALL {
        for (from, to, expected) in [(10, 100, 50), (100, 10, 5), (8, 2, 1), (2, 8, 4)] {
            let engine = engine(100, one_rule(a_second(from, from), algorithm));
            assert!(ask(&engine, KEY, from / 2, START).allowed());
            engine.reload(one_rule(a_second(to, to), algorithm));
            let name = algorithm.name();
            assert_eq!(left(&engine, KEY, START), expected, "{name} {from} to {to}");
            assert!(ask(&engine, KEY, 1, START).allowed());
            assert_eq!(
                left(&engine, KEY, START),
                expected - 1,
                "{name} {from} to {to}"
            );
        }
    }
}

#[test]
fn there_and_back_again_loses_nothing() {
    for touched in [false, true] {
        let engine = engine(100, by(a_second(10, 10)));
        assert!(ask(&engine, KEY, 4, START).allowed());
        engine.reload(by(a_second(20, 20)));
        if touched {
            assert!(ask(&engine, KEY, 2, START).allowed());
        }
        engine.reload(by(a_second(10, 10)));
        let expected = if touched { 5 } else { 6 };
        assert_eq!(left(&engine, KEY, START), expected);
        assert!(ask(&engine, KEY, expected, START).allowed());
        assert!(!ask(&engine, KEY, 1, START).allowed());
        assert_eq!(engine.keys_held(), 1);
    }
}

#[test]
fn a_key_is_found_through_eight_limits_that_it_slept_through() {
    let engine = engine(100, by(a_second(1_000, 1_000)));
    assert!(ask(&engine, KEY, 500, START).allowed());
    for nth in 1..=8 {
        engine.reload(by(a_second(nth * 100, nth * 100)));
    }
    assert_eq!(left(&engine, KEY, START), 400);
    assert!(ask(&engine, KEY, 400, START).allowed());
    assert!(!ask(&engine, KEY, 1, START).allowed());
    assert_eq!(engine.keys_held(), 1);
}

#[test]
fn another_window_algorithm_holds_for_known_keys_too() {
    // A fixed window forgets at the second; a log does not.
    let at = START + SECOND * 9 / 10;
    let engine = engine(100, one_rule(a_second(10, 10), Algorithm::FixedWindow));
    assert!(ask(&engine, KEY, 6, at).allowed());
    engine.reload(one_rule(a_second(10, 10), Algorithm::SlidingLog));
    assert_eq!(left(&engine, KEY, at), 4);
    assert_eq!(left(&engine, KEY, START + SECOND), 4);
    assert_eq!(left(&engine, KEY, at + SECOND), 10);
}

#[test]
fn rules_come_go_and_move() {
    let one = |key: &str| node(key, RuleSpec::new(a_second(10, 10)));
    let (a, b) = (("a", "k"), ("b", "k"));
    let engine = engine(100, rules(vec![one("a"), one("b")]));
    assert!(ask(&engine, a, 3, START).allowed());
    assert!(ask(&engine, b, 6, START).allowed());
    engine.reload(rules(vec![one("new"), one("b"), one("a")]));
    assert_eq!((left(&engine, a, START), left(&engine, b, START)), (7, 4));
    assert_eq!(left(&engine, ("new", "k"), START), 10);
    engine.reload(rules(vec![one("a")]));
    assert!(ask(&engine, b, 100, START).hits().is_empty());
    engine.reload(rules(vec![one("b"), one("a")]));
    assert_eq!((left(&engine, a, START), left(&engine, b, START)), (7, 4));
    engine.reload(rules(vec![node("a", RuleSpec::unlimited())]));
    assert!(ask(&engine, a, 1_000, START).allowed());
    engine.reload(rules(vec![node("a", RuleSpec::new(a_second(20, 20)))]));
    assert_eq!(left(&engine, a, START), 14);
}

/// Four threads check while the limit changes a thousand times between 40 and 60 cells. Time stands still: what they
/// admit, each weighed by the limit it was admitted under, fills the bucket and no more.
#[test]
fn a_thousand_swaps_lose_nothing_and_admit_no_more_than_the_limits_allow() {
    const LIMITS: [u64; 2] = [40_000, 60_000];
    let rule_of = |limit: u64| by(a_second(limit, limit));
    let engine = engine(1_000, rule_of(LIMITS[0]));
    let (done, admitted, answered) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !done.load(Ordering::Acquire) {
                    let answer = ask(&engine, KEY, 1, START);
                    let hit = answer.hits().first().expect("a rule matched");
                    let limit = answer.limit(hit).expect("it has a limit").requests();
                    assert_eq!(limit, LIMITS[(answer.version() as usize + 1) % 2]);
                    assert!(hit.standing.remaining.get() < limit);
                    let weight = 120_000 / limit;
                    let passed = if answer.allowed() { weight } else { 0 };
                    admitted.fetch_add(passed, Ordering::Relaxed);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for nth in 1..=1_000_u64 {
            let before = answered.load(Ordering::Relaxed);
            engine.reload(rule_of(LIMITS[nth as usize % 2]));
            while answered.load(Ordering::Relaxed) < before + 20 {
                thread::yield_now();
            }
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(engine.keys_held(), 1);
    let (admitted, weight) = (admitted.into_inner(), 120_000 / LIMITS[0]);
    let used = (LIMITS[0] - left(&engine, KEY, START)) * weight;
    assert!(admitted <= 120_000, "admitted {admitted} parts of 120000");
    // Rescaling rounds up to a nanosecond, so a swap can cost a part of a cell, and a look shows whole cells.
    assert!(used >= admitted, "lost: {used} used, {admitted} admitted");
    assert!(
        used <= admitted + weight,
        "doubled: {used} used, {admitted} admitted"
    );
}

/// New keys while the rules are swapped: none enters twice, none is admitted more than the larger limit.
#[test]
fn keys_that_enter_while_rules_are_swapped_are_there_once() {
    let engine = engine(100_000, by(a_second(2, 2)));
    let next = AtomicU64::new(0);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    for nth in 0..4_000_u64 {
                        // All threads meet at the same keys.
                        let key = next.fetch_max(nth, Ordering::Relaxed).max(nth);
                        admits(&engine, &key.to_string(), START);
                    }
                })
            })
            .collect();
        let mut nth = 0_u64;
        while threads.iter().any(|thread| !thread.is_finished()) {
            nth += 1;
            engine.reload(by(a_second(2 + nth % 3, 2 + nth % 3)));
        }
    });
    assert!(engine.keys_held() <= 4_000, "{} held", engine.keys_held());
}

fn nodes() -> impl Strategy<Value = Vec<NodeSpec>> {
    let key = prop::sample::select(vec!["a", "a=b", "a=b#1", "a=b#2", "a/b", "b", "b#1"]);
    let value = prop::sample::select(vec!["", "b", "b#1", "b/b=b"]);
    let leaf = (key.clone(), value.clone());
    vec((key, value, vec(leaf, 0..3)), 1..8).prop_map(|tree| {
        let spec = || RuleSpec::new(a_second(1, 1));
        tree.into_iter()
            .map(|(key, value, leaves)| NodeSpec {
                children: leaves
                    .into_iter()
                    .map(|(key, value)| exact(key, value, spec()))
                    .collect(),
                ..exact(key, value, spec())
            })
            .collect()
    })
}

proptest! {
    #![proptest_config(Config { cases: 500, failure_persistence: None, ..Config::default() })]

    /// A label names one rule, whatever keys and values are called.
    #[test]
    fn labels_are_unique(nodes in nodes()) {
        let rules = rules(nodes);
        let labels: BTreeSet<&str> = rules.all().iter().map(|rule| rule.label.as_str()).collect();
        prop_assert_eq!(labels.len(), rules.all().len(), "{:?}", labels);
    }
}

#[test]
fn a_rule_of_nothing_denies_and_comes_back() {
    let engine = engine(100, by(a_second(10, 10)));
    assert!(ask(&engine, KEY, 5, START).allowed());
    engine.reload(one_rule(
        Limit::new(0, tidegate_core::pure::Unit::Second, 1, None).expect("a sound limit"),
        Algorithm::Gcra,
    ));
    assert!(!admits(&engine, "k", START));
    engine.reload(rules(vec![node(
        "key",
        rule(a_second(10, 10), Algorithm::Gcra),
    )]));
    assert!(admits(&engine, "k", START));
}
