//! One lane's books: every frozen batch is in the store once, whatever is lost on the way there or back.
//!
//! The store applies a call only if the sequence number it has is the call's `previous`, and always answers the number and
//! the gross total it has. [`LaneBook`] says what to send and is told the answers; it never sends. One exchange is under
//! way at a time; a call without an answer is simply sent again.
//!
//! What the store answers is the truth, and everything follows from comparing it with the books:
//!
//! | the store has | it means | what is done |
//! |---|---|---|
//! | the frozen batch's number | it was applied, now or by an attempt whose answer was lost | settled and kept |
//! | the acknowledged number | nothing is missing | the frozen batch is sent (again) |
//! | an older one | a failover lost writes, or a replay is half done | what is kept of them is sent again, billed net |
//! | a newer one | a record that is not ours | adopted: see [`Step::Adopted`] |
//!
//! A number names one content for ever: after a loss numbers go on from the last one given, and a gap that is no longer
//! kept is jumped over. So a duplicate that arrives late finds another number and changes nothing, or does what a replay
//! would have done. The one exception is a late duplicate of what was already given up: it is counted as `found`.
//!
//! ```
//! use tidegate_core::pure::sync::{Delta, Known, Lane, LaneBook, Reply, Share, Step, StoreKey, Terms};
//! use tidegate_core::pure::{Cells, Nanos, Span};
//! # let delta = Delta {
//! #     key: StoreKey::window(1, 2),
//! #     terms: Terms::Window { window: Span::seconds(60), requests: Cells::new(9), sliding: false },
//! #     gross: Cells::new(5), price: Span::ZERO, billed: Cells::new(5), age: Span::ZERO,
//! #     share: Share::even(4), live: false, known: Known::default(),
//! # };
//! let now = Nanos::new(0);
//! let mut book = LaneBook::new(Lane::new(7));
//! assert_eq!(book.freeze(vec![delta], now), Ok(()));
//! let call = book.call(now).expect("a batch is frozen");
//! assert_eq!((call.previous, call.sequence), (0, 1));
//! // No answer: the same again. The store says that it has it already.
//! assert_eq!(book.call(now), Some(call));
//! let reply = Reply { applied: false, sequence: 1, gross: Cells::new(5), states: vec![], repaired: 0 };
//! assert!(matches!(book.answered(&reply, now).step, Step::Settled(_)));
//! assert_eq!((book.settled(), book.in_flight()), (Cells::new(5), Cells::ZERO));
//! ```
//!
//! Invariant: what was ever frozen = [`LaneBook::settled`] + [`LaneBook::in_flight`] + lost − found.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Call, Delta, Lane, NEWS_STEP, Reply};
use crate::pure::{Cells, Nanos, Span};

/// How long an acknowledged batch is kept: a failover that loses more than this loses cells.
pub const KEPT_FOR: Span = Span::seconds(30);
/// A batch that could not be told for longer is billed net of what has drained since.
const RESENT_AS_IT_WAS: Span = Span::seconds(1);
/// Deltas of acknowledged batches kept for one lane, at most: one to two megabytes.
pub const KEPT_MAX: usize = 8_192;
/// And as many as are kept in any case.
pub const KEPT_MIN: usize = 1_024;

/// Deltas that travel together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its number in its lane.
    pub sequence: u64,
    /// What it tells.
    pub deltas: Vec<Delta>,
    /// When it was frozen.
    pub frozen_at: Nanos,
    /// The cells of all of its deltas.
    pub gross: Cells,
}

/// What an answer meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What happened.
    pub step: Step,
    /// Cells the store had acknowledged, does not have any more, and are no longer kept. Each is reported once.
    pub lost: Cells,
    /// Cells reported as lost that the store has after all, or that we do not know of.
    pub found: Cells,
}

/// What happened to a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The frozen batch is in the store. The answer's levels are of its keys if it was sent last.
    Settled(Arc<Batch>),
    /// The store has less than it had acknowledged. What is kept of it comes next.
    Behind,
    /// The store has more of what it had lost.
    Replayed,
    /// The store has a number that we never gave: a broken record, or somebody else with our name. The lane goes on from
    /// that number. What is kept is not sent again. The frozen batch is, under a new number, if the store's gross total
    /// proves that it is not in there; otherwise it would have been [`Self::Settled`], since nothing may count twice.
    Adopted,
    /// Nothing: the same call again.
    Unchanged,
}

