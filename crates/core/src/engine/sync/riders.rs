//! Riders: keys that go with a call that leaves for another key.
//!
//! A call costs the store as much as several keys in it. So when a call leaves, loud keys of its group go with it whose pending
//! cells have reached an eighth of their trigger. Keys at their limit then share calls instead of taking turns.

use super::figures::Reason;
use super::phase::PhaseEvent;
use super::queue::{QueuePlace, Urgency};
use super::{PodSync, SyncContext};
use crate::engine::buckets::KeyBucket;
use crate::pure::Cells;
use crate::pure::sync::{Group, StoreKey};

/// The most riders that the sync looks at for one call.
const RIDERS_SEEN_MAX: usize = 64;
/// A key rides along once its pending cells have reached this part (one in so many) of its trigger.
const TRIGGER_PART: u64 = 8;

/// What becomes of a rider.
enum Ride {
    /// It goes with this call.
    Now,
    /// It may go with the next one.
    Later,
    /// It is not loud any more, or is on its way already.
    Never,
}

impl PodSync {
    /// Lets a key ride along with the next calls, if it is loud and nothing of it is on its way. There are at most as many
    /// riders as keys that the sync tracks: a key that left and came back may be among them twice.
    pub(super) fn offer_rider(&mut self, key: StoreKey) {
        if self.riders.len() >= self.keys_max {
            return;
        }
        if let Some(key_sync) = self.keys.get_mut(&key)
            && key_sync.is_loud()
            && key_sync.phase.is_resting()
            && !std::mem::replace(&mut key_sync.is_rider, true)
        {
            self.riders.push_back(key);
        }
    }

    /// Takes at most `most` riders for a call of `group`.
    pub(super) fn take_riders(
        &mut self,
        context: &SyncContext<'_>,
        group: Group,
        most: usize,
    ) -> Vec<StoreKey> {
        let mut taken = Vec::new();
        for _ in 0..self.riders.len().min(RIDERS_SEEN_MAX) {
            if taken.len() >= most {
                break;
            }
            let Some(key) = self.riders.pop_front() else {
                break;
            };
            match self.ride(context, group, key) {
                Ride::Later => self.riders.push_back(key),
                Ride::Never => self.end_ride(key),
                Ride::Now => {
                    self.end_ride(key);
                    taken.push(key);
                }
            }
        }
        taken
    }

    fn end_ride(&mut self, key: StoreKey) {
        if let Some(key_sync) = self.keys.get_mut(&key) {
            key_sync.is_rider = false;
        }
    }

    fn ride(&mut self, context: &SyncContext<'_>, group: Group, key: StoreKey) -> Ride {
        let (gap, now) = (self.gap(), context.now());
        let is_of_group = self.group_of(key) == group;
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return Ride::Never;
        };
        if !key_sync.is_loud() || !key_sync.phase.is_resting() {
            return Ride::Never;
        }
        let is_early = key_sync
            .history()
            .sent_at
            .is_some_and(|at| at.after(gap) > now);
        if is_early || !is_of_group {
            return Ride::Later;
        }
        let Some(subject) = context.subject_of_key(key) else {
            return Ride::Never;
        };
        let pending = context.engine.bucket(&subject).pending();
        let pending = pending.unwrap_or(Cells::ZERO).get();
        let enough = key_sync.trigger.cells().unwrap_or(Cells::ONE).get();
        if pending == 0 || pending.saturating_mul(TRIGGER_PART) < enough {
            return Ride::Later;
        }
        let urgency = Urgency::Ordinary;
        let since = now;
        key_sync.happen(PhaseEvent::Enqueue(QueuePlace { urgency, since }));
        self.totals.count(Reason::RideAlong);
        Ride::Now
    }
}
