//! A histogram of durations with fixed buckets.
//!
//! Counting a duration costs two additions, and the histogram never grows. It reads no clock.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::metric::Metric;

/// The buckets for checks: a check takes microseconds; a millisecond is a fault.
pub(super) const CHECK_DURATION_NANOS: [u64; 11] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000,
];

/// The buckets for sync rounds: a quarter of a millisecond to a second. Longer rounds have timed out.
pub(super) const SYNC_ROUND_NANOS: [u64; 12] = [
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

/// A histogram made of a few counters. The recorder's own would keep every duration until its next upkeep.
#[derive(Debug)]
pub struct Durations {
    metric: Metric,
    /// The most nanoseconds of each bucket but the last.
    bounds: &'static [u64],
    /// Durations by the first bucket that they fit in; the last counts those that fit in none.
    counts: Box<[AtomicU64]>,
    nanos: AtomicU64,
    /// The counts at the start of the current half minute, and of the one before.
    marks: Mutex<[Vec<u64>; 2]>,
}

impl Durations {
    pub(super) fn new(metric: Metric, bounds: &'static [u64]) -> Self {
        Self {
            metric,
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            nanos: AtomicU64::new(0),
            marks: Mutex::default(),
        }
    }

    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|most| *most < nanos);
        // Ordering: Relaxed. Figures for people; no counter depends on another.
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The number of durations since the start.
    pub fn total(&self) -> u64 {
        self.read().iter().sum()
    }

    /// The quantile `1 - part` of the last 30 to 60 seconds: with 0.01, the p99. `None` if there were no durations. It is
    /// as exact as the buckets are narrow; a duration past the last bucket counts as that bucket's bound.
    pub fn recent(&self, part: f64) -> Option<Duration> {
        let before = self.marks()[1].clone();
        let before = before.iter().copied().chain(std::iter::repeat(0));
        let counts: Vec<u64> = self
            .read()
            .into_iter()
            .zip(before)
            .map(|(now, before)| now.saturating_sub(before))
            .collect();
        let total = counts.iter().sum::<u64>() as f64;
        let mut wanted = total * (1.0 - part);
        let mut floor = 0.0;
        for (count, most) in counts.iter().zip(self.bounds) {
            let (count, most) = (*count as f64, *most as f64);
            if count > 0.0 && wanted <= count {
                let nanos = floor + (most - floor) * (wanted / count);
                return Some(Duration::from_secs_f64(nanos / NANOS_PER_SECOND));
            }
            wanted -= count;
            floor = most;
        }
        (total > 0.0).then(|| Duration::from_secs_f64(floor / NANOS_PER_SECOND))
    }

    /// Starts the next half minute for [`Durations::recent`].
    pub(super) fn turn(&self) {
        let now = self.read();
        let mut marks = self.marks();
        marks[1] = std::mem::replace(&mut marks[0], now);
    }

    fn read(&self) -> Vec<u64> {
        let counts = self.counts.iter();
        counts.map(|count| count.load(Ordering::Relaxed)).collect()
    }

    fn marks(&self) -> MutexGuard<'_, [Vec<u64>; 2]> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self, page: &mut String) -> fmt::Result {
        let Metric { name, help, .. } = self.metric;
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} histogram")?;
        let mut total = 0_u64;
        let bounds = self.bounds.iter().map(|most| Some(seconds(*most)));
        for (count, bound) in self.counts.iter().zip(bounds.chain([None])) {
            total = total.saturating_add(count.load(Ordering::Relaxed));
            match bound {
                Some(bound) => writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {total}")?,
                None => writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {total}")?,
            }
        }
        let sum = seconds(self.nanos.load(Ordering::Relaxed));
        writeln!(page, "{name}_sum {sum}\n{name}_count {total}")
    }
}

const NANOS_PER_SECOND: f64 = 1e9;

/// Seconds, the unit of times in Prometheus.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / NANOS_PER_SECOND
}

#[cfg(test)]
mod tests {
    use super::super::metric::CHECK_DURATION;
    use super::*;

    #[test]
    fn what_was_recent_is_forgotten_after_two_halves() {
        let durations = Durations::new(CHECK_DURATION, &CHECK_DURATION_NANOS);
        let recent = |part| durations.recent(part).map(|found| found.as_nanos());
        assert_eq!(recent(0.5), None);
        for _ in 0..99 {
            durations.record(Duration::from_nanos(700));
        }
        durations.record(Duration::from_nanos(40_000));
        assert_eq!((recent(0.5), recent(0.01)), (Some(753), Some(1_000)));
        assert_eq!(recent(0.001), Some(47_500));
        durations.turn();
        durations.record(Duration::from_secs(1));
        assert_eq!(recent(0.0), Some(10_000_000), "the last bucket has no end");
        durations.turn();
        assert_eq!(recent(0.5), Some(10_000_000), "the first hundred are gone");
        durations.turn();
        assert_eq!(recent(0.5), None);
        assert_eq!(durations.total(), 101);
    }

    #[test]
    fn a_duration_is_counted_in_every_bucket_it_fits_in() {
        let durations = Durations::new(CHECK_DURATION, &CHECK_DURATION_NANOS);
        for nanos in [0, 500, 501, 10_000_001] {
            durations.record(Duration::from_nanos(nanos));
        }
        let mut page = String::new();
        durations.write(&mut page).unwrap();
        for line in [
            "# TYPE ratelimit_check_duration_seconds histogram",
            "ratelimit_check_duration_seconds_bucket{le=\"0.0000005\"} 2",
            "ratelimit_check_duration_seconds_bucket{le=\"0.000001\"} 3",
            "ratelimit_check_duration_seconds_bucket{le=\"0.01\"} 3",
            "ratelimit_check_duration_seconds_bucket{le=\"+Inf\"} 4",
            "ratelimit_check_duration_seconds_sum 0.010001002",
            "ratelimit_check_duration_seconds_count 4",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
