//! The books of one lane: the store applies every frozen batch once, whatever the network loses.
//!
//! The store applies a call only if its own sequence number is the call's `previous`. It always answers its number and
//! its gross total. [`LaneBook`] says what to send and takes the answers; it never sends. One call is under way at a
//! time; an unanswered batch is resent unchanged. After one second, what has drained meanwhile is subtracted.
//!
//! The store's answer is the truth. The book compares it with its own records:
//!
//! | the store's number | what it means | what the book does |
//! |---|---|---|
//! | that of the frozen batch | the store applied it, now or in an attempt whose answer was lost | settles the batch and keeps it |
//! | the acknowledged one | nothing is missing | sends (or resends) the frozen batch |
//! | an older one | a failover lost writes, or a replay is half done | replays the batches that it kept, net of what has drained |
//! | a newer one | the record is not ours | adopts the number: see [`LaneStep::Adopted`] |
//!
//! A sequence number always names the same batch. After a loss, new numbers continue from the last one given, and a
//! replay skips numbers whose batches are no longer kept. So a duplicate that arrives late does not match the store's
//! number and changes nothing, or it does what a replay would have done. There is one exception: a late duplicate of
//! batches that were already counted as lost. The book counts those cells as `found`.
//!
//! ```
//! use tidegate_core::pure::sync::{Delta, KnownUsage, Lane, LaneBook, StoreReply, Share, LaneStep, StoreKey, Terms};
//! use tidegate_core::pure::{Cells, Nanos, Span};
//! # let delta = Delta {
//! #     key: StoreKey::window(1, 2),
//! #     terms: Terms::Window { window: Span::seconds(60), requests: Cells::new(9), sliding: false },
//! #     gross: Cells::new(5), price: Span::ZERO, billed: Cells::new(5), age: Span::ZERO,
//! #     share: Share::even(4), live: false, known: KnownUsage::default(),
//! # };
//! let now = Nanos::new(0);
//! let mut book = LaneBook::new(Lane::new(7));
//! assert_eq!(book.freeze(vec![delta], now), Ok(()));
//! let call = book.call(now).expect("a batch is frozen");
//! assert_eq!((call.previous, call.sequence), (0, 1));
//! // No answer: the pod resends the same call. The store answers that it has already applied it.
//! assert_eq!(book.call(now), Some(call));
//! let reply = StoreReply { applied: false, sequence: 1, gross: Cells::new(5), states: vec![], repaired: 0 };
//! assert!(matches!(book.answered(&reply, now).step, LaneStep::Settled(_)));
//! assert_eq!((book.settled(), book.in_flight()), (Cells::new(5), Cells::ZERO));
//! ```
//!
//! Invariant: all cells ever frozen = [`LaneBook::settled`] + [`LaneBook::in_flight`] + lost − found.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Call, Delta, Lane, NEWS_STEP, StoreReply};
use crate::pure::{Cells, Nanos, Span};

/// How long the book keeps an acknowledged batch. A failover that loses older writes loses cells.
pub const KEPT_FOR: Span = Span::seconds(30);
/// How long the book resends a batch unchanged. After that it subtracts what has drained.
const RESENT_UNCHANGED_FOR: Span = Span::seconds(1);
/// The most deltas of acknowledged batches that one lane keeps: one to two megabytes.
pub const KEPT_MAX: usize = 8_192;
/// The least that [`LaneBook::keeping`] sets that number to.
pub const KEPT_MIN: usize = 1_024;

/// Deltas that the pod sends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its sequence number in the lane.
    pub sequence: u64,
    /// The reports of its keys.
    pub deltas: Vec<Delta>,
    /// When the pod froze it.
    pub frozen_at: Nanos,
    /// The gross cells of all of its deltas.
    pub gross: Cells,
}

/// What the book concluded from an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneOutcome {
    /// What happened.
    pub step: LaneStep,
    /// Acknowledged cells that the store has lost and the book no longer keeps. Each cell is counted here once.
    pub lost: Cells,
    /// Cells that the store has although they were counted as lost, or although the book does not know of them.
    pub found: Cells,
}

/// What happened to a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LaneStep {
    /// The store has the frozen batch. The states of the answer are those of its keys if it was the batch sent last.
    Settled(Arc<Batch>),
    /// The store has lost acknowledged batches. The next call replays the kept ones.
    Behind,
    /// The store has more of the batches that it had lost.
    Replayed,
    /// The store has a number that this pod never gave: the record is broken, or another process uses this pod's id.
    /// The lane continues from that number and does not replay the kept batches. It resends the frozen batch under a
    /// new number if the store's gross total proves that the store does not have it. Otherwise the batch is
    /// [`Self::Settled`], because no cell may count twice.
    Adopted,
    /// Nothing. The next call is the same.
    Unchanged,
}

/// An acknowledged batch, kept for a replay.
#[derive(Clone, Debug)]
struct KeptBatch {
    batch: Arc<Batch>,
    confirmed_at: Nanos,
}

