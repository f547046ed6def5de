//! Cells that a caller gives back: it was charged for what did not happen after all.
//!
//! A refund empties a bucket, never beyond empty. Cells of it that are still pending are not reported any more. The rest
//! goes to the sync, which knows what this pod was silent about and sends the store a refund of what it reported.
//!
//! The order matters to an answer that is folded at the same time: first the refund empties the bucket, then the cells
//! leave the book, then the sync gets them. A fold that sees less than all of that leaves the bucket too full, never too
//! empty.
//! Shown by: tests/loom/table.rs, a_fold_never_leaves_less_than_was_not_refunded.

use crossbeam_queue::ArrayQueue;

use super::buckets::{KeyBucket, RefundOutcome, ReportedCells, Subject};
use super::check::allows;
use super::snapshot::Snapshot;
use super::stats::Stat;
use super::{Engine, Hit};
use crate::pure::sync::StoreKey;
use crate::pure::{Cells, Moment};

/// Refunds that wait for the sync. Further ones stay with this pod.
const REFUNDS_MAX: usize = 16_384;

/// Refunds that the sync has yet to take: the store may have to give them back too.
#[derive(Debug)]
pub(super) struct RefundInbox(ArrayQueue<(StoreKey, ReportedCells)>);

impl Default for RefundInbox {
    fn default() -> Self {
        Self(ArrayQueue::new(REFUNDS_MAX))
    }
}

impl RefundInbox {
    /// Everything that is there.
    pub(super) fn drain(&self) -> impl Iterator<Item = (StoreKey, ReportedCells)> {
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
        } = self.buckets.of(subject).refund(cost);
        if subject.state.reported {
            self.buckets
                .stats
                .count(Stat::CellsRefunded, unreported.get());
            let unix = subject.moment.unix;
            let reported = ReportedCells { unix, ..reported };
            if reported.cells > Cells::ZERO
                && self.refunds.0.push((subject.store_key(), reported)).is_ok()
            {
                self.buckets.sync_queue.wake();
            }
        }
    }
}
