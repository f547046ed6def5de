//! What a key costs in memory, and the slowest single check while a table fills.
//!
//! `bytes/key` is the growth of the resident set over the whole fill, empty table included, divided by the keys.
//! `slowest` is the longest single check of the fill and `>100 us` how many took longer than that. What the machine
//! adds is told apart in two ways. `pause` is the longest gap of a loop over as many clock reads that does nothing
//! else: the scheduler's share. And the table is filled a second time, with new keys, after everything it owns has
//! been touched (`warm`): what is gone there were page faults, which `faults` counts over the fill.
//!
//! The peer is the keyed limiter of `governor`, which grows.
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
use tidegate::engine::{Engine, FleetKey, Setup};
use tidegate::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
use tidegate::pure::{Addresses, Cells, Limit, Rules, Unit, key};

const SLOW: Duration = Duration::from_micros(100);
const BYTES_PER_KEY_MAX: f64 = 64.0;
const SLOWEST_MAX: Duration = Duration::from_millis(1);

fn main() {
    let only = std::env::args().skip(1).find(|only| only != "--bench");
    println!(
        "{:<9} {:>4} {:>9} {:>10} {:>8} {:>10} {:>10} {:>9}",
        "", "keys", "bytes/key", "slowest us", ">100 us", "on cpu us", "pause us", "faults"
    );
    for (name, keys) in [("1M", 1_000_000), ("10M", 10_000_000)] {
        if only.as_ref().is_none_or(|only| only == name) {
            tidegate(name, keys);
            if keys == 1_000_000 {
                governor(name, keys);
            }
        }
    }
}