/// The batches that one pod sent to one lane, and how much of them the store has.
#[derive(Clone, Debug)]
pub struct LaneBook {
    lane: Lane,
    /// The highest number that the store ever confirmed.
    acked: u64,
    /// The number in the store's last answer. It is below `acked` after a loss.
    stored: u64,
    /// The gross total in the store's last answer.
    settled: Cells,
    /// The gross total that the store will have after the replay of the kept batches above `stored`.
    expected: Cells,
    frozen: Option<Arc<Batch>>,
    /// The batches that the store has confirmed, oldest first.
    kept: VecDeque<KeptBatch>,
    /// The number of deltas in `kept`.
    kept_deltas: usize,
    /// The most deltas that `kept` may have.
    kept_max: usize,
}

impl LaneBook {
    /// The book of a pod that has sent nothing to this lane yet.
    pub const fn new(lane: Lane) -> Self {
        Self {
            lane,
            acked: 0,
            stored: 0,
            settled: Cells::ZERO,
            expected: Cells::ZERO,
            frozen: None,
            kept: VecDeque::new(),
            kept_deltas: 0,
            kept_max: KEPT_MAX,
        }
    }

    /// The same book, which keeps about so many deltas, at least [`KEPT_MIN`] and at most [`KEPT_MAX`].
    #[must_use]
    pub fn keeping(self, deltas: usize) -> Self {
        Self {
            kept_max: deltas.clamp(KEPT_MIN, KEPT_MAX),
            ..self
        }
    }

    /// Whether the pod may freeze a new batch: no batch waits for its answer, and there is nothing to replay.
    pub fn is_idle(&self) -> bool {
        self.frozen.is_none() && self.missing().is_none()
    }

    /// Freezes these deltas as the next batch. An empty list makes no batch.
    ///
    /// # Errors
    /// Hands the deltas back while the lane is not idle.
    pub fn freeze(&mut self, deltas: Vec<Delta>, now: Nanos) -> Result<(), Vec<Delta>> {
        if !self.is_idle() {
            return Err(deltas);
        }
        if !deltas.is_empty() {
            self.frozen = Some(Arc::new(Batch {
                sequence: self.acked.saturating_add(1),
                gross: gross(&deltas),
                deltas,
                frozen_at: now,
            }));
        }
        Ok(())
    }

    /// The call to send now: the next batch to replay, net of what has drained, or else the frozen batch. `None` when
    /// idle.
    pub fn call(&self, now: Nanos) -> Option<Call> {
        let (sequence, deltas) = match (self.missing(), &self.frozen) {
            (Some(kept), Some(_) | None) => {
                let elapsed = now.since(kept.batch.frozen_at);
                let deltas = kept.batch.deltas.iter();
                (
                    kept.batch.sequence,
                    deltas.map(|delta| delta.netted(elapsed)).collect(),
                )
            }
            (None, Some(frozen)) => {
                let elapsed = now.since(frozen.frozen_at);
                let deltas = frozen.deltas.iter();
                let deltas = deltas.map(|delta| match elapsed > RESENT_UNCHANGED_FOR {
                    true => delta.netted(elapsed),
                    false => *delta,
                });
                (frozen.sequence, deltas.collect())
            }
            (None, None) => return None,
        };
        Some(Call {
            lane: self.lane,
            previous: self.stored,
            sequence,
            deltas,
            news_step: NEWS_STEP,
        })
    }

    /// A call that changes nothing: the store only answers what it has. The answer goes to [`Self::answered_probe`].
    pub const fn probe(&self) -> Call {
        Call {
            lane: self.lane,
            previous: self.stored,
            sequence: self.stored,
            deltas: Vec::new(),
            news_step: NEWS_STEP,
        }
    }

    /// Takes the answer to the last [`Self::call`]. A stale answer does no harm: the next answer corrects what the book
    /// concluded from it.
    pub fn answered(&mut self, reply: &StoreReply, now: Nanos) -> LaneOutcome {
        match self.position(reply.sequence) {
            StorePosition::Missing | StorePosition::Complete => self.catch_up(reply, now),
            StorePosition::Settled(frozen) => self.settle(frozen, reply, now),
            StorePosition::Foreign => self.adopt(reply, now),
        }
    }

    /// Takes the answer to a [`Self::probe`]. It only notices that the store is behind; the next call finds the rest.
    pub fn answered_probe(&mut self, reply: &StoreReply, now: Nanos) -> LaneOutcome {
        match self.position(reply.sequence) {
            StorePosition::Missing | StorePosition::Complete => self.catch_up(reply, now),
            StorePosition::Settled(_) | StorePosition::Foreign => LaneOutcome {
                step: LaneStep::Unchanged,
                lost: Cells::ZERO,
                found: Cells::ZERO,
            },
        }
    }

    /// Drops the batches that the store confirmed longer than [`KEPT_FOR`] ago. Batches that wait for a replay stay.
    pub fn forget_old(&mut self, now: Nanos) {
        let stored = self.stored;
        while let Some(oldest) = self.kept.front()
            && oldest.batch.sequence <= stored
            && now.since(oldest.confirmed_at) > KEPT_FOR
        {
            self.kept_deltas = self.kept_deltas.saturating_sub(oldest.batch.deltas.len());
            self.kept.pop_front();
        }
    }

