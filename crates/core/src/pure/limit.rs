//! A limit: so many cells per unit of time, with a burst.
//!
//! Every [`Limit`] is sound: its interval is at least a nanosecond, and its capacity is at most [`CAPACITY_MAX`].
//! [`Limit::new`] returns a [`LimitFault`] for anything else.

use std::fmt;

use super::sync::Share;
use super::time::{Cells, SECOND, Span};

/// The longest time that a bucket may take to drain: a hundred years. A longer one could overflow points in time.
pub const CAPACITY_MAX: Span = Span::seconds(100 * 365 * 86_400);

/// The units of envoyproxy/ratelimit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Unit {
    /// One second.
    Second,
    /// 60 seconds.
    Minute,
    /// 60 minutes.
    Hour,
    /// 24 hours.
    Day,
    /// 7 days.
    Week,
    /// 30 days.
    Month,
    /// 365 days.
    Year,
}

impl Unit {
    /// Every unit, shortest first.
    pub const ALL: [Self; 7] = [
        Self::Second,
        Self::Minute,
        Self::Hour,
        Self::Day,
        Self::Week,
        Self::Month,
        Self::Year,
    ];

    /// The seconds in the unit.
    pub const fn seconds(self) -> u64 {
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
            Self::Week => 7 * 86_400,
            Self::Month => 30 * 86_400,
            Self::Year => 365 * 86_400,
        }
    }

    /// The unit's name on the wire, as in Envoy's API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Second => "SECOND",
            Self::Minute => "MINUTE",
            Self::Hour => "HOUR",
            Self::Day => "DAY",
            Self::Week => "WEEK",
            Self::Month => "MONTH",
            Self::Year => "YEAR",
        }
    }

    /// The unit of that name, in upper or lower case.
    ///
    /// ```
    /// use tidegate_core::pure::Unit;
    /// assert_eq!(Unit::named("Minute"), Some(Unit::Minute));
    /// assert_eq!(Unit::named("fortnight"), None);
    /// ```
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find(|unit| unit.name().eq_ignore_ascii_case(name))
    }
}

/// Why a limit is not possible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitFault {
    /// The window has no length.
    NoWindow,
    /// A burst of zero would deny every check.
    NoBurst,
    /// The rate is above one cell per nanosecond.
    TooFast,
    /// The bucket would take longer than [`CAPACITY_MAX`] to drain.
    TooLong,
}

impl fmt::Display for LimitFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoWindow => "must be at least 1 (a window needs a length)",
            Self::NoBurst => "must be at least 1 (0 would deny every check)",
            Self::TooFast => "must be at most 1000000000 per second",
            Self::TooLong => "is too large: the bucket would take over 100 years to empty",
        })
    }
}

/// `requests` cells per `unit_multiplier` units, and at most `burst` of them at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    requests: u64,
    unit: Unit,
    unit_multiplier: u64,
    window: Span,
    burst: Cells,
    interval: Span,
    capacity: Span,
    /// 2^64 / interval, rounded down. Every check asks how many cells fit, and multiplying is faster than dividing.
    cells_per_2_64: u64,
}

/// A [`Limit`] without what follows from the rest, for tables of many limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompactLimit {
    requests: u64,
    unit: Unit,
    unit_multiplier: u64,
    burst: Cells,
    interval: Span,
}

impl CompactLimit {
    /// The limit.
    ///
    /// ```
    /// use tidegate_core::pure::{Limit, LimitFault, Unit};
    /// for limit in [Limit::new(7, Unit::Hour, 3, Some(2))?, Limit::from_caller(1, 3, 1)?] {
    ///     assert_eq!(limit.compact().limit(), limit);
    /// }
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn limit(&self) -> Limit {
        let seconds = self.unit.seconds().saturating_mul(self.unit_multiplier);
        let limit = Limit {
            requests: self.requests,
            unit: self.unit,
            unit_multiplier: self.unit_multiplier,
            window: Span::seconds(seconds),
            burst: self.burst,
            interval: self.interval,
            capacity: Span::ZERO,
            cells_per_2_64: 0,
        };
        limit.at_interval(self.interval)
    }
}

