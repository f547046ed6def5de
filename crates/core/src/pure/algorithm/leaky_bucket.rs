//! Leaky bucket: a queue of `burst` cells that drains one cell per interval.
//!
//! A check that finds room is admitted and learns the wait until its turn, [`Standing::delay`], so that work leaves at
//! a steady pace. tidegate delays nobody itself: the caller waits that long. A check that finds the queue full is
//! denied.

use super::{Standing, gcra};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Nanos};

/// Queues `cost` cells if there is room. Returns when the queue will be empty, and the standing.
///
/// ```
/// use tidegate_core::pure::{Cells, Limit, LimitFault, Nanos, Span, Unit, algorithm::leaky_bucket};
/// let limit = Limit::new(2, Unit::Second, 1, Some(10))?;
/// let (empty_at, _) = leaky_bucket::decide(&limit, Nanos::new(0), Nanos::new(1), Cells::ONE);
/// let (_, second) = leaky_bucket::decide(&limit, empty_at, Nanos::new(1), Cells::ONE);
/// assert_eq!(second.delay, Span::nanos(500_000_000));
/// # Ok::<(), LimitFault>(())
/// ```
#[inline]
pub fn decide(limit: &Limit, empty_at: Nanos, now: Nanos, cost: Cells) -> (Nanos, Standing) {
    let ahead = gcra::level(empty_at, now);
    let (next, mut standing) = gcra::decide(limit, empty_at, now, cost);
    if standing.allowed {
        standing.delay = ahead;
    }
    (next, standing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::limit::Unit;
    use crate::pure::time::{SECOND, Span};

    /// Room for ten, and two leave per second: of twelve checks at once ten are queued and two are denied. The ten
    /// leave half a second apart.
    #[test]
    fn twelve_at_once_queue_ten_which_leave_two_a_second() {
        let limit = Limit::new(2, Unit::Second, 1, Some(10)).unwrap();
        let now = Nanos::new(SECOND);
        let mut empty_at = Nanos::new(0);
        let mut delays = Vec::new();
        let mut dropped = 0;
        for _ in 0..12 {
            let (next, standing) = decide(&limit, empty_at, now, Cells::ONE);
            empty_at = next;
            match standing.allowed {
                true => delays.push(standing.delay),
                false => dropped += 1,
            }
        }
        let half_seconds: Vec<Span> = (0..10).map(|turn| Span::nanos(turn * SECOND / 2)).collect();
        assert_eq!((delays, dropped), (half_seconds, 2));
    }
}
