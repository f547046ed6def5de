//! What happens in a lane: keys wait for it, become a batch, and are answered; and how its shard can be reached.

use super::fleet::Reason;
use super::tracked::{Carry, Flight, Tracked, Use};
use super::{COALESCE, HOLD, Here, LaneState, Rounds, Trip, UnderWay};
use crate::engine::Engine;
use crate::engine::admit::Asked;
use crate::engine::collect::{Answered, Frozen, Seat};
use crate::pure::sync::{
    BATCH_MAX, Batch, CALL_COST, Call, Delta, Demand, Family, Lane, Reply, Share, Step, StoreKey,
    Told, Trigger,
};
use crate::pure::{Cells, Nanos, Span};

/// A lane that keeps batches for a replay is asked what it has at least so often, before it lets go of them.
const KEPT_ASKED_WITHIN: Span = Span::seconds(20);

impl Rounds {
    /// A key wants a round: now, or once its gap has passed.
    pub(super) fn want(&mut self, key: StoreKey, now: Nanos, reason: Reason) {
        let gap = self.gap();
        let Some(tracked) = self.keys.get_mut(&key) else {
            return;
        };
        let gap = if tracked.is_thin { Span::ZERO } else { gap };
        if tracked.waiting || tracked.flight.is_some() {
            return; // whoever lands it looks what is pending
        }
        let earliest = tracked.sent.after(gap);
        if tracked.sent > Nanos::default() && earliest > now {
            tracked.postponed = Some(reason);
            self.look_again(key, earliest);
            return;
        }
        self.wait_in_lane(key, now, reason);
    }

    pub(super) fn wait_in_lane(&mut self, key: StoreKey, now: Nanos, reason: Reason) {
        let opens = match self.keys.get_mut(&key) {
            Some(tracked) if !tracked.waiting && tracked.flight.is_none() => {
                tracked.waiting = true;
                now.after(if tracked.is_thin {
                    Span::ZERO
                } else {
                    COALESCE
                })
            }
            Some(_) | None => return,
        };
        self.fleet.count(reason);
        let lane = self.lane_mut(key.lane());
        lane.opens = match lane.waiting.is_empty() {
            true => opens,
            false => lane.opens.min(opens),
        };
        lane.waiting.push(key);
    }

    /// When a lane has something to send, if it has.
    pub(super) fn lane_opens(&self, index: usize, lane: &LaneState, now: Nanos) -> Option<Nanos> {
        if lane.under_way != UnderWay::Nothing {
            let late_at = lane.unanswered_since?.after(self.late_after(index));
            return Some(late_at).filter(|at| *at > now);
        }
        let link = &self.links[self.shard_of[index]];
        let link_opens = link.next_at().unwrap_or(now);
        let waits = !lane.waiting.is_empty();
        if link.is_partitioned() || !lane.book.is_idle() || lane.unsure {
            return Some(link_opens);
        }
        let affordable = || self.budget.next_at(CALL_COST + 1, now);
        waits.then(|| lane.opens.max(link_opens).max(affordable()))
    }

    /// The calls to send now.
    pub(super) fn calls(&mut self, here: &Here<'_>) -> Vec<Call> {
        let now = here.now();
        let mut calls = Vec::new();
        let news_step = self.fleet.news_step(now);
        for lane in Lane::all() {
            let shard = self.shard(lane);
            let ready = self.links[shard].next_at().is_none_or(|at| at <= now);
            if !ready || self.lane_mut(lane).under_way != UnderWay::Nothing {
                continue;
            }
            // What is pending stays so until the store can be told: it is billed by then.
            if !self.links[shard].is_partitioned() {
                self.fill(here, lane);
            }
            let partitioned = self.links[shard].is_partitioned();
            let state = self.lane_mut(lane);
            state.book.forget_old(now);
            let (call, under_way) = match state.book.call(now) {
                Some(call) => (Call { news_step, ..call }, UnderWay::Batch),
                None if state.unsure || partitioned => (state.book.probe(), UnderWay::Probe),
                None => continue,
            };
            if self.links[shard].may_call(now) {
                let state = self.lane_mut(lane);
                state.under_way = under_way;
                state.called = call.sequence;
                state.unanswered_since.get_or_insert(now);
                self.fleet.sent(&call);
                calls.push(call);
            }
        }
        calls
    }

    /// Makes a batch of the keys that wait for a lane, if it is their time.
    fn fill(&mut self, here: &Here<'_>, lane: Lane) {
        let now = here.now();
        let affordable = self.budget.available(now).saturating_sub(CALL_COST);
        let state = self.lane_mut(lane);
        if !state.book.is_idle() || state.waiting.is_empty() || state.opens > now {
            return;
        }
        let most = state.waiting.len().min(BATCH_MAX).min(affordable);
        let keys: Vec<StoreKey> = state.waiting.drain(..most).collect();
        let deltas: Vec<Delta> = keys
            .into_iter()
            .filter_map(|key| self.freeze(here, key))
            .collect();
        if !deltas.is_empty() {
            let _ = self.budget.take(deltas.len() + CALL_COST, now);
        }
        // An idle lane takes them.
        let _ = self.lane_mut(lane).book.freeze(deltas, now);
    }