impl Limit {
    /// A limit. `burst` is the whole capacity of the bucket, by default `requests`. A limit of zero requests denies
    /// every check.
    ///
    /// ```
    /// use tidegate_core::pure::{Limit, LimitFault, Span, Unit};
    /// let limit = Limit::new(10, Unit::Second, 1, None)?;
    /// assert_eq!(limit.interval(), Span::nanos(100_000_000));
    /// assert_eq!(limit.capacity(), Span::seconds(1));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn new(
        requests: u64,
        unit: Unit,
        unit_multiplier: u64,
        burst: Option<u64>,
    ) -> Result<Self, LimitFault> {
        if unit_multiplier == 0 {
            return Err(LimitFault::NoWindow);
        }
        if burst == Some(0) && requests > 0 {
            return Err(LimitFault::NoBurst);
        }
        let seconds = unit
            .seconds()
            .checked_mul(unit_multiplier)
            .ok_or(LimitFault::TooLong)?;
        let window = Span::nanos(seconds.checked_mul(SECOND).ok_or(LimitFault::TooLong)?);
        if requests > window.get() {
            return Err(LimitFault::TooFast);
        }
        let interval = Span::nanos(window.get().div_ceil(requests.max(1)));
        let burst = Cells::new(if requests == 0 {
            0
        } else {
            burst.unwrap_or(requests)
        });
        let capacity = interval.times(burst);
        if capacity > CAPACITY_MAX || window > CAPACITY_MAX {
            return Err(LimitFault::TooLong);
        }
        let cells_per_2_64 = u64::MAX.checked_div(interval.get()).unwrap_or(u64::MAX);
        Ok(Self {
            requests,
            unit,
            unit_multiplier,
            window,
            burst,
            interval,
            capacity,
            cells_per_2_64,
        })
    }

    /// A caller-supplied limit in the terms of redis-cell: `count` cells in `seconds`, and `burst` at once.
    ///
    /// The interval is rounded down, as redis-cell does: if the exact interval is not a whole number of nanoseconds,
    /// the rate is exceeded by less than one part in the number of nanoseconds of the interval.
    ///
    /// ```
    /// use tidegate_core::pure::{Limit, LimitFault, Span};
    /// let limit = Limit::from_caller(16, 30, 60)?;
    /// assert_eq!((limit.interval(), limit.capacity()), (Span::seconds(2), Span::seconds(32)));
    /// assert_eq!(Limit::from_caller(1, 3, 1)?.interval(), Span::nanos(333_333_333));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn from_caller(burst: u64, count: u64, seconds: u64) -> Result<Self, LimitFault> {
        if burst == 0 || count == 0 {
            return Err(LimitFault::NoBurst);
        }
        let limit = Self::new(count, Unit::Second, seconds, Some(burst))?;
        let interval = limit.window.get().checked_div(count).unwrap_or(0);
        Ok(limit.at_interval(Span::nanos(interval)))
    }

    /// This limit with another interval and the same burst.
    const fn at_interval(self, interval: Span) -> Self {
        Self {
            cells_per_2_64: match u64::MAX.checked_div(interval.get()) {
                Some(cells) => cells,
                None => u64::MAX,
            },
            capacity: interval.times(self.burst),
            interval,
            ..self
        }
    }

    /// This limit for a pod that grants only its `share` of it: a cell costs more, and the capacity stays the same. At
    /// least one cell fits.
    pub fn shared(&self, share: Share) -> Self {
        if self.requests == 0 {
            return *self;
        }
        let interval = share.price(self.interval);
        let capacity = self.capacity.max(interval);
        Self {
            requests: share.of_cells(Cells::new(self.requests)).get(),
            burst: capacity.whole(interval),
            cells_per_2_64: u64::MAX.checked_div(interval.get()).unwrap_or(u64::MAX),
            interval,
            capacity,
            ..*self
        }
    }

    /// This limit in less memory.
    pub const fn compact(&self) -> CompactLimit {
        CompactLimit {
            requests: self.requests,
            unit: self.unit,
            unit_multiplier: self.unit_multiplier,
            burst: self.burst,
            interval: self.interval,
        }
    }

    /// The cells per window.
    pub const fn requests(&self) -> u64 {
        self.requests
    }

    /// The unit in which the limit was written.
    pub const fn unit(&self) -> Unit {
        self.unit
    }

    /// The number of units in the window.
    pub const fn unit_multiplier(&self) -> u64 {
        self.unit_multiplier
    }

    /// The length of the window: `unit_multiplier` units.
    pub const fn window(&self) -> Span {
        self.window
    }

    /// The most cells that can pass at once: the whole bucket.
    pub const fn burst(&self) -> Cells {
        self.burst
    }

    /// The time that one cell costs, rounded up, so that the rate is never exceeded.
    pub const fn interval(&self) -> Span {
        self.interval
    }

    /// The level that a bucket may reach: `burst` intervals.
    pub const fn capacity(&self) -> Span {
        self.capacity
    }

    /// The whole cells that fit above `level`.
    ///
    /// ```
    /// use tidegate_core::pure::{Cells, Limit, LimitFault, Span, Unit};
    /// let limit = Limit::new(10, Unit::Second, 1, None)?;
    /// assert_eq!(limit.room(Span::nanos(250_000_000)), Cells::new(7));
    /// # Ok::<(), LimitFault>(())
    /// ```
    #[inline]
    pub fn room(&self, level: Span) -> Cells {
        let span = self.capacity.less(level);
        let product = u128::from(span.get()).wrapping_mul(u128::from(self.cells_per_2_64));
        let low = Cells::new(u64::try_from(product >> 64).unwrap_or(u64::MAX));
        // The rounded reciprocal can miss one cell, but never more: the capacity is far below 2^64.
        match span.less(self.interval.times(low)) >= self.interval {
            true => low.plus(Cells::ONE),
            false => low,
        }
    }

    /// The window as text: `1m`, `30s`, `1d`.
    ///
    /// ```
    /// use tidegate_core::pure::{Limit, LimitFault, Unit};
    /// assert_eq!(Limit::new(5, Unit::Second, 90, None)?.window_text(), "90s");
    /// assert_eq!(Limit::new(5, Unit::Week, 1, None)?.window_text(), "7d");
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn window_text(&self) -> String {
        let seconds = self.window.get().checked_div(SECOND).unwrap_or(0);
        [(86_400, 'd'), (3_600, 'h'), (60, 'm')]
            .into_iter()
            .find(|&(length, _)| seconds >= length && seconds.is_multiple_of(length))
            .map_or_else(
                || format!("{seconds}s"),
                |(length, letter)| format!("{}{letter}", seconds.checked_div(length).unwrap_or(0)),
            )
    }
}

