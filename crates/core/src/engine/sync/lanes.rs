//! The lanes: keys ask for a round, calls go out, answers come in, and how the shard of a lane can be reached.

use super::figures::Reason;
use super::overdue::OverdueAnswer;
use super::phase::{Flight, PhaseEvent};
use super::queue::{QueuePlace, Urgency};
use super::{COALESCE, PodSync, RoundTrip, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::{KeyBucket, StoreAnswer};
use crate::pure::sync::{
    Batch, Call, Delta, Lane, LaneBook, LaneStep, Share, StoreKey, StoreReply, StoreState,
};
use crate::pure::{Cells, Nanos, Span};

/// The pod keeps batches for a replay. It asks a lane with such batches what it has at least this often, before it drops
/// them.
const KEPT_ASKED_WITHIN: Span = Span::seconds(20);

/// One lane of the store, as this pod uses it.
#[derive(Debug)]
pub(super) struct LaneState {
    pub(super) book: LaneBook,
    /// When the next round may start.
    pub(super) opens: Nanos,
    pub(super) in_flight: LaneCall,
    /// The sequence number of the last call: an answer is about the keys of that call.
    pub(super) called: u64,
    /// When the first call was sent that the store has not answered yet.
    pub(super) unanswered_since: Option<Nanos>,
    /// Whether the store may have lost what it had: the pod asks it.
    pub(super) unsure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneCall {
    None,
    Batch,
    Probe,
}

impl LaneState {
    /// A lane without calls. It keeps at most `deltas_max` deltas for a replay.
    pub(super) fn new(lane: Lane, deltas_max: usize) -> Self {
        Self {
            book: LaneBook::new(lane).keeping(deltas_max),
            opens: Nanos::default(),
            in_flight: LaneCall::None,
            called: 0,
            unanswered_since: None,
            unsure: false,
        }
    }
}

impl PodSync {
    /// A key wants a round: now, or once its gap has passed.
    pub(super) fn want(&mut self, context: &SyncContext<'_>, key: StoreKey, reason: Reason) {
        let (gap, now) = (self.gap(), context.now());
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        let gap = if key_sync.is_thin { Span::ZERO } else { gap };
        if !key_sync.phase.is_resting() {
            return; // when it lands, the sync looks at its pending cells
        }
        let earliest = key_sync.sent_at.map(|at| at.after(gap));
        if let Some(earliest) = earliest.filter(|at| *at > now) {
            key_sync.happen(PhaseEvent::Postpone(reason));
            self.look_again(key, earliest);
            return;
        }
        self.enqueue(context, key, reason);
    }

    /// Puts a key into the send queue, unless it is queued or in flight.
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

    /// When the sync has to look at a lane again, if it has to.
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
        // Lanes that are open wait for the budget.
        let opens = lane.opens.max(link_opens);
        (!self.queue.is_empty_in(number) && opens > now).then_some(opens)
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

    /// The store answered the call of a lane.
    pub(super) fn lane_answered(
        &mut self,
        context: &SyncContext<'_>,
        lane: Lane,
        reply: &StoreReply,
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
            LaneStep::Settled(batch) => {
                self.totals.rounds.settled += 1;
                match called == batch.sequence {
                    true => self.settle(context, &batch, reply, trip.anchor()),
                    false => self.settle_unseen(context, &batch),
                }
            }
            LaneStep::Behind => {
                self.totals.rounds.replayed += 1;
                // A store that lost the writes of this lane has lost those of others too.
                self.doubt(self.shard(lane));
            }
            LaneStep::Replayed | LaneStep::Adopted => self.totals.rounds.replayed += 1,
            LaneStep::Unchanged => {}
        }
    }

    fn settle(
        &mut self,
        context: &SyncContext<'_>,
        batch: &Batch,
        reply: &StoreReply,
        anchor: Nanos,
    ) {
        for (delta, state) in batch.deltas.iter().zip(&reply.states) {
            self.key_answered(context, delta, *state, anchor);
        }
    }

    /// Settles a batch that another call than the answered one reported: the answer says nothing of its keys' levels.
    fn settle_unseen(&mut self, context: &SyncContext<'_>, batch: &Batch) {
        for delta in &batch.deltas {
            self.land_unseen(context, delta.key);
        }
    }

    /// Ends the flight of a key whose level the answer does not say.
    fn land_unseen(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return; // it is no longer tracked
        };
        key_sync.overdue = None;
        if let Some(flight) = key_sync.land() {
            context.engine.release(flight.address);
        }
        self.look_again(key, context.now());
    }

    /// Takes in the state of a key that the store answered.
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
            self.land_unseen(context, key);
            return;
        };
        let same_bucket = |flight: &Flight| !flight.stale && subject.is_on_scale(&flight.terms);
        let flight = key_sync.phase.flight().copied();
        let Some(flight) = flight.filter(same_bucket) else {
            self.land_unseen(context, key);
            return;
        };
        key_sync.happen(PhaseEvent::Land);
        key_sync.is_answered = true;
        let answer = StoreAnswer {
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
        let wants = context.engine.bucket(&subject).fold(&answer, trigger);
        self.after_answer(context, &subject, &answer);
        let stays_overdue = overdue.is_some_and(|overdue| {
            let is_full = reading.room == Cells::ZERO;
            let answer = OverdueAnswer { before, is_full };
            self.stay_overdue(context, &subject, overdue, answer)
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

    /// A shard answered. If it had failed before, it may have lost something, so the pod asks its lanes what they have.
    pub(super) fn link_succeeded(&mut self, engine: &Engine, lane: Lane, now: Nanos) {
        let shard = self.shard(lane);
        if self.links[shard].is_failing() {
            self.doubt(shard);
        }
        self.links[shard].succeeded(now);
        self.update_unreachable(engine, now);
    }

    /// With every heartbeat the pod asks one lane of each shard what it has. So it hears from every shard, and the record of
    /// an idle lane does not expire. It also asks so many of the lanes with batches for a replay that it asks each before
    /// it drops them: so it notices in time a failover that happened while it sent nothing.
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

    /// Marks the lanes of a shard that the pod has to ask what they have.
    fn doubt(&mut self, shard: usize) {
        for (lane, of) in self.lanes.iter_mut().zip(&self.shard_of) {
            let is_unanswered = lane.unanswered_since.is_some();
            lane.unsure |= *of == shard && (lane.book.has_kept() || is_unanswered);
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