    /// What is to be told of a key, which is in flight from now on; `None` if there is nothing.
    fn freeze(&mut self, here: &Here<'_>, key: StoreKey) -> Option<Delta> {
        let now = here.now();
        let share = self.share_of(key);
        let asked = here.subject(key);
        let even_share = asked.as_ref().and_then(|asked| self.even_share(asked));
        let tracked = self.keys.get_mut(&key)?;
        tracked.waiting = false;
        tracked.sent = now;
        if let Some(asked) = asked.as_ref().filter(|_| key.family == Family::Carried) {
            // Its callers may say something else every time.
            tracked.limit = asked.limit;
            tracked.terms = asked.terms();
        }
        let nothing = Frozen {
            cells: Cells::ZERO,
            price: Span::ZERO,
            tat: now,
            at: now,
            age: Span::ZERO,
        };
        let frozen = asked.as_ref().and_then(|asked| here.engine.freeze(asked));
        let frozen = frozen.unwrap_or(nothing);
        let cells = frozen.cells;
        let price = tracked.price(frozen.price, share, frozen.tat, now);
        let Carry { gross: carried, .. } = std::mem::take(&mut tracked.carry);
        let gross = cells.plus(carried);
        if gross == Cells::ZERO && price == Span::ZERO {
            if let Some(asked) = &asked {
                here.engine.land(asked, Trigger::EACH);
            }
            self.look_again(key, now.after(self.pace.interval));
            return None;
        }
        tracked.alone = None;
        tracked.demand.add(gross, now);
        // Said even by a pod that is not sure of its even share: others may be, and silent.
        match even_share.map(|share| tracked.used_and_told(&share, cells, now)) {
            Some(Use::Beyond) => {
                tracked.announce = true;
                tracked.stay_loud(now.after(HOLD));
            }
            Some(Use::Within) => {}
            None => tracked.stay_loud(now.after(self.pace.interval.plus(self.pace.interval))),
        }
        tracked.flight = Some(Flight {
            frozen,
            terms: tracked.terms,
            seat: asked
                .as_ref()
                .map_or(Seat::None, |asked| here.engine.seat(asked)),
            stale: false,
        });
        let news_step = self.fleet.news_step;
        Some(Delta {
            key,
            terms: tracked.terms.heard_every(news_step),
            gross,
            price,
            billed: gross,
            age: frozen.age,
            share,
            live: std::mem::take(&mut tracked.announce),
        })
    }

    /// A lane's call was answered.
    pub(super) fn lane_answered(&mut self, here: &Here<'_>, lane: Lane, reply: &Reply, trip: Trip) {
        let now = here.now();
        self.lane_mut(lane).unanswered_since = None;
        let shard = self.shard(lane);
        self.links[shard].took(now.since(trip.sent));
        self.link_succeeded(here.engine, lane, now);
        self.fleet.repaired += reply.repaired;
        let state = self.lane_mut(lane);
        let outcome = match std::mem::replace(&mut state.under_way, UnderWay::Nothing) {
            UnderWay::Batch => state.book.answered(reply, now),
            UnderWay::Probe | UnderWay::Nothing => state.book.answered_probe(reply, now),
        };
        state.unsure = false;
        let called = state.called;
        self.fleet.lost.store = self.fleet.lost.store.plus(outcome.lost);
        self.fleet.found = self.fleet.found.plus(outcome.found);
        match outcome.step {
            Step::Settled(batch) => {
                self.fleet.rounds.settled += 1;
                match called == batch.sequence {
                    true => self.settled(here, &batch, reply, trip.anchor()),
                    false => self.settled_unseen(here, &batch),
                }
            }
            Step::Behind => {
                self.fleet.rounds.replayed += 1;
                // What lost this lane's writes has lost others' too.
                self.doubt(self.shard(lane));
            }
            Step::Replayed | Step::Adopted => self.fleet.rounds.replayed += 1,
            Step::Unchanged => {}
        }
    }

    fn settled(&mut self, here: &Here<'_>, batch: &Batch, reply: &Reply, anchor: Nanos) {
        for (delta, told) in batch.deltas.iter().zip(&reply.told) {
            self.told(here, delta, *told, anchor);
        }
    }

    /// The answer was to another call than the one that told the batch, so nothing is known of its keys' levels.
    fn settled_unseen(&mut self, here: &Here<'_>, batch: &Batch) {
        for delta in &batch.deltas {
            self.landed_unseen(here, delta.key);
        }
    }

