//! What the tests share: rules in a line, engines without a history, checks at a given nanosecond.

use tidegate_core::engine::{Answer, Engine, FleetKey, Setup};
use tidegate_core::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
use tidegate_core::pure::{
    Addresses, Algorithm, Cells, Check, Descriptor, Entry, Limit, Moment, Rules, Unit,
};

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// When most tests begin: a whole second, and not the clock's zero.
pub const START: u64 = 1_000_000 * SECOND;

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

/// A domain `api` that matches as `matching` says.
pub fn rules_by(matching: Matching, nodes: Vec<NodeSpec>) -> Rules {
    let name = "api".to_owned();
    let domain = DomainSpec {
        name,
        matching,
        nodes,
    };
    Rules::compile(vec![domain], Addresses::default())
}

/// A domain `api` whose most specific rule holds.
pub fn rules(nodes: Vec<NodeSpec>) -> Rules {
    rules_by(Matching::Specific, nodes)
}

/// The one rule of `key`.
pub fn one_rule(limit: Limit, algorithm: Algorithm) -> Rules {
    rules(vec![node("key", rule(limit, algorithm))])
}

/// A setup for `keys_max` keys, without reporting.
pub fn setup(keys_max: usize) -> Setup {
    Setup {
        keys_max,
        fleet: FleetKey::derived(b"fleet"),
        seeds: [0x5eed_0001, 0x5eed_0002],
        reporting: false,
    }
}

/// An engine for `keys_max` keys.
pub fn engine(keys_max: usize, rules: Rules) -> Engine {
    Engine::new(setup(keys_max), rules)
}

/// Asks for `cost` cells of the one descriptor `key: value` at `nanos`.
pub fn ask(engine: &Engine, entry: (&str, &str), cost: u64, nanos: u64) -> Answer {
    let (key, value) = entry;
    let entries = [Entry::new(key, value)];
    let descriptors = [Descriptor::of(&entries)];
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::new(cost),
        peek: false,
    };
    engine.check(&check, Moment::at(nanos))
}

/// Whether one cell of `key: value` is there, and takes it.
pub fn admits(engine: &Engine, value: &str, nanos: u64) -> bool {
    ask(engine, ("key", value), 1, nanos).allowed()
}

/// Cells left of `key: value`.
pub fn left(engine: &Engine, entry: (&str, &str), nanos: u64) -> u64 {
    let answer = ask(engine, entry, 0, nanos);
    let hit = answer.hits().first().expect("a rule matched");
    hit.standing.remaining.get()
}

/// Numbers that look random and are the same in every run.
pub struct Dice(u64);

impl Dice {
    /// Dice of their own for each `seed`.
    pub const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`.
    pub const fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}
