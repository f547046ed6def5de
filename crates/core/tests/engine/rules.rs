//! Which rules a descriptor meets. The examples are those of envoyproxy/ratelimit's README, re-expressed.

use tidegate_core::pure::rule::{Matching, NodeSpec, RuleSpec};
use tidegate_core::pure::{Entry, Rules};
use tidegate_testing::engine::{START, ask, engine, left};
use tidegate_testing::rules::{a_second, exact, node, parent, rules, rules_by};

/// A rule that is called `name`.
fn named(name: &str) -> RuleSpec {
    RuleSpec {
        name: Some(name.to_owned()),
        ..RuleSpec::new(a_second(5, 5))
    }
}

/// Walks `key=value` pairs, joined by spaces, and spells the names of the rules met.
fn check(rules: &Rules, descriptor: &str, expected: &[&str]) {
    let entries: Vec<Entry<'_>> = descriptor
        .split_whitespace()
        .map(|pair| pair.split_once('=').expect("a pair"))
        .map(|(key, value)| Entry::new(key, value))
        .collect();
    let mut met = Vec::new();
    rules.walk("api", &entries, |index| {
        met.push(rules.all()[index].policy.as_str());
    });
    assert_eq!(met, expected, "{descriptor}");
}

#[test]
fn exact_wins_over_pattern_and_pattern_over_the_key_alone() {
    let rules = rules(vec![
        node("path", named("any")),
        exact("path", "/a*", named("pattern")),
        exact("path", "/a*b", named("later pattern")),
        exact("path", "/ab", named("exact")),
    ]);
    check(&rules, "path=/ab", &["exact"]);
    check(&rules, "path=/acb", &["pattern"]);
    check(&rules, "path=/a", &["pattern"]);
    check(&rules, "path=/z", &["any"]);
    check(&rules, "path=", &["any"]);
    check(&rules, "route=/ab", &[]);
}

#[test]
fn there_is_no_way_back_up() {
    let deeper = || vec![node("user", named("deep"))];
    let rules = rules(vec![
        parent(node("path", named("any")), deeper()),
        exact("path", "/a", named("exact")),
    ]);
    check(&rules, "path=/b user=u", &["deep"]);
    check(&rules, "path=/a user=u", &[]);
}

#[test]
fn the_level_has_to_match() {
    let rules = rules(vec![parent(
        node("path", named("path")),
        vec![node("user", named("user"))],
    )]);
    check(&rules, "path=/a", &["path"]);
    check(&rules, "path=/a user=u", &["user"]);
    check(&rules, "path=/a user=u more=m", &[]);
    check(&rules, "path=/a more=m", &[]);
    check(&rules, "user=u", &[]);
    check(&rules, "user=u path=/a", &[]);
    check(&rules, "", &[]);
}

#[test]
fn under_path_every_rule_on_the_way_counts() {
    let rules = rules_by(
        Matching::Path,
        vec![parent(
            node("path", named("path")),
            vec![parent(
                node("user", None),
                vec![node("verb", named("verb"))],
            )],
        )],
    );
    check(&rules, "path=/a user=u verb=GET", &["path", "verb"]);
    check(&rules, "path=/a user=u", &["path"]);
    check(&rules, "path=/a unknown=u", &["path"]);
    check(&rules, "path=/a user=u verb=GET more=m", &["path", "verb"]);
}

#[test]
fn an_empty_value_takes_any() {
    let rules = rules(vec![exact("user", "", named("any"))]);
    check(&rules, "user=", &["any"]);
    check(&rules, "user=u", &["any"]);
}

#[test]
fn values_of_a_pattern_share_a_key_only_when_told_to() {
    for (share_threshold, left_of_other) in [(true, 3), (false, 5)] {
        let pattern = NodeSpec {
            share_threshold,
            ..exact("file", "/f/*", RuleSpec::new(a_second(5, 5)))
        };
        let engine = engine(100, rules(vec![pattern]));
        assert!(ask(&engine, ("file", "/f/a"), 2, START).allowed());
        assert_eq!(left(&engine, ("file", "/f/a"), START), 3);
        assert_eq!(left(&engine, ("file", "/f/b"), START), left_of_other);
    }
}

#[test]
fn rules_of_the_same_keys_are_told_apart_by_their_values() {
    let plain = || RuleSpec::new(a_second(5, 5));
    let rules = rules(vec![
        exact("user", "a", plain()),
        exact("user", "b", plain()),
        node("user", plain()),
        node("path", plain()),
    ]);
    let labels: Vec<&str> = rules.all().iter().map(|rule| rule.label.as_str()).collect();
    assert_eq!(labels, ["api/user=a", "api/user=b", "api/user", "api/path"]);
}

/// README, example 1: one rule per message type and number, and one per number.
#[test]
fn readme_messaging() {
    let messages = |name| vec![node("to_number", named(name))];
    let rules = rules(vec![
        parent(
            exact("message_type", "marketing", None),
            messages("marketing to a number"),
        ),
        node("to_number", named("to a number")),
    ]);
    check(
        &rules,
        "message_type=marketing to_number=1",
        &["marketing to a number"],
    );
    check(&rules, "to_number=1", &["to a number"]);
    check(&rules, "message_type=transactional to_number=1", &[]);
    check(&rules, "message_type=marketing", &[]);
}

/// README, examples 2 to 4: a default per address, less for one, none for another.
#[test]
fn readme_addresses() {
    let rules = rules(vec![
        node("remote_address", named("ten")),
        exact("remote_address", "50.0.0.5", named("blocked")),
        exact(
            "remote_address",
            "50.0.0.6",
            RuleSpec {
                name: Some("unlimited".to_owned()),
                ..RuleSpec::unlimited()
            },
        ),
    ]);
    check(&rules, "remote_address=1.2.3.4", &["ten"]);
    check(&rules, "remote_address=50.0.0.5", &["blocked"]);
    check(&rules, "remote_address=50.0.0.6", &["unlimited"]);
}

/// README, example 5: several keys of which only some have a rule.
#[test]
fn readme_nested_values() {
    let path = |value| vec![exact("path", value, named("limited"))];
    let rules = rules(vec![
        parent(exact("tier", "free", None), path("/foo")),
        parent(exact("tier", "paid", named("paid")), Vec::new()),
    ]);
    check(&rules, "tier=free path=/foo", &["limited"]);
    check(&rules, "tier=free path=/bar", &[]);
    check(&rules, "tier=paid", &["paid"]);
    check(&rules, "tier=paid path=/foo", &[]);
}