impl fmt::Display for Limit {
    /// The short form of the configuration: `20/minute`, `5/90s burst 10`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit_multiplier {
            1 => write!(
                f,
                "{}/{}",
                self.requests,
                self.unit.name().to_ascii_lowercase()
            )?,
            _ => write!(f, "{}/{}", self.requests, self.window_text())?,
        }
        if self.burst.get() != self.requests {
            write!(f, " burst {}", self.burst)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_rounds_up_so_that_the_rate_is_never_exceeded() {
        let limit = Limit::new(3, Unit::Second, 1, None).unwrap();
        assert_eq!(limit.interval(), Span::nanos(333_333_334));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert_eq!(
            Limit::new(5, Unit::Second, 0, None),
            Err(LimitFault::NoWindow)
        );
        assert_eq!(
            Limit::new(5, Unit::Second, 1, Some(0)),
            Err(LimitFault::NoBurst)
        );
        assert_eq!(
            Limit::new(1_000_000_001, Unit::Second, 1, None),
            Err(LimitFault::TooFast)
        );
        assert_eq!(
            Limit::new(1, Unit::Year, 101, None),
            Err(LimitFault::TooLong)
        );
        assert_eq!(
            Limit::new(1, Unit::Year, u64::MAX, None),
            Err(LimitFault::TooLong)
        );
        assert_eq!(
            Limit::new(1, Unit::Year, 1, Some(u64::MAX)),
            Err(LimitFault::TooLong)
        );
    }

    #[test]
    fn room_is_the_quotient_at_every_edge() {
        for (requests, unit, burst) in [
            (1, Unit::Second, 1),
            (3, Unit::Second, 7),
            (999_999_999, Unit::Second, 5),
            (7, Unit::Year, 90),
        ] {
            let limit = Limit::new(requests, unit, 1, Some(burst)).unwrap();
            let interval = limit.interval().get();
            for cells in 0..=burst {
                for off in [0, 1, interval / 2, interval - 1] {
                    let level = limit.capacity().less(Span::nanos(cells * interval + off));
                    let room = limit.capacity().less(level);
                    assert_eq!(
                        limit.room(level),
                        room.whole(limit.interval()),
                        "{limit} {cells} {off}"
                    );
                }
            }
        }
        let fastest = Limit::new(1_000_000_000, Unit::Second, 1, None).unwrap();
        assert_eq!(fastest.room(Span::ZERO), fastest.burst());
    }

    #[test]
    fn zero_requests_make_a_bucket_that_holds_nothing() {
        let limit = Limit::new(0, Unit::Minute, 1, Some(7)).unwrap();
        assert_eq!((limit.burst(), limit.capacity()), (Cells::ZERO, Span::ZERO));
    }

    #[test]
    fn a_limit_prints_as_its_short_form() {
        assert_eq!(
            Limit::new(20, Unit::Minute, 1, None).unwrap().to_string(),
            "20/minute"
        );
        assert_eq!(
            Limit::new(20, Unit::Second, 30, Some(5))
                .unwrap()
                .to_string(),
            "20/30s burst 5"
        );
    }
}
