//! Random limits, and histories with many checks at the edges of windows and intervals.

use proptest::collection::vec;
use proptest::prelude::*;
use tidegate_core::pure::{Limit, Unit};

/// The most checks in a history.
const STEPS_MAX: usize = 200;

/// The latest time of a check. It leaves room for a bucket of a hundred years before the end of 64 bits.
const START_MAX: u64 = u64::MAX / 2;

/// A limit, and the checks under it.
#[derive(Clone, Debug)]
pub struct History {
    pub limit: Limit,
    pub checks: Vec<Check>,
}

#[derive(Clone, Copy, Debug)]
pub struct Check {
    pub at: u64,
    pub cost: u64,
    /// Whether the check counts even if it is denied.
    pub counted: bool,
}

/// The directions in which time may step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    Forward,
    AlsoBack,
}

/// The cells per window.
fn requests() -> impl Strategy<Value = u64> {
    prop_oneof![
        1 => Just(0),
        2 => Just(1),
        6 => 1..=10_u64,
        6 => 1..=64_u64,
        4 => 1..=1_000_000_u64,
        1 => Just(1_000_000_000),
    ]
}

fn unit() -> impl Strategy<Value = Unit> {
    prop_oneof![
        3 => Just(Unit::Second),
        2 => Just(Unit::Minute),
        1 => proptest::sample::select(&Unit::ALL[..]),
    ]
}

fn limit(burst: impl Strategy<Value = Option<u64>>) -> impl Strategy<Value = Limit> {
    (requests(), unit(), 1..=3_u64, burst).prop_filter_map("no such limit", |limit| {
        let (requests, unit, unit_multiplier, burst) = limit;
        Limit::new(requests, unit, unit_multiplier, burst).ok()
    })
}

/// Limits of the level family.
pub fn level_limit() -> impl Strategy<Value = Limit> {
    limit(prop_oneof![
        Just(None),
        Just(Some(1)),
        (1..=100_u64).prop_map(Some),
        (1..=1_000_000_u64).prop_map(Some),
    ])
}

/// Limits of the windowed family, which have no burst.
pub fn window_limit() -> impl Strategy<Value = Limit> {
    limit(Just(None))
}

/// How the checks of a history follow each other.
#[derive(Clone, Copy)]
struct Tempo {
    time: Time,
    /// About the number of checks in a window.
    pace: u16,
}

/// The time from one check to the next: `kind` picks a kind of step, and `place` a point in its range. These are plain
/// numbers, because a strategy for each kind would take longer than the tests.
fn step(limit: &Limit, tempo: Tempo, kind: u8, place: u64) -> i64 {
    let Tempo { time, pace } = tempo;
    let signed = |span: u64| i64::try_from(span).expect("a span of a limit fits");
    let (interval, window) = (limit.interval().get(), limit.window().get());
    let within = |most: u64| signed(place % most.saturating_add(1));
    let near = |span: u64| signed(span) + within(2) - 1;
    let step = match kind {
        0..=5 => 0,
        6..=7 => 1,
        8..=14 => within(interval),
        15..=20 => within(window / u64::from(pace)),
        21.. if pace > 10 && !place.is_multiple_of(16) => within(window / u64::from(pace)),
        21..=23 => near(interval),
        24..=25 => near(window),
        26..=27 => within(window),
        28 => within(window.saturating_mul(2)),
        29 => -within(interval),
        30 => -within(window),
        _ => -within(window.saturating_mul(2)),
    };
    match time {
        Time::Forward => step.max(0),
        Time::AlsoBack => step,
    }
}

fn cost(limit: &Limit, kind: u8, place: u64) -> u64 {
    let burst = limit.burst().get();
    match kind {
        0..=11 => 1,
        12 => 0,
        13..=16 => 1 + place % 5,
        17..=19 => place % (burst / 2 + 1),
        20..=21 => burst,
        22 => burst + 1,
        _ => u64::MAX,
    }
}

fn start(limit: &Limit) -> impl Strategy<Value = u64> + use<> {
    let window = limit.window().get();
    prop_oneof![
        Just(0),
        0..=window,
        Just(1_700_000_000_000_000_000),
        0..=START_MAX,
    ]
}

/// Histories of one limit.
pub fn history(limit: impl Strategy<Value = Limit>, time: Time) -> impl Strategy<Value = History> {
    limit.prop_flat_map(move |limit| {
        let check = (
            0..32_u8,
            any::<u64>(),
            0..24_u8,
            any::<u64>(),
            any::<bool>(),
        );
        let pace = prop_oneof![Just(10), Just(100), Just(1_000)];
        (start(&limit), pace, vec(check, 1..=STEPS_MAX)).prop_map(move |(start, pace, drawn)| {
            let mut at = start;
            let checks = drawn
                .into_iter()
                .map(|(kind, place, cost_kind, cost_place, counted)| {
                    let step = step(&limit, Tempo { time, pace }, kind, place);
                    at = at.saturating_add_signed(step).min(START_MAX);
                    Check {
                        at,
                        cost: cost(&limit, cost_kind, cost_place),
                        counted,
                    }
                });
            History {
                limit,
                checks: checks.collect(),
            }
        })
    })
}

/// Any number, often near one of the ends of its range.
pub fn ends() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..=3_u64,
        (0..=3_u64).prop_map(|back| u64::MAX - back),
    ]
}
