//! Refunds in the store: which of the cells that callers gave back the store has to give back too.
//!
//! The store does not know cells that this pod was silent about. The pod sends the rest as refunds once nothing of the key
//! is in flight, because the store gives back no more than it has. Until then every answer of the store still counts those
//! cells as used, so a fold subtracts them. Other pods learn of a refund with their next round. While the store is
//! unreachable, a refund stays with this pod: that can deny too much, never too little.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::key_sync::Unsent;
use super::{PodSync, RoundTrip, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::ReportedCells;
use crate::engine::buckets::{KeyBucket, Subject};
use crate::pure::rule::Consistency;
use crate::pure::sync::{CALL_COST, Refund, StoreKey, StoreState, Terms};
use crate::pure::{Cells, Nanos, Span};

/// Keys with refunds that the store has not given back yet. Refunds of further keys stay with this pod.
const REFUND_KEYS_MAX: usize = 16_384;
/// Refunds take at most one in so many parts of the budget: reports of usage come first.
const BUDGET_PART: usize = 2;
/// How long after the store has answered a refund news from before it may still come.
const NEWS_LATE_MAX: Span = Span::seconds(1);
/// What one refund costs the store, in key updates.
const REFUND_COST: usize = 1 + CALL_COST;

/// The refunds of all keys that the store has not given back yet.
#[derive(Debug, Default)]
pub(super) struct RefundQueue {
    keys: BTreeMap<StoreKey, KeyRefund>,
    /// The key of the last refund: the key after it is next.
    sent_last: Option<StoreKey>,
    /// Whether refunds wait for the budget.
    short_of_budget: bool,
    /// Keys whose refund the store has answered, and when.
    answered: BTreeMap<StoreKey, Nanos>,
}

/// The refunds of one key.
#[derive(Clone, Copy, Debug)]
struct KeyRefund {
    /// The terms under which the store counts the key.
    terms: Terms,
    /// Cells that the pod has yet to send.
    due: ReportedCells,
    /// Cells that the pod has sent and the store has not answered, and when the pod sent them.
    sent: Option<(ReportedCells, Nanos)>,
}

impl KeyRefund {
    /// Notes a refund of `now`.
    fn note(&mut self, reported: ReportedCells, now: Nanos) {
        self.due = self.due.joined(reported, &self.terms, now);
    }
}

impl RefundQueue {
    /// By how much the store's count of a key is too high at `now`, because of refunds that are not sent yet.
    pub(super) fn due(&self, key: StoreKey, now: Nanos) -> ReportedCells {
        let refund = self.keys.get(&key);
        refund.map_or_else(ReportedCells::default, |refund| refund.due.netted(now))
    }

    /// By how much the level in news of a key may be too high; for windows, by how many cells.
    pub(super) fn unsettled(&self, key: StoreKey, now: Nanos) -> ReportedCells {
        let Some(refund) = self.keys.get(&key) else {
            return ReportedCells::default();
        };
        let (sent, _) = refund.sent.unwrap_or_default();
        sent.netted(now).plus(refund.due.netted(now))
    }

    /// Whether news that a key is full may be from before its refund.
    pub(super) fn outdates_news(&self, key: StoreKey, now: Nanos) -> bool {
        let answered = self.answered.get(&key);
        answered.is_some_and(|at| now.since(*at) < NEWS_LATE_MAX)
    }

    /// Notes that the store has given back the refund of a key.
    fn note_answered(&mut self, key: StoreKey, now: Nanos) {
        if self.answered.len() >= REFUND_KEYS_MAX {
            self.answered.retain(|_, at| now.since(*at) < NEWS_LATE_MAX);
        }
        if self.answered.len() < REFUND_KEYS_MAX {
            self.answered.insert(key, now);
        }
    }

    /// Drops the refunds of a key.
    pub(super) fn forget(&mut self, key: StoreKey) {
        self.keys.remove(&key);
    }

    /// Whether no refund waits that may be sent.
    pub(super) fn is_settled(&self, may_be_sent: impl Fn(StoreKey) -> bool) -> bool {
        let mut keys = self.keys.iter();
        keys.all(|(key, refund)| refund.due.cells == Cells::ZERO || !may_be_sent(*key))
    }

    fn note(&mut self, subject: &Subject<'_>, reported: ReportedCells, now: Nanos) {
        let (key, terms) = (subject.store_key(), subject.terms());
        let is_full = self.keys.len() >= REFUND_KEYS_MAX && !self.keys.contains_key(&key);
        if reported.cells == Cells::ZERO || is_full {
            return;
        }
        let refund = self.keys.entry(key).or_insert(KeyRefund {
            terms,
            due: ReportedCells::default(),
            sent: None,
        });
        if !subject.is_on_scale(&refund.terms) {
            // The refund was counted under other terms, so its worth is unknown.
            (refund.terms, refund.due) = (terms, ReportedCells::default());
        }
        refund.terms = terms;
        refund.note(reported, now);
    }

    /// The keys with refunds to send, in order; the key after the last one sent comes first.
    fn in_turn(&self) -> Vec<StoreKey> {
        let keys = |range| {
            let waiting =
                |refund: &KeyRefund| refund.sent.is_none() && refund.due.cells > Cells::ZERO;
            let keys = self
                .keys
                .range::<StoreKey, (Bound<StoreKey>, Bound<StoreKey>)>(range);
            keys.filter(move |(_, refund)| waiting(refund))
                .map(|(key, _)| *key)
        };
        match self.sent_last {
            Some(last) => keys((Bound::Excluded(last), Bound::Unbounded))
                .chain(keys((Bound::Unbounded, Bound::Included(last))))
                .collect(),
            None => keys((Bound::Unbounded, Bound::Unbounded)).collect(),
        }
    }

    /// The refund to send of a key, which is in flight from now on.
    fn send(&mut self, subject: Option<&Subject<'_>>, key: StoreKey, now: Nanos) -> Option<Refund> {
        let refund = self.keys.get_mut(&key)?;
        let due = std::mem::take(&mut refund.due).netted(now);
        let same_scale = |subject: &&Subject<'_>| subject.is_on_scale(&refund.terms);
        let sent = subject.filter(same_scale).and_then(|subject| {
            let age = subject.moment.unix.less(due.unix);
            (!due.has_drained(&refund.terms, age)).then(|| Refund {
                key,
                terms: subject.terms(),
                cells: due.cells,
                price: due.price,
                age,
            })
        });
        match sent {
            Some(_) => refund.sent = Some((due, now)),
            None => self.forget(key),
        }
        sent
    }
}

impl PodSync {
    /// Takes the refunds that callers made since the last time.
    pub(super) fn note_refunds(&mut self, context: &SyncContext<'_>) {
        for (key, reported) in context.engine.take_refunds() {
            if let Some(subject) = context.subject_of_key(key) {
                let reported = self.known_to_store(&subject, reported);
                self.refunds.note(&subject, reported, context.now());
                self.lower_overdue(context.engine, &subject);
            }
        }
    }

    /// The refunds to send now.
    pub(super) fn send_refunds(&mut self, context: &SyncContext<'_>) -> Vec<Refund> {
        let now = context.now();
        self.refunds.short_of_budget = false;
        let mut affordable = self.budget.available(now) / BUDGET_PART / REFUND_COST;
        let mut refunds = Vec::new();
        for key in self.refunds.in_turn() {
            let key_sync = self.keys.get(&key);
            if key_sync
                .is_some_and(|key| key.phase.flight().is_some() || key.unsent != Unsent::default())
            {
                continue; // a part of it is in flight, or will be
            }
            if !self.is_reachable(key.lane()) {
                self.refunds.forget(key);
                continue;
            }
            if affordable == 0 {
                self.refunds.short_of_budget = true;
                break;
            }
            if let Some(refund) = self
                .refunds
                .send(context.subject_of_key(key).as_ref(), key, now)
            {
                let _ = self.budget.take(REFUND_COST, now);
                affordable -= 1;
                self.refunds.sent_last = Some(key);
                refunds.push(refund);
            }
        }
        refunds
    }

    /// When the budget allows refunds that wait for it.
    pub(super) fn refunds_open(&self, now: Nanos) -> Option<Nanos> {
        let cost = REFUND_COST.saturating_mul(BUDGET_PART);
        let short = self.refunds.short_of_budget;
        short.then(|| self.budget.next_at(cost, now))
    }

    /// The store gave cells back and answered the state of the key.
    pub fn refund_answered(
        &mut self,
        engine: &Engine,
        refund: &Refund,
        state: StoreState,
        trip: RoundTrip,
    ) {
        let key = refund.key;
        let sent = self.end_refund(key);
        self.refunds.note_answered(key, trip.back.now);
        // That level may or may not include cells that the pod put in a batch since.
        let is_newer = |sent: Nanos| {
            self.keys
                .get(&key)
                .is_none_or(|key| key.history().sent_at.is_none_or(|at| at < sent))
        };
        let snapshot = engine.snapshot();
        let Some(subject) = engine.subject_of_key(&snapshot, key, trip.back) else {
            return;
        };
        let is_strict = subject.rule.spec.consistency == Consistency::Strict;
        // The store's level does not include cells that this pod is silent about.
        let is_loud = self.keys.get(&key).is_some_and(|key| key.is_loud());
        let is_silent = self.even_share(&subject).is_some() && !is_loud;
        if sent.map_or(is_strict, is_newer) && !is_silent {
            let due = self.refunds.due(key, trip.back.now);
            engine
                .bucket(&subject)
                .fold_refund(state, trip.anchor(), due.price);
            self.lower_overdue(engine, &subject);
        }
    }

    /// The store did not answer a refund. `jitter` is any random number.
    pub fn refund_failed(&mut self, engine: &Engine, key: StoreKey, now: Nanos, jitter: u64) {
        let _ = self.end_refund(key);
        self.request_failed(engine, key.lane(), now, jitter);
    }

    /// Ends the flight of a refund. Returns when the pod sent it; `None` if it is not in this queue.
    fn end_refund(&mut self, key: StoreKey) -> Option<Nanos> {
        let refund = self.refunds.keys.get_mut(&key)?;
        let (_, sent) = refund.sent.take()?;
        if refund.due.cells == Cells::ZERO {
            self.refunds.forget(key);
        }
        Some(sent)
    }

    /// The refunded cells of a key that the store may know. Cells that this pod was silent about are free again in its even
    /// share.
    fn known_to_store(&mut self, subject: &Subject<'_>, reported: ReportedCells) -> ReportedCells {
        let (key, now) = (subject.store_key(), subject.moment.now);
        if self.is_full(key) {
            return ReportedCells::default(); // the sync has no room to track the key, so the pod did not report it
        }
        let allowance = self.even_share(subject);
        let key_sync = self
            .keys
            .get_mut(&key)
            .filter(|key_sync| !key_sync.is_loud());
        let (Some(allowance), Some(key_sync)) = (allowance, key_sync) else {
            return reported;
        };
        let silent = key_sync.in_use(&allowance, now).min(reported.cells);
        let even = key_sync.even.tat.before(allowance.interval.times(silent));
        key_sync.even.tat = even.max(now);
        ReportedCells {
            cells: reported.cells.less(silent),
            price: reported.price.less(subject.limit.interval().times(silent)),
            ..reported
        }
    }
}
