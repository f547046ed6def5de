//! The clock of the process. Nothing else reads the time.
//!
//! The process has one time line: nanoseconds that never go back for a thread, even if the processor's counter does when
//! the thread moves to another core. The counter's speed is measured at the start, with an error of 100 millionths and
//! more. So [`Clock::align`] corrects the line from time to time by the system's clock, which is the clock that clients
//! wait by. The calendar is stored as a distance to the line and corrected in the same way, so that windows stay aligned.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::pure::{Moment, Nanos, Span};

/// The line's first point. It is not zero, because a bucket's first point lies in the past.
const FIRST: Span = Span::seconds(1);

static TIMELINE: OnceLock<TimeLine> = OnceLock::new();

thread_local! {
    static LATEST: Cell<u64> = const { Cell::new(0) };
}

#[derive(Debug)]
struct TimeLine {
    counter: quanta::Clock,
    start: u64,
    /// Its start on the system's clock.
    started: Instant,
    /// The nanoseconds by which the counter is behind the system's clock since the start.
    lost: AtomicI64,
    /// The Unix time of the line's zero, in nanoseconds.
    epoch: AtomicU64,
}

/// The clock of this process.
#[derive(Clone, Copy, Debug)]
pub struct Clock(&'static TimeLine);

impl Clock {
    /// The clock of this process.
    pub fn get() -> Self {
        Self(TIMELINE.get_or_init(|| {
            let timeline = TimeLine::of(quanta::Clock::new());
            timeline.align();
            timeline
        }))
    }

    /// The current time on the line and on the calendar.
    pub fn moment(self) -> Moment {
        let now = self.0.now();
        // Ordering: Relaxed. One word, and any recent value will do.
        Moment {
            now,
            unix: Span::nanos(
                now.get()
                    .saturating_add(self.0.epoch.load(Ordering::Relaxed)),
            ),
        }
    }

    /// The time since `earlier`.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.now().since(earlier).get())
    }

    /// The current time on the calendar.
    pub fn calendar(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.moment().unix.get())
    }

    /// Corrects the line and the calendar: they drift from the system's clock, and the calendar may have been set.
    pub fn align(self) {
        self.0.align();
    }
}

impl TimeLine {
    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn of(counter: quanta::Clock) -> Self {
        Self {
            start: counter.raw(),
            counter,
            started: Instant::now(),
            lost: AtomicI64::new(0),
            epoch: AtomicU64::new(0),
        }
    }

    fn passed(&self) -> u64 {
        self.counter.delta_as_nanos(self.start, self.counter.raw())
    }

    fn now(&self) -> Nanos {
        // Ordering: Relaxed. One word, and any recent value will do.
        let lost = self.lost.load(Ordering::Relaxed);
        let passed = self.passed().saturating_add_signed(lost);
        LATEST.with(|latest| {
            let now = latest.get().max(FIRST.get().saturating_add(passed));
            latest.set(now);
            Nanos::new(now)
        })
    }

    /// Moves the line to the system's clock, which has run for `elapsed`.
    fn follow(&self, elapsed: Duration) {
        let elapsed = i64::try_from(elapsed.as_nanos()).unwrap_or(i64::MAX);
        let passed = i64::try_from(self.passed()).unwrap_or(i64::MAX);
        self.lost
            .store(elapsed.saturating_sub(passed), Ordering::Relaxed);
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn align(&self) {
        self.follow(self.started.elapsed());
        let unix = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let unix = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        self.epoch
            .store(unix.saturating_sub(self.now().get()), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The counter runs too slow and too fast; clients wait by the system's clock.
    #[test]
    fn the_line_follows_the_systems_clock() {
        for (counted_ms, passed_ms) in [(9_990, 10_000), (10_010, 10_000)] {
            let (counter, mock) = quanta::Clock::mock();
            let timeline = TimeLine::of(counter);
            mock.increment(Duration::from_millis(counted_ms));
            timeline.follow(Duration::from_millis(passed_ms));
            mock.increment(Duration::from_secs(1));
            let expected = FIRST.get() + (passed_ms + 1_000) * 1_000_000;
            // On a thread of its own, which has not seen another line.
            let now = std::thread::spawn(move || timeline.now().get())
                .join()
                .unwrap();
            assert_eq!(now, expected, "{counted_ms} ms counted of {passed_ms}");
        }
    }

    #[test]
    fn time_does_not_go_back() {
        let clock = Clock::get();
        let mut last = clock.moment().now;
        assert!(last >= Nanos::new(FIRST.get()));
        for _ in 0..10_000 {
            let now = clock.moment().now;
            assert!(now >= last);
            last = now;
        }
    }

    #[test]
    #[expect(
        clippy::disallowed_methods,
        reason = "compared with the system's calendar"
    )]
    fn the_calendar_is_the_systems() {
        let clock = Clock::get();
        clock.align();
        let ours = Duration::from_nanos(clock.moment().unix.get());
        let theirs = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        assert!(
            theirs.abs_diff(ours) < Duration::from_secs(1),
            "{theirs:?} and {ours:?}"
        );
    }
}
