//! The books of one group of lanes: the store applies every frozen batch once, whatever the network loses.
//!
//! The store applies a call only if its own sequence number is the call's `previous`. It always answers its number and
//! its gross total. [`GroupBook`] says what to send and takes the answers; it never sends. Several batches may be open:
//! they go out in order, each with the number of the one before it, and none waits for an answer. A batch that the store
//! refuses, or does not answer, is sent again unchanged once it is the first. After one second, what has drained meanwhile
//! is subtracted.
//!
//! The store's answer is the truth. The book compares it with its own records:
//!
//! | the store's number | what it means | what the book does |
//! |---|---|---|
//! | that of an open batch | the store applied it and those before it, now or in an attempt whose answer was lost | settles and keeps them |
//! | the acknowledged one | nothing is missing | sends (or resends) the open batches |
//! | an older one | a failover lost writes, or a replay is half done | replays the batches that it kept, net of what has drained |
//! | a newer one | the record is not ours | adopts the number: see [`BookStep::Adopted`] |
//!
//! A sequence number always names the same batch. After a loss, new numbers continue from the last one given, and a
//! replay skips numbers whose batches are no longer kept. So a duplicate that arrives late does not match the store's
//! number and changes nothing, or it does what a replay would have done. There is one exception: a late duplicate of
//! batches that were already counted as lost. The book counts those cells as `found`.
//!
//! ```
//! use tidegate_core::pure::sync::{BookStep, Delta, GroupBook, Grouping, KnownUsage, Lane, Share, StoreKey, StoreReply, Terms};
//! use tidegate_core::pure::{Cells, Nanos, Span};
//! # let delta = Delta {
//! #     key: StoreKey::window(1, 2),
//! #     terms: Terms::Window { window: Span::seconds(60), requests: Cells::new(9), sliding: false, carries_over: true },
//! #     gross: Cells::new(5), price: Span::ZERO, billed: Cells::new(5), age: Span::ZERO,
//! #     share: Share::even(4), live: false, known: KnownUsage::default(),
//! # };
//! let now = Nanos::new(0);
//! let mut book = GroupBook::new(Grouping::PerLane.group_of(Lane::new(7)));
//! assert_eq!(book.freeze(vec![delta], now), Ok(()));
//! let call = book.next_call(now).expect("a batch is frozen");
//! assert_eq!((call.previous, call.sequence), (0, 1));
//! // No answer: the pod resends the same call. The store answers that it has already applied it.
//! book.failed(call.sequence);
//! assert_eq!(book.next_call(now), Some(call));
//! let reply = StoreReply { applied: false, sequence: 1, gross: Cells::new(5), states: vec![], repaired: 0 };
//! assert!(matches!(book.answered(1, &reply, now).step, BookStep::Settled(_)));
//! assert_eq!((book.settled(), book.in_flight()), (Cells::new(5), Cells::ZERO));
//! ```
//!
//! Invariant: all cells ever frozen = [`GroupBook::settled`] + [`GroupBook::in_flight`] + lost − found.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use super::{Call, Delta, Group, NEWS_STEP, StoreReply};
use crate::pure::{Cells, Nanos, Span};

/// How long the book keeps an acknowledged batch. A failover that loses older writes loses cells.
pub const KEPT_FOR: Span = Span::seconds(30);
/// How long the book resends a batch unchanged. After that it subtracts what has drained.
const RESENT_UNCHANGED_FOR: Span = Span::seconds(1);
/// The most deltas of acknowledged batches that the book keeps for each of its lanes: one to two megabytes.
pub const KEPT_MAX: usize = 8_192;
/// The least that [`GroupBook::keeping`] sets that number to.
pub const KEPT_MIN: usize = 1_024;
/// The most batches of a group that are open at a time. While so many are, what becomes due gathers for the next one.
pub const CALLS_IN_FLIGHT_MAX: usize = 8;

/// Deltas that the pod sends together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Its sequence number in the group.
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
pub struct BookOutcome {
    /// What happened.
    pub step: BookStep,
    /// Acknowledged cells that the store has lost and the book no longer keeps. Each cell is counted here once.
    pub lost: Cells,
    /// Cells that the store has although they were counted as lost, or although the book does not know of them.
    pub found: Cells,
}

impl BookOutcome {
    const UNCHANGED: Self = Self {
        step: BookStep::Unchanged,
        lost: Cells::ZERO,
        found: Cells::ZERO,
    };
}