    /// A key has landed, and nothing is known of its level.
    fn landed_unseen(&mut self, here: &Here<'_>, key: StoreKey) {
        let Some(tracked) = self.keys.get_mut(&key) else {
            return; // let go of meanwhile
        };
        if let Some(flight) = tracked.flight.take() {
            here.engine.release(flight.seat);
        }
        self.look_again(key, here.now());
    }

    /// Takes in how a key stands.
    fn told(&mut self, here: &Here<'_>, delta: &Delta, told: Told, anchor: Nanos) {
        let (key, now) = (delta.key, here.now());
        self.fleet.told(delta, told);
        let terrain = self.terrain;
        let (Some(tracked), Some(asked)) = (self.keys.get_mut(&key), here.subject(key)) else {
            self.landed_unseen(here, key);
            return;
        };
        let same_line = key.family == Family::Carried;
        let same_bucket =
            |flight: &Flight| !flight.stale && (same_line || flight.terms == asked.terms());
        let Some(flight) = tracked.flight.filter(same_bucket) else {
            self.landed_unseen(here, key);
            return;
        };
        tracked.flight = None;
        let answered = Answered {
            told,
            anchor,
            frozen: flight.frozen,
        };
        let (whole, room) = learn(tracked, &asked, told, (terrain.pods, now));
        let trigger = terrain.trigger(whole, room, tracked.weight);
        let wants = here.engine.fold(&asked, &answered, trigger);
        if self.fleet.is_leaving() {
            let pending = here.engine.pending_of(&asked).unwrap_or(Cells::ZERO);
            if pending > Cells::ZERO {
                self.wait_in_lane(key, now, Reason::Drain);
            }
        } else if wants {
            self.want(key, now, Reason::Trigger);
        }
        self.look_again(key, now.after(self.age_max(&asked)));
    }

    /// A shard answered. If it had not before, what it has is asked for again: it may have lost something.
    pub(super) fn link_succeeded(&mut self, engine: &Engine, lane: Lane, now: Nanos) {
        let shard = self.shard(lane);
        if self.links[shard].is_failing() {
            self.doubt(shard);
        }
        self.links[shard].succeeded(now);
        self.links_changed(engine, now);
    }

    /// With every sign of life one lane of each shard is asked what it has: so every shard is heard of, and an idle lane's
    /// record does not expire. And of those that keep something that may have to be replayed, so many that each is asked
    /// before it lets go of that: a failover that a pod slept through is noticed in time.
    pub(super) fn doubt_next(&mut self) {
        let (turn, beat_every) = (self.fleet.next_turn(), self.fleet.beat_every());
        for shard in 0..self.links.len() {
            let of_shard = self.shard_of.iter().enumerate();
            let lanes = of_shard.filter(|(_, of)| **of == shard);
            let lanes: Vec<usize> = lanes.map(|(lane, _)| lane).collect();
            let keeping = lanes.iter().copied();
            let keeping: Vec<usize> = keeping
                .filter(|lane| self.lanes[*lane].book.has_kept())
                .collect();
            let beats = KEPT_ASKED_WITHIN.whole(beat_every).get().max(1);
            let each = keeping.len().div_ceil(usize::try_from(beats).unwrap_or(1));
            let first = turn.wrapping_mul(each) % keeping.len().max(1);
            let next = keeping.iter().cycle().skip(first);
            let asked = next.take(each).chain(lanes.get(turn % lanes.len().max(1)));
            for lane in asked {
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

    fn share_of(&self, key: StoreKey) -> Share {
        let weight = self
            .keys
            .get(&key)
            .map_or(Share::even(self.terrain.pods), |key| key.weight);
        Share::fallback(weight, self.terrain.pods)
    }
}

/// Learns this pod's part of a key's demand, and says how large the key is and how much of it is free.
fn learn(
    tracked: &mut Tracked,
    asked: &Asked<'_>,
    told: Told,
    (pods, now): (u64, Nanos),
) -> (Cells, Cells) {
    match told {
        Told::Level { level, demand, .. } => {
            if demand > 0 {
                let measured = Demand::weight(tracked.demand.at(now), demand);
                tracked.weight = measured.min(tracked.weight.grown(pods));
            }
            let capacity = asked.limit.capacity();
            if level.plus(level) > capacity {
                // Whoever is silent of a key that is close to its limit sees no room but its own.
                tracked.stay_loud(now.after(HOLD));
            }
            if level.plus(asked.limit.interval()) > capacity {
                tracked.full_until = now.after(level);
            }
            let room = capacity.less(level).whole(asked.limit.interval());
            (asked.limit.burst(), room)
        }
        Told::Window { current, left, .. } => {
            let requests = Cells::new(asked.limit.requests());
            if current >= requests {
                tracked.full_until = now.after(left);
            }
            (requests, requests.less(current))
        }
    }
}
