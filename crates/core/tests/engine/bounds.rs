//! What a flood of keys can and cannot do.

use std::thread;

use tidegate_core::engine::buckets::table::{MovedBucket, SlotOrigin, Table};
use tidegate_core::engine::{Engine, Stat};
use tidegate_core::pure::{Algorithm, Cells, Limit, Nanos, Unit};
use tidegate_testing::Random;
use tidegate_testing::engine::{SECOND, START, admits, engine};
use tidegate_testing::rules::{a_second, one_rule};

const LEVEL: Algorithm = Algorithm::Gcra;
const WINDOW: Algorithm = Algorithm::FixedWindow;

fn an_hour(requests: u64) -> Limit {
    Limit::new(requests, Unit::Hour, 1, None).expect("a sound limit")
}

fn evicted_in_use(engine: &Engine) -> u64 {
    engine.stats().total(Stat::EvictedInUse)
}

#[test]
fn the_bound_is_never_passed() {
    for algorithm in [LEVEL, WINDOW] {
        for keys_max in [1, 2, 15, 16, 17, 100, 513, 1_000] {
            let engine = engine(keys_max, one_rule(a_second(2, 2), algorithm));
            let mut random = Random::new(keys_max as u64);
            for nth in 0..3_000 {
                let value = random.below(2 * keys_max as u64 + 5).to_string();
                admits(&engine, &value, START + nth * 1_000_000);
                assert!(engine.keys_held() <= keys_max as u64, "of {keys_max}");
            }
            assert!(engine.keys_held() * 10 >= keys_max as u64 * 8);
        }
    }
}

#[test]
fn the_bound_is_never_passed_by_eight_threads() {
    for algorithm in [LEVEL, WINDOW] {
        let engine = engine(100, one_rule(a_second(2, 2), algorithm));
        thread::scope(|scope| {
            for seed in 0..8 {
                let engine = &engine;
                scope.spawn(move || {
                    let mut random = Random::new(seed);
                    for nth in 0..5_000 {
                        admits(
                            engine,
                            &random.below(300).to_string(),
                            START + nth * 100_000,
                        );
                        // Each thread may have counted one for a moment.
                        assert!(engine.keys_held() <= 108);
                    }
                });
            }
        });
        assert!(engine.keys_held() <= 100);
    }
}

/// Distinct keys up to the bound, while time stands still: nobody has to leave.
#[test]
fn a_fill_to_the_bound_evicts_nobody() {
    const KEYS: usize = 100_000;
    let table = Table::new(KEYS, [0x5eed_0001, 0x5eed_0002]);
    let mut random = Random::new(7);
    let bucket = MovedBucket::at(Nanos::new(START + SECOND));
    let mut in_use = 0;
    for _ in 0..KEYS {
        let name = u128::from(random.below(u64::MAX)) << 64 | u128::from(random.below(u64::MAX));
        let key = table.key(name, 0);
        let entrance = table.enter(&table.permit(&key), &key, bucket, Nanos::new(START));
        in_use += usize::from(entrance.how != SlotOrigin::Vacant);
    }
    assert_eq!((in_use, table.held()), (0, KEYS as u64));
}

/// The same through the engine, where each key comes until it is let in.
#[test]
fn a_fill_of_the_engine_evicts_nobody() {
    const KEYS: usize = 20_000;
    for algorithm in [LEVEL, WINDOW] {
        let engine = engine(KEYS, one_rule(an_hour(10), algorithm));
        for key in 0..KEYS {
            let value = key.to_string();
            for _ in 0..2 {
                assert!(admits(&engine, &value, START));
            }
        }
        assert_eq!(evicted_in_use(&engine), 0, "{}", algorithm.name());
        assert_eq!(engine.keys_held(), KEYS as u64, "{}", algorithm.name());
    }
}

