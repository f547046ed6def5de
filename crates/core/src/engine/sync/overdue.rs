//! Keys that the store cannot be told of in time, because the pod may not send so much.
//!
//! A key that waits to be reported is *overdue* once its oldest cell has waited longer than it may, or as soon as its
//! place in the order says that it will. From then on this pod grants only its share of it, as if the store were gone.
//! What was admitted before is billed in full, what is admitted since as the share of how far the bucket filled up. The
//! answer to the key's own report ends it, unless the next report would be late again.
//!
//! A short budget is not a store error: this holds for every hybrid rule, whatever its `on_store_error` is.

use super::key_sync::KeySync;
use super::phase::PhaseEvent;
use super::queue::{QueuePlace, Urgency};
use super::{PodSync, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::SilentCells;
use crate::engine::buckets::{KeyBucket, Subject};
use crate::pure::rule::Consistency;
use crate::pure::sync::{Share, ShareCode, StoreKey};
use crate::pure::{Cells, Limit, Nanos, Span};

/// Of the keys that are looked at next, so many are tried for one that can make room.
const ROOM_TRIES_MAX: usize = 64;

/// A key that is granted by share because it cannot be reported in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct OverdueGrant {
    pub(super) share: ShareCode,
    /// Where its bucket ended when that began, or when it was last put in a batch.
    pub(super) from: Nanos,
}

impl OverdueGrant {
    /// What the cells cost that were admitted since: the share of how far the bucket, which ends at `tat`, filled up.
    pub(super) fn price(&self, limit: &Limit, tat: Nanos, now: Nanos) -> Span {
        let share = self.share.share();
        let filled = tat.since(self.from.max(now));
        share.of_span(filled.min(limit.shared(share).capacity()))
    }
}

impl PodSync {
    /// How soon a key should be reported.
    pub(super) fn urgency(&self, context: &SyncContext<'_>, key: StoreKey) -> Urgency {
        let Some(subject) = context.subject_of_key(key) else {
            return Urgency::Ordinary;
        };
        let contested = subject.limit.burst() < Cells::new(self.fleet_view.pods);
        if context.engine.bucket(&subject).is_share_denied() {
            Urgency::ShareDenied
        } else if contested || context.engine.bucket(&subject).is_half_used() {
            Urgency::Contested
        } else {
            Urgency::Ordinary
        }
    }

    /// A key that waits may have become more urgent.
    pub(super) fn hurry(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let urgency = self.urgency(context, key);
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        let place = key_sync.phase.place();
        if let Some(place) = place.filter(|place| urgency < place.urgency) {
            let since = place.since;
            let sooner = QueuePlace { urgency, since };
            key_sync.happen(PhaseEvent::Enqueue(sooner));
            self.queue.remove(key, place);
            self.queue.insert(key, sooner);
        }
        if let Some(overdue) = key_sync.overdue
            && let Some(subject) = context.subject_of_key(key)
            && !context.engine.bucket(&subject).is_share_denied()
        {
            // Its bucket may have left the table and come back.
            context
                .engine
                .bucket(&subject)
                .grant_by_share(overdue.share);
        }
    }

    /// Looks whether a key that waits is overdue, and when to look again.
    pub(super) fn watch(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let now = context.now();
        let (Some(key_sync), Some(subject)) = (self.keys.get(&key), context.subject_of_key(key))
        else {
            return;
        };
        let Some(place) = key_sync.phase.place() else {
            return;
        };
        let (soonest, patience) = self.patience(context, &subject, key_sync);
        if key_sync.overdue.is_some() || self.membership.is_leaving() || !may_be_overdue(&subject) {
            return;
        }
        let waited = now.since(place.since);
        let still_to_wait = match waited {
            Span::ZERO => self.wait_of(place.urgency, now),
            _ => Span::ZERO,
        };
        if waited.plus(still_to_wait) >= patience && self.is_reachable(key.lane()) {
            self.fall_overdue(context, &subject);
            return;
        }
        let next = if waited < soonest { soonest } else { patience };
        let next = place.since.after(next);
        // Of a lane that cannot be reached there is nothing to decide until it can be.
        self.look_again(key, if next > now { next } else { now.after(soonest) });
    }

    /// How long cells of a key may wait: as long as those of any key, and as long as they may at all while the key is far
    /// from its limit.
    fn patience(
        &self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        key_sync: &KeySync,
    ) -> (Span, Span) {
        let lane = subject.store_key().lane();
        let soonest = self.late_after(usize::from(lane.number()));
        match key_sync.is_thin || context.engine.bucket(subject).is_half_used() {
            true => (soonest, soonest),
            false => (soonest, soonest.max(self.age_max(subject))),
        }
    }

    /// How long a key that begins to wait now will have to.
    fn wait_of(&self, urgency: Urgency, now: Nanos) -> Span {
        let ahead = self.queue.len_up_to(urgency);
        // Besides them go calls, and, of every four, one by age.
        let updates = ahead + ahead.div_ceil(3);
        let kept = match urgency {
            Urgency::ShareDenied | Urgency::Contested => 0,
            Urgency::Ordinary => self.budget.reserve(),
        };
        self.budget.wait_for(updates + kept, now)
    }

