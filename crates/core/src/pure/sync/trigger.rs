//! When a pod reports a key: after so many cells, not after so much time.
//!
//! All pods together may leave a part of a bucket unreported, and each pod may withhold its share of that part. A pod
//! need not report a key at all while it uses the key within its even share: if every pod stays within its share, the
//! fleet stays within the limit.

use super::share::Share;
use crate::pure::{Cells, Limit, Span};

/// A silent key may use this fraction (one in so many) of the pod's even part of the burst at once.
const ALLOWANCE_PART: u64 = 4;

/// The number of pending cells at which a key asks for a sync round before its time.
///
/// It has seven bits, because a bucket has no room for more. 0 never triggers; numbers from 8 on have four significant
/// bits, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger(u8);

impl Trigger {
    /// No number of cells triggers.
    pub const NEVER: Self = Self(0);
    /// Every cell triggers.
    pub const EACH: Self = Self(1);

    /// The greatest trigger of at most `cells`, and of at least one cell.
    ///
    /// ```
    /// use tidegate_core::pure::{Cells, sync::Trigger};
    /// assert_eq!(Trigger::at(Cells::new(7)).cells(), Some(Cells::new(7)));
    /// assert_eq!(Trigger::at(Cells::new(1_000)).cells(), Some(Cells::new(960)));
    /// assert_eq!(Trigger::at(Cells::ZERO), Trigger::EACH);
    /// ```
    pub fn at(cells: Cells) -> Self {
        let cells = cells.get().max(1);
        if cells < 8 {
            return Self(u8::try_from(cells).unwrap_or(7));
        }
        let exponent = cells.ilog2().saturating_sub(3);
        if exponent > 14 {
            return Self(127);
        }
        let mantissa = (cells >> exponent) & 7;
        let code = u64::from(exponent.saturating_add(1)) << 3 | mantissa;
        Self(u8::try_from(code).unwrap_or(127))
    }

    /// The smallest trigger above `cells`, or else the greatest trigger.
    ///
    /// ```
    /// use tidegate_core::pure::{Cells, sync::Trigger};
    /// for cells in [0, 1, 7, 8, 9, 1_000] {
    ///     let cells = Cells::new(cells);
    ///     assert!(Trigger::above(cells).cells() > Some(cells));
    /// }
    /// ```
    pub fn above(cells: Cells) -> Self {
        match cells {
            Cells::ZERO => Self::EACH,
            _ => Self(Self::at(cells).0.saturating_add(1).min(127)),
        }
    }

    /// The trigger that `code` stands for.
    pub const fn of_code(code: u8) -> Self {
        Self(code & 127)
    }

    /// The seven bits.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The cells that it stands for; `None` for [`Self::NEVER`].
    pub fn cells(self) -> Option<Cells> {
        (self.0 > 0).then(|| Cells::new(self.number()))
    }

    /// Whether a step from `before` to `after` pending cells reaches it.
    #[inline]
    pub fn is_crossed(self, before: u64, after: u64) -> bool {
        let at = self.number();
        before < at && at <= after
    }

    /// The cells. 0 means never: no step crosses it.
    #[inline]
    fn number(self) -> u64 {
        let code = u64::from(self.0);
        match code {
            0..8 => code,
            _ => (8 | code & 7) << (code >> 3).saturating_sub(1),
        }
    }
}

/// What a pod knows of the fleet: how accurate it has to be, and how many pods it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetView {
    /// The part of a bucket that all pods together may leave unreported.
    pub accuracy: Share,
    /// The number of pods alive.
    pub pods: u64,
}

impl FleetView {
    /// The cells that a pod with `weight` of a key's demand may withhold: `accuracy` of its part of the room or of its
    /// even part of the whole, whichever is greater.
    pub fn trigger(&self, whole: Cells, room: Cells, weight: Share) -> Trigger {
        let even = Cells::new(whole.get().checked_div(self.pods.max(1)).unwrap_or(0));
        let part = weight.of_cells(room).max(even);
        // `of_span` rounds down, as it has to be here; `of_cells` would round up.
        let withheld = self.accuracy.of_span(Span::nanos(part.get()));
        Trigger::at(Cells::new(withheld.get()))
    }

