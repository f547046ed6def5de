//! Freezing: keys that wait become a batch, in the order of the send queue and as far as the budget allows.
//!
//! To freeze a key is to collect its pending cells into a batch; from then on it is in flight. The batch is sent by
//! `groups.rs`. What the store is to bill for the cells is in `key_sync.rs`.

use super::groups::SplitStep;
use super::key_sync::Unsent;
use super::phase::{Flight, PhaseEvent};
use super::queue::{CallKeys, QueueOrder, Urgency};
use super::{PodSync, SyncContext};
use crate::engine::buckets::{BucketAddress, FrozenCells, KeyBucket};
use crate::pure::sync::{BATCH_MAX, CALL_COST, Delta, Group, KnownUsage, StoreKey, Trigger};
use crate::pure::{Cells, Nanos, Span};

/// The batch to freeze next.
struct NextBatch {
    group: Group,
    order: QueueOrder,
    /// The key updates that the budget must have for it.
    updates: usize,
}

impl PodSync {
    /// The groups whose keys the pod can report now, if the budget allows.
    fn open_groups(&self, now: Nanos) -> Vec<Group> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        let groups = self.grouping.groups().zip(&self.groups);
        let open = groups.filter(|(group, state)| {
            let link = &self.links[self.shard(group.lane())];
            state.book.may_freeze()
                && state.split == SplitStep::Whole
                && state.opens <= now
                && !self.queue.is_empty_in(*group)
                && link.next_at().is_none_or(|at| at <= now)
                && !link.is_partitioned()
        });
        open.map(|(group, _)| group).collect()
    }

    /// The next batch to freeze of the `open` groups. It leaves once the budget covers all keys that its group has for it, or
    /// a quarter of what the budget can hold, because a call costs as much as a key. Other keys do not spend what the budget
    /// reserves for urgent ones.
    fn next_batch(&self, open: &[Group], now: Nanos) -> Option<NextBatch> {
        let (order, reserve) = (self.queue.order(now), self.budget.reserve());
        let (group, head) = self.queue.first(open, order)?;
        let (urgency, kept) = match (order, head.urgency) {
            (QueueOrder::Age, _) => (Urgency::Ordinary, 0),
            (QueueOrder::Urgency, Urgency::Ordinary) => (Urgency::Ordinary, reserve),
            (QueueOrder::Urgency, urgent) => (urgent, 0),
        };
        let keys = match urgency {
            Urgency::ShareDenied => 1,
            Urgency::Contested | Urgency::Ordinary => self.queue.len_in(group, urgency),
        };
        let keys = keys.min(reserve.max(1));
        Some(NextBatch {
            group,
            order,
            updates: keys.min(BATCH_MAX) + CALL_COST + kept,
        })
    }

    /// When the budget allows the next batch, if keys wait for it.
    pub(super) fn affordable_at(&self, now: Nanos) -> Option<Nanos> {
        let next = self.next_batch(&self.open_groups(now), now)?;
        Some(self.budget.next_at(next.updates, now))
    }

    /// Makes batches of the keys that wait, in their order, as far as the budget goes. Keys of an unreachable lane stay
    /// where they are: they are billed once the lane is reachable.
    pub(super) fn fill_groups(&mut self, context: &SyncContext<'_>) {
        let now = context.now();
        let mut open = self.open_groups(now);
        while let Some(next) = self.next_batch(&open, now)
            && next.updates <= self.budget.available(now)
        {
            self.fill(context, &next);
            let book = &self.groups[next.group.index()].book;
            if !book.may_freeze() || self.queue.is_empty_in(next.group) {
                open.retain(|group| *group != next.group);
            }
        }
    }

    /// Makes a batch of the keys that wait for a group. If none is left waiting, others ride along.
    fn fill(&mut self, context: &SyncContext<'_>, next: &NextBatch) {
        let now = context.now();
        let affordable = self.budget.available(now).saturating_sub(CALL_COST);
        let reserve = self.budget.reserve();
        let most = match next.order {
            QueueOrder::Urgency => affordable.min(BATCH_MAX),
            // More urgent keys wait behind this call.
            QueueOrder::Age => affordable.min(BATCH_MAX).min(reserve.max(1)),
        };
        let ordinary_most = affordable.saturating_sub(reserve);
        let call = CallKeys {
            group: next.group,
            order: next.order,
            most,
            ordinary_most,
        };
        let mut keys = self.queue.take(&mut self.keys, &call);
        if self.queue.is_empty_in(next.group) {
            let room = most.min(ordinary_most).saturating_sub(keys.len());
            keys.extend(self.take_riders(context, next.group, room));
        }
        let deltas: Vec<Delta> = keys
            .into_iter()
            .filter_map(|key| self.freeze(context, key))
            .collect();
        if !deltas.is_empty() {
            let _ = self.budget.take(deltas.len() + CALL_COST, now);
        }
        // The group is open, so it takes them.
        let _ = self.group_mut(next.group).book.freeze(deltas, now);
    }

    /// The report of a key, which is in flight from now on; `None` if there is nothing to report.
    fn freeze(&mut self, context: &SyncContext<'_>, key: StoreKey) -> Option<Delta> {
        let now = context.now();
        let share = self.share_of(key);
        let refund_due = self.refunds.due(key, now);
        let subject = context.subject_of_key(key);
        let even_share = subject.as_ref().and_then(|it| self.even_share(it));
        let bucket = subject.as_ref().map(|it| context.engine.bucket(it));
        // While the key waited, a look was planned. The code below plans the next one.
        self.keys.cancel_look(&key);
        let terms = subject.as_ref().map(|it| self.terms.of(it));
        let key_sync = self.keys.get_mut(&key)?;
        key_sync.history_mut().sent_at = Some(now);
        if let Some(terms) = terms {
            // Callers may supply another limit every time.
            key_sync.terms = terms;
        }
        let terms = key_sync.terms.store;
        let frozen = bucket.and_then(|bucket| bucket.freeze());
        let frozen = frozen.unwrap_or_else(|| FrozenCells::nothing(now));
        let cells = frozen.cells;
        let price = key_sync.price(frozen.price, share, frozen.tat, now);
        let Unsent { gross: unsent, .. } = std::mem::take(&mut key_sync.unsent);
        let gross = cells.plus(unsent);
        let charged = key_sync.take_charged(gross);
        // The pod may want the answer itself: news denied a check, or the share of an overdue key did.
        let is_asked = std::mem::take(&mut key_sync.asks_store) || key_sync.overdue.is_some();
        if gross == Cells::ZERO && price == Span::ZERO && !is_asked {
            key_sync.happen(PhaseEvent::Dequeue);
            if let Some(bucket) = bucket {
                bucket.land(Trigger::EACH);
            }
            self.look_again(key, now.after(self.pace.interval));
            return None;
        }
        let _ = key_sync.attach();
        if let Some(overdue) = &mut key_sync.overdue {
            *overdue = overdue.starting(frozen.tat);
        }
        key_sync.history_mut().demand.add(gross, now);
        let share_use = even_share.map(|share| key_sync.use_share_reported(&share, cells, now));
        match share_use {
            Some(share_use) => key_sync.stay_loud_beyond(share_use, now),
            // The pod only asks: that is no use of the key.
            None if gross == Cells::ZERO => {}
            None => key_sync.stay_loud(now.after(self.pace.interval.plus(self.pace.interval))),
        }
        let flight = Flight {
            // A fold compares this with the store's level, which includes refunds that the store has yet to give back.
            frozen: FrozenCells {
                tat: frozen.tat.after(refund_due.price),
                ..frozen
            },
            terms,
            charged,
            address: bucket.map_or(BucketAddress::None, |bucket| bucket.address()),
            stale: false,
        };
        key_sync.happen(PhaseEvent::Send(flight));
        let known = match bucket {
            Some(bucket) if key_sync.is_answered => bucket.known(&frozen),
            Some(_) | None => KnownUsage::assumed(&terms),
        };
        let news_step = self.news_pacing.step();
        Some(Delta {
            key,
            terms: terms.published_every(news_step),
            gross,
            price,
            billed: gross,
            age: frozen.age,
            share,
            live: std::mem::take(&mut key_sync.announce),
            known,
        })
    }
}
