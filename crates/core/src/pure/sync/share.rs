//! Shares of a limit, and this pod's part of a key's demand.
//!
//! While the store is unreachable, a pod grants only its [`Share`]: three quarters of it follow the pod's part of the
//! key's demand, and one quarter is even, so that a client that moves to another pod finds some room there. Shares are
//! rounded down, so that the shares of a fleet do not sum to more than one.
//!
//! ```
//! use tidegate_core::pure::sync::{Demand, Share};
//! use tidegate_core::pure::{Cells, Span};
//! let share = Share::fallback(Demand::weight(500, 1_000), 4); // 3/4 · 1/2 + 1/4 · 1/4
//! assert_eq!(share, Share::of(7, 16));
//! assert_eq!(share.of_cells(Cells::new(10)), Cells::new(5));
//! assert_eq!(share.price(Span::nanos(70)), Span::nanos(160));
//! ```

use super::trigger::Trigger;
use crate::pure::time::scale_up;
use crate::pure::{Cells, Nanos, Span};

/// The unit of a share is one 65,536th.
const PARTS: u32 = 65_536;
/// The highest demand. Ten thousand times as much is still exact in the store's numbers.
const DEMAND_MAX: u64 = 1 << 39;
/// A demand counts thousandths of cells.
const THOUSANDTHS: u64 = 1_000;
/// The time after which half of a demand is left, in milliseconds.
const HALVED_MS: u64 = 10_000;
/// Nanoseconds in a millisecond.
const MILLISECOND: u64 = 1_000_000;

/// A fraction between none and the whole, in 65,536ths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Share(u32);

impl Share {
    /// The whole.
    pub const WHOLE: Self = Self(PARTS);
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// The smallest share above [`Self::NONE`].
    const LEAST: Self = Self(1);

    /// `part` of `whole`, rounded down and at most [`Self::WHOLE`]. Any part of zero is [`Self::NONE`].
    ///
    /// ```
    /// use tidegate_core::pure::sync::Share;
    /// assert_eq!(Share::of(3, 3), Share::WHOLE);
    /// assert_eq!(Share::of(9, 3), Share::WHOLE);
    /// assert_eq!(Share::of(9, 0), Share::NONE);
    /// ```
    pub fn of(part: u64, whole: u64) -> Self {
        let parts = u128::from(part).saturating_mul(u128::from(PARTS));
        let parts = parts.checked_div(u128::from(whole)).unwrap_or(0);
        Self::clamped(parts)
    }

    /// The share of each of so many pods if all have the same. It is never [`Self::NONE`]; zero pods count as one.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Share;
    /// assert_eq!(Share::even(4), Share::of(1, 4));
    /// assert_eq!(Share::even(0), Share::WHOLE);
    /// assert!(Share::even(u64::MAX) > Share::NONE);
    /// ```
    pub fn even(pods: u64) -> Self {
        Self::of(1, pods.max(1)).max(Self::LEAST)
    }

    /// What a pod grants without the store: ¾ of its weight plus ¼ of its even share. It is never [`Self::NONE`].
    ///
    /// ```
    /// use tidegate_core::pure::sync::Share;
    /// assert_eq!(Share::fallback(Share::WHOLE, 1), Share::WHOLE);
    /// assert_eq!(Share::fallback(Share::NONE, 8), Share::of(1, 32));
    /// ```
    pub fn fallback(weight: Self, pods: u64) -> Self {
        let pods = u128::from(pods.max(1));
        let weighted = u128::from(weight.0).saturating_mul(3).saturating_mul(pods);
        let parts = weighted
            .saturating_add(u128::from(PARTS))
            .checked_div(pods.saturating_mul(4))
            .unwrap_or(0);
        Self::clamped(parts).max(Self::LEAST)
    }

    /// The highest weight that the pod may use at its next look: twice this one, or twice the even one.
    ///
    /// Pods begin to report a key one after the other. At first the first pod has all of the reported demand, then the
    /// second has half of it, and so on. If each used its weight at once, all of them together would withhold several
    /// times what they may.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Share;
    /// assert_eq!(Share::even(8).grown(8), Share::of(1, 4));
    /// assert_eq!(Share::of(1, 3).grown(8), Share::of(43_690, 65_536));
    /// assert_eq!(Share::WHOLE.grown(8), Share::WHOLE);
    /// ```
    pub fn grown(self, pods: u64) -> Self {
        let most = self.max(Self::even(pods));
        Self::clamped(u128::from(most.0).saturating_mul(2))
    }