/// What happened to a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BookStep {
    /// The store has these batches, oldest first. The states of the answer are those of the keys of the answered call.
    Settled(Vec<Arc<Batch>>),
    /// The store has lost acknowledged batches. The next call replays the kept ones.
    Behind,
    /// The store has more of the batches that it had lost.
    Replayed,
    /// The store has a number that this pod never gave: the record is broken, or another process uses this pod's id.
    /// The group continues from that number and does not replay the kept batches. It resends the open batches under new
    /// numbers if the store's gross total proves that the store does not have them. The others are [`Self::Settled`],
    /// because no cell may count twice.
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

/// A batch that the store does not have as far as the book knows.
#[derive(Clone, Debug)]
struct OpenBatch {
    batch: Arc<Batch>,
    attempt: Attempt,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attempt {
    /// It was never sent.
    New,
    /// It was sent then, and is not answered.
    Sent(Nanos),
    /// An attempt failed, or the store refused it.
    Again,
}

/// The batches that one pod sent to one group of lanes, and how much of them the store has.
#[derive(Clone, Debug)]
pub struct GroupBook {
    group: Group,
    /// The highest number that the store ever confirmed.
    acked: u64,
    /// The number in the store's last answer. It is below `acked` after a loss.
    stored: u64,
    /// The gross total in the store's last answer.
    settled: Cells,
    /// The gross total that the store will have after the replay of the kept batches above `stored`.
    expected: Cells,
    /// The batches above `acked`, oldest first.
    open: VecDeque<OpenBatch>,
    /// The number of the kept batch that is on its way again.
    replaying: Option<u64>,
    /// The batches that the store has confirmed, oldest first.
    kept: VecDeque<KeptBatch>,
    /// The number of deltas in `kept`.
    kept_deltas: usize,
    /// The most deltas that `kept` may have.
    kept_max: usize,
}

impl GroupBook {
    /// The book of a pod that has sent nothing to this group yet.
    pub const fn new(group: Group) -> Self {
        Self {
            group,
            acked: 0,
            stored: 0,
            settled: Cells::ZERO,
            expected: Cells::ZERO,
            open: VecDeque::new(),
            replaying: None,
            kept: VecDeque::new(),
            kept_deltas: 0,
            kept_max: KEPT_MAX,
        }
    }

    /// The same book, which keeps about so many deltas, at least [`KEPT_MIN`] and at most [`KEPT_MAX`] for each of so many
    /// lanes.
    #[must_use]
    pub fn keeping(self, deltas: usize, lanes: usize) -> Self {
        let (least, most) = (
            KEPT_MIN.saturating_mul(lanes),
            KEPT_MAX.saturating_mul(lanes),
        );
        Self {
            kept_max: deltas.clamp(least, most.max(least)),
            ..self
        }
    }

    /// Whether the store has everything: no batch is open, and there is nothing to replay.
    pub fn is_idle(&self) -> bool {
        self.open.is_empty() && self.missing().is_none()
    }

    /// Whether the pod may freeze a new batch: there is nothing to replay or to resend, and not too many are open.
    pub fn may_freeze(&self) -> bool {
        self.open.len() < CALLS_IN_FLIGHT_MAX
            && self.missing().is_none()
            && self.open.iter().all(|open| open.attempt != Attempt::Again)
    }

    /// Freezes these deltas as the next batch. An empty list makes no batch.
    ///
    /// # Errors
    /// Hands the deltas back while the pod may not freeze.
    pub fn freeze(&mut self, deltas: Vec<Delta>, now: Nanos) -> Result<(), Vec<Delta>> {
        if !self.may_freeze() {
            return Err(deltas);
        }
        if !deltas.is_empty() {
            let batch = Arc::new(Batch {
                sequence: self.last_given().saturating_add(1),
                gross: gross(&deltas),
                deltas,
                frozen_at: now,
            });
            let attempt = Attempt::New;
            self.open.push_back(OpenBatch { batch, attempt });
        }
        Ok(())
    }

    /// Whether there is a call to send now.
    pub fn has_call(&self) -> bool {
        match self.missing() {
            Some(_) => self.replaying.is_none(),
            None => self.next_open().is_some(),
        }
    }

    /// The call to send now: the next batch to replay, net of what has drained, or else the next open batch. It is under
    /// way from then on, until [`Self::answered`] or [`Self::failed`].
    pub fn next_call(&mut self, now: Nanos) -> Option<Call> {
        if !self.has_call() {
            return None;
        }
        if let Some(kept) = self.missing() {
            let batch = Arc::clone(&kept.batch);
            self.replaying = Some(batch.sequence);
            let elapsed = now.since(batch.frozen_at);
            let deltas = batch.deltas.iter().map(|delta| delta.netted(elapsed));
            return Some(self.call(self.stored, batch.sequence, deltas.collect()));
        }
        let index = self.next_open()?;
        let before = index
            .checked_sub(1)
            .and_then(|before| self.open.get(before));
        let previous = before.map_or(self.stored, |before| before.batch.sequence);
        let open = self.open.get_mut(index)?;
        open.attempt = Attempt::Sent(now);
        let batch = Arc::clone(&open.batch);
        let elapsed = now.since(batch.frozen_at);
        let deltas = match elapsed > RESENT_UNCHANGED_FOR {
            true => batch
                .deltas
                .iter()
                .map(|delta| delta.netted(elapsed))
                .collect(),
            false => batch.deltas.clone(),
        };
        Some(self.call(previous, batch.sequence, deltas))
    }

