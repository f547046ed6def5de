//! The book groups: keys ask for a round, calls go out, answers come in, and how the shard of a group can be reached.

use std::sync::Arc;

use super::figures::Reason;
use super::overdue::OverdueAnswer;
use super::phase::{Flight, PhaseEvent};
use super::queue::{QueuePlace, Urgency};
use super::{COALESCE, PodSync, RoundTrip, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::{KeyBucket, StoreAnswer};
use crate::pure::sync::{
    BATCH_MAX, Batch, BookOutcome, BookStep, Call, CallId, Delta, Group, GroupBook, Grouping, Lane,
    Share, StoreKey, StoreReply, StoreState,
};
use crate::pure::{Cells, Nanos, Span};

/// The pod keeps batches for a replay. It asks a group with such batches what it has at least this often, before it drops
/// them.
const KEPT_ASKED_WITHIN: Span = Span::seconds(20);

/// One book group of the store, as this pod uses it.
#[derive(Debug)]
pub(super) struct GroupState {
    pub(super) book: GroupBook,
    /// When the next round may start.
    pub(super) opens: Nanos,
    /// Whether a call is under way that only asks what the store has.
    pub(super) is_probing: bool,
    /// When the first call was sent that the store has not answered yet.
    pub(super) unanswered_since: Option<Nanos>,
    /// Whether the store may have lost what it had: the pod asks it.
    pub(super) unsure: bool,
    /// How far the group is on its way to be split.
    pub(super) split: SplitStep,
}

/// The steps to split a group whose server refuses calls with keys of several slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitStep {
    /// No call was refused.
    Whole,
    /// A call was refused. Once none is under way, the pod asks what the store has of the group.
    Refused,
    /// The pod has asked. The answer splits the group.
    Asked,
}

impl GroupState {
    /// Every group, without calls. All together keep at most `deltas_max` deltas for a replay.
    pub(super) fn all(grouping: Grouping, deltas_max: usize) -> Vec<Self> {
        let lanes = grouping.lanes_each();
        let count = grouping.groups().count();
        let state = |group| Self {
            book: GroupBook::new(group).keeping(deltas_max / count, lanes),
            opens: Nanos::default(),
            is_probing: false,
            unanswered_since: None,
            unsure: false,
            split: SplitStep::Whole,
        };
        grouping.groups().map(state).collect()
    }

