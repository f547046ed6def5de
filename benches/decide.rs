//! What one check costs in process, against a floor and a peer in the same run.
//!
//! All read the same keys in the same order; rounds alternate and the best of each counts, so that a noisy machine hits
//! all alike. Columns, in nanoseconds per check and thread:
//!
//! - `floor`: the least anybody could do: hash the key, find it in a flat table, exchange one word.
//! - `check`: one rule, its key ready, the time passed in: what the floor does, and the limit.
//! - `+clock`: the same, and the clock is read.
//! - `full`: a check as a door has it: domain and descriptor matched to the rule, the clock read, an answer made.
//! - `governor`: the keyed limiter of that crate, which reads a clock too.
//! - `x floor`: `check` by `floor`. `x governor`: `+clock` by `governor`.
//!
//! `cargo bench --bench decide -- '1 M zipf'` runs one set of keys.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark prints, times, and fails loudly"
)]

use std::hint::black_box;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use siphasher::sip128::SipHasher13;
use tidegate::clock::Clock;
use tidegate_core::engine::{Engine, RuleBytes, Snapshot};
use tidegate_core::pure::rule::RuleSpec;
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Moment, Unit, key};
use tidegate_testing::Random;
use tidegate_testing::engine::reporting_engine;
use tidegate_testing::rules::{DOMAIN, limit, node, rules};

const CHECKS: usize = 2_000_000;
const ROUNDS: usize = 5;

fn main() {
    let only = std::env::args().skip(1).find(|only| only != "--bench");
    println!(
        "{:<14} {:>7} {:>7} {:>7} {:>7} {:>7} {:>8} {:>7} {:>10}",
        "keys", "threads", "floor", "check", "+clock", "full", "governor", "x floor", "x governor"
    );
    for (name, keys, order) in [
        ("1 hot", 1, Order::Uniform),
        ("100 k uniform", 100_000, Order::Uniform),
        ("1 M zipf", 1_000_000, Order::Zipf),
    ] {
        if only.as_ref().is_none_or(|only| only == name) {
            let load = Load::new(keys, order);
            let rivals = Rivals::new(&load);
            for threads in [1, 2] {
                rivals.compare(name, &load, threads);
            }
        }
    }
}

/// Everybody who is measured.
struct Rivals {
    floor: Floor,
    tide: Tide,
    governor: Governor,
}

impl Rivals {
    fn new(load: &Load) -> Self {
        Self {
            floor: Floor::new(load),
            tide: Tide::new(load),
            governor: Governor::new(load),
        }
    }

    fn compare(&self, name: &str, load: &Load, threads: usize) {
        let Self {
            floor,
            tide,
            governor,
        } = self;
        let mut best = [f64::MAX; 5];
        for _ in 0..ROUNDS {
            let start = tide.clock.moment();
            let round = [
                run(threads, load, |index, _| floor.check(&load.encoded[index])),
                run(threads, load, |index, nth| {
                    tide.check(&load.encoded[index], passed(start, nth))
                }),
                run(threads, load, |index, _| {
                    tide.check(&load.encoded[index], tide.clock.moment())
                }),
                run(threads, load, |index, _| {
                    tide.full(&load.names[index], tide.clock.moment())
                }),
                run(threads, load, |index, _| governor.check(&load.names[index])),
            ];
            best = std::array::from_fn(|rival| best[rival].min(round[rival]));
        }
        let [floor, check, with_clock, full, governor] = best;
        println!(
            "{name:<14} {threads:>7} {floor:>7.1} {check:>7.1} {with_clock:>7.1} {full:>7.1} {governor:>8.1} {:>7.2} {:>10.2}",
            check / floor,
            with_clock / governor
        );
    }
}

/// How often each key is asked for.
#[derive(Clone, Copy)]
enum Order {
    Uniform,
    Zipf,
}

/// Keys, and the order in which they are asked for.
struct Load {
    names: Vec<String>,
    /// The names as the engine hashes them.
    encoded: Vec<Vec<u8>>,
    order: Vec<u32>,
}

impl Load {
    fn new(keys: usize, order: Order) -> Self {
        let names: Vec<String> = (0..keys).map(|key| format!("client-{key:017}")).collect();
        let encoded = names
            .iter()
            .map(|name| {
                let mut bytes = Vec::new();
                key::write_value(name, |part| bytes.extend_from_slice(part));
                bytes
            })
            .collect();
        let mut random = Random::new(1);
        let order = (0..CHECKS)
            .map(|_| match order {
                Order::Uniform => (random.unit() * keys as f64) as u32,
                // An exponent of 1: the inverse of the harmonic sum, closely enough.
                Order::Zipf => {
                    ((keys as f64).powf(random.unit()) - 1.0).min(keys as f64 - 1.0) as u32
                }
            })
            .collect();
        Self {
            names,
            encoded,
            order,
        }
    }
}