    /// The cells that the store does not have as far as the book knows: the frozen batch and the batches to replay.
    pub fn in_flight(&self) -> Cells {
        let frozen = self
            .frozen
            .as_ref()
            .map_or(Cells::ZERO, |batch| batch.gross);
        self.expected.less(self.settled).plus(frozen)
    }

    /// The cells that the store has booked for this pod in this lane, by its last answer.
    pub const fn settled(&self) -> Cells {
        self.settled
    }

    /// Whether the book keeps any batch that it could replay.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The highest sequence number that the store ever confirmed.
    pub const fn acked(&self) -> u64 {
        self.acked
    }

    /// The next batch to replay.
    fn missing(&self) -> Option<&KeptBatch> {
        // Every turn asks this of every lane, and nearly always nothing is missing.
        if self.kept.back()?.batch.sequence <= self.stored {
            return None;
        }
        let first = self
            .kept
            .partition_point(|kept| kept.batch.sequence <= self.stored);
        self.kept.get(first)
    }

    /// What the store has if its number is `sequence`.
    fn position(&self, sequence: u64) -> StorePosition {
        match (&self.frozen, sequence.cmp(&self.acked)) {
            (Some(_) | None, Ordering::Less) => StorePosition::Missing,
            (Some(_) | None, Ordering::Equal) => StorePosition::Complete,
            (Some(frozen), Ordering::Greater) if frozen.sequence == sequence => {
                StorePosition::Settled(Arc::clone(frozen))
            }
            (Some(_) | None, Ordering::Greater) => StorePosition::Foreign,
        }
    }

    /// Takes an answer from a store that has no more than it had acknowledged before.
    fn catch_up(&mut self, reply: &StoreReply, now: Nanos) -> LaneOutcome {
        let step = match reply.sequence.cmp(&self.stored) {
            Ordering::Less => LaneStep::Behind,
            Ordering::Equal => LaneStep::Unchanged,
            Ordering::Greater => LaneStep::Replayed,
        };
        for kept in &mut self.kept {
            if kept.batch.sequence > self.stored && kept.batch.sequence <= reply.sequence {
                kept.confirmed_at = now;
            }
        }
        self.reconcile(reply, step)
    }

    /// Takes an answer from a store that has the frozen batch.
    fn settle(&mut self, frozen: Arc<Batch>, reply: &StoreReply, now: Nanos) -> LaneOutcome {
        self.frozen = None;
        self.acked = frozen.sequence;
        self.expected = self.expected.plus(frozen.gross);
        self.kept_deltas = self.kept_deltas.saturating_add(frozen.deltas.len());
        while self.kept_deltas > self.kept_max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_deltas = self.kept_deltas.saturating_sub(oldest.batch.deltas.len());
        }
        self.kept.push_back(KeptBatch {
            batch: Arc::clone(&frozen),
            confirmed_at: now,
        });
        self.reconcile(reply, LaneStep::Settled(frozen))
    }

    /// Takes an answer whose number this pod never gave.
    fn adopt(&mut self, reply: &StoreReply, now: Nanos) -> LaneOutcome {
        let renumbered = |frozen: &Batch, sequence| {
            Arc::new(Batch {
                sequence,
                ..frozen.clone()
            })
        };
        match self.frozen.take() {
            // The store may have it.
            Some(frozen) if reply.gross >= self.expected.plus(frozen.gross) => {
                let frozen = renumbered(&frozen, reply.sequence);
                self.settle(frozen, reply, now)
            }
            Some(frozen) => {
                self.acked = reply.sequence;
                self.frozen = Some(renumbered(&frozen, reply.sequence.saturating_add(1)));
                self.reconcile(reply, LaneStep::Adopted)
            }
            None => {
                self.acked = reply.sequence;
                self.reconcile(reply, LaneStep::Adopted)
            }
        }
    }

    /// Takes over the store's number and total. Counts the difference to what the store and the kept batches should
    /// have.
    fn reconcile(&mut self, reply: &StoreReply, step: LaneStep) -> LaneOutcome {
        self.stored = reply.sequence;
        let missing = self
            .kept
            .iter()
            .filter(|kept| kept.batch.sequence > reply.sequence)
            .fold(Cells::ZERO, |sum, kept| sum.plus(kept.batch.gross));
        let before = self.expected;
        self.settled = reply.gross;
        self.expected = reply.gross.plus(missing);
        LaneOutcome {
            step,
            lost: before.less(self.expected),
            found: self.expected.less(before),
        }
    }
}

/// What the store has, by its sequence number.
enum StorePosition {
    /// It lacks acknowledged batches.
    Missing,
    /// It has all acknowledged batches, but not the frozen one.
    Complete,
    /// It has the frozen batch too.
    Settled(Arc<Batch>),
    /// This pod never gave that number.
    Foreign,
}

fn gross(deltas: &[Delta]) -> Cells {
    deltas
        .iter()
        .fold(Cells::ZERO, |sum, delta| sum.plus(delta.gross))
}

#[cfg(test)]
mod tests;