#[test]
fn settled_keys_leave_first() {
    for algorithm in [LEVEL, WINDOW] {
        let engine = engine(1_000, one_rule(a_second(10, 10), algorithm));
        let mut now = START;
        for key in 0..800 {
            admits(&engine, &format!("old {key}"), now);
        }
        now += 2 * SECOND;
        for key in 0..1_100 {
            let value = format!("new {key}");
            admits(&engine, &value, now);
            admits(&engine, &value, now);
            if key < 150 {
                assert_eq!(engine.stats().total(Stat::EvictedInUse), 0);
            }
        }
        let settled = engine.stats().total(Stat::EvictedSettled);
        assert!(settled >= 700, "{} only {settled}", algorithm.name());
    }
}

/// Of buckets that are full again, those with nothing uncollected; of those in use, the soonest.
#[test]
fn the_key_that_is_missed_least_leaves() {
    let now = START;
    let table = Table::new(4, [1, 2]);
    let key = |name: u128| table.key(name << 64 | name, 0);
    let enter = |name: u128, tat: u64, pending: u64| {
        let bucket = MovedBucket {
            pending: Cells::new(pending),
            ..MovedBucket::at(Nanos::new(tat))
        };
        let permit = table.permit(&key(name));
        table
            .enter(&permit, &key(name), bucket, Nanos::new(now))
            .how
    };
    let held = |name: u128| table.tat(&key(name)).is_some();
    for (name, tat, pending) in [
        (1, now - 5, 3), // full again, but uncollected: second to leave
        (2, now, 0),     // full again just now: first
        (3, now + 9, 0), // in use: fourth
        (4, now + 1, 2), // in use for a nanosecond more: third
    ] {
        assert_eq!(enter(name, tat, pending), SlotOrigin::Vacant);
    }
    assert_eq!(enter(5, now + 100, 0), SlotOrigin::Settled);
    assert!(!held(2) && held(1) && held(3) && held(4) && held(5));
    assert_eq!(enter(6, now + 100, 0), SlotOrigin::Netted(Cells::new(3)));
    assert!(!held(1) && held(3) && held(4));
    assert_eq!(enter(7, now + 100, 0), SlotOrigin::InUse(Cells::new(2)));
    assert!(!held(4) && held(3));
    assert_eq!(enter(8, now + 100, 0), SlotOrigin::InUse(Cells::ZERO));
    assert!(!held(3) && held(5) && held(6) && held(7) && held(8));
    assert_eq!(table.held(), 4);
}

/// New keys against room for ten thousand: who was over its limit stays denied, who is new is served.
fn flood(algorithm: Algorithm, keys: u64) {
    const ROOM: usize = 10_000;
    let engine = engine(ROOM, one_rule(an_hour(10), algorithm));
    let mut now = START;
    let mut served = 0_u64;
    for _ in 0..10 {
        assert!(admits(&engine, "greedy", now));
    }
    for key in 0..keys {
        now += 1_000;
        served += u64::from(admits(&engine, &key.to_string(), now));
        if key % 1_000 == 0 {
            assert!(!admits(&engine, "greedy", now), "after {key} keys");
        }
        if key % 50_000 == 0 {
            assert!(admits(&engine, &format!("honest {key}"), now));
        }
    }
    assert_eq!(served, keys);
    assert!(engine.keys_held() <= ROOM as u64);
}

#[test]
fn a_flood_neither_frees_the_greedy_nor_shuts_out_the_honest() {
    flood(LEVEL, 1_000_000);
}

#[test]
fn a_flood_neither_frees_the_greedy_nor_shuts_out_the_honest_in_windows() {
    flood(WINDOW, 100_000);
}

/// A key that is kept out of a full table is counted all the same.
#[test]
fn nobody_gains_a_cell_by_being_kept_out() {
    for algorithm in [LEVEL, WINDOW] {
        let engine = engine(100, one_rule(an_hour(5), algorithm));
        for key in 0..100 {
            for _ in 0..5 {
                assert!(admits(&engine, &format!("full {key}"), START));
            }
        }
        for key in 0..50 {
            let value = format!("late {key}");
            let admitted = (0..20).filter(|_| admits(&engine, &value, START)).count();
            assert!(admitted <= 5, "{} got {admitted}", algorithm.name());
            assert!(admitted >= 1, "{} was shut out", algorithm.name());
        }
        assert!(engine.stats().total(Stat::Unheld) > 0);
    }
}
