//! What a key costs in memory, and the slowest single check while a table fills.
//!
//! Every key is checked once, in a table with room for exactly these keys. Columns, times in microseconds:
//!
//! - `bytes/key`: growth of the resident set from before the engine was made until all keys are in it, by key.
//! - `slowest`: the longest single check, and `slow`: how many took longer than 100.
//! - `kept on`, `slow`: the same, but only of checks around which the thread was never switched out.
//! - `pause`, `kept on`: the longest turn of a loop that for as long only reads the clock, of all turns and of those
//!   without a switch: what this machine does to anybody.
//! - `faults`: page faults. `steal`: milliseconds that the host ran something else on this machine's processors,
//!   counted in tens.
//!
//! `again` asks for the same keys once more: nothing enters and no page is new. The peer is the keyed limiter of
//! `governor`, a hash map that grows.
//!
//! Budgets: 64 bytes a key, 1 ms for the slowest check. `cargo bench --bench memory -- 1M` runs one size.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark prints, times, and fails loudly"
)]

use std::fs;
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use tidegate::clock::Clock;
use tidegate_core::engine::{Engine, RuleBytes};
use tidegate_core::pure::rule::RuleSpec;
use tidegate_core::pure::{Cells, Unit, key};
use tidegate_testing::benchmark::verdict;
use tidegate_testing::engine::reporting_engine;
use tidegate_testing::rules::{limit, node, rules};

const SLOW: Duration = Duration::from_micros(100);
const BYTES_PER_KEY_MAX: f64 = 64.0;
const SLOWEST_MAX: Duration = Duration::from_millis(1);
const PAGE_BYTES: u64 = 4096;
/// Turns between two looks at whether the thread was switched out.
const STRETCH: u64 = 1_000;
/// Stretches of the loop that only reads the clock, between two looks at how long it has run.
const PAUSE_STRETCHES: u64 = 100;

fn main() {
    let only = std::env::args().skip(1).find(|only| only != "--bench");
    println!(
        "{:<15} {:>4} {:>9} {:>8} {:>5} {:>8} {:>5} {:>8} {:>8} {:>8} {:>6}",
        "",
        "keys",
        "bytes/key",
        "slowest",
        "slow",
        "kept on",
        "slow",
        "pause",
        "kept on",
        "faults",
        "steal"
    );
    for (name, keys) in [("1M", 1_000_000), ("10M", 10_000_000)] {
        if only.as_ref().is_some_and(|only| only != name) {
            continue;
        }
        tidegate(name, keys);
        if keys == 1_000_000 {
            governor(name, keys);
        }
    }
}

fn tidegate(name: &str, keys: u64) {
    let before = resident();
    let engine = engine(usize::try_from(keys).expect("it fits"));
    let (rules, clock) = (engine.snapshot(), Clock::get());
    let mut bytes = Vec::new();
    let mut check = |nth: u64| {
        bytes.clear();
        key::write_value(&client(nth), |part| bytes.extend_from_slice(part));
        let moment = clock.moment();
        let key = RuleBytes {
            rule: 0,
            bytes: &bytes,
        };
        let _ = black_box(engine.check_key(&rules, key, Cells::ONE, moment));
        clock.since(moment.now)
    };
    let filled = Filled::by(keys, &mut check);
    let per_key = resident().saturating_sub(before) as f64 / keys as f64;
    filled.print("tidegate", name, Some(per_key));
    Filled::by(keys, &mut check).print("tidegate again", name, None);
    let (slowest, kept_on) = (filled.checks.all.longest, filled.checks.kept_on.longest);
    let held = engine.keys_held();
    println!(
        "{name}: {held} keys held; {per_key:.1} bytes a key (64): {}; slowest check {:.0} us (1000): {}, \
        {:.0} us while kept on: {}",
        verdict(per_key <= BYTES_PER_KEY_MAX),
        micros(slowest),
        verdict(slowest <= SLOWEST_MAX),
        micros(kept_on),
        verdict(kept_on <= SLOWEST_MAX),
    );
}

