//! Rules in a line: limits, nodes, and the one domain of a test.
//!
//! For integration tests and benchmarks. The unit tests inside `tidegate-core` cannot use it: there the crate would
//! exist twice.

use tidegate_core::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
use tidegate_core::pure::{Addresses, Algorithm, Limit, Rules, Unit};

/// The domain of every rule that is built here.
pub const DOMAIN: &str = "api";

/// `requests` in each `unit`, as many at once.
pub fn limit(requests: u64, unit: Unit) -> Limit {
    Limit::new(requests, unit, 1, None).expect("a sound limit")
}

/// `requests` a second, `burst` at once.
pub fn a_second(requests: u64, burst: u64) -> Limit {
    Limit::new(requests, Unit::Second, 1, Some(burst)).expect("a sound limit")
}

/// A rule that counts by `algorithm`.
pub fn rule(limit: Limit, algorithm: Algorithm) -> RuleSpec {
    RuleSpec {
        algorithm,
        ..RuleSpec::new(limit)
    }
}

/// A node for any value of `key`.
pub fn node(key: &str, rule: impl Into<Option<RuleSpec>>) -> NodeSpec {
    NodeSpec {
        key: key.to_owned(),
        value: None,
        share_threshold: false,
        rule: rule.into(),
        children: Vec::new(),
    }
}

/// A node for one value of `key`, or for a pattern.
pub fn exact(key: &str, value: &str, rule: impl Into<Option<RuleSpec>>) -> NodeSpec {
    NodeSpec {
        value: Some(value.to_owned()),
        ..node(key, rule)
    }
}

/// `node` with these nodes below it.
pub fn parent(node: NodeSpec, children: Vec<NodeSpec>) -> NodeSpec {
    NodeSpec { children, ..node }
}

/// A domain that matches as `matching` says.
pub fn rules_by(matching: Matching, nodes: Vec<NodeSpec>) -> Rules {
    let domain = DomainSpec {
        name: DOMAIN.to_owned(),
        matching,
        nodes,
    };
    Rules::compile(vec![domain], Addresses::default())
}

/// A domain whose most specific rule holds.
pub fn rules(nodes: Vec<NodeSpec>) -> Rules {
    rules_by(Matching::Specific, nodes)
}

/// The one rule of `key`.
pub fn one_rule(limit: Limit, algorithm: Algorithm) -> Rules {
    rules(vec![node("key", rule(limit, algorithm))])
}
