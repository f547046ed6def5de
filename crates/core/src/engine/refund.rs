//! Cells that a caller gives back: it was charged for what did not happen after all.
//!
//! A refund empties a bucket, never beyond empty. Cells of it that no store was told of are simply not told. The rest
//! is left for the rounds, which know what this pod was silent of and give the store back what it was told.
//!
//! The order matters to an answer that is folded at the same time: first the bucket is emptied, then the cells leave the
//! book, then the rounds are told. A fold that sees less than all of that leaves the bucket too full, never too empty.
//! Shown by: tests/loom/table.rs, a_fold_never_leaves_less_than_was_not_refunded.

use crossbeam_queue::ArrayQueue;

use super::admit::Subject;
use super::check::allows;
use super::snapshot::Snapshot;
use super::stats::Stat;
use super::table::Touch;
use super::{Engine, Hit};
use crate::pure::sync::{Family, StoreKey};
use crate::pure::{Cells, Moment, Nanos, Span};

/// Refunds that wait for the rounds. What comes beyond them stays with this pod.
const REFUNDS_MAX: usize = 16_384;

/// What became of cells that were given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RefundOutcome {
    /// Those the store was not told of, and will not be.
    pub unreported: Cells,
    /// Those it may have been told of.
    pub reported: ReportedCells,
}

/// Refunded cells that the store may have been told of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedCells {
    /// How many.
    pub cells: Cells,
    /// By how much their bucket is emptier without them; of no meaning for windows.
    pub price: Span,
    /// Where their bucket ends without them; of no meaning for windows.
    pub tat: Nanos,
    /// When they were refunded, since the Unix epoch.
    pub unix: Span,
}

/// Refunds of which the store may have to be told.
#[derive(Debug)]
pub struct Refunds(ArrayQueue<(StoreKey, ReportedCells)>);

impl Default for Refunds {
    fn default() -> Self {
        Self(ArrayQueue::new(REFUNDS_MAX))
    }
}

impl Refunds {
    /// Everything that is there.
    pub fn drain(&self) -> impl Iterator<Item = (StoreKey, ReportedCells)> {
        (0..self.0.len()).map_while(|_| self.0.pop())
    }
}

impl Engine {
    /// Gives back what a check that passes refunds.
    pub(super) fn refund_all(&self, snapshot: &Snapshot, hits: &mut [Hit], moment: Moment) {
        debug_assert!(allows(snapshot, hits), "a denied check changes nothing");
        for hit in hits.iter_mut().filter(|hit| hit.refund) {
            if let Some(subject) = self.subject(snapshot, hit, moment) {
                self.refund(&subject, hit.cost);
                (hit.standing, hit.source) = self.look(&subject, Cells::ZERO);
                hit.standing.allowed = true;
            }
        }
    }

    fn refund(&self, subject: &Subject<'_>, cost: Cells) {
        let RefundOutcome {
            unreported,
            reported,
        } = match subject.state.family {
            Family::Level => self.refund_level(subject, cost),
            Family::Caller => {
                let now = subject.moment.now;
                self.carried.refund(subject.name, &subject.limit, cost, now)
            }
            Family::Window => self.windows.refund(&subject.window(), cost),
        };
        if subject.state.reported {
            self.stats.count(Stat::CellsRefunded, unreported.get());
            let unix = subject.moment.unix;
            let reported = ReportedCells { unix, ..reported };
            if reported.cells > Cells::ZERO
                && self.refunds.0.push((subject.store_key(), reported)).is_ok()
            {
                self.sync_queue.wake();
            }
        }
    }

    fn refund_level(&self, subject: &Subject<'_>, cost: Cells) -> RefundOutcome {
        let (now, interval) = (subject.moment.now, subject.limit.interval());
        let price = interval.times(cost);
        let key = self.table_key(subject);
        let step = |tat: Nanos| {
            let after = tat.before(price).max(now).max(Nanos::new(1));
            ((after < tat).then_some(after), (tat.since(after), after))
        };
        let mut remembered = false;
        let touched = match self.table.touch(&key, step) {
            // Its bucket may still be that of a former limit: a check of nothing brings it over.
            Touch::Missing if !subject.state.former.is_empty() => {
                remembered = subject.state.former.iter().any(|former| {
                    let former = self.table.key(subject.name, former.variant);
                    self.table.ghost(&former, now).is_some()
                });
                let _ = self.admit_synced(subject, Cells::ZERO);
                self.table.touch(&key, step)
            }
            touched @ (Touch::Held(..) | Touch::Missing) => touched,
        };
        let Touch::Held((emptied, tat), tenancy) = touched else {
            self.refund_remembered(subject, price);
            return RefundOutcome::default();
        };
        if remembered {
            return RefundOutcome::default();
        }
        let given_back = emptied.cells_up(interval).min(cost);
        let unreported = self.table.unbook(&tenancy, given_back);
        RefundOutcome {
            unreported,
            reported: ReportedCells {
                cells: given_back.less(unreported),
                price: emptied.less(interval.times(unreported)),
                tat,
                unix: Span::ZERO,
            },
        }
    }

    /// Gives back cells of a key that is not held. As of any that is only remembered, nobody knows whether the store was
    /// told of them: it hears nothing.
    #[cold]
    fn refund_remembered(&self, subject: &Subject<'_>, price: Span) {
        let (now, key) = (subject.moment.now, self.table_key(subject));
        let permit = self.table.permit(&key);
        if self.table.tat(&key).is_none()
            && let Some(tat) = self.table.ghost(&key, now)
        {
            self.table.remember(&permit, &key, tat.before(price), now);
        }
    }
}
