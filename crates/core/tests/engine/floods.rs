//! A flood of keys with longer windows, many times what the tables hold, beside keys of a login limit.
//!
//! Every check goes to two engines: one with room for all keys, which is exact, and one that has to forget. Who is over the
//! limit must not gain a cell by being forgotten; who is below must not be denied.

use std::collections::BTreeMap;

use tidegate_core::engine::Engine;
use tidegate_core::pure::{Algorithm, Limit, Moment, Unit};
use tidegate_testing::Random;
use tidegate_testing::engine::{SECOND, START, ask, engine};
use tidegate_testing::rules::{node, rule, rules};

use crate::caller_limits::throttle;

const KEYS_MAX: usize = 800;
/// Login keys that ask for four times their limit, and such that ask for half of it.
const GREEDY: usize = 50;
const HONEST: usize = 1_000;
/// The flood comes again after as long, for as many times.
const ROUND: u64 = 20 * SECOND;
const ROUNDS: u64 = 5;

/// Who brings the limit.
#[derive(Clone, Copy, Debug)]
enum By {
    Rule(Algorithm),
    Caller,
}

impl By {
    const ALL: [Self; 7] = [
        Self::Rule(Algorithm::Gcra),
        Self::Rule(Algorithm::TokenBucket),
        Self::Rule(Algorithm::LeakyBucket),
        Self::Rule(Algorithm::FixedWindow),
        Self::Rule(Algorithm::SlidingWindow),
        Self::Rule(Algorithm::SlidingLog),
        Self::Caller,
    ];

    fn engine(self, keys_max: usize) -> Engine {
        let algorithm = match self {
            Self::Rule(algorithm) => algorithm,
            Self::Caller => Algorithm::Gcra,
        };
        let nodes = [("login", login()), ("client", daily())];
        let nodes = nodes.map(|(key, limit)| node(key, rule(limit, algorithm)));
        engine(keys_max, rules(nodes.into()))
    }

    fn admits(self, engine: &Engine, entry: (&str, &str), now: u64) -> bool {
        match self {
            Self::Rule(_) => ask(engine, entry, 1, now).allowed(),
            Self::Caller => {
                let limit = if entry.0 == "login" { login() } else { daily() };
                let key = format!("{}:{}", entry.0, entry.1);
                throttle(engine, key.as_bytes(), limit, 1, now).allowed()
            }
        }
    }
}

fn login() -> Limit {
    Limit::new(5, Unit::Minute, 1, None).expect("a sound limit")
}

fn daily() -> Limit {
    Limit::new(1_000, Unit::Day, 1, None).expect("a sound limit")
}

/// What a flood did.
#[derive(Debug, Default)]
struct Damage {
    /// Cells that a key got beyond what the exact engine gave it, of the worst of them.
    worst: i64,
    /// Honest keys that were denied a cell which the exact engine gave them.
    denied: usize,
    /// Keys that were forgotten while in use.
    forgotten: u64,
}

/// A flood of `keys` keys, each asked twice a round, between checks of the login keys.
fn flood(by: By, keys: usize) -> Damage {
    let exact = by.engine(10 * (keys + KEYS_MAX));
    let flooded = by.engine(KEYS_MAX);
    let mut random = Random::new(keys as u64);
    let mut checks = Vec::new();
    for round in 0..ROUNDS {
        let start = START + round * ROUND;
        let mut add = |key, value: String, times| {
            for _ in 0..times {
                checks.push((start + random.below(ROUND), key, value.clone()));
            }
        };
        for nth in 0..keys {
            add("client", nth.to_string(), 2);
        }
        for nth in 0..GREEDY {
            add("login", format!("greedy {nth}"), 7);
        }
        // A cell of theirs comes back in less than a round.
        for nth in 0..HONEST {
            add("login", format!("honest {nth}"), 1);
        }
    }
    checks.sort();
    let mut books = BTreeMap::<&str, [i64; 2]>::new();
    for (at, key, value) in &checks {
        let entry = (*key, value.as_str());
        let admitted = [&exact, &flooded].map(|engine| by.admits(engine, entry, *at));
        if *key == "login" {
            let counts = books.entry(value).or_default();
            for (count, admitted) in counts.iter_mut().zip(admitted) {
                *count += i64::from(admitted);
            }
        }
    }
    let mut damage = Damage {
        forgotten: flooded.keys_forgotten(),
        ..Damage::default()
    };
    for (value, [exact, flooded]) in books {
        damage.worst = damage.worst.max(flooded - exact);
        damage.denied += usize::from(value.starts_with("honest") && flooded < exact);
    }
    damage
}

/// As many keys as three tables hold: nobody gains a cell, and of the honest at most one in a thousand is denied.
#[test]
fn nobody_gains_a_cell_by_being_evicted() {
    for by in By::ALL {
        for keys in [KEYS_MAX, 3 * KEYS_MAX - GREEDY - HONEST] {
            let damage = flood(by, keys);
            let gained = (damage.worst, damage.forgotten);
            assert_eq!(gained, (0, 0), "{by:?}, {keys} keys: {damage:?}");
            assert!(
                damage.denied * 1_000 <= HONEST,
                "{by:?}, {keys} keys: {damage:?}"
            );
        }
    }
}

/// Beyond that keys are forgotten by chance, and that is counted. Those at their limit are hardly ever among them, and still
/// nobody is denied who is below it.
#[test]
fn beyond_three_tables_the_least_used_are_forgotten_first() {
    for by in By::ALL {
        let damage = flood(by, 6 * KEYS_MAX);
        assert!(damage.forgotten > 0, "{by:?}: {damage:?}");
        assert!(damage.worst <= 5, "{by:?}: {damage:?}");
        assert_eq!(damage.denied, 0, "{by:?}: {damage:?}");
    }
}

/// A key that was reset while it was not held starts anew.
#[test]
fn a_reset_forgets_what_was_remembered() {
    for by in By::ALL {
        let engine = by.engine(100);
        let entry = ("login", "greedy");
        let now = START;
        while by.admits(&engine, entry, now) {}
        for nth in 0..250_u64 {
            let value = nth.to_string();
            by.admits(&engine, ("client", &value), now);
            by.admits(&engine, ("client", &value), now);
        }
        assert!(!by.admits(&engine, entry, now), "{by:?} is remembered");
        if let By::Rule(_) = by {
            let answer = ask(&engine, entry, 0, now);
            let hit = answer.hits().first().expect("a rule matched");
            engine.forget_hit(&answer, hit, Moment::at(now));
            assert!(by.admits(&engine, entry, now), "{by:?} was reset");
        }
    }
}