    fn is_calling(&self) -> bool {
        self.is_probing || self.book.is_calling()
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
        let earliest = key_sync.history().sent_at.map(|at| at.after(gap));
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
                let is_thin = key_sync.is_thin;
                self.queue.insert(&mut self.keys, key, place);
                now.after(if is_thin { Span::ZERO } else { COALESCE })
            }
            Some(_) | None => return,
        };
        self.totals.count(reason);
        let group = self.group_of(key);
        let is_first = self.queue.len_in(group, Urgency::Ordinary) == 1;
        let group = self.group_mut(group);
        group.opens = match is_first {
            true => opens,
            false => group.opens.min(opens),
        };
        self.watch(context, key);
    }

    /// When the sync has to look at a group again, if it has to.
    pub(super) fn group_opens(&self, group: Group, now: Nanos) -> Option<Nanos> {
        let state = &self.groups[group.index()];
        let late_at = state.unanswered_since.filter(|_| state.is_calling());
        let late_at = late_at.map(|since| since.after(self.late_after(group.lane())));
        let late_at = late_at.filter(|at| *at > now);
        let link = &self.links[self.shard(group.lane())];
        let link_opens = link.next_at().unwrap_or(now);
        let is_whole = state.split == SplitStep::Whole;
        let asks = link.is_partitioned() || state.unsure || !is_whole;
        let opens = if is_whole && state.book.has_call() || asks && !state.is_calling() {
            Some(link_opens)
        } else if !self.queue.is_empty_in(group) && state.book.may_freeze() {
            // Groups that are open wait for the budget.
            Some(state.opens.max(link_opens)).filter(|opens| *opens > now)
        } else {
            None
        };
        late_at.into_iter().chain(opens).min()
    }

    /// The calls to send now.
    pub(super) fn calls(&mut self, context: &SyncContext<'_>) -> Vec<Call> {
        let now = context.now();
        let news_step = self.news_pacing.set_step(self.membership.pods(), now);
        self.fill_groups(context);
        let mut calls = Vec::new();
        for group in self.grouping.groups() {
            while let Some(call) = self.next_call(group, now) {
                self.totals.sent(&call);
                calls.push(Call { news_step, ..call });
            }
        }
        calls
    }

    /// The next call of a group, if one may be sent.
    fn next_call(&mut self, group: Group, now: Nanos) -> Option<Call> {
        let shard = self.shard(group.lane());
        let link = &mut self.links[shard];
        let state = &mut self.groups[group.index()];
        if link.next_at().is_some_and(|at| at > now) {
            return None;
        }
        let is_whole = state.split == SplitStep::Whole;
        let has_batch = is_whole && state.book.has_call();
        let asks = state.unsure || !is_whole || link.is_partitioned();
        if !has_batch && (!asks || state.is_calling()) || !link.may_call(now) {
            return None;
        }
        state.unanswered_since.get_or_insert(now);
        if has_batch {
            return state.book.next_call(now);
        }
        if !is_whole {
            state.split = SplitStep::Asked;
        }
        state.is_probing = true;
        Some(state.book.probe())
    }

    /// Whether a call is of one of the present groups.
    fn is_current(&self, group: Group) -> bool {
        self.grouping.group_of(group.lane()) == group
    }

    /// The store answered a call.
    pub(super) fn group_answered(
        &mut self,
        context: &SyncContext<'_>,
        id: CallId,
        reply: &StoreReply,
        trip: RoundTrip,
    ) {
        let now = context.now();
        let shard = self.shard(id.group.lane());
        self.links[shard].took(now.since(trip.sent));
        if !self.is_current(id.group) {
            return self.link_succeeded(context.engine, id.group.lane(), now);
        }
        self.note_refunds(context);
        let state = self.group_mut(id.group);
        // The answer to an earlier probe may be older than a batch that arrived since.
        let splits = id.is_probe && state.split == SplitStep::Asked;
        let outcome = match id.is_probe {
            true => state.book.answered_probe(id.sequence, reply, now),
            false => state.book.answered(id.sequence, reply, now),
        };
        state.is_probing &= !id.is_probe;
        state.unanswered_since = state.book.oldest_sent();
        self.link_succeeded(context.engine, id.group.lane(), now);
        self.totals.repaired += reply.repaired;
        self.group_mut(id.group).unsure = false;
        self.take_outcome(id.group, outcome, |sync, batch| {
            match batch.sequence == id.sequence && !id.is_probe {
                true => sync.settle(context, batch, reply, trip.anchor()),
                false => sync.settle_unseen(context, batch),
            }
        });
        if splits {
            self.split(context, id.group, reply);
        }
    }

    fn take_outcome(
        &mut self,
        group: Group,
        outcome: BookOutcome,
        settle: impl Fn(&mut Self, &Arc<Batch>),
    ) {
        self.totals.lost.store = self.totals.lost.store.plus(outcome.lost);
        self.totals.found = self.totals.found.plus(outcome.found);
        match outcome.step {
            BookStep::Settled(batches) => {
                for batch in &batches {
                    self.totals.rounds.settled += 1;
                    settle(self, batch);
                }
            }
            BookStep::Behind => {
                self.totals.rounds.replayed += 1;
                // A store that lost the writes of this group has lost those of others too.
                self.doubt(self.shard(group.lane()));
            }
            BookStep::Replayed | BookStep::Adopted => self.totals.rounds.replayed += 1,
            BookStep::Unchanged => {}
        }
    }

    /// A call failed.
    pub(super) fn group_failed(&mut self, id: CallId) {
        if self.is_current(id.group) {
            let state = self.group_mut(id.group);
            match id.is_probe {
                true => {
                    state.is_probing = false;
                    if state.split == SplitStep::Asked {
                        state.split = SplitStep::Refused;
                    }
                }
                false => state.book.failed(id.sequence),
            }
        }
    }

    /// The server refused a call, because its keys are in several slots: it is a cluster, or a proxy in front of one. The
    /// pod asks what the store has of the group, and then uses a group for each lane.
    pub(super) fn group_refused(&mut self, id: CallId) {
        self.group_failed(id);
        if self.is_current(id.group) && self.grouping == Grouping::Whole {
            self.group_mut(id.group).split = SplitStep::Refused;
        }
    }

    /// Splits the group of all lanes. The store answered to a probe what it has of it.
    fn split(&mut self, context: &SyncContext<'_>, group: Group, reply: &StoreReply) {
        let now = context.now();
        let book = &mut self.group_mut(group).book;
        let (outcome, deltas) = book.close(reply, now);
        let settled = book.settled();
        self.totals.settled_before = self.totals.settled_before.plus(settled);
        self.take_outcome(group, outcome, |sync, batch| {
            sync.settle_unseen(context, batch);
        });
        self.grouping = Grouping::Split;
        self.groups = GroupState::all(self.grouping, self.keys_max);
        self.queue.regroup(&mut self.keys, self.grouping);
        for lane in Lane::all() {
            let of_lane = deltas.iter().filter(|delta| delta.key.lane() == lane);
            let of_lane: Vec<Delta> = of_lane.copied().collect();
            let group = self.grouping.group_of(lane);
            // The group had at most as many open batches as each of the new ones may have.
            for batch in of_lane.chunks(BATCH_MAX) {
                let _ = self.group_mut(group).book.freeze(batch.to_vec(), now);
            }
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
        key_sync.trigger = trigger;
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
        self.look_after(context, &subject);
        self.offer_rider(key);
    }

    /// A shard answered. If it had failed before, it may have lost something, so the pod asks what it has of its groups.
    pub(super) fn link_succeeded(&mut self, engine: &Engine, lane: Lane, now: Nanos) {
        let shard = self.shard(lane);
        if self.links[shard].is_failing() {
            self.doubt(shard);
        }
        self.links[shard].succeeded(now);
        self.update_unreachable(engine, now);
    }

    /// With every heartbeat the pod asks one group of each shard what it has. So it hears from every shard, and the record of
    /// an idle group does not expire. It also asks so many of the groups with batches for a replay that it asks each before
    /// it drops them: so it notices in time a failover that happened while it sent nothing. Before that it drops old ones.
    pub(super) fn doubt_next(&mut self, now: Nanos) {
        for group in &mut self.groups {
            group.book.forget_old(now);
        }
        let (turn, heartbeat_interval) = (
            self.membership.count_heartbeat(),
            self.membership.heartbeat_interval(),
        );
        for shard in 0..self.links.len() {
            let groups = self.groups.iter().zip(&self.shard_of).enumerate();
            let groups = groups.filter(|(_, (_, of))| **of == shard);
            let groups: Vec<usize> = groups.map(|(group, _)| group).collect();
            let keeping = groups.iter().copied();
            let keeping: Vec<usize> = keeping
                .filter(|group| self.groups[*group].book.has_kept())
                .collect();
            let heartbeats = KEPT_ASKED_WITHIN.whole(heartbeat_interval).get().max(1);
            let each = keeping
                .len()
                .div_ceil(usize::try_from(heartbeats).unwrap_or(1));
            let first = turn.wrapping_mul(each) % keeping.len().max(1);
            let next = keeping.iter().cycle().skip(first);
            let probed = next
                .take(each)
                .chain(groups.get(turn % groups.len().max(1)));
            for group in probed {
                self.groups[*group].unsure = true;
            }
        }
    }

    /// Marks the groups of a shard that the pod has to ask what they have.
    fn doubt(&mut self, shard: usize) {
        for (group, of) in self.groups.iter_mut().zip(&self.shard_of) {
            let is_unanswered = group.unanswered_since.is_some();
            group.unsure |= *of == shard && (group.book.has_kept() || is_unanswered);
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
