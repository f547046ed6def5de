//! Keys that the store cannot be told of in time, because the pod may not send so much.
//!
//! A key that waits to be reported is *overdue* once its oldest cell has waited longer than it may, or as soon as its
//! place in the order says that it will. From then on this pod grants only its share of it, as if the store were gone.
//! What was admitted before is billed in full, what is admitted since as the share of how far the bucket filled up. The
//! answer to the key's own report ends it, unless the next report would be late again.
//!
//! A short budget is not a store error: this holds for every hybrid rule, whatever its `on_store_error` is.

use super::queue::{Place, Urgency};
use super::tracked::Tracked;
use super::{Here, Rounds};
use crate::engine::Engine;
use crate::engine::admit::Asked;
use crate::engine::collect::Hushed;
use crate::pure::rule::Consistency;
use crate::pure::sync::{Family, Share, ShareCode, StoreKey};
use crate::pure::{Cells, Limit, Nanos, Span};

/// Of the keys that are looked at next, so many are tried for one that can make room.
const ROOM_TRIES_MAX: usize = 64;

/// A key that is granted by share because it cannot be reported in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overdue {
    pub(super) share: ShareCode,
    /// Where its bucket ended when that began, or when it was last put in a batch.
    pub(super) from: Nanos,
}

impl Overdue {
    /// What the cells cost that were admitted since: the share of how far the bucket, which ends at `tat`, filled up.
    pub(super) fn price(&self, limit: &Limit, tat: Nanos, now: Nanos) -> Span {
        let share = self.share.share();
        let filled = tat.since(self.from.max(now));
        share.of_span(filled.min(limit.shared(share).capacity()))
    }
}

impl Rounds {
    /// How soon a key should be reported.
    pub(super) fn urgency(&self, here: &Here<'_>, key: StoreKey) -> Urgency {
        let Some(asked) = here.subject(key) else {
            return Urgency::Ordinary;
        };
        let contested = asked.limit.burst() < Cells::new(self.terrain.pods);
        if here.engine.is_share_denied(&asked) {
            Urgency::ShareDenied
        } else if contested || here.engine.is_half_used(&asked) {
            Urgency::Contested
        } else {
            Urgency::Ordinary
        }
    }

    /// A key that waits may have become more urgent.
    pub(super) fn hurry(&mut self, here: &Here<'_>, key: StoreKey) {
        let urgency = self.urgency(here, key);
        let Some(tracked) = self.keys.get_mut(&key) else {
            return;
        };
        if let Some(place) = tracked.place.filter(|place| urgency < place.urgency) {
            let since = place.since;
            let sooner = Place { urgency, since };
            tracked.place = Some(sooner);
            self.queue.remove(key, place);
            self.queue.insert(key, sooner);
        }
        if let Some(overdue) = tracked.overdue
            && let Some(asked) = here.subject(key)
            && !here.engine.is_share_denied(&asked)
        {
            // Its bucket may have left the table and come back.
            here.engine.grant_by_share(&asked, overdue.share);
        }
    }

    /// Looks whether a key that waits is overdue, and when to look again.
    pub(super) fn watch(&mut self, here: &Here<'_>, key: StoreKey) {
        let now = here.now();
        let (Some(tracked), Some(asked)) = (self.keys.get(&key), here.subject(key)) else {
            return;
        };
        let Some(place) = tracked.place else {
            return;
        };
        let (soonest, patience) = self.patience(here, &asked, tracked);
        if tracked.overdue.is_some() || self.fleet.is_leaving() || !may_be_overdue(&asked) {
            return;
        }
        let waited = now.since(place.since);
        let still_to_wait = match waited {
            Span::ZERO => self.wait_of(place.urgency, now),
            _ => Span::ZERO,
        };
        if waited.plus(still_to_wait) >= patience && self.is_reachable(key.lane()) {
            self.fall_overdue(here, &asked);
            return;
        }
        let next = if waited < soonest { soonest } else { patience };
        let next = place.since.after(next);
        // Of a lane that cannot be reached there is nothing to decide until it can be.
        self.look_again(key, if next > now { next } else { now.after(soonest) });
    }

