//! Token bucket: `burst` tokens, refilled at the rate of the limit. One cell takes one token.
//!
//! A token bucket and a GCRA level are the same thing seen from two ends: the tokens are the room above the level. So
//! this algorithm keeps the same single point in time, reads it as "full again at", and needs no refill task.

use super::{Standing, gcra};
use crate::pure::limit::Limit;
use crate::pure::time::{Cells, Nanos};

/// The whole tokens in a bucket that will be full at `full_at`.
///
/// ```
/// use tidegate_core::pure::{Cells, Limit, LimitFault, Nanos, Unit, algorithm::token_bucket};
/// let limit = Limit::new(5, Unit::Second, 1, Some(10))?;
/// assert_eq!(token_bucket::tokens(&limit, Nanos::new(2_000_000_000), Nanos::new(1_000_000_000)), Cells::new(5));
/// # Ok::<(), LimitFault>(())
/// ```
pub fn tokens(limit: &Limit, full_at: Nanos, now: Nanos) -> Cells {
    limit
        .capacity()
        .less(gcra::level(full_at, now))
        .whole(limit.interval())
}

/// Takes `cost` tokens if the bucket has them. Returns when the bucket will be full again, and the standing.
///
/// ```
/// use tidegate_core::pure::{Cells, Limit, LimitFault, Nanos, Unit, algorithm::token_bucket};
/// let limit = Limit::new(5, Unit::Second, 1, Some(10))?;
/// let (_, standing) = token_bucket::decide(&limit, Nanos::new(0), Nanos::new(1), Cells::new(4));
/// assert_eq!(standing.remaining, Cells::new(6));
/// # Ok::<(), LimitFault>(())
/// ```
#[inline]
pub fn decide(limit: &Limit, full_at: Nanos, now: Nanos, cost: Cells) -> (Nanos, Standing) {
    gcra::decide(limit, full_at, now, cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::limit::Unit;
    use crate::pure::time::SECOND;

    /// Ten tokens, five more per second: ten checks pass at once; a second later five of twenty pass.
    #[test]
    fn ten_at_once_then_five_of_twenty_a_second_later() {
        let limit = Limit::new(5, Unit::Second, 1, Some(10)).unwrap();
        let mut full_at = Nanos::new(0);
        let mut passed = |seconds: u64, checks: u64| {
            let now = Nanos::new(seconds * SECOND);
            (0..checks)
                .filter(|_| {
                    let (next, standing) = decide(&limit, full_at, now, Cells::ONE);
                    full_at = next;
                    standing.allowed
                })
                .count()
        };
        assert_eq!(passed(1, 10), 10);
        assert_eq!(passed(2, 20), 5);
        assert_eq!(tokens(&limit, full_at, Nanos::new(2 * SECOND)), Cells::ZERO);
        assert_eq!(
            tokens(&limit, full_at, Nanos::new(60 * SECOND)),
            Cells::new(10)
        );
    }
}
