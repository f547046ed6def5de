//! GCRA: one point in time, the theoretical arrival time (TAT), says how full a bucket is.
//!
//! The level is `TAT - now`: the price of the admitted cells that have not drained yet. A check is allowed while the
//! level after it stays within the capacity of the limit. A TAT in the past is an empty bucket: an idle key saves up no
//! more than one burst.

use super::Standing;
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Nanos, Span};

/// How full a bucket is at `now`.
///
/// ```
/// use tidegate_core::pure::{Nanos, Span, algorithm::gcra};
/// assert_eq!(gcra::level(Nanos::new(150), Nanos::new(100)), Span::nanos(50));
/// assert_eq!(gcra::level(Nanos::new(100), Nanos::new(150)), Span::ZERO);
/// ```
#[inline]
pub const fn level(tat: Nanos, now: Nanos) -> Span {
    tat.since(now)
}

/// The TAT after this check; `None` if the check is denied.
///
/// ```
/// use tidegate_core::pure::{Cells, Limit, LimitFault, Nanos, Unit, algorithm::gcra};
/// let limit = Limit::new(1, Unit::Second, 1, None)?;
/// let tat = gcra::admit(&limit, Nanos::new(0), Nanos::new(5), Cells::ONE);
/// assert_eq!(tat, Some(Nanos::new(1_000_000_005)));
/// # Ok::<(), LimitFault>(())
/// ```
#[inline]
pub fn admit(limit: &Limit, tat: Nanos, now: Nanos, cost: Cells) -> Option<Nanos> {
    let after = level(tat, now).plus(limit.interval().times(cost));
    (after <= limit.capacity()).then(|| now.after(after))
}

/// The TAT after this check, and the standing. A denial does not change the TAT.
///
/// ```
/// use tidegate_core::pure::{Cells, Limit, LimitFault, Nanos, Unit, algorithm::gcra};
/// let limit = Limit::new(60, Unit::Minute, 1, Some(1))?;
/// let (tat, first) = gcra::decide(&limit, Nanos::new(0), Nanos::new(5), Cells::ONE);
/// let (_, second) = gcra::decide(&limit, tat, Nanos::new(5), Cells::ONE);
/// assert!(first.allowed && !second.allowed);
/// # Ok::<(), LimitFault>(())
/// ```
#[inline]
pub fn decide(limit: &Limit, tat: Nanos, now: Nanos, cost: Cells) -> (Nanos, Standing) {
    let admitted = admit(limit, tat, now, cost);
    let next = admitted.unwrap_or(tat);
    let price = limit.interval().times(cost);
    let wait = || level(tat, now).plus(price).less(limit.capacity());
    let standing = Standing {
        allowed: admitted.is_some(),
        remaining: limit.room(level(next, now)),
        retry_after: (admitted.is_none() && price <= limit.capacity()).then(wait),
        reset_after: level(next, now),
        delay: Span::ZERO,
    };
    (next, standing)
}