    /// This share of a length, rounded down.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Share;
    /// use tidegate_core::pure::Span;
    /// assert_eq!(Share::even(2).of_span(Span::nanos(7)), Span::nanos(3));
    /// assert_eq!(Share::WHOLE.of_span(Span::nanos(u64::MAX)), Span::nanos(u64::MAX));
    /// ```
    pub fn of_span(self, span: Span) -> Span {
        let product = u128::from(span.get()).saturating_mul(u128::from(self.0));
        let nanos = product.checked_div(u128::from(PARTS)).unwrap_or(0);
        Span::nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// This share of so many cells, rounded up: a share of a burst is at least one cell.
    pub fn of_cells(self, cells: Cells) -> Cells {
        Cells::new(scale_up(cells.get(), u64::from(PARTS), u64::from(self.0)))
    }

    /// The price for a pod that grants only this share: `span` divided by the share, rounded up.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Share;
    /// use tidegate_core::pure::Span;
    /// assert_eq!(Share::even(3).price(Span::nanos(100)), Span::nanos(301));
    /// assert_eq!(Share::NONE.price(Span::nanos(1)), Span::nanos(u64::MAX));
    /// ```
    pub fn price(self, span: Span) -> Span {
        match self.0 {
            0 => Span::nanos(u64::MAX),
            parts => Span::nanos(scale_up(span.get(), u64::from(parts), u64::from(PARTS))),
        }
    }

    fn clamped(parts: u128) -> Self {
        Self(u32::try_from(parts).unwrap_or(PARTS).min(PARTS))
    }
}

/// A share in seven bits, because a bucket has no room for more. The code is the price of a cell in eighths, rounded
/// up: the share is at most the requested one, and at least eight ninths of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareCode(Trigger);

/// A [`ShareCode`] counts prices in eighths.
const PRICE_PARTS: u64 = 8;

impl ShareCode {
    /// The greatest share of at most `share` that seven bits can hold, or else the smallest that they can hold.
    ///
    /// ```
    /// use tidegate_core::pure::sync::{Share, ShareCode};
    /// assert_eq!(ShareCode::at_most(Share::WHOLE).share(), Share::WHOLE);
    /// assert_eq!(ShareCode::at_most(Share::even(4)).share(), Share::even(4));
    /// assert_eq!(ShareCode::at_most(Share::even(100)).share(), Share::even(104));
    /// ```
    pub fn at_most(share: Share) -> Self {
        let price = scale_up(PRICE_PARTS, u64::from(share.0.max(1)), u64::from(PARTS));
        let kept = Trigger::at(Cells::new(price));
        match kept.cells() {
            Some(cells) if cells.get() < price && kept.code() < u8::MAX >> 1 => {
                Self(Trigger::of_code(kept.code().saturating_add(1)))
            }
            Some(_) | None => Self(kept),
        }
    }

    /// The share that `code` stands for.
    pub const fn of_code(code: u8) -> Self {
        Self(Trigger::of_code(code))
    }

    /// The seven bits.
    pub const fn code(self) -> u8 {
        self.0.code()
    }

    /// The share that it stands for.
    pub fn share(self) -> Share {
        let price = self.0.cells().unwrap_or(Cells::ONE).get();
        Share::of(PRICE_PARTS, price).max(Share::LEAST)
    }
}

/// The recent demand for a key in thousandths of cells. It fades just as the store's own count does.
///
/// A demand of `d` is `d · 10 s / (10 s + t)` at the next update, `t` later. An update counts whole milliseconds and
/// leaves the rest for the next one, so that many small steps fade as well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    thousandths: u64,
    faded_until: Nanos,
}

impl Demand {
    /// Adds so many cells.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Demand;
    /// use tidegate_core::pure::{Cells, Nanos, Span};
    /// let (mut demand, now) = (Demand::default(), Nanos::new(5));
    /// demand.add(Cells::new(3), now);
    /// assert_eq!(demand.at(now), 3_000);
    /// assert_eq!(demand.at(now.after(Span::seconds(10))), 1_500);
    /// ```
    pub fn add(&mut self, cells: Cells, now: Nanos) {
        let elapsed = self.elapsed_ms(now);
        self.thousandths = self
            .at(now)
            .saturating_add(cells.get().saturating_mul(THOUSANDTHS))
            .min(DEMAND_MAX);
        let faded = Span::nanos(elapsed.saturating_mul(MILLISECOND));
        self.faded_until = self.faded_until.after(faded);
    }

