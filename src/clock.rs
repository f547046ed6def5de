//! The only reader of time.
//!
//! Every clock of a process shares one time line: nanoseconds that never go back for a thread, even where the
//! processor's counter does when the thread moves to another core. The calendar is kept as a distance to that line and
//! put right from time to time by [`Clock::align`], so that windows stay aligned while the line runs on evenly.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::pure::{Moment, Nanos, Span};

/// The line does not start at zero: a bucket's first point lies in its past.
const FIRST: Span = Span::seconds(1);

static LINE: OnceLock<Line> = OnceLock::new();

thread_local! {
    static LATEST: Cell<u64> = const { Cell::new(0) };
}

#[derive(Debug)]
struct Line {
    counter: quanta::Clock,
    start: u64,
    /// The Unix time of the line's zero, in nanoseconds.
    epoch: AtomicU64,
}

/// Tells the time.
#[derive(Clone, Copy, Debug)]
pub struct Clock(&'static Line);

impl Clock {
    /// The clock of this process.
    pub fn get() -> Self {
        Self(LINE.get_or_init(|| {
            let counter = quanta::Clock::new();
            let start = counter.raw();
            let line = Line {
                counter,
                start,
                epoch: AtomicU64::new(0),
            };
            line.align();
            line
        }))
    }

    /// Now, on the line and by the calendar.
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

    /// How long ago `earlier` was.
    pub fn since(self, earlier: Nanos) -> Duration {
        Duration::from_nanos(self.0.now().since(earlier).get())
    }

    /// Now, by the calendar.
    pub fn calendar(self) -> SystemTime {
        UNIX_EPOCH + Duration::from_nanos(self.moment().unix.get())
    }

    /// Puts the calendar right: the system's may have been set, and the two drift.
    pub fn align(self) {
        self.0.align();
    }
}

impl Line {
    fn now(&self) -> Nanos {
        let passed = self.counter.delta_as_nanos(self.start, self.counter.raw());
        LATEST.with(|latest| {
            let now = latest.get().max(FIRST.get().saturating_add(passed));
            latest.set(now);
            Nanos::new(now)
        })
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock")]
    fn align(&self) {
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