    /// Whether a pod may not withhold even one cell of a key of `limit`.
    pub fn is_thin(&self, limit: &Limit) -> bool {
        let cells_per_pod = self
            .accuracy
            .of_span(Span::nanos(limit.burst().get()))
            .get();
        cells_per_pod < self.pods.max(1)
    }

    /// What a pod may use of a key of `limit` without reporting it; `None` if that is less than a cell.
    pub fn allowance(&self, limit: &Limit) -> Option<Allowance> {
        let pods = self.pods.max(1);
        let cells = limit
            .burst()
            .get()
            .checked_div(pods.saturating_mul(ALLOWANCE_PART))?;
        (cells > 0).then(|| Allowance {
            cells: Cells::new(cells),
            interval: limit.interval().times(Cells::new(pods)),
        })
    }
}

/// What a pod may use of a silent key, as a bucket of its own: a part of the pod's even share of the burst, refilled at
/// the even share of the rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Allowance {
    /// The cells that may be used at once.
    pub cells: Cells,
    /// The time that one cell costs.
    pub interval: Span,
}

impl Allowance {
    /// The level that the pod may reach in silence.
    pub const fn capacity(&self) -> Span {
        self.interval.times(self.cells)
    }

    /// The cells that the pod admits before it looks at the allowance again: half of it, so that usage never exceeds it
    /// by far unnoticed.
    pub fn trigger(&self) -> Trigger {
        Trigger::at(Cells::new(self.cells.get() >> 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::Unit;

    #[test]
    fn a_trigger_is_at_most_what_was_asked_and_at_least_seven_eighths_of_it() {
        for cells in (1..3_000).chain([10_000, 65_535, 245_760]) {
            let kept = Trigger::at(Cells::new(cells)).cells().unwrap().get();
            assert!(kept <= cells && kept * 8 >= cells * 7, "{kept} for {cells}");
        }
        let most = Trigger::at(Cells::new(u64::MAX));
        assert_eq!(most.cells(), Some(Cells::new(245_760)));
    }

    #[test]
    fn every_code_stands_for_more_than_the_one_before() {
        let cells: Vec<_> = (0..128)
            .map(|code| Trigger::of_code(code).cells())
            .collect();
        assert!(cells.is_sorted_by(|a, b| a < b), "{cells:?}");
        for code in 1..128 {
            let trigger = Trigger::of_code(code);
            assert_eq!(Trigger::at(trigger.cells().unwrap()), trigger);
        }
    }

    fn fleet_view(pods: u64) -> FleetView {
        FleetView {
            accuracy: Share::of(1, 10),
            pods,
        }
    }

    #[test]
    fn a_pod_holds_back_its_part_of_the_accuracy() {
        let held_back = |pods, room, weight| {
            let trigger = fleet_view(pods).trigger(Cells::new(1_000), Cells::new(room), weight);
            trigger.cells().unwrap().get()
        };
        assert_eq!(held_back(10, 1_000, Share::even(10)), 9);
        assert_eq!(held_back(10, 0, Share::even(10)), 9);
        assert_eq!(held_back(10, 1_000, Share::WHOLE), 96);
        assert_eq!(held_back(10_000, 0, Share::WHOLE), 1);
    }

    #[test]
    fn an_allowance_is_a_quarter_of_the_even_share_or_nothing() {
        let limit = |burst| Limit::new(1_000, Unit::Second, 1, Some(burst)).unwrap();
        let allowance = fleet_view(3).allowance(&limit(1_000)).unwrap();
        assert_eq!(allowance.cells, Cells::new(83));
        assert_eq!(allowance.interval, Span::nanos(3_000_000));
        assert_eq!(fleet_view(3).allowance(&limit(11)), None);
    }
}