#[derive(Clone, Debug)]
struct Kept {
    batch: Arc<Batch>,
    confirmed_at: Nanos,
}

/// What one pod knows of its part of one lane.
#[derive(Clone, Debug)]
pub struct LaneBook {
    lane: Lane,
    /// The highest number the store ever confirmed.
    acked: u64,
    /// The number it has by its last answer: below `acked` after a loss.
    stored: u64,
    /// The gross total it has by its last answer ...
    settled: Cells,
    /// ... and the one it has once the kept batches above `stored` are there again.
    expected: Cells,
    frozen: Option<Arc<Batch>>,
    /// Acknowledged once, the oldest first.
    kept: VecDeque<Kept>,
    /// How many deltas those are.
    kept_deltas: usize,
    /// How many they may be.
    kept_max: usize,
}

impl LaneBook {
    /// The books of a pod that has told this lane nothing yet.
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

    /// The same books, which keep about so many deltas.
    #[must_use]
    pub fn keeping(self, deltas: usize) -> Self {
        Self {
            kept_max: deltas.clamp(KEPT_MIN, KEPT_MAX),
            ..self
        }
    }

    /// Whether a new batch may be frozen: none waits for its answer, and none is to be replayed.
    pub fn is_idle(&self) -> bool {
        self.frozen.is_none() && self.missing().is_none()
    }

    /// Makes these the next batch. No deltas make none.
    ///
    /// # Errors
    /// While the lane is not idle they are handed back.
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

