//! Many threads, one key: what is admitted is what the definition says, to the cell.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tidegate_core::engine::Engine;
use tidegate_core::engine::buckets::table::{Booking, MovedBucket, Table, Touch};
use tidegate_core::pure::algorithm::gcra;
use tidegate_core::pure::{Algorithm, Cells, Nanos};
use tidegate_testing::engine::{SECOND, START, admits, engine};
use tidegate_testing::rules::{a_second, one_rule};

const THREADS: u64 = 16;

/// Sixteen threads ask for more than there is, at one instant; then at the next. Answers how many were admitted.
fn admitted_at(engine: &Engine, times: &[u64], checks: u64) -> Vec<u64> {
    let admitted: Vec<AtomicU64> = times.iter().map(|_| AtomicU64::new(0)).collect();
    let barrier = Barrier::new(THREADS as usize);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for (&now, admitted) in times.iter().zip(&admitted) {
                    barrier.wait();
                    let passed = (0..checks).filter(|_| admits(engine, "k", now)).count();
                    admitted.fetch_add(passed as u64, Ordering::Relaxed);
                }
            });
        }
    });
    admitted.into_iter().map(AtomicU64::into_inner).collect()
}

/// Instants at odd distances over four seconds.
fn times() -> Vec<u64> {
    let mut now = START + 123_456_789;
    (0..40)
        .map(|nth| {
            now += 70_000_001 + nth % 7 * 9_999_999;
            now
        })
        .collect()
}

/// What the definition admits at each of `times` when demand is endless: `limit` less what `counts` of the past.
fn defined(times: &[u64], most: u64, counts: impl Fn(&[(u64, u64)], u64) -> u64) -> Vec<u64> {
    let mut past: Vec<(u64, u64)> = Vec::new();
    for &now in times {
        let admitted = most.saturating_sub(counts(&past, now));
        past.push((now, admitted));
    }
    past.into_iter().map(|(_, admitted)| admitted).collect()
}

#[test]
fn a_level_admits_its_burst_and_what_has_drained() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ] {
        let limit = a_second(300, 60);
        let times = times();
        let engine = engine(100, one_rule(limit, algorithm));
        let admitted = admitted_at(&engine, &times, 30);
        let (mut total, interval) = (0, limit.interval().get());
        for (&now, admitted) in times.iter().zip(admitted) {
            total += admitted;
            let expected = 60 + (now - times[0]) / interval;
            assert_eq!(total, expected, "{} at {now}", algorithm.name());
        }
    }
}

#[test]
fn a_fixed_window_admits_its_limit_in_each() {
    let times = times();
    let engine = engine(100, one_rule(a_second(90, 90), Algorithm::FixedWindow));
    let expected = defined(&times, 90, |past, now| {
        let same = past.iter().filter(|(at, _)| at / SECOND == now / SECOND);
        same.map(|(_, cells)| cells).sum()
    });
    assert_eq!(admitted_at(&engine, &times, 30), expected);
}

#[test]
fn a_sliding_window_admits_what_its_estimate_leaves() {
    let times = times();
    let engine = engine(100, one_rule(a_second(90, 90), Algorithm::SlidingWindow));
    let expected = defined(&times, 90, |past, now| {
        let count = |window| {
            let inside = past.iter().filter(|(at, _)| at / SECOND == window);
            inside.map(|(_, cells)| cells).sum::<u64>()
        };
        let window = now / SECOND;
        count(window) + count(window - 1) * (SECOND - now % SECOND) / SECOND
    });
    assert_eq!(admitted_at(&engine, &times, 30), expected);
}

#[test]
fn a_sliding_log_admits_its_limit_in_any_window() {
    let times = times();
    let engine = engine(100, one_rule(a_second(90, 90), Algorithm::SlidingLog));
    let expected = defined(&times, 90, |past, now| {
        let inside = past.iter().filter(|(at, _)| now - at < SECOND);
        inside.map(|(_, cells)| cells).sum()
    });
    assert_eq!(admitted_at(&engine, &times, 30), expected);
}

/// The threads own the clock: each check moves it on, and some come late with an old time.
#[test]
fn a_level_is_exact_while_the_threads_move_the_clock() {
    let limit = a_second(3_000, 50);
    let engine = engine(100, one_rule(limit, Algorithm::Gcra));
    let (clock, total) = (AtomicU64::new(START), AtomicU64::new(1));
    assert!(admits(&engine, "k", START));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..3_000 {
                    let now = clock.fetch_add(1_009, Ordering::Relaxed);
                    let passed = admits(&engine, "k", now);
                    total.fetch_add(u64::from(passed), Ordering::Relaxed);
                }
            });
        }
    });
    let end = clock.into_inner();
    let mut total = total.into_inner();
    while admits(&engine, "k", end) {
        total += 1;
    }
    assert_eq!(total, 50 + (end - START) / limit.interval().get());
}

#[test]
fn what_is_collected_is_what_was_admitted() {
    let limit = a_second(10_000, 200);
    let table = Table::new(100, [1, 2]);
    let key = table.key(42, 7);
    let empty = MovedBucket::at(Nanos::new(START));
    table.enter(&table.permit(&key), &key, empty, Nanos::new(START));
    let collect = || table.collect(&key, true).expect("it is held").cells.get();
    let (clock, admitted) = (AtomicU64::new(START), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    let collected = thread::scope(|scope| {
        let collector = scope.spawn(|| {
            let mut collected = 0;
            while !done.load(Ordering::Acquire) {
                collected += collect();
            }
            collected + collect()
        });
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| {
                    for _ in 0..3_000 {
                        let now = Nanos::new(clock.fetch_add(1_000, Ordering::Relaxed));
                        let step = |tat| {
                            let next = gcra::admit(&limit, tat, now, Cells::new(2));
                            (next, next.is_some())
                        };
                        if let Touch::Held(true, tenancy) = table.touch(&key, step) {
                            assert_eq!(table.book(&tenancy, Cells::new(2)), Booking::Noted);
                            admitted.fetch_add(2, Ordering::Relaxed);
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        done.store(true, Ordering::Release);
        collector.join().expect("no panic")
    });
    assert_eq!(collected, admitted.into_inner());
    assert!(
        collected > 200,
        "the clock moved, more than the burst passed"
    );
}