    /// Grants a key by share from now on.
    fn fall_overdue(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let key = subject.store_key();
        let share = ShareCode::at_most(self.share_of(key));
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        // First the share, then what was admitted before: what comes in between is billed in full, too.
        context.engine.bucket(subject).grant_by_share(share);
        let SilentCells { cells, worth } = context.engine.bucket(subject).take_priced();
        key_sync.unsent.gross = key_sync.unsent.gross.plus(cells);
        let price = subject.limit.interval().times(worth);
        key_sync.unsent.price = key_sync.unsent.price.plus(price);
        let from = context
            .engine
            .bucket(subject)
            .tat()
            .unwrap_or_else(|| context.now());
        key_sync.overdue = Some(OverdueGrant { share, from });
    }

    /// The bucket of a key was lowered: what fills it again is billed from there on.
    pub(super) fn lower_overdue(&mut self, engine: &Engine, subject: &Subject<'_>) {
        let key_sync = self.keys.get_mut(&subject.store_key());
        if let Some(overdue) = key_sync.and_then(|key_sync| key_sync.overdue.as_mut())
            && let Some(tat) = engine.bucket(subject).tat()
        {
            overdue.from = overdue.from.min(tat);
        }
    }

    /// The report of an overdue key was answered. If the next one would be late again, the key stays overdue: `true`.
    ///
    /// What the answer says is believed, with one exception. Where a share is less than a cell, one is granted all the
    /// same; if the fleet is over the limit, the pod remembers by where its bucket ended, `before`, that it has had its
    /// own.
    pub(super) fn stay_overdue(
        &mut self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        overdue: OverdueGrant,
        (before, full): (Option<Nanos>, bool),
    ) -> bool {
        let key = subject.store_key();
        let Some(key_sync) = self.keys.get(&key) else {
            return false;
        };
        let (_, patience) = self.patience(context, subject, key_sync);
        let wait = self.wait_of(self.urgency(context, key), context.now());
        if wait < patience || self.membership.is_leaving() {
            return false;
        }
        let is_one_cell = subject.limit.shared(overdue.share.share()).burst() == Cells::ONE;
        if let Some(before) = before.filter(|_| is_one_cell && full) {
            context.engine.bucket(subject).raise_tat(before);
        }
        self.fall_overdue(context, subject);
        let pending = self.keys.get(&key).is_some_and(|key| !key.is_at_rest());
        if pending || context.engine.bucket(subject).pending() > Some(Cells::ZERO) {
            self.want(context, key, super::Reason::Trigger);
        }
        true
    }

    /// Makes sure that `key` can be tracked. If another one has to leave for it, says how far that one's even share was
    /// in use: the newcomer, of which nothing is known, is taken to have used as much. `None` if nobody can leave.
    pub(super) fn make_room(&mut self, context: &SyncContext<'_>, key: StoreKey) -> Option<Span> {
        if self.keys.len() < self.keys_max || self.keys.contains_key(&key) {
            return Some(Span::ZERO);
        }
        let now = context.now();
        let next = self.due.iter().take(ROOM_TRIES_MAX);
        let rested = next.filter_map(|(_, key)| {
            let key_sync = self
                .keys
                .get(key)
                .filter(|key_sync| key_sync.is_at_rest())?;
            let pending = context
                .subject_of_key(*key)
                .map(|subject| context.engine.bucket(&subject).pending());
            let is_idle = !key_sync.is_loud() || pending.flatten() <= Some(Cells::ZERO);
            is_idle.then_some((key_sync.is_loud(), key_sync.even.tat, *key))
        });
        let (is_loud, even, least) = rested.min()?;
        let subject = context.subject_of_key(least);
        self.untrack(least);
        if let Some(subject) = subject {
            self.land_silent(context, &subject, self.opening(&subject));
        }
        match is_loud {
            true => Some(Span::ZERO),
            false => Some(even.since(now)),
        }
    }

    /// A key that cannot be tracked is not reported: this pod grants its even share of it.
    pub(super) fn grant_untracked(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let SilentCells { cells, .. } = context.engine.bucket(subject).take_silent();
        self.totals.lost.crowd = self.totals.lost.crowd.plus(cells);
        let share = ShareCode::at_most(Share::even(self.fleet_view.pods));
        context.engine.bucket(subject).grant_by_share(share);
    }

    /// The keys that are overdue.
    pub(super) fn overdue(&self) -> u64 {
        let keys = self.keys.values();
        keys.filter(|key_sync| key_sync.overdue.is_some()).count() as u64
    }
}

/// Whether a key of such a rule can be granted by share.
fn may_be_overdue(subject: &Subject<'_>) -> bool {
    subject.rule.spec.consistency == Consistency::Hybrid
}