    /// What to send now: a batch the store has lost, as it is billed by now, or else the frozen one as it was frozen. None
    /// when idle.
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
                let deltas = deltas.map(|delta| match elapsed > RESENT_AS_IT_WAS {
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

    /// A call that changes nothing and is answered what the store has. For [`Self::answered_probe`].
    pub const fn probe(&self) -> Call {
        Call {
            lane: self.lane,
            previous: self.stored,
            sequence: self.stored,
            deltas: Vec::new(),
            news_step: NEWS_STEP,
        }
    }

    /// The answer to the last [`Self::call`]. An answer that was overtaken by another is harmless: the next one corrects
    /// what it made of it.
    pub fn answered(&mut self, reply: &Reply, now: Nanos) -> Outcome {
        match self.standing(reply.sequence) {
            Standing::Missing | Standing::Complete => self.catch_up(reply, now),
            Standing::Settled(frozen) => self.settle(frozen, reply, now),
            Standing::Foreign => self.adopt(reply, now),
        }
    }

    /// The answer to a [`Self::probe`]. It only looks whether the store is behind: the rest is found by the next call.
    pub fn answered_probe(&mut self, reply: &Reply, now: Nanos) -> Outcome {
        match self.standing(reply.sequence) {
            Standing::Missing | Standing::Complete => self.catch_up(reply, now),
            Standing::Settled(_) | Standing::Foreign => Outcome {
                step: Step::Unchanged,
                lost: Cells::ZERO,
                found: Cells::ZERO,
            },
        }
    }

    /// Lets go of batches that the store confirmed too long ago. What it has lost since stays until it is there again.
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

    /// Cells frozen that the store does not have as far as we know: the frozen batch, and what is to be replayed.
    pub fn in_flight(&self) -> Cells {
        let frozen = self
            .frozen
            .as_ref()
            .map_or(Cells::ZERO, |batch| batch.gross);
        self.expected.less(self.settled).plus(frozen)
    }

    /// Cells the store has booked for us in this lane, by its last answer.
    pub const fn settled(&self) -> Cells {
        self.settled
    }

    /// Whether anything could be replayed.
    pub fn has_kept(&self) -> bool {
        !self.kept.is_empty()
    }

    /// The highest sequence number the store ever confirmed.
    pub const fn acked(&self) -> u64 {
        self.acked
    }

    /// The next batch to be replayed.
    fn missing(&self) -> Option<&Kept> {
        // Asked of every lane in every turn, and nearly always nothing is missing.
        if self.kept.back()?.batch.sequence <= self.stored {
            return None;
        }
        let first = self
            .kept
            .partition_point(|kept| kept.batch.sequence <= self.stored);
        self.kept.get(first)
    }

    /// Where a store that has `sequence` stands.
    fn standing(&self, sequence: u64) -> Standing {
        match (&self.frozen, sequence.cmp(&self.acked)) {
            (Some(_) | None, Ordering::Less) => Standing::Missing,
            (Some(_) | None, Ordering::Equal) => Standing::Complete,
            (Some(frozen), Ordering::Greater) if frozen.sequence == sequence => {
                Standing::Settled(Arc::clone(frozen))
            }
            (Some(_) | None, Ordering::Greater) => Standing::Foreign,
        }
    }

    /// The store has nothing that it had not acknowledged before.
    fn catch_up(&mut self, reply: &Reply, now: Nanos) -> Outcome {
        let step = match reply.sequence.cmp(&self.stored) {
            Ordering::Less => Step::Behind,
            Ordering::Equal => Step::Unchanged,
            Ordering::Greater => Step::Replayed,
        };
        for kept in &mut self.kept {
            if kept.batch.sequence > self.stored && kept.batch.sequence <= reply.sequence {
                kept.confirmed_at = now;
            }
        }
        self.reconcile(reply, step)
    }

    /// The store has the frozen batch.
    fn settle(&mut self, frozen: Arc<Batch>, reply: &Reply, now: Nanos) -> Outcome {
        self.frozen = None;
        self.acked = frozen.sequence;
        self.expected = self.expected.plus(frozen.gross);
        self.kept_deltas = self.kept_deltas.saturating_add(frozen.deltas.len());
        while self.kept_deltas > self.kept_max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_deltas = self.kept_deltas.saturating_sub(oldest.batch.deltas.len());
        }
        self.kept.push_back(Kept {
            batch: Arc::clone(&frozen),
            confirmed_at: now,
        });
        self.reconcile(reply, Step::Settled(frozen))
    }

    /// The store has a number that we never gave.
    fn adopt(&mut self, reply: &Reply, now: Nanos) -> Outcome {
        let renumbered = |frozen: &Batch, sequence| {
            Arc::new(Batch {
                sequence,
                ..frozen.clone()
            })
        };
        match self.frozen.take() {
            // It may be in there.
            Some(frozen) if reply.gross >= self.expected.plus(frozen.gross) => {
                let frozen = renumbered(&frozen, reply.sequence);
                self.settle(frozen, reply, now)
            }
            Some(frozen) => {
                self.acked = reply.sequence;
                self.frozen = Some(renumbered(&frozen, reply.sequence.saturating_add(1)));
                self.reconcile(reply, Step::Adopted)
            }
            None => {
                self.acked = reply.sequence;
                self.reconcile(reply, Step::Adopted)
            }
        }
    }

    /// Takes over what the store has, and counts the difference to what it and the kept batches should have.
    fn reconcile(&mut self, reply: &Reply, step: Step) -> Outcome {
        self.stored = reply.sequence;
        let missing = self
            .kept
            .iter()
            .filter(|kept| kept.batch.sequence > reply.sequence)
            .fold(Cells::ZERO, |sum, kept| sum.plus(kept.batch.gross));
        let before = self.expected;
        self.settled = reply.gross;
        self.expected = reply.gross.plus(missing);
        Outcome {
            step,
            lost: before.less(self.expected),
            found: self.expected.less(before),
        }
    }
}

/// What the store's sequence number says.
enum Standing {
    /// Acknowledged batches are missing.
    Missing,
    /// All acknowledged ones are there.
    Complete,
    /// And the frozen one.
    Settled(Arc<Batch>),
    /// It is no number of ours.
    Foreign,
}

fn gross(deltas: &[Delta]) -> Cells {
    deltas
        .iter()
        .fold(Cells::ZERO, |sum, delta| sum.plus(delta.gross))
}

#[cfg(test)]
mod tests;
