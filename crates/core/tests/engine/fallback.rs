//! What a pod grants while the store is unreachable.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config;
use tidegate_core::engine::{Engine, Shares, Source, Verdict};
use tidegate_core::pure::rule::{OnStoreError, RuleSpec};
use tidegate_core::pure::sync::{Demand, Share};
use tidegate_core::pure::{Algorithm, Cells, Limit, Unit};
use tidegate_testing::engine::{START, ask, reporting_engine};
use tidegate_testing::rules::{a_second, node, rule, rules};

fn engine(limit: Limit, on_store_error: OnStoreError) -> Engine {
    let spec = RuleSpec {
        on_store_error,
        ..rule(limit, Algorithm::Gcra)
    };
    reporting_engine(1_000, rules(vec![node("key", spec)]))
}

/// Cuts every lane off.
fn cut_off(engine: &Engine, unlearned: Share) {
    let shares = Shares {
        unlearned,
        learned: HashMap::new(),
    };
    engine.set_partition(u64::MAX, 0, shares);
}

/// Whether each of some checks passes, all at once.
fn decisions(engine: &Engine, checks: usize) -> String {
    let ask = |_| ask(engine, ("key", "v"), 1, START);
    let answers = (0..checks).map(ask).inspect(|answer| {
        assert_eq!(answer.hits()[0].source, Source::Fallback);
    });
    let letter = |allowed| if allowed { 'a' } else { 'd' };
    answers.map(|answer| letter(answer.allowed())).collect()
}

#[test]
fn only_a_share_of_a_bucket_is_granted_while_an_answer_is_late() {
    let late = |spec: RuleSpec| {
        let engine = reporting_engine(1_000, rules(vec![node("key", spec)]));
        let shares = Shares {
            unlearned: Share::of(1, 2),
            learned: HashMap::new(),
        };
        engine.set_partition(0, u64::MAX, shares);
        let allowed = |_: &usize| ask(&engine, ("key", "v"), 1, START).allowed();
        (0..9).filter(allowed).count()
    };
    let of = |on_store_error, algorithm| RuleSpec {
        on_store_error,
        ..rule(Limit::new(6, Unit::Second, 1, None).unwrap(), algorithm)
    };
    assert_eq!(late(of(OnStoreError::LocalShare, Algorithm::Gcra)), 3);
    assert_eq!(
        late(of(OnStoreError::LocalShare, Algorithm::FixedWindow)),
        6
    );
    for other in [
        OnStoreError::LocalFull,
        OnStoreError::Allow,
        OnStoreError::Deny,
    ] {
        assert_eq!(late(of(other, Algorithm::Gcra)), 6, "{other:?}");
    }
}

#[test]
fn each_way_without_the_store() {
    for (on_store_error, expected, pending) in [
        (OnStoreError::LocalShare, "aaadddd", 3),
        (OnStoreError::LocalFull, "aaaaaad", 6),
        (OnStoreError::Allow, "aaaaaaaa", 6),
        (OnStoreError::Deny, "ddd", 0),
    ] {
        let engine = engine(a_second(10, 6), on_store_error);
        cut_off(&engine, Share::of(1, 2));
        let found = decisions(&engine, expected.len());
        assert_eq!(found, expected, "{on_store_error:?}");
        assert_eq!(engine.pending(), Cells::new(pending), "{on_store_error:?}");
    }
}

#[test]
fn only_allow_forgives_and_only_deny_wants_the_store() {
    for on_store_error in [
        OnStoreError::LocalShare,
        OnStoreError::LocalFull,
        OnStoreError::Allow,
        OnStoreError::Deny,
    ] {
        let engine = engine(a_second(10, 1), on_store_error);
        cut_off(&engine, Share::WHOLE);
        let first = ask(&engine, ("key", "v"), 1, START);
        assert!(!first.hits()[0].forgiven);
        let second = ask(&engine, ("key", "v"), 1, START);
        let forgiven = second.hits()[0].forgiven;
        assert_eq!(forgiven, on_store_error == OnStoreError::Allow);
        assert_eq!(
            second.verdict() == Verdict::StoreUnavailable,
            on_store_error == OnStoreError::Deny
        );
    }
}

#[test]
fn a_partition_ends() {
    let engine = engine(a_second(10, 6), OnStoreError::Deny);
    cut_off(&engine, Share::WHOLE);
    assert!(!ask(&engine, ("key", "v"), 1, START).allowed());
    let shares = Shares {
        unlearned: Share::WHOLE,
        learned: HashMap::new(),
    };
    engine.set_partition(0, 0, shares);
    let answer = ask(&engine, ("key", "v"), 1, START);
    assert_eq!(
        (answer.allowed(), answer.hits()[0].source),
        (true, Source::Local)
    );
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::with_cases(64) })]

    /// Pods that are cut off from each other admit no more than the limit together. One whose share is less than a
    /// cell admits that one cell besides.
    #[test]
    fn shares_sum_to_no_more_than_the_limit(
        demands in vec(0_u64..1_000, 1..12),
        burst in 1_u64..200,
    ) {
        let (total, pods) = (demands.iter().sum(), demands.len() as u64);
        let limit = Limit::new(burst, Unit::Hour, 1, Some(burst)).expect("a sound limit");
        let mut together = 0;
        for demand in &demands {
            let share = Share::fallback(Demand::weight(*demand, total), pods);
            let engine = engine(limit, OnStoreError::LocalShare);
            cut_off(&engine, share);
            let mut admitted = 0;
            while ask(&engine, ("key", "v"), 1, START).allowed() {
                admitted += 1;
            }
            match share.price(limit.interval()) <= limit.capacity() {
                true => together += admitted,
                false => prop_assert_eq!(admitted, 1),
            }
        }
        prop_assert!(together <= burst, "{} of {}", together, burst);
    }
}
