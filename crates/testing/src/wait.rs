//! The only way to wait, and the only reader of the clock in the tests.
//!
//! No test sleeps and hopes: [`until`] looks for a condition until it holds, and fails at a deadline.

use std::thread;
use std::time::{Duration, Instant};

/// For whatever has no deadline of its own: long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(20);
/// How long a wait rests between two looks.
const REST: Duration = Duration::from_millis(2);

#[expect(
    clippy::disallowed_methods,
    reason = "the daemon under test and its stores run by the real clock"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Looks until `look` finds something, and returns that. Fails after `within`.
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        thread::park_timeout(REST);
    }
}

/// Returns at `time`: for a load that has a timetable, and for a reply that has to be late.
pub fn rest_until(time: Instant) {
    while let Some(left) = time
        .checked_duration_since(now())
        .filter(|left| !left.is_zero())
    {
        thread::park_timeout(left);
    }
}
