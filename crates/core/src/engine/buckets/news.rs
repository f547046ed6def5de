//! What news of a full key changed in its bucket, and how to undo it.

use crate::pure::{Cells, Nanos, Span};

/// What one message changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum NewsEffect {
    /// Nothing: this pod knew as much.
    Nothing,
    /// The bucket ended at `from`, or would have been empty since, and ends at `to`.
    Level { from: Nanos, to: Nanos },
    /// The pod counted `cells` in the window of this index, which lasts for `left` more.
    Window {
        index: u64,
        cells: Cells,
        left: Span,
    },
}

impl NewsEffect {
    pub(super) fn level(from: Nanos, to: Nanos) -> Self {
        match to > from {
            true => Self::Level { from, to },
            false => Self::Nothing,
        }
    }
}

/// What several messages changed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) struct NewsChange {
    /// Where the bucket ended when the first message came, or that moment if that is later.
    pub(in crate::engine) before: Nanos,
    /// When the change ends by itself.
    pub(in crate::engine) ends: Nanos,
    pub(super) change: BucketChange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BucketChange {
    /// The TAT was raised by this.
    Level(Span),
    /// Cells were counted in the window of this index.
    Window { index: u64, cells: Cells },
}

impl NewsChange {
    /// `known`, if there is one, together with `effect`, which came at `now`. `None` if there is neither.
    pub(in crate::engine) fn joined(
        known: Option<Self>,
        effect: NewsEffect,
        now: Nanos,
    ) -> Option<Self> {
        Some(match effect {
            NewsEffect::Nothing => known?,
            NewsEffect::Level { from, to } => {
                let so_far = match known.map(|known| known.change) {
                    Some(BucketChange::Level(so_far)) => so_far,
                    Some(BucketChange::Window { .. }) | None => Span::ZERO,
                };
                Self {
                    before: known.map_or(from, |known| known.before),
                    ends: to,
                    change: BucketChange::Level(so_far.plus(to.since(from))),
                }
            }
            NewsEffect::Window { index, cells, left } => {
                let so_far = match known.map(|known| known.change) {
                    Some(BucketChange::Window {
                        index: counted_in,
                        cells: so_far,
                    }) if counted_in == index => so_far,
                    Some(BucketChange::Window { .. } | BucketChange::Level(_)) | None => {
                        Cells::ZERO
                    }
                };
                Self {
                    before: now,
                    ends: now.after(left),
                    change: BucketChange::Window {
                        index,
                        cells: so_far.plus(cells),
                    },
                }
            }
        })
    }

    /// Whether the pod has to undo the change before it folds an answer. An answer replaces a level; a window adds the
    /// answer to what it counted.
    pub(in crate::engine) const fn is_undone_before_answer(&self) -> bool {
        matches!(self.change, BucketChange::Window { .. })
    }
}
