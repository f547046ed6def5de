//! What a fleet has to hold, one function for each situation. Each takes how long to run and returns figures.

use super::figure::FleetFigures;
use super::judge::{JudgedLimit, judge, p99};
use super::load::{AnsweredCheck, CheckStream, FleetLoad};
use super::pods::{SidecarFleet, rules};
use crate::random::Random;
use crate::stores::{RedisServer, StoreUnderTest};

/// Keys sent to the store, as the sidecars count them.
pub const UPDATES: &str = "ratelimit_sync_keys_total";
const EVEN: [f64; 3] = [1.0 / 3.0; 3];
const ONE_HAS_MOST: [f64; 3] = [0.9, 0.05, 0.05];
const HUNDRED: JudgedLimit = JudgedLimit {
    rate: 100.0,
    burst: 100.0,
};
/// Seconds after which sidecars know who is there and how much each one asks.
const LEARNT: f64 = 4.0;

/// A fleet of three, and its store.
fn three(limit: &str) -> (RedisServer, SidecarFleet) {
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::sharing(3, &store.section(), &rules(limit));
    (store, fleet)
}

/// All figures of an overload that lasts for `seconds`.
fn overload(
    name: &'static str,
    fleet: &SidecarFleet,
    shares: &[f64],
    seconds: f64,
) -> FleetFigures {
    let stream = CheckStream {
        rate: 1_000.0,
        shares,
        from: 0.0,
        to: seconds,
        seed: 1,
    };
    let asked = fleet
        .ask(FleetLoad::one(shares.len()).stream(stream))
        .finish();
    let verdict = judge(HUNDRED, &asked, seconds);
    FleetFigures::of(name)
        .show("checks", verdict.checks as f64)
        .show("admitted", verdict.admitted)
        .most(
            "admitted against burst + r·t, % off",
            verdict.off_allowance(),
            2.0,
        )
        .most(
            "admitted against an exact limiter, % off",
            verdict.off_exact(),
            2.0,
        )
        .most(
            "peak overshoot, % of burst",
            verdict.overshoot / HUNDRED.burst * 100.0,
            15.0,
        )
        .show("the second of that", verdict.overshoot_at)
}

/// Ten times the limit, spread evenly.
pub fn spread_evenly(seconds: f64) -> FleetFigures {
    let (_store, fleet) = three("100/second burst 100");
    overload("a: 100/s, 10× overload, even", &fleet, &EVEN, seconds)
}

/// Ten times the limit, nine tenths of it at one pod.
pub fn spread_unevenly(seconds: f64) -> FleetFigures {
    let (_store, fleet) = three("100/second burst 100");
    overload(
        "b: 100/s, 10× overload, one has 90 %",
        &fleet,
        &ONE_HAS_MOST,
        seconds,
    )
}

/// The first scenario without a store: the judge has to find it wrong.
pub fn without_sync(seconds: f64) -> FleetFigures {
    let fleet = SidecarFleet::apart(3, &rules("100/second burst 100"));
    overload(
        "100/s, 10× overload, even, no store",
        &fleet,
        &EVEN,
        seconds,
    )
}

/// One sidecar is exact: what is still off is an error of the measurement.
pub fn alone(seconds: f64) -> FleetFigures {
    let fleet = SidecarFleet::apart(1, &rules("100/second burst 100"));
    overload("100/s, 10× overload, one sidecar", &fleet, &[1.0], seconds)
}

/// Less than the limit: nothing is denied.
pub fn below_the_limit(seconds: f64) -> FleetFigures {
    let (_store, fleet) = three("100/second burst 100");
    let stream = CheckStream {
        rate: 90.0,
        shares: &EVEN,
        from: 0.0,
        to: seconds,
        seed: 3,
    };
    let asked = fleet.ask(FleetLoad::one(3).stream(stream)).finish();
    let verdict = judge(HUNDRED, &asked, seconds);
    FleetFigures::of("c: 100/s at 90 % load")
        .show("checks", verdict.checks as f64)
        .most(
            "denied beyond an exact limiter",
            verdict.denied_beyond(),
            0.0,
        )
}