fn governor(name: &str, keys: u64) {
    let before = resident();
    let quota = governor::Quota::per_second(NonZeroU32::new(1_000_000_000).expect("not zero"));
    let limiter = governor::DefaultKeyedRateLimiter::<String>::keyed(quota);
    let filled = Filled::by(keys, |nth| {
        let client = client(nth);
        let started = Instant::now();
        let _ = black_box(limiter.check_key(&client));
        started.elapsed()
    });
    let per_key = resident().saturating_sub(before) as f64 / keys as f64;
    filled.print("governor", name, Some(per_key));
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn client(nth: u64) -> String {
    format!("client-{nth:017}")
}

fn engine(keys_max: usize) -> Engine {
    let rule = RuleSpec::new(limit(1_000, Unit::Hour));
    reporting_engine(keys_max, rules(vec![node("client", rule)]))
}

/// How long the turns of a loop took.
#[derive(Clone, Copy, Default)]
struct Turns {
    longest: Duration,
    slow: u64,
}

impl Turns {
    fn add(&mut self, turn: Duration) {
        self.longest = self.longest.max(turn);
        self.slow += u64::from(turn > SLOW);
    }

    fn join(&mut self, other: Self) {
        self.longest = self.longest.max(other.longest);
        self.slow += other.slow;
    }
}

/// Turns of a loop, all of them and those of stretches in which the thread stayed on its processor.
#[derive(Clone, Copy, Default)]
struct Loop {
    all: Turns,
    kept_on: Turns,
}

impl Loop {
    fn of(stretches: u64, mut turn: impl FnMut(u64) -> Duration) -> Self {
        let mut whole = Self::default();
        let mut switches = self::switches();
        for stretch in 0..stretches {
            let mut found = Turns::default();
            for nth in 0..STRETCH {
                found.add(turn(stretch * STRETCH + nth));
            }
            let now = self::switches();
            whole.all.join(found);
            if now == switches {
                whole.kept_on.join(found);
            }
            switches = now;
        }
        whole
    }

    fn join(&mut self, other: Self) {
        self.all.join(other.all);
        self.kept_on.join(other.kept_on);
    }
}

/// What became of all keys.
struct Filled {
    checks: Loop,
    pauses: Loop,
    faults: u64,
    steal: u64,
}

impl Filled {
    /// Checks each key once. `check` says how long it took.
    fn by(keys: u64, check: impl FnMut(u64) -> Duration) -> Self {
        let (faults_before, steal_before, begun) = (faults(), steal(), Instant::now());
        let checks = Loop::of(keys / STRETCH, check);
        let took = begun.elapsed();
        let (faults, steal) = (faults() - faults_before, steal() - steal_before);
        let begun = Instant::now();
        let mut pauses = Loop::default();
        while begun.elapsed() < took {
            pauses.join(Loop::of(PAUSE_STRETCHES, |_| Instant::now().elapsed()));
        }
        Self {
            checks,
            pauses,
            faults,
            steal,
        }
    }

    fn print(&self, what: &str, name: &str, bytes_per_key: Option<f64>) {
        println!(
            "{what:<15} {name:>4} {:>9} {:>8.0} {:>5} {:>8.0} {:>5} {:>8.0} {:>8.0} {:>8} {:>6}",
            bytes_per_key.map_or_else(String::new, |bytes| format!("{bytes:.1}")),
            micros(self.checks.all.longest),
            self.checks.all.slow,
            micros(self.checks.kept_on.longest),
            self.checks.kept_on.slow,
            micros(self.pauses.all.longest),
            micros(self.pauses.kept_on.longest),
            self.faults,
            self.steal,
        );
    }
}

/// Bytes of this process that are in memory.
fn resident() -> u64 {
    field("/proc/self/statm", 1) * PAGE_BYTES
}

/// Page faults so far that needed no disk.
fn faults() -> u64 {
    field("/proc/self/stat", 9)
}

/// Milliseconds that the host took from all processors so far.
fn steal() -> u64 {
    field("/proc/stat", 8) * 10
}

/// How many times this thread was put on a processor.
fn switches() -> u64 {
    field("/proc/thread-self/schedstat", 2)
}

fn field(path: &str, nth: usize) -> u64 {
    let text = fs::read_to_string(path).expect("the system tells");
    let field = text.split_whitespace().nth(nth);
    field
        .and_then(|field| field.parse().ok())
        .expect("a number")
}