    /// A call that changes nothing: the store only answers what it has. The answer goes to [`Self::answered_probe`].
    pub const fn probe(&self) -> Call {
        self.call(self.stored, self.stored, Vec::new())
    }

    const fn call(&self, previous: u64, sequence: u64, deltas: Vec<Delta>) -> Call {
        Call {
            group: self.group,
            previous,
            sequence,
            deltas,
            news_step: NEWS_STEP,
        }
    }

    /// Whether a call is under way.
    pub fn is_calling(&self) -> bool {
        self.replaying.is_some() || self.oldest_sent().is_some()
    }

    /// When the oldest of the open batches that are under way was sent.
    pub fn oldest_sent(&self) -> Option<Nanos> {
        let sent = self.open.iter().filter_map(|open| match open.attempt {
            Attempt::Sent(at) => Some(at),
            Attempt::New | Attempt::Again => None,
        });
        sent.min()
    }

    /// The call of that number failed: nobody knows whether the store has it.
    pub fn failed(&mut self, sequence: u64) {
        if self.replaying == Some(sequence) {
            self.replaying = None;
        }
        let mut open = self.open.iter_mut();
        if let Some(open) = open.find(|open| open.batch.sequence == sequence) {
            open.attempt = Attempt::Again;
        }
    }

    /// Takes the answer to the call of that number. A stale answer does no harm: the next answer corrects what the book
    /// concluded from it.
    pub fn answered(&mut self, sequence: u64, reply: &StoreReply, now: Nanos) -> BookOutcome {
        let is_replay = self.replaying == Some(sequence);
        self.failed(sequence);
        if sequence <= self.acked && !is_replay {
            // The answer to a later call has settled its batch.
            return BookOutcome::UNCHANGED;
        }
        match self.position(reply.sequence) {
            StorePosition::Missing | StorePosition::Complete => self.catch_up(reply, now),
            StorePosition::Settled => self.settle(reply, now),
            StorePosition::Foreign => self.adopt(reply, now),
        }
    }

    /// Takes the answer to the [`Self::probe`] of that number. It only notices that the store is behind; the next call finds
    /// the rest. If the store has answered something newer since, the book ignores it.
    pub fn answered_probe(&mut self, sequence: u64, reply: &StoreReply, now: Nanos) -> BookOutcome {
        if self.stored != sequence {
            return BookOutcome::UNCHANGED;
        }
        match self.position(reply.sequence) {
            StorePosition::Missing | StorePosition::Complete => self.catch_up(reply, now),
            StorePosition::Settled | StorePosition::Foreign => BookOutcome::UNCHANGED,
        }
    }

