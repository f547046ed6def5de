//! Points in time, lengths of time and cells, as types that cannot be mixed.
//!
//! Nothing here reads a clock: `src/clock.rs` does, and passes a [`Moment`] down. All arithmetic saturates.
//!
//! ```
//! use tidegate_core::pure::{Cells, Nanos, Span};
//! let now = Nanos::new(1_000);
//! assert_eq!(now.after(Span::nanos(500)).since(now), Span::nanos(500));
//! assert_eq!(Span::nanos(1_050).whole(Span::nanos(100)), Cells::new(10));
//! ```

use std::fmt;

/// Nanoseconds in one second.
pub const SECOND: u64 = 1_000_000_000;

/// A point on this pod's monotonic clock, in nanoseconds. Points of two pods cannot be compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(u64);

impl Nanos {
    /// The point `nanos` nanoseconds after the clock's zero.
    pub const fn new(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The point `span` later.
    pub const fn after(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }

    /// The point `span` earlier, or the clock's zero.
    pub const fn before(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }

    /// The time since `earlier`; zero if `earlier` is in the future.
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

/// A length of time in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);

    /// A length in nanoseconds.
    pub const fn nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// A length in whole seconds.
    pub const fn seconds(seconds: u64) -> Self {
        Self(seconds.saturating_mul(SECOND))
    }

    /// The nanoseconds in this length.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The seconds in this length, rounded up: what a client has to wait at least.
    pub const fn seconds_up(self) -> u64 {
        self.0.div_ceil(SECOND)
    }

    /// The sum of this length and `other`.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// This length without `other`; zero if `other` is longer.
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The time that `cells` cost at this interval.
    pub const fn times(self, cells: Cells) -> Self {
        Self(self.0.saturating_mul(cells.0))
    }

    /// The number of whole `interval`s in this length; zero if the interval is empty.
    pub const fn whole(self, interval: Self) -> Cells {
        match self.0.checked_div(interval.0) {
            Some(cells) => Cells(cells),
            None => Cells::ZERO,
        }
    }

    /// The number of `interval`s in this length, rounded up: a cell that has partly drained still counts. Zero if the
    /// interval is empty.
    ///
    /// ```
    /// use tidegate_core::pure::{Cells, Span};
    /// assert_eq!(Span::nanos(201).cells_up(Span::nanos(100)), Cells::new(3));
    /// ```
    pub const fn cells_up(self, interval: Self) -> Cells {
        match interval.0 {
            0 => Cells::ZERO,
            interval => Cells(self.0.div_ceil(interval)),
        }
    }

    /// This length on another scale: `from` becomes `to`, and half of `from` becomes half of `to`. It is rounded up, so
    /// that nobody gains by it.
    ///
    /// ```
    /// use tidegate_core::pure::Span;
    /// assert_eq!(Span::seconds(5).rescaled(Span::seconds(10), Span::seconds(60)), Span::seconds(30));
    /// ```
    pub fn rescaled(self, from: Self, to: Self) -> Self {
        if from.0 == 0 || from == to {
            return self;
        }
        Self(scale_up(self.0, from.0, to.0))
    }
}

/// `value · to / from`, rounded up and saturating. `from` is not zero.
pub(crate) fn scale_up(value: u64, from: u64, to: u64) -> u64 {
    let product = u128::from(value).saturating_mul(u128::from(to));
    u64::try_from(product.div_ceil(u128::from(from.max(1)))).unwrap_or(u64::MAX)
}

impl fmt::Display for Span {
    /// The format of protobuf's JSON: `60s`, `1.2s`, `0.000000001s`.
    ///
    /// ```
    /// use tidegate_core::pure::Span;
    /// assert_eq!(Span::nanos(1_200_000_000).to_string(), "1.2s");
    /// assert_eq!(Span::seconds(60).to_string(), "60s");
    /// ```
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, mut part) = (
            self.0.checked_div(SECOND).unwrap_or(0),
            self.0.checked_rem(SECOND).unwrap_or(0),
        );
        write!(f, "{whole}")?;
        if part > 0 {
            let mut width = 9;
            while part.is_multiple_of(10) {
                part = part.checked_div(10).unwrap_or(0);
                width = usize::saturating_sub(width, 1);
            }
            write!(f, ".{part:0width$}")?;
        }
        f.write_str("s")
    }
}

/// A number of cells, the unit of cost. A check costs one cell by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cells(u64);

impl Cells {
    /// No cells.
    pub const ZERO: Self = Self(0);
    /// One cell.
    pub const ONE: Self = Self(1);

    /// So many cells.
    pub const fn new(cells: u64) -> Self {
        Self(cells)
    }

    /// The number.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum of these cells and `other`.
    pub const fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    /// These cells without `other`; zero if `other` is more.
    pub const fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Cells {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// When a check happens: by the pod's own clock, which never goes back, and by the calendar, to which windows are
/// aligned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// The point on this pod's clock.
    pub now: Nanos,
    /// The same instant as a length since the Unix epoch, UTC.
    pub unix: Span,
}

impl Moment {
    /// A moment in a test or a simulation, where the pod's clock started at the epoch.
    pub const fn at(nanos: u64) -> Self {
        Self {
            now: Nanos::new(nanos),
            unix: Span::nanos(nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(
            Nanos::new(u64::MAX).after(Span::seconds(1)),
            Nanos::new(u64::MAX)
        );
        assert_eq!(Nanos::new(5).since(Nanos::new(9)), Span::ZERO);
        assert_eq!(
            Span::nanos(u64::MAX).times(Cells::new(2)),
            Span::nanos(u64::MAX)
        );
        assert_eq!(Span::seconds(1).whole(Span::ZERO), Cells::ZERO);
    }

    #[test]
    fn a_rescaled_length_keeps_its_proportion_and_rounds_up() {
        assert_eq!(
            Span::nanos(1).rescaled(Span::nanos(3), Span::nanos(1)),
            Span::nanos(1)
        );
        assert_eq!(
            Span::nanos(u64::MAX).rescaled(Span::nanos(1), Span::nanos(9)),
            Span::nanos(u64::MAX)
        );
    }

    #[test]
    fn a_span_prints_as_protobuf_json() {
        assert_eq!(Span::ZERO.to_string(), "0s");
        assert_eq!(Span::nanos(1).to_string(), "0.000000001s");
        assert_eq!(Span::nanos(1_050_000_000).to_string(), "1.05s");
    }
}