/// A low limit asked all the time. The next cell comes back after 12 s: until then the key costs the store nothing.
pub fn low_limit(seconds: f64) -> FleetFigures {
    let (store, fleet) = three("5/minute burst 5");
    let limit = JudgedLimit {
        rate: 5.0 / 60.0,
        burst: 5.0,
    };
    let stream = CheckStream {
        rate: 200.0,
        shares: &EVEN,
        from: 0.0,
        to: seconds,
        seed: 4,
    };
    let (updates, calls) = (fleet.sum(UPDATES), store.calls("evalsha"));
    let running = fleet.ask(FleetLoad::one(3).stream(stream));
    running.reach(3.0);
    let begun = fleet.sum(UPDATES);
    running.reach(11.0);
    let mitigated = since(begun, fleet.sum(UPDATES));
    let asked = running.finish();
    let verdict = judge(limit, &asked, seconds);
    let calls = store.calls("evalsha") - calls;
    FleetFigures::of("d: 5/min asked 200/s")
        .show("checks", verdict.checks as f64)
        .show("admitted", verdict.admitted)
        .most(
            "cells over",
            verdict.overshoot.max(verdict.admitted - verdict.exact),
            2.0,
        )
        // Each pod reads a locked-out key once.
        .most("key updates while mitigated (8 s)", mitigated, 3.0)
        .show(
            "key updates over the run",
            since(updates, fleet.sum(UPDATES)),
        )
        .show(
            "EVALSHA calls over the run, heartbeats included",
            calls as f64,
        )
}

/// The store is gone for ten seconds under three times the limit, and comes back when the load has become 80 % of it.
pub fn outage(before: f64, after: f64) -> FleetFigures {
    let (mut store, fleet) = three("100/second burst 100");
    let (gone, back) = (LEARNT + before, LEARNT + before + 10.0);
    // The load falls while the store is away, so that there is room when it returns.
    let (falls, end) = (back - 2.0, back + after);
    let high = CheckStream {
        rate: 300.0,
        shares: &EVEN,
        from: 0.0,
        to: falls,
        seed: 5,
    };
    let low = CheckStream {
        rate: 80.0,
        from: falls,
        to: end,
        seed: 6,
        ..high
    };
    let running = fleet.ask(FleetLoad::one(3).stream(high).stream(low));
    running.reach(gone);
    store.kill();
    let gone = running.seconds();
    running.reach(back);
    store.restart();
    let back = running.seconds();
    let asked = running.finish();

    let healthy = between(&asked, LEARNT, gone);
    let during = between(&asked, gone, back);
    let admitted = judge(HUNDRED, during, back - gone).admitted;
    let most = 1.2 * HUNDRED.rate * (back - gone) + HUNDRED.burst + 3.0;
    // Judged over the whole run, so that what was admitted before counts.
    let until = |end: f64| judge(HUNDRED, between(&asked, 0.0, end), end);
    let whole = until(end);
    let false_denials = whole.false_denials - until(back).false_denials;
    FleetFigures::of("e: store killed for 10 s")
        .show("p99 while healthy, µs", p99(healthy))
        .show(
            "p99 while it is gone, µs",
            p99(between(&asked, gone, falls)),
        )
        .most(
            "p99, times healthy",
            p99(between(&asked, gone, falls)) / p99(healthy),
            2.0,
        )
        .show("admitted while it is gone", admitted)
        .most("admitted, of 1.2·r·t + burst + N", admitted / most, 1.0)
        .most("falsely denied after its return", false_denials as f64, 0.0)
        .show(
            "the last of them, s after its return",
            (whole.false_denial_last - back).max(0.0),
        )
}

/// What a key costs the store: key updates per 1,000 checks, under a limit of 1,000/s.
fn cost(name: &'static str, rate: f64, seconds: f64, target: f64) -> FleetFigures {
    let (_store, fleet) = three("1000/second burst 1000");
    let stream = CheckStream {
        rate,
        shares: &EVEN,
        from: 0.0,
        to: LEARNT + seconds,
        seed: 7,
    };
    let running = fleet.ask(FleetLoad::one(3).stream(stream));
    running.reach(LEARNT);
    let (begun, from) = (fleet.sum(UPDATES), running.seconds());
    running.reach(LEARNT + seconds);
    let (updates, to) = (since(begun, fleet.sum(UPDATES)), running.seconds());
    let asked = running.finish();
    let thousands = between(&asked, from, to).len() as f64 / 1_000.0;
    let per_thousand = updates.map(|updates| updates / thousands);
    FleetFigures::of(name).most("key updates per 1,000 checks", per_thousand, target)
}