    /// Closes the book, because the store will not take another call of this group. Settles the batches that it has by its
    /// answer to a [`Self::probe`], and hands back the deltas of the others.
    pub fn close(&mut self, reply: &StoreReply, now: Nanos) -> (BookOutcome, Vec<Delta>) {
        let outcome = match self.position(reply.sequence) {
            StorePosition::Settled => self.settle(reply, now),
            StorePosition::Missing | StorePosition::Complete | StorePosition::Foreign => {
                BookOutcome::UNCHANGED
            }
        };
        let open = std::mem::take(&mut self.open);
        let deltas = open
            .iter()
            .flat_map(|open| open.batch.deltas.iter().copied());
        (outcome, deltas.collect())
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

    /// The cells that the store does not have as far as the book knows: the open batches and the batches to replay.
    pub fn in_flight(&self) -> Cells {
        let open = self.open.iter();
        let open = open.fold(Cells::ZERO, |sum, open| sum.plus(open.batch.gross));
        self.expected.less(self.settled).plus(open)
    }

    /// The cells that the store has booked for this pod in this group, by its last answer.
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

    /// The highest sequence number that names a batch.
    fn last_given(&self) -> u64 {
        self.open
            .back()
            .map_or(self.acked, |open| open.batch.sequence)
    }

    /// The open batch to send next. One that failed waits until it is the first: behind an unanswered one the store
    /// would refuse it again.
    fn next_open(&self) -> Option<usize> {
        let is_waiting = |open: &OpenBatch| !matches!(open.attempt, Attempt::Sent(_));
        let index = self.open.iter().position(is_waiting)?;
        let open = self.open.get(index)?;
        (index == 0 || open.attempt == Attempt::New).then_some(index)
    }

    /// The next batch to replay.
    fn missing(&self) -> Option<&KeptBatch> {
        // Every turn asks this, and nearly always nothing is missing.
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
        match sequence.cmp(&self.acked) {
            Ordering::Less => StorePosition::Missing,
            Ordering::Equal => StorePosition::Complete,
            Ordering::Greater if sequence <= self.last_given() => StorePosition::Settled,
            Ordering::Greater => StorePosition::Foreign,
        }
    }

    /// Takes an answer from a store that has no more than it had acknowledged before.
    fn catch_up(&mut self, reply: &StoreReply, now: Nanos) -> BookOutcome {
        let step = match reply.sequence.cmp(&self.stored) {
            Ordering::Less => BookStep::Behind,
            Ordering::Equal => BookStep::Unchanged,
            Ordering::Greater => BookStep::Replayed,
        };
        let stored = self.stored;
        let newest_first = self.kept.iter_mut().rev();
        for kept in newest_first.take_while(|kept| kept.batch.sequence > stored) {
            if kept.batch.sequence <= reply.sequence {
                kept.confirmed_at = now;
            }
        }
        self.reconcile(reply, step)
    }

    /// Takes an answer from a store that has some of the open batches.
    fn settle(&mut self, reply: &StoreReply, now: Nanos) -> BookOutcome {
        let mut settled = Vec::new();
        while let Some(open) = self
            .open
            .pop_front_if(|open| open.batch.sequence <= reply.sequence)
        {
            self.keep(&open.batch, now);
            settled.push(open.batch);
        }
        self.reconcile(reply, BookStep::Settled(settled))
    }

    /// Keeps a batch that the store has.
    fn keep(&mut self, batch: &Arc<Batch>, now: Nanos) {
        self.acked = batch.sequence;
        self.expected = self.expected.plus(batch.gross);
        self.kept_deltas = self.kept_deltas.saturating_add(batch.deltas.len());
        while self.kept_deltas > self.kept_max
            && let Some(oldest) = self.kept.pop_front()
        {
            self.kept_deltas = self.kept_deltas.saturating_sub(oldest.batch.deltas.len());
        }
        self.kept.push_back(KeptBatch {
            batch: Arc::clone(batch),
            confirmed_at: now,
        });
    }

    /// Takes an answer whose number this pod never gave.
    fn adopt(&mut self, reply: &StoreReply, now: Nanos) -> BookOutcome {
        let open = std::mem::take(&mut self.open);
        let renumbered = |open: &OpenBatch, sequence| {
            Arc::new(Batch {
                sequence,
                ..(*open.batch).clone()
            })
        };
        let mut total = self.expected;
        let may_have = open.iter().take_while(|open| {
            total = total.plus(open.batch.gross);
            reply.gross >= total
        });
        let count = may_have.count();
        // Their numbers end with the store's, which is above all that this pod gave.
        let first = reply
            .sequence
            .saturating_add(1)
            .saturating_sub(u64::try_from(count).unwrap_or(0));
        let mut numbers = first..;
        let mut settled = Vec::new();
        for (open, sequence) in open.iter().take(count).zip(&mut numbers) {
            let batch = renumbered(open, sequence);
            self.keep(&batch, now);
            settled.push(batch);
        }
        self.acked = reply.sequence;
        let rest = open
            .iter()
            .skip(count)
            .zip(reply.sequence.saturating_add(1)..);
        self.open = rest
            .map(|(open, sequence)| OpenBatch {
                batch: renumbered(open, sequence),
                attempt: Attempt::Again,
            })
            .collect();
        let step = match settled.is_empty() {
            true => BookStep::Adopted,
            false => BookStep::Settled(settled),
        };
        self.reconcile(reply, step)
    }

    /// Takes over the store's number and total. Counts the difference to what the store and the kept batches should
    /// have.
    fn reconcile(&mut self, reply: &StoreReply, step: BookStep) -> BookOutcome {
        self.stored = reply.sequence;
        let newest_first = self.kept.iter().rev();
        let missing = newest_first
            .take_while(|kept| kept.batch.sequence > reply.sequence)
            .fold(Cells::ZERO, |sum, kept| sum.plus(kept.batch.gross));
        let before = self.expected;
        self.settled = reply.gross;
        self.expected = reply.gross.plus(missing);
        BookOutcome {
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
    /// It has all acknowledged batches, but no open one.
    Complete,
    /// It has open batches too.
    Settled,
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
