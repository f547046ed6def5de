//! A check of a known key allocates nothing.

use tidegate_core::engine::{CheckStep, Engine, Question};
use tidegate_core::pure::rule::NodeSpec;
use tidegate_core::pure::{Algorithm, Cells, Check, Descriptor, Entry, Moment, Unit};
use tidegate_testing::engine::reporting_engine;
use tidegate_testing::rules::{limit, node, rule, rules};

const NOW: Moment = Moment::at(1_000_000_000_000);

fn engine(algorithm: Algorithm) -> Engine {
    let node = |key: &str, requests| node(key, rule(limit(requests, Unit::Hour), algorithm));
    let keys = ["a", "b", "c", "remote_address"];
    let mut nodes: Vec<NodeSpec> = keys.iter().map(|key| node(key, 1_000_000)).collect();
    nodes.push(node("scarce", 1));
    reporting_engine(1_000, rules(nodes))
}

/// Checks `keys` once to make them known, then again: that must allocate nothing, and pass or not as said.
fn check(algorithm: Algorithm, keys: &[&str], peek: bool, allowed: bool) {
    let engine = engine(algorithm);
    let entries: Vec<[Entry<'_>; 1]> = keys
        .iter()
        .map(|key| [Entry::new(*key, "2001:db8:1:2:3:4:5:6")])
        .collect();
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .map(|entries| Descriptor::of(entries))
        .collect();
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::ONE,
        peek,
    };
    let known = Check {
        peek: false,
        ..check
    };
    assert!(engine.check(&known, NOW).allowed());
    let counted = allocation_counter::measure(|| {
        for _ in 0..100 {
            assert_eq!(engine.check(&check, NOW).allowed(), allowed);
        }
    });
    assert_eq!(counted.count_total, 0, "{} {keys:?}", algorithm.name());
    let counted =
        allocation_counter::measure(|| match engine.begin(Question::Check(&check), NOW) {
            CheckStep::Decided(answer) => assert_eq!(answer.allowed(), allowed),
            CheckStep::NeedsStore(plan) => unreachable!("nothing is strict: {plan:?}"),
        });
    assert_eq!(counted.count_total, 0, "{} {keys:?}", algorithm.name());
}

#[test]
fn an_allowed_check_allocates_nothing() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        check(algorithm, &["a"], false, true);
        check(algorithm, &["a", "b", "c", "remote_address"], false, true);
        check(algorithm, &["remote_address"], false, true);
    }
}

#[test]
fn a_denied_check_allocates_nothing() {
    for algorithm in Algorithm::ALL {
        check(algorithm, &["scarce"], false, false);
        check(
            algorithm,
            &["a", "remote_address", "scarce", "b"],
            false,
            false,
        );
    }
}

#[test]
fn a_look_allocates_nothing() {
    for algorithm in Algorithm::ALL {
        check(algorithm, &["a"], true, true);
        check(algorithm, &["a", "b", "c", "remote_address"], true, true);
        check(algorithm, &["scarce"], true, false);
    }
}

/// The counter counts, or the tests above show nothing.
#[test]
fn an_allocation_would_be_seen() {
    let counted = allocation_counter::measure(|| drop(std::hint::black_box(vec![1_u8; 64])));
    assert_eq!(counted.count_total, 1);
}
