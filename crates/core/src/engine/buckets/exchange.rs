//! The values that a bucket and the sync exchange: cells go out, the store's state comes in.

use super::table::TableKey;
use crate::pure::sync::{StoreState, Terms};
use crate::pure::{Cells, Nanos, Span};

/// Cells that were collected for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct FrozenCells {
    pub(in crate::engine) cells: Cells,
    /// What they cost; zero for windows.
    pub(in crate::engine) price: Span,
    /// The bucket's TAT with them; zero for windows.
    pub(in crate::engine) tat: Nanos,
    /// When they were collected.
    pub(in crate::engine) at: Nanos,
    /// For how long the oldest was pending; windows only.
    pub(in crate::engine) age: Span,
}

impl FrozenCells {
    /// No cells of a key that is not held.
    pub(in crate::engine) const fn nothing(now: Nanos) -> Self {
        Self {
            cells: Cells::ZERO,
            price: Span::ZERO,
            tat: now,
            at: now,
            age: Span::ZERO,
        }
    }
}

/// Cells that were collected and go into no batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct SilentCells {
    pub(in crate::engine) cells: Cells,
    /// How many cells of the key's limit have the same price. It differs from `cells` only where callers supply different
    /// limits.
    pub(in crate::engine) worth: Cells,
}

impl SilentCells {
    pub(super) const fn of(cells: Cells) -> Self {
        Self {
            cells,
            worth: cells,
        }
    }
}

/// What the store answered of one key, and when.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct StoreAnswer {
    pub(in crate::engine) state: StoreState,
    /// The point on this pod's clock that the answer holds for.
    pub(in crate::engine) anchor: Nanos,
    /// The key's bucket when the batch was frozen.
    pub(in crate::engine) frozen: FrozenCells,
    /// Refunds that this pod has yet to give back in the store.
    pub(in crate::engine) refund_due: ReportedCells,
}

/// The result of a refund.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct RefundOutcome {
    /// Cells that were not reported, and will not be.
    pub(in crate::engine) unreported: Cells,
    /// Cells that may have been reported.
    pub(in crate::engine) reported: ReportedCells,
}

/// Refunded cells that may have been reported to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::engine) struct ReportedCells {
    pub(in crate::engine) cells: Cells,
    /// By how much their bucket is emptier without them; zero for windows.
    pub(in crate::engine) price: Span,
    /// Where their bucket ends without them; zero for windows.
    pub(in crate::engine) tat: Nanos,
    /// When they were refunded, since the Unix epoch.
    pub(in crate::engine) unix: Span,
}

impl ReportedCells {
    /// What is left at `now`: since the bucket ran empty, the cells have drained.
    pub(in crate::engine) fn netted(self, now: Nanos) -> Self {
        Self {
            price: self.price.less(now.since(self.tat)),
            tat: self.tat.max(now),
            ..self
        }
    }

    /// The sum of this refund and a later one.
    pub(in crate::engine) fn plus(self, later: Self) -> Self {
        Self {
            cells: self.cells.plus(later.cells),
            price: self.price.plus(later.price),
            ..later
        }
    }

    /// The sum of this refund and one of `now`, of a key that the store counts under `terms`.
    pub(in crate::engine) fn joined(self, later: Self, terms: &Terms, now: Nanos) -> Self {
        match terms {
            Terms::Level { .. } => self.netted(now).plus(later),
            Terms::Window { window, .. }
                if self.unix.whole(*window) == later.unix.whole(*window) =>
            {
                self.plus(later)
            }
            Terms::Window { .. } => later, // the other window is over
        }
    }

    /// Whether nothing is left to give back, `age` after the refund.
    pub(in crate::engine) fn has_drained(&self, terms: &Terms, age: Span) -> bool {
        match terms {
            Terms::Level { .. } => self.price == Span::ZERO,
            Terms::Window { window, .. } => age > *window,
        }
    }
}

/// Where the bucket of a key in flight is: enough to release it after its rule is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum BucketAddress {
    /// The key has no bucket.
    None,
    Level(TableKey),
    Window(u128),
    Caller(u128),
}