/// Nanoseconds per check and thread.
fn run(threads: usize, load: &Load, check: impl Fn(usize, usize) -> bool + Sync) -> f64 {
    let check = &check;
    let elapsed = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn(move || {
                    let start = Instant::now();
                    let offset = worker * CHECKS / threads;
                    for nth in 0..CHECKS {
                        let index = load.order[(nth + offset) % CHECKS] as usize;
                        black_box(check(index, nth));
                    }
                    start.elapsed()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or(Duration::MAX))
            .max()
            .unwrap_or_default()
    });
    elapsed.as_nanos() as f64 / CHECKS as f64
}

/// The time as it is passed in: some nanoseconds later with every check.
fn passed(start: Moment, nth: usize) -> Moment {
    Moment::at(start.now.get() + nth as u64 * 20)
}

/// A flat table that never fills and forgets nothing.
struct Floor {
    slots: Vec<[AtomicU64; 2]>,
    mask: usize,
}

impl Floor {
    fn new(load: &Load) -> Self {
        let len = (load.names.len() * 2).next_power_of_two();
        let mut floor = Self {
            slots: Vec::new(),
            mask: len - 1,
        };
        floor
            .slots
            .resize_with(len, || [AtomicU64::new(0), AtomicU64::new(0)]);
        for key in &load.encoded {
            let print = Self::print(key);
            let mut at = print as usize & floor.mask;
            while floor.slots[at][0].load(Ordering::Relaxed) != 0 {
                at = (at + 1) & floor.mask;
            }
            floor.slots[at][0].store(print, Ordering::Relaxed);
        }
        floor
    }

    fn print(key: &[u8]) -> u64 {
        SipHasher13::new_with_key(&[7; 16]).hash(key).as_u128() as u64 | 1
    }

    fn check(&self, key: &[u8]) -> bool {
        let print = Self::print(key);
        let mut at = print as usize & self.mask;
        while self.slots[at][0].load(Ordering::Acquire) != print {
            at = (at + 1) & self.mask;
        }
        let word = &self.slots[at][1];
        let mut seen = word.load(Ordering::Acquire);
        while let Err(now) =
            word.compare_exchange_weak(seen, seen + 1, Ordering::AcqRel, Ordering::Acquire)
        {
            seen = now;
        }
        true
    }
}

/// The engine, with one rule that never denies.
struct Tide {
    engine: Engine,
    rules: Arc<Snapshot>,
    clock: Clock,
}

impl Tide {
    fn new(load: &Load) -> Self {
        let rule = RuleSpec::new(limit(1_000_000_000, Unit::Second));
        let keys_max = load.names.len().max(1000) * 5 / 4;
        let engine = reporting_engine(keys_max, rules(vec![node("client", rule)]));
        let tide = Self {
            rules: engine.snapshot(),
            engine,
            clock: Clock::get(),
        };
        for key in &load.encoded {
            tide.check(key, tide.clock.moment());
        }
        tide
    }

    fn check(&self, key: &[u8], moment: Moment) -> bool {
        let key = RuleBytes {
            rule: 0,
            bytes: key,
        };
        self.engine
            .check_key(&self.rules, key, Cells::ONE, moment)
            .is_ok_and(|standing| standing.allowed)
    }

    fn full(&self, name: &str, moment: Moment) -> bool {
        let entries = [Entry::new("client", name)];
        let descriptors = [Descriptor::of(&entries)];
        let check = Check {
            domain: DOMAIN,
            descriptors: &descriptors,
            cost: Cells::ONE,
            peek: false,
        };
        self.engine.check(&check, moment).allowed()
    }
}

/// The peer.
struct Governor {
    limiter: governor::DefaultKeyedRateLimiter<String>,
}

impl Governor {
    fn new(load: &Load) -> Self {
        let quota = governor::Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero"));
        let governor = Self {
            limiter: governor::RateLimiter::keyed(quota),
        };
        for name in &load.names {
            governor.check(name);
        }
        governor
    }

    fn check(&self, name: &String) -> bool {
        self.limiter.check_key(name).is_ok()
    }
}