    /// The demand that is left at `now`, in thousandths of cells.
    pub fn at(&self, now: Nanos) -> u64 {
        let whole = HALVED_MS.saturating_add(self.elapsed_ms(now));
        self.thousandths
            .saturating_mul(HALVED_MS)
            .checked_div(whole)
            .unwrap_or(0)
    }

    /// This pod's part of the fleet's demand: at most the whole, and nothing while the total is unknown.
    ///
    /// ```
    /// use tidegate_core::pure::sync::{Demand, Share};
    /// assert_eq!(Demand::weight(1, 4), Share::of(1, 4));
    /// assert_eq!(Demand::weight(5, 4), Share::WHOLE);
    /// ```
    pub fn weight(own: u64, total: u64) -> Share {
        Share::of(own, total)
    }

    fn elapsed_ms(&self, now: Nanos) -> u64 {
        let nanos = now.since(self.faded_until).get();
        nanos.checked_div(MILLISECOND).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(ms: u64) -> Nanos {
        Nanos::new(ms * 1_000_000)
    }

    #[test]
    fn the_shares_of_a_fleet_sum_to_at_most_one_and_nearly_one() {
        for weights in [&[1, 1, 1][..], &[7, 2, 0, 1], &[1; 100], &[1_000, 1, 1]] {
            let (total, pods) = (weights.iter().sum(), weights.len());
            let sum: u32 = weights
                .iter()
                .map(|&own| Share::fallback(Demand::weight(own, total), pods.try_into().unwrap()).0)
                .sum();
            assert!(sum <= PARTS, "{weights:?}: {sum}");
            assert!(sum > PARTS - 2 * u32::try_from(pods).unwrap(), "{sum}");
        }
    }

    #[test]
    fn a_fallback_is_never_nothing_and_never_above_all() {
        for pods in [0, 1, 2, 100, 65_536, u64::MAX] {
            for weight in [Share::NONE, Share::LEAST, Share::even(3), Share::WHOLE] {
                let share = Share::fallback(weight, pods);
                assert!(share > Share::NONE && share <= Share::WHOLE, "{share:?}");
            }
        }
    }

    #[test]
    fn a_share_of_cells_is_at_least_one_unless_there_are_none() {
        assert_eq!(Share::LEAST.of_cells(Cells::ONE), Cells::ONE);
        assert_eq!(Share::LEAST.of_cells(Cells::ZERO), Cells::ZERO);
        let most = Cells::new(u64::MAX);
        assert_eq!(Share::WHOLE.of_cells(most), most);
    }

    #[test]
    fn a_price_grants_no_more_than_the_share() {
        for parts in [1, 3, 21_845, 65_535, 65_536] {
            let (share, interval) = (Share(parts), Span::nanos(1_000_003));
            assert!(share.of_span(share.price(interval)) >= interval);
        }
    }

    #[test]
    fn demand_fades_by_half_in_ten_seconds() {
        let mut demand = Demand::default();
        demand.add(Cells::new(8), ms(1));
        assert_eq!(demand.at(ms(10_001)), 4_000);
        demand.add(Cells::ONE, ms(10_001));
        assert_eq!(demand.at(ms(10_001)), 5_000);
        assert_eq!(demand.at(ms(0)), 5_000, "a clock that lags adds nothing");
    }

    #[test]
    fn many_small_steps_fade_too() {
        let mut demand = Demand::default();
        demand.add(Cells::new(1_000_000), ms(0));
        for step in 1..=25_000_u64 {
            demand.add(Cells::ZERO, Nanos::new(step * 400_000)); // 10 s in all
        }
        let left = demand.at(ms(10_000));
        assert!((300_000_000..400_000_000).contains(&left), "{left}"); // about 1/e
    }

    #[test]
    fn demand_has_a_most() {
        let mut demand = Demand::default();
        demand.add(Cells::new(u64::MAX), ms(0));
        demand.add(Cells::new(u64::MAX), ms(0));
        assert_eq!(demand.at(ms(0)), DEMAND_MAX);
    }
}
