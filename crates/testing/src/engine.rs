//! Engines without a history, and checks at a given nanosecond.

use tidegate_core::engine::{Answer, Engine, FleetKey, Setup};
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Moment, Rules};

use crate::rules::DOMAIN;

/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;

/// When most tests begin: a whole second, and not the clock's zero.
pub const START: u64 = 1_000_000 * SECOND;

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

/// An engine for `keys_max` keys that reports to a store.
pub fn reporting_engine(keys_max: usize, rules: Rules) -> Engine {
    let setup = Setup {
        reporting: true,
        ..setup(keys_max)
    };
    Engine::new(setup, rules)
}

/// Asks for `cost` cells of the one descriptor `key: value` at `nanos`.
pub fn ask(engine: &Engine, entry: (&str, &str), cost: u64, nanos: u64) -> Answer {
    let (key, value) = entry;
    let entries = [Entry::new(key, value)];
    let descriptors = [Descriptor::of(&entries)];
    let check = Check {
        domain: DOMAIN,
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