/// Charges `cost` cells although they were denied. Returns the next TAT and the number of booked cells: at most one
/// burst at a time, and only whole cells that keep the level within `level_max`.
///
/// ```
/// use tidegate_core::pure::{Cells, Limit, LimitFault, Nanos, Span, Unit, algorithm::gcra};
/// let limit = Limit::new(1_000, Unit::Minute, 1, None)?;
/// let now = Nanos::new(5);
/// let charge = |level, cost| {
///     let tat = now.after(Span::seconds(level));
///     gcra::charge(&limit, Span::seconds(120), tat, now, Cells::new(cost))
/// };
/// assert_eq!(charge(36, 600), (now.after(Span::seconds(72)), Cells::new(600)));
/// assert_eq!(charge(36, 5_000), (now.after(Span::seconds(96)), Cells::new(1_000)));
/// assert_eq!(charge(108, 600), (now.after(Span::seconds(120)), Cells::new(200)));
/// # Ok::<(), LimitFault>(())
/// ```
pub fn charge(
    limit: &Limit,
    level_max: Span,
    tat: Nanos,
    now: Nanos,
    cost: Cells,
) -> (Nanos, Cells) {
    let level = level(tat, now);
    let room = level_max.less(level).whole(limit.interval());
    let booked = cost.min(limit.burst()).min(room);
    let after = level.plus(limit.interval().times(booked));
    (now.after(after), booked)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::limit::Unit;

    /// The interval of ten cells a second.
    const STEP: u64 = 100_000_000;

    /// Feeds `(time in hundredths of the interval, cost)` and spells the decisions: `a`llow or `d`eny.
    fn check(checks: &[(u64, u64)], expected: &str) {
        let limit = Limit::new(10, Unit::Second, 1, Some(3)).unwrap();
        let mut tat = Nanos::new(0);
        let mut seen = String::new();
        for &(at, cost) in checks {
            let now = Nanos::new(STEP + at * STEP / 100);
            let (next, standing) = decide(&limit, tat, now, Cells::new(cost));
            tat = next;
            seen.push(if standing.allowed { 'a' } else { 'd' });
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn burst_is_exactly_three() {
        check(&[(0, 1), (0, 1), (0, 1), (0, 1)], "aaad");
    }

    #[test]
    fn a_cell_returns_after_one_interval() {
        check(&[(0, 3), (99, 1), (100, 1), (100, 1)], "adad");
    }

    #[test]
    fn idle_stores_no_more_than_burst() {
        check(&[(0, 3), (9_000, 3), (9_000, 1)], "aad");
    }

    #[test]
    fn a_denial_costs_nothing() {
        check(&[(0, 3), (50, 1), (60, 1), (70, 3), (100, 1)], "addda");
    }

    #[test]
    fn a_cost_of_nothing_always_passes_and_takes_nothing() {
        check(&[(0, 0), (0, 3), (0, 0), (0, 1)], "aaad");
    }

    #[test]
    fn a_cost_above_the_burst_never_passes_and_offers_no_wait() {
        let limit = Limit::new(10, Unit::Second, 1, Some(3)).unwrap();
        for cost in [4, 5, u64::MAX] {
            let (tat, standing) = decide(&limit, Nanos::new(0), Nanos::new(7), Cells::new(cost));
            assert_eq!(
                (tat, standing.allowed, standing.retry_after),
                (Nanos::new(0), false, None),
                "cost {cost}"
            );
            assert_eq!(standing.remaining, Cells::new(3));
        }
    }

    #[test]
    fn the_standing_counts_down_and_says_when_it_is_whole_again() {
        let limit = Limit::new(10, Unit::Second, 1, Some(3)).unwrap();
        let now = Nanos::new(STEP);
        let (tat, first) = decide(&limit, Nanos::new(0), now, Cells::ONE);
        assert_eq!(
            (first.remaining, first.reset_after),
            (Cells::new(2), Span::nanos(STEP))
        );
        let (tat, _) = decide(&limit, tat, now, Cells::new(2));
        let (_, denied) = decide(&limit, tat, now, Cells::new(2));
        assert_eq!(
            (denied.remaining, denied.reset_after),
            (Cells::ZERO, Span::nanos(3 * STEP))
        );
        assert_eq!(denied.retry_after, Some(Span::nanos(2 * STEP)));
    }

    #[test]
    fn a_cost_of_the_whole_burst_waits_until_the_bucket_is_empty() {
        let limit = Limit::new(10, Unit::Second, 1, Some(3)).unwrap();
        let (tat, whole) = (Nanos::new(2 * STEP), Cells::new(3));
        let (_, standing) = decide(&limit, tat, Nanos::new(STEP), whole);
        assert_eq!(standing.retry_after, Some(Span::nanos(STEP)));
        for (now, allowed) in [(2 * STEP - 1, false), (2 * STEP, true)] {
            let (_, standing) = decide(&limit, tat, Nanos::new(now), whole);
            assert_eq!(standing.allowed, allowed, "at {now}");
        }
    }

    #[test]
    fn a_level_above_capacity_is_denied_until_it_has_fallen() {
        let limit = Limit::new(10, Unit::Second, 1, Some(3)).unwrap();
        let (_, standing) = decide(&limit, Nanos::new(10 * STEP), Nanos::new(STEP), Cells::ONE);
        assert_eq!(
            (standing.allowed, standing.retry_after),
            (false, Some(Span::nanos(7 * STEP)))
        );
    }

    #[test]
    fn a_limit_of_nothing_denies_everything() {
        let limit = Limit::new(0, Unit::Second, 1, None).unwrap();
        let (_, standing) = decide(&limit, Nanos::new(0), Nanos::new(1), Cells::ONE);
        assert_eq!((standing.allowed, standing.retry_after), (false, None));
    }
}
