//! Who is who: the name of a key, which the whole fleet computes alike.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config;
use tidegate_core::engine::{Engine, FleetKey, Setup};
use tidegate_core::pure::rule::{Matching, RuleSpec};
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Moment, Rules};
use tidegate_testing::engine::{START, ask, engine, left, setup};
use tidegate_testing::rules::{a_second, node, parent, rules, rules_by};

/// Three levels of the same key, a rule at each.
fn nested() -> Rules {
    let spec = || RuleSpec::new(a_second(1_000, 1_000));
    let deepest = node("key", spec());
    let middle = parent(node("key", spec()), vec![deepest]);
    let top = parent(node("key", spec()), vec![middle]);
    rules_by(Matching::Specific, vec![top, node("other", spec())])
}

/// The name of the key that `values`, or `other: value`, make.
fn name(engine: &Engine, key: &str, values: &[String]) -> u128 {
    let entries: Vec<Entry<'_>> = values.iter().map(|value| Entry::new(key, value)).collect();
    let descriptors = [Descriptor::of(&entries)];
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::ZERO,
        peek: true,
    };
    let answer = engine.check(&check, Moment::at(START));
    answer.hits().first().expect("a rule matched").name
}

/// Strings that an encoding without lengths would confuse.
fn awkward() -> impl Strategy<Value = String> {
    let part = prop::sample::select(vec![
        "",
        "a",
        "b",
        "/",
        "=",
        "\0",
        "\u{1}",
        "\u{1}\0\0\0a",
        "|",
        "_",
        "é",
        "\0\0\0\0",
    ]);
    vec(part, 0..4).prop_map(|parts| parts.concat())
}

proptest! {
    #![proptest_config(Config { cases: 2_000, failure_persistence: None, ..Config::default() })]

    /// Two lists of values share a name only if they are the same list.
    #[test]
    fn a_name_belongs_to_one_list(one in vec(awkward(), 1..4), other in vec(awkward(), 1..4)) {
        let engine = engine(16, nested());
        let same = name(&engine, "key", &one) == name(&engine, "key", &other);
        prop_assert_eq!(same, one == other);
    }
}

#[test]
fn two_rules_never_share_a_name() {
    let engine = engine(16, nested());
    let values = ["a".to_owned()];
    assert_ne!(
        name(&engine, "key", &values),
        name(&engine, "other", &values)
    );
}

/// A change of this number is a change of every key's name in the store: the whole fleet has to change at once.
#[test]
fn the_fleet_agrees_on_names() {
    let values = ["a".to_owned(), "192.0.2.7".to_owned()];
    let of = |setup: Setup| name(&Engine::new(setup, nested()), "key", &values);
    let seeded = |seeds| Setup { seeds, ..setup(16) };
    assert_eq!(of(seeded([1, 2])), GOLDEN);
    assert_eq!(of(seeded([u64::MAX, 77])), GOLDEN);
    let stranger = Setup {
        fleet: FleetKey::derived(b"another"),
        ..setup(16)
    };
    assert_ne!(of(stranger), GOLDEN);
}

const GOLDEN: u128 = 213_370_165_783_919_123_807_350_870_819_809_093_756;

#[test]
fn an_address_is_one_client_however_it_is_written() {
    let spec = RuleSpec::new(a_second(10, 10));
    let engine = engine(100, rules(vec![node("remote_address", spec)]));
    let same = |one, other| {
        ask(&engine, ("remote_address", one), 1, START);
        left(&engine, ("remote_address", one), START)
            == left(&engine, ("remote_address", other), START)
    };
    assert!(same("192.0.2.7", "::ffff:192.0.2.7"));
    assert!(same("2001:db8:1:2::1", "2001:DB8:1:2:ffff::9"));
    assert!(!same("2001:db8:1:3::1", "2001:db8:1:4::1"));
    assert!(!same("192.0.2.8", "192.0.2.9"));
    assert!(!same("not an address", "nor this"));
}
