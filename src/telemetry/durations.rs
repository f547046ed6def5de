//! How long things took: a histogram with fixed buckets.
//!
//! It costs two additions to count a duration, and it never grows. It reads no clock.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::metric::Metric;

/// The buckets of the check's duration: a check takes microseconds, and what takes a millisecond is a fault.
pub(super) const CHECK_DURATION_NANOS: [u64; 11] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000,
];

/// The buckets of a round's duration: a quarter of a millisecond to a second. What takes longer has timed out.
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

/// A histogram: a few counters. The recorder's own would keep every duration until it is next tidied.
#[derive(Debug)]
pub struct Durations {
    metric: Metric,
    /// The most nanoseconds of each bucket but the last.
    bounds: &'static [u64],
    /// By the first bucket that a duration fits in; the last holds what fits in none.
    counts: Box<[AtomicU64]>,
    nanos: AtomicU64,
}

impl Durations {
    pub(super) fn new(metric: Metric, bounds: &'static [u64]) -> Self {
        Self {
            metric,
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            nanos: AtomicU64::new(0),
        }
    }

    /// Counts one more.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|most| *most < nanos);
        // Ordering: Relaxed. Numbers for people, each standing alone.
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
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

/// Prometheus counts time in seconds.
pub(super) fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::super::metric::CHECK_DURATION;
    use super::*;

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