pub fn cost_of_overload(seconds: f64) -> FleetFigures {
    cost("f: 1000/s, 5× overload", 5_000.0, seconds, 10.0)
}

pub fn cost_of_even_use(seconds: f64) -> FleetFigures {
    cost("f: 1000/s used evenly at 500/s", 500.0, seconds, 0.0)
}

/// A figure that depends on the machine: much of it is the cost of waking up.
pub const REDIS_CPU: &str = "Redis CPU, µs a check";
const HOT_KEYS: u32 = 5_000;
/// Four of five keys have a wide limit, which only the hottest reach; the fifth has a narrow one, as for a login, which
/// all of them are far above.
const MIXED: &str = "  - domain: fleet\n    descriptors:\n      - key: wide\n        \
    rate_limit: 100/second burst 100\n      - key: narrow\n        rate_limit: 5/minute burst 5";

/// What a mixed load of many keys costs Redis: time on the processor per check, above that of an idle fleet.
pub fn cost_of_many_keys(seconds: f64) -> FleetFigures {
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::sharing(3, &store.section(), MIXED);
    let name = |key: u32| {
        format!(
            "{}=k{key}",
            if key.is_multiple_of(5) {
                "narrow"
            } else {
                "wide"
            }
        )
    };
    let keys: Vec<String> = (0..HOT_KEYS).map(name).collect();
    let zipf = Zipf::new(HOT_KEYS);
    let stream = CheckStream {
        rate: 15_000.0,
        shares: &EVEN,
        from: seconds,
        to: 2.0 * seconds,
        seed: 8,
    };
    let load = FleetLoad::new(3, keys).mixed(stream, |random| (zipf.pick(random), 1));
    let running = fleet.ask(load);
    let (idle, updates) = (store.processor_seconds(), fleet.sum(UPDATES));
    running.reach(seconds);
    let begun = store.processor_seconds();
    running.reach(2.0 * seconds);
    let (ended, updates) = (
        store.processor_seconds(),
        since(updates, fleet.sum(UPDATES)),
    );
    let asked = running.finish();
    let micros = ((ended - begun) - (begun - idle)).max(0.0) * 1e6;
    // Without a call there is nothing to measure.
    let called = store.calls("evalsha") > 0;
    let denied = asked.iter().filter(|check| !check.allowed()).count();
    let checks = asked.len() as f64;
    FleetFigures::of("f: 5,000 hot keys, mixed limits")
        .show("checks", checks)
        .show("denied, %", denied as f64 / checks * 100.0)
        .most(REDIS_CPU, called.then_some(micros / checks), 0.5)
        .most(
            "key updates per 1,000 checks",
            updates.map(|updates| updates / checks * 1_000.0),
            100.0,
        )
}

/// Picks a rank with a chance of one to the rank.
pub struct Zipf(Vec<f64>);

impl Zipf {
    pub fn new(count: u32) -> Self {
        let mut sum = 0.0;
        let add = |rank: u32| {
            sum += 1.0 / f64::from(rank);
            sum
        };
        Self((1..=count).map(add).collect())
    }

    pub fn pick(&self, random: &mut Random) -> u32 {
        let total = self.0.last().copied().unwrap_or_default();
        let at = random.unit() * total;
        let rank = self.0.partition_point(|sum| *sum <= at);
        u32::try_from(rank).expect("few keys")
    }
}

fn since(before: Option<f64>, after: Option<f64>) -> Option<f64> {
    Some(after? - before?)
}

/// Those that were asked from one second to another.
fn between(asked: &[AnsweredCheck], from: f64, to: f64) -> &[AnsweredCheck] {
    let first = asked.partition_point(|check| check.seconds() < from);
    let last = asked.partition_point(|check| check.seconds() < to);
    &asked[first..last.max(first)]
}