    /// How long cells of a key may wait: as long as those of any key, and as long as they may at all while the key is far
    /// from its limit.
    fn patience(&self, here: &Here<'_>, asked: &Asked<'_>, tracked: &Tracked) -> (Span, Span) {
        let lane = asked.store_key().lane();
        let soonest = self.late_after(usize::from(lane.number()));
        match tracked.is_thin || here.engine.is_half_used(asked) {
            true => (soonest, soonest),
            false => (soonest, soonest.max(self.age_max(asked))),
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
    fn fall_overdue(&mut self, here: &Here<'_>, asked: &Asked<'_>) {
        let key = asked.store_key();
        let share = ShareCode::at_most(self.share_of(key));
        let Some(tracked) = self.keys.get_mut(&key) else {
            return;
        };
        // First the share, then what was admitted before: what comes in between is billed in full, too.
        here.engine.grant_by_share(asked, share);
        if key.family != Family::Window {
            let Hushed { cells, worth } = here.engine.hush(asked);
            tracked.carry.gross = tracked.carry.gross.plus(cells);
            let price = asked.limit.interval().times(worth);
            tracked.carry.price = tracked.carry.price.plus(price);
        }
        let from = here.engine.tat_of(asked).unwrap_or_else(|| here.now());
        tracked.overdue = Some(Overdue { share, from });
    }

    /// The bucket of a key was lowered: what fills it again is billed from there on.
    pub(super) fn lower_overdue(&mut self, engine: &Engine, asked: &Asked<'_>) {
        let tracked = self.keys.get_mut(&asked.store_key());
        if let Some(overdue) = tracked.and_then(|tracked| tracked.overdue.as_mut())
            && let Some(tat) = engine.tat_of(asked)
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
        here: &Here<'_>,
        asked: &Asked<'_>,
        overdue: Overdue,
        (before, full): (Option<Nanos>, bool),
    ) -> bool {
        let key = asked.store_key();
        let Some(tracked) = self.keys.get(&key) else {
            return false;
        };
        let (_, patience) = self.patience(here, asked, tracked);
        let wait = self.wait_of(self.urgency(here, key), here.now());
        if wait < patience || self.fleet.is_leaving() {
            return false;
        }
        let is_one_cell = asked.limit.shared(overdue.share.share()).burst() == Cells::ONE;
        if let Some(before) = before.filter(|_| is_one_cell && full) {
            here.engine.raise_tat(asked, before);
        }
        self.fall_overdue(here, asked);
        let pending = self.keys.get(&key).is_some_and(|key| !key.is_at_rest());
        if pending || here.engine.pending_of(asked) > Some(Cells::ZERO) {
            self.want(here, key, super::Reason::Trigger);
        }
        true
    }

    /// Makes sure that `key` can be tracked. If another one has to leave for it, says how far that one's even share was
    /// in use: the newcomer, of which nothing is known, is taken to have used as much. `None` if nobody can leave.
    pub(super) fn make_room(&mut self, here: &Here<'_>, key: StoreKey) -> Option<Span> {
        if self.keys.len() < self.keys_max || self.keys.contains_key(&key) {
            return Some(Span::ZERO);
        }
        let now = here.now();
        let next = self.due.iter().take(ROOM_TRIES_MAX);
        let rested = next.filter_map(|(_, key)| {
            let tracked = self.keys.get(key).filter(|tracked| tracked.is_at_rest())?;
            let pending = here
                .subject(*key)
                .map(|asked| here.engine.pending_of(&asked));
            let is_idle = !tracked.is_loud() || pending.flatten() <= Some(Cells::ZERO);
            is_idle.then_some((tracked.is_loud(), tracked.even, *key))
        });
        let (is_loud, even, least) = rested.min()?;
        let asked = here.subject(least);
        self.untrack(least);
        if let Some(asked) = asked {
            self.land_silent(here, &asked, self.opening(&asked));
        }
        match is_loud {
            true => Some(Span::ZERO),
            false => Some(even.since(now)),
        }
    }

    /// A key that cannot be tracked is not reported: this pod grants its even share of it.
    pub(super) fn grant_untracked(&mut self, here: &Here<'_>, asked: &Asked<'_>) {
        let Hushed { cells, .. } = here.engine.hush(asked);
        self.fleet.lost.crowd = self.fleet.lost.crowd.plus(cells);
        let share = ShareCode::at_most(Share::even(self.terrain.pods));
        here.engine.grant_by_share(asked, share);
    }

    /// The keys that are overdue.
    pub(super) fn overdue(&self) -> u64 {
        let keys = self.keys.values();
        keys.filter(|tracked| tracked.overdue.is_some()).count() as u64
    }
}

/// Whether a key of such a rule can be granted by share.
fn may_be_overdue(asked: &Asked<'_>) -> bool {
    asked.rule.spec.consistency == Consistency::Hybrid
}
