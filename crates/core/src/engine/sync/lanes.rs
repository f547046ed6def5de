//! What happens in a lane: keys wait for it, become a batch, and are answered; and how its shard can be reached.

use super::figures::Reason;
use super::key_sync::{ShareUse, Unsent};
use super::phase::{Flight, PhaseEvent};
use super::queue::{QueueOrder, QueuePlace, Urgency};
use super::{COALESCE, HOLD, LaneCall, LaneState, PodSync, RoundTrip, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::KeyBucket;
use crate::engine::buckets::{BucketAddress, FrozenCells, StoreAnswer};
use crate::pure::sync::{
    BATCH_MAX, Batch, CALL_COST, Call, Delta, Known, Lane, Reply, Share, Step, StoreKey,
    StoreState, Trigger,
};
use crate::pure::{Cells, Nanos, Span};

/// A lane that keeps batches for a replay is asked what it has at least so often, before it lets go of them.
const KEPT_ASKED_WITHIN: Span = Span::seconds(20);

impl PodSync {
    /// A key wants a round: now, or once its gap has passed.
    pub(super) fn want(&mut self, context: &SyncContext<'_>, key: StoreKey, reason: Reason) {
        let (gap, now) = (self.gap(), context.now());
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        let gap = if key_sync.is_thin { Span::ZERO } else { gap };
        if !key_sync.phase.is_resting() {
            return; // whoever lands it looks what is pending
        }
        let earliest = key_sync.sent_at.map(|at| at.after(gap));
        if let Some(earliest) = earliest.filter(|at| *at > now) {
            key_sync.happen(PhaseEvent::Postpone(reason));
            self.look_again(key, earliest);
            return;
        }
        self.enqueue(context, key, reason);
    }

    /// Puts a key among those that wait to be reported, unless it is there or on its way.
    pub(super) fn enqueue(&mut self, context: &SyncContext<'_>, key: StoreKey, reason: Reason) {
        let now = context.now();
        let urgency = self.urgency(context, key);
        let opens = match self.keys.get_mut(&key) {
            Some(key_sync) if key_sync.phase.is_resting() => {
                let place = QueuePlace {
                    urgency,
                    since: now,
                };
                key_sync.happen(PhaseEvent::Enqueue(place));
                self.queue.insert(key, place);
                now.after(if key_sync.is_thin {
                    Span::ZERO
                } else {
                    COALESCE
                })
            }
            Some(_) | None => return,
        };
        self.totals.count(reason);
        let is_first = self.queue.len_in(key.lane(), Urgency::Ordinary) == 1;
        let lane = self.lane_mut(key.lane());
        lane.opens = match is_first {
            true => opens,
            false => lane.opens.min(opens),
        };
        self.watch(context, key);
    }

    /// When a lane is to be looked at again, if it is.
    pub(super) fn lane_opens(&self, number: Lane, lane: &LaneState, now: Nanos) -> Option<Nanos> {
        let index = usize::from(number.number());
        if lane.in_flight != LaneCall::None {
            let late_at = lane.unanswered_since?.after(self.late_after(index));
            return Some(late_at).filter(|at| *at > now);
        }
        let link = &self.links[self.shard_of[index]];
        let link_opens = link.next_at().unwrap_or(now);
        if link.is_partitioned() || !lane.book.is_idle() || lane.unsure {
            return Some(link_opens);
        }
        // Those that are open wait for the budget.
        let opens = lane.opens.max(link_opens);
        (!self.queue.is_empty_in(number) && opens > now).then_some(opens)
    }

    /// The lanes whose keys can be reported now, as far as the budget allows.
    fn open_lanes(&self, now: Nanos) -> Vec<Lane> {
        if self.queue.is_empty() {
            return Vec::new();
        }
        let lanes = self.lanes.iter().zip(&self.shard_of).zip(Lane::all());
        let open = lanes.filter(|((state, shard), lane)| {
            let link = &self.links[**shard];
            state.in_flight == LaneCall::None
                && state.book.is_idle()
                && state.opens <= now
                && !self.queue.is_empty_in(*lane)
                && link.next_at().is_none_or(|at| at <= now)
                && !link.is_partitioned()
        });
        open.map(|(_, lane)| lane).collect()
    }

    /// The next batch to freeze of `open` lanes. It leaves once the budget holds all that its lane has for it, or a
    /// quarter of what it can hold: a call costs as much as a key. What is kept for urgent keys is not spent on others.
    fn next_batch(&self, open: &[Lane], now: Nanos) -> Option<NextBatch> {
        let (order, reserve) = (self.queue.order(now), self.budget.reserve());
        let (lane, head) = self.queue.first(open, order)?;
        let (urgency, kept) = match (order, head.urgency) {
            (QueueOrder::Age, _) => (Urgency::Ordinary, 0),
            (QueueOrder::Urgency, Urgency::Ordinary) => (Urgency::Ordinary, reserve),
            (QueueOrder::Urgency, urgent) => (urgent, 0),
        };
        let keys = match urgency {
            Urgency::ShareDenied => 1,
            Urgency::Contested | Urgency::Ordinary => self.queue.len_in(lane, urgency),
        };
        let keys = keys.min(reserve.max(1));
        Some(NextBatch {
            lane,
            order,
            updates: keys.min(BATCH_MAX) + CALL_COST + kept,
        })
    }

    /// When the budget allows the next batch, if keys wait for that.
    pub(super) fn affordable_at(&self, now: Nanos) -> Option<Nanos> {
        let next = self.next_batch(&self.open_lanes(now), now)?;
        Some(self.budget.next_at(next.updates, now))
    }

    /// The calls to send now.
    pub(super) fn calls(&mut self, context: &SyncContext<'_>) -> Vec<Call> {
        let now = context.now();
        let mut calls = Vec::new();
        let news_step = self.news_pacing.set_step(self.membership.pods(), now);
        self.fill_lanes(context);
        for lane in Lane::all() {
            let shard = self.shard(lane);
            let ready = self.links[shard].next_at().is_none_or(|at| at <= now);
            if !ready || self.lane_mut(lane).in_flight != LaneCall::None {
                continue;
            }
            let partitioned = self.links[shard].is_partitioned();
            let state = self.lane_mut(lane);
            state.book.forget_old(now);
            let (call, in_flight) = match state.book.call(now) {
                Some(call) => (Call { news_step, ..call }, LaneCall::Batch),
                None if state.unsure || partitioned => (state.book.probe(), LaneCall::Probe),
                None => continue,
            };
            if self.links[shard].may_call(now) {
                let state = self.lane_mut(lane);
                state.in_flight = in_flight;
                state.called = call.sequence;
                state.unanswered_since.get_or_insert(now);
                self.totals.sent(&call);
                calls.push(call);
            }
        }
        calls
    }

    /// Makes batches of the keys that wait, in their order, as far as the budget goes. Keys of a lane that cannot be
    /// reached stay where they are: they are billed by the time they can be.
    fn fill_lanes(&mut self, context: &SyncContext<'_>) {
        let now = context.now();
        let mut open = self.open_lanes(now);
        while let Some(next) = self.next_batch(&open, now)
            && next.updates <= self.budget.available(now)
        {
            open.retain(|lane| *lane != next.lane);
            self.fill(context, &next);
        }
    }

    /// Makes a batch of the keys that wait for a lane.
    fn fill(&mut self, context: &SyncContext<'_>, next: &NextBatch) {
        let now = context.now();
        let affordable = self.budget.available(now).saturating_sub(CALL_COST);
        let reserve = self.budget.reserve();
        let most = match next.order {
            QueueOrder::Urgency => affordable.min(BATCH_MAX),
            // Others wait for more urgent reasons.
            QueueOrder::Age => affordable.min(BATCH_MAX).min(reserve.max(1)),
        };
        let ordinary_most = affordable.saturating_sub(reserve);
        let keys = self
            .queue
            .take(next.lane, next.order, (most, ordinary_most));
        let deltas: Vec<Delta> = keys
            .into_iter()
            .filter_map(|key| self.freeze(context, key))
            .collect();
        if !deltas.is_empty() {
            let _ = self.budget.take(deltas.len() + CALL_COST, now);
        }
        // An idle lane takes them.
        let _ = self.lane_mut(next.lane).book.freeze(deltas, now);
    }

    /// What is to be told of a key, which is in flight from now on; `None` if there is nothing.
    fn freeze(&mut self, context: &SyncContext<'_>, key: StoreKey) -> Option<Delta> {
        let now = context.now();
        let share = self.share_of(key);
        let refund_due = self.refunds.due(key, now);
        let subject = context.subject_of_key(key);
        let even_share = subject
            .as_ref()
            .and_then(|subject| self.even_share(subject));
        // It was looked at while it waited. Whatever comes of this plans the next look.
        self.cancel_look(key);
        let key_sync = self.keys.get_mut(&key)?;
        key_sync.sent_at = Some(now);
        if let Some(subject) = &subject {
            // Callers may supply another limit every time.
            key_sync.limit = subject.limit;
            key_sync.terms = subject.terms();
        }
        let frozen = subject
            .as_ref()
            .and_then(|subject| context.engine.bucket(subject).freeze());
        let frozen = frozen.unwrap_or_else(|| FrozenCells::nothing(now));
        let cells = frozen.cells;
        let price = key_sync.price(frozen.price, share, frozen.tat, now);
        let Unsent { gross: carried, .. } = std::mem::take(&mut key_sync.unsent);
        let gross = cells.plus(carried);
        let charged = key_sync.charged.min(gross);
        key_sync.charged = key_sync.charged.less(charged);
        // The answer may be wanted as such: news denied a check, or the share of an overdue key did.
        let is_asked = std::mem::take(&mut key_sync.asks_store) || key_sync.overdue.is_some();
        if gross == Cells::ZERO && price == Span::ZERO && !is_asked {
            key_sync.happen(PhaseEvent::Dequeue);
            if let Some(subject) = &subject {
                context.engine.bucket(subject).land(Trigger::EACH);
            }
            self.look_again(key, now.after(self.pace.interval));
            return None;
        }
        key_sync.detached = None;
        if let Some(overdue) = &mut key_sync.overdue {
            overdue.from = frozen.tat;
        }
        key_sync.demand.add(gross, now);
        // Said even by a pod that is not sure of its even share: others may be, and silent.
        match even_share.map(|share| key_sync.used_and_reported(&share, cells, now)) {
            Some(ShareUse::Beyond) => {
                key_sync.announce = true;
                key_sync.stay_loud(now.after(HOLD));
            }
            Some(ShareUse::Within) => {}
            None => key_sync.stay_loud(now.after(self.pace.interval.plus(self.pace.interval))),
        }
        let flight = Flight {
            // The store's level, which this is compared with, has what is yet to be given back there.
            frozen: FrozenCells {
                tat: frozen.tat.after(refund_due.price),
                ..frozen
            },
            terms: key_sync.terms,
            charged,
            address: subject.as_ref().map_or(BucketAddress::None, |subject| {
                context.engine.bucket(subject).address()
            }),
            stale: false,
        };
        key_sync.happen(PhaseEvent::Send(flight));
        let known = match &subject {
            Some(subject) if key_sync.is_answered => context.engine.bucket(subject).known(&frozen),
            Some(_) | None => Known::assumed(&key_sync.terms),
        };
        let news_step = self.news_pacing.step();
        Some(Delta {
            key,
            terms: key_sync.terms.heard_every(news_step),
            gross,
            price,
            billed: gross,
            age: frozen.age,
            share,
            live: std::mem::take(&mut key_sync.announce),
            known,
        })
    }

    /// A lane's call was answered.
    pub(super) fn lane_answered(
        &mut self,
        context: &SyncContext<'_>,
        lane: Lane,
        reply: &Reply,
        trip: RoundTrip,
    ) {
        let now = context.now();
        self.note_refunds(context);
        self.lane_mut(lane).unanswered_since = None;
        let shard = self.shard(lane);
        self.links[shard].took(now.since(trip.sent));
        self.link_succeeded(context.engine, lane, now);
        self.totals.repaired += reply.repaired;
        let state = self.lane_mut(lane);
        let outcome = match std::mem::replace(&mut state.in_flight, LaneCall::None) {
            LaneCall::Batch => state.book.answered(reply, now),
            LaneCall::Probe | LaneCall::None => state.book.answered_probe(reply, now),
        };
        state.unsure = false;
        let called = state.called;
        self.totals.lost.store = self.totals.lost.store.plus(outcome.lost);
        self.totals.found = self.totals.found.plus(outcome.found);
        match outcome.step {
            Step::Settled(batch) => {
                self.totals.rounds.settled += 1;
                match called == batch.sequence {
                    true => self.settled(context, &batch, reply, trip.anchor()),
                    false => self.settled_unseen(context, &batch),
                }
            }
            Step::Behind => {
                self.totals.rounds.replayed += 1;
                // What lost this lane's writes has lost others' too.
                self.doubt(self.shard(lane));
            }
            Step::Replayed | Step::Adopted => self.totals.rounds.replayed += 1,
            Step::Unchanged => {}
        }
    }

    fn settled(&mut self, context: &SyncContext<'_>, batch: &Batch, reply: &Reply, anchor: Nanos) {
        for (delta, state) in batch.deltas.iter().zip(&reply.states) {
            self.key_answered(context, delta, *state, anchor);
        }
    }

    /// The answer was to another call than the one that told the batch, so nothing is known of its keys' levels.
    fn settled_unseen(&mut self, context: &SyncContext<'_>, batch: &Batch) {
        for delta in &batch.deltas {
            self.landed_unseen(context, delta.key);
        }
    }

    /// A key has landed, and nothing is known of its level.
    fn landed_unseen(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return; // let go of meanwhile
        };
        key_sync.overdue = None;
        if let Some(flight) = key_sync.land() {
            context.engine.release(flight.address);
        }
        self.look_again(key, context.now());
    }

    /// Takes in how a key stands.
    fn key_answered(
        &mut self,
        context: &SyncContext<'_>,
        delta: &Delta,
        state: StoreState,
        anchor: Nanos,
    ) {
        let (key, now) = (delta.key, context.now());
        let flight = self.keys.get(&key);
        let flight = flight.and_then(|key_sync| key_sync.phase.flight());
        let charged = flight.map_or(Cells::ZERO, |flight| flight.charged);
        self.totals.note_overshoot(delta, charged, state);
        let fleet_view = self.fleet_view;
        let refund_due = self.refunds.due(key, now);
        let (Some(key_sync), Some(subject)) =
            (self.keys.get_mut(&key), context.subject_of_key(key))
        else {
            self.landed_unseen(context, key);
            return;
        };
        let same_bucket = |flight: &Flight| !flight.stale && subject.is_on_scale(&flight.terms);
        let flight = key_sync.phase.flight().copied();
        let Some(flight) = flight.filter(same_bucket) else {
            self.landed_unseen(context, key);
            return;
        };
        key_sync.happen(PhaseEvent::Land);
        key_sync.is_answered = true;
        let answered = StoreAnswer {
            state,
            anchor,
            frozen: flight.frozen,
            refund_due,
        };
        let reading = subject.reading(state);
        key_sync.learn(&reading, fleet_view.pods, now);
        let trigger = fleet_view.trigger(reading.whole, reading.room, key_sync.weight);
        let overdue = key_sync.overdue.take();
        let before = context.engine.bucket(&subject).tat();
        self.before_answer(context, key);
        let wants = context.engine.bucket(&subject).fold(&answered, trigger);
        self.after_answer(context, &subject, &answered);
        let stays_overdue = overdue.is_some_and(|overdue| {
            let state = (before, reading.room == Cells::ZERO);
            self.stay_overdue(context, &subject, overdue, state)
        });
        if self.membership.is_leaving() {
            let pending = context
                .engine
                .bucket(&subject)
                .pending()
                .unwrap_or(Cells::ZERO);
            if pending > Cells::ZERO {
                self.enqueue(context, key, Reason::Drain);
            }
        } else if wants && !stays_overdue {
            self.want(context, key, Reason::Trigger);
        }
        self.look_again(key, now.after(self.age_max(&subject)));
    }

    /// A shard answered. If it had not before, what it has is asked for again: it may have lost something.
    pub(super) fn link_succeeded(&mut self, engine: &Engine, lane: Lane, now: Nanos) {
        let shard = self.shard(lane);
        if self.links[shard].is_failing() {
            self.doubt(shard);
        }
        self.links[shard].succeeded(now);
        self.update_unreachable(engine, now);
    }

    /// With every sign of life one lane of each shard is asked what it has: so every shard is heard of, and an idle lane's
    /// record does not expire. And of those that keep something that may have to be replayed, so many that each is asked
    /// before it lets go of that: a failover that a pod slept through is noticed in time.
    pub(super) fn doubt_next(&mut self) {
        let (turn, heartbeat_interval) = (
            self.membership.count_heartbeat(),
            self.membership.heartbeat_interval(),
        );
        for shard in 0..self.links.len() {
            let of_shard = self.shard_of.iter().enumerate();
            let lanes = of_shard.filter(|(_, of)| **of == shard);
            let lanes: Vec<usize> = lanes.map(|(lane, _)| lane).collect();
            let keeping = lanes.iter().copied();
            let keeping: Vec<usize> = keeping
                .filter(|lane| self.lanes[*lane].book.has_kept())
                .collect();
            let heartbeats = KEPT_ASKED_WITHIN.whole(heartbeat_interval).get().max(1);
            let each = keeping
                .len()
                .div_ceil(usize::try_from(heartbeats).unwrap_or(1));
            let first = turn.wrapping_mul(each) % keeping.len().max(1);
            let next = keeping.iter().cycle().skip(first);
            let probed = next.take(each).chain(lanes.get(turn % lanes.len().max(1)));
            for lane in probed {
                self.lanes[*lane].unsure = true;
            }
        }
    }

    /// The lanes of a shard are asked what they have.
    fn doubt(&mut self, shard: usize) {
        for (lane, of) in self.lanes.iter_mut().zip(&self.shard_of) {
            let asked_in_vain = lane.unanswered_since.is_some();
            lane.unsure |= *of == shard && (lane.book.has_kept() || asked_in_vain);
        }
    }

    pub(super) fn share_of(&self, key: StoreKey) -> Share {
        let weight = self
            .keys
            .get(&key)
            .map_or(Share::even(self.fleet_view.pods), |key| key.weight);
        Share::fallback(weight, self.fleet_view.pods)
    }
}

/// A batch that is to be frozen next.
struct NextBatch {
    lane: Lane,
    order: QueueOrder,
    /// What the budget must hold for it.
    updates: usize,
}
