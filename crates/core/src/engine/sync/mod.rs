//! The rounds of one pod: which cells are told to the store, when, and what becomes of the answers.
//!
//! Puts the machines of `pure/sync` together with the buckets. Told what happened (keys that want a round, answers,
//! news, failures, the time), it says what to send. It sends nothing itself: `sync/driver.rs` does, and so does a
//! simulation. One owner, no locks.
//!
//! A key is *silent* while this pod uses it within its even share, else *loud*: everything of it is told, and the other
//! pods are asked to do the same.

mod books;
mod figures;
mod key_sync;
mod keys;
mod lanes;
mod membership;
mod news_pacing;
mod news_trust;
mod overdue;
mod phase;
mod queue;
mod refunds;
mod unreachable;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::buckets::Subject;
use super::{Engine, Snapshot};
use crate::engine::buckets::KeyBucket;
use crate::pure::sync::{
    Budget, Call, FleetView, Heartbeat, HeartbeatReply, LANES, Lane, LaneBook, Link, News, Refund,
    Reply, Share, StoreKey,
};
use crate::pure::{Cells, Moment, Nanos, Span};
use figures::{KeyCounts, Totals};
use key_sync::KeySync;
use membership::Membership;
use news_pacing::NewsPacing;
use news_trust::NewsTrust;
use queue::SendQueue;
use refunds::RefundQueue;
use unreachable::UnreachableLanes;

pub use books::{Books, Loss};
pub use figures::{Figures, Reason, ShardState};

/// Early rounds wait this long for others of their lane.
const COALESCE: Span = Span::nanos(1_000_000);
/// A key is told at most once in this time, and more rarely in a large fleet.
const GAP: Span = Span::nanos(5_000_000);
const GAP_PER_POD: u64 = 20_000;
/// How long a key stays loud after this pod or another used more than its even share.
const HOLD: Span = Span::seconds(10);

/// A key that is kept in mind takes several times the memory of one that is held.
const TRACKED_PART: usize = 4;
const TRACKED_MIN: usize = 1_000;

/// How often and how exactly to tell the store.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The slowest a key that has cells to tell is told.
    pub interval: Span,
    /// The part of a bucket that may be unseen by the store.
    pub accuracy: Share,
}

/// What to do next.
#[derive(Debug, Default)]
pub struct SyncActions {
    /// Calls to send. Each lane has at most one under way.
    pub calls: Vec<Call>,
    /// A sign of life to send.
    pub heartbeat: Option<Heartbeat>,
    /// Refunded cells to give back in the store.
    pub give_back: Vec<Refund>,
}

/// When a call was sent and when its answer came.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Before it was sent.
    pub sent: Nanos,
    /// After the answer was read.
    pub back: Moment,
}

impl RoundTrip {
    /// The point that an answer holds for: some point of the way there and back; the middle is never far off.
    fn anchor(&self) -> Nanos {
        let there_and_back = self.back.now.since(self.sent).get();
        self.sent.after(Span::nanos(there_and_back / 2))
    }
}

/// The rounds.
#[derive(Debug)]
pub struct PodSync {
    pace: Pace,
    fleet_view: FleetView,
    lanes: Vec<LaneState>,
    links: Vec<Link>,
    shard_of: Vec<usize>,
    /// Boxed: a map is up to twice as large as what is in it, and three times while it grows.
    keys: HashMap<StoreKey, Box<KeySync>>,
    due: BTreeSet<(Nanos, StoreKey)>,
    keys_max: usize,
    refunds: RefundQueue,
    /// What other pods say of keys, as far as it matters.
    news_trust: NewsTrust,
    budget: Budget,
    /// Keys that wait to be reported.
    queue: SendQueue,
    membership: Membership,
    unreachable: UnreachableLanes,
    news_pacing: NewsPacing,
    totals: Totals,
    counts: KeyCounts,
    version: u64,
}

/// One lane of the store, as this pod uses it.
#[derive(Debug)]
struct LaneState {
    book: LaneBook,
    /// When the next round may begin.
    opens: Nanos,
    in_flight: LaneCall,
    /// The number of the last call: its answer is of that call's keys.
    called: u64,
    /// When the first call was made that was not answered yet.
    unanswered_since: Option<Nanos>,
    /// Whether the store may have lost what it had: to be asked.
    unsure: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LaneCall {
    None,
    Batch,
    Probe,
}

/// Where and when something happens to the rounds.
struct SyncContext<'a> {
    engine: &'a Engine,
    snapshot: &'a Snapshot,
    moment: Moment,
}

impl<'a> SyncContext<'a> {
    const fn now(&self) -> Nanos {
        self.moment.now
    }

    fn subject_of_key(&self, key: StoreKey) -> Option<Subject<'a>> {
        self.engine.subject_of_key(self.snapshot, key, self.moment)
    }
}

impl PodSync {
    /// The rounds of a pod that has told nothing yet.
    ///
    /// Of as many keys as it holds, `keys_max`, a pod keeps one in [`TRACKED_PART`] in mind, and of what it told as much
    /// as it would tell if each of those was told once.
    pub fn new(pace: Pace, keys_max: usize) -> Self {
        let fleet_view = FleetView {
            accuracy: pace.accuracy,
            pods: 1,
        };
        let news_trust = NewsTrust::new(keys_max);
        let keys_max = (keys_max / TRACKED_PART).max(TRACKED_MIN);
        let lane = |lane| LaneState {
            book: LaneBook::new(lane).keeping(keys_max / usize::from(LANES)),
            opens: Nanos::default(),
            in_flight: LaneCall::None,
            called: 0,
            unanswered_since: None,
            unsure: false,
        };
        Self {
            pace,
            fleet_view,
            lanes: Lane::all().map(lane).collect(),
            links: vec![Link::new()],
            shard_of: vec![0; usize::from(LANES)],
            keys: HashMap::new(),
            due: BTreeSet::new(),
            keys_max,
            refunds: RefundQueue::default(),
            news_trust,
            budget: Budget::new(1),
            queue: SendQueue::default(),
            membership: Membership::default(),
            unreachable: UnreachableLanes::default(),
            news_pacing: NewsPacing::default(),
            totals: Totals::default(),
            counts: KeyCounts::default(),
            version: 0,
        }
    }

    /// Says which shard each lane is in. Links of shards that stay keep their state.
    pub fn set_shards(&mut self, shard_of: impl Fn(Lane) -> usize, shards: usize) {
        self.links.resize_with(shards.max(1), Link::new);
        let last = self.links.len() - 1;
        self.shard_of = Lane::all().map(|lane| shard_of(lane).min(last)).collect();
    }

    /// Everything that is to be sent now.
    pub fn turn(&mut self, engine: &Engine, moment: Moment) -> SyncActions {
        let snapshot = engine.snapshot();
        let context = &SyncContext {
            engine,
            snapshot: &snapshot,
            moment,
        };
        if self.version != snapshot.version() {
            self.rules_changed(context);
        }
        for key in engine.take_queued() {
            self.trigger_reached(context, key);
        }
        while let Some((at, key)) = self.due.first().copied()
            && at <= moment.now
        {
            self.due.pop_first();
            self.look_due(context, key);
        }
        for (key, cells) in engine.take_charges() {
            if let Some(key_sync) = self.keys.get_mut(&key) {
                key_sync.charged = key_sync.charged.plus(cells);
            }
        }
        self.look_after_hearsay(context);
        self.update_unreachable(engine, moment.now);
        let heartbeat = self.heartbeat(moment.now);
        if heartbeat.is_some() && !self.membership.is_prompted() {
            self.doubt_next();
        }
        // First: a busy key is at rest only now and then.
        self.note_refunds(context);
        let give_back = self.give_back(context);
        let turn = SyncActions {
            calls: self.calls(context),
            heartbeat,
            give_back,
        };
        self.show(engine, moment.now);
        turn
    }

    /// When to take the next turn if nothing else happens.
    pub fn next_turn(&self, now: Nanos) -> Nanos {
        let due = self.due.first().map(|(at, _)| *at);
        let lanes = Lane::all().zip(&self.lanes);
        let lanes = lanes.filter_map(|(number, lane)| self.lane_opens(number, lane, now));
        let reachable = self.is_reachable(Lane::new(0));
        let heartbeat = reachable.then(|| self.membership.heartbeat_due(now));
        let affordable = self.affordable_at(now);
        let refunds = self.refunds_open(now);
        let all = due.into_iter().chain(lanes).chain(heartbeat);
        let all = all
            .chain(self.news_trust.next_at())
            .chain(affordable)
            .chain(refunds);
        // Something is always looked at again: a probe, a sign of life.
        all.min().unwrap_or_else(|| now.after(self.pace.interval))
    }

    /// The store answered.
    pub fn answered(&mut self, engine: &Engine, lane: Lane, reply: &Reply, trip: RoundTrip) {
        let snapshot = engine.snapshot();
        let context = SyncContext {
            engine,
            snapshot: &snapshot,
            moment: trip.back,
        };
        self.lane_answered(&context, lane, reply, trip);
    }

    /// The store did not answer, or not what it was asked. `jitter` is any random number.
    pub fn failed(&mut self, engine: &Engine, lane: Lane, now: Nanos, jitter: u64) {
        self.lane_mut(lane).in_flight = LaneCall::None;
        self.totals.rounds.returned += 1;
        self.unanswered(engine, lane, now, jitter);
    }

    /// The store did something else that it was asked for in `lane`.
    pub fn reached(&mut self, engine: &Engine, lane: Lane, now: Nanos) {
        self.link_succeeded(engine, lane, now);
    }

    /// The store did not do something else that it was asked for in `lane`.
    pub fn unanswered(&mut self, engine: &Engine, lane: Lane, now: Nanos, jitter: u64) {
        let shard = self.shard(lane);
        self.links[shard].failed(now, jitter);
        self.update_unreachable(engine, now);
    }

    /// Other pods told something.
    pub fn news_received(&mut self, engine: &Engine, news: News, moment: Moment) {
        let snapshot: Arc<Snapshot> = engine.snapshot();
        let context = SyncContext {
            engine,
            snapshot: &snapshot,
            moment,
        };
        self.receive_news(&context, news);
    }

    /// A sign of life was answered.
    pub fn heartbeat_answered(
        &mut self,
        engine: &Engine,
        heartbeat_answered: &HeartbeatReply,
        moment: Moment,
    ) {
        let snapshot = engine.snapshot();
        let context = SyncContext {
            engine,
            snapshot: &snapshot,
            moment,
        };
        self.link_succeeded(engine, Lane::new(0), moment.now);
        for key in &heartbeat_answered.reset_keys {
            self.reset(&context, *key);
        }
        self.membership.heartbeat_answered(heartbeat_answered);
        // More pods are believed at once. Fewer are not: after an outage they come back one by one.
        if heartbeat_answered.pods > self.fleet_view.pods || self.membership.is_steady() {
            self.fleet_view.pods = heartbeat_answered.pods.max(1);
            self.budget.set_pods(self.fleet_view.pods, moment.now);
        }
        self.set_openings(&context);
    }

    /// A sign of life was not answered.
    pub fn heartbeat_failed(&mut self, engine: &Engine, now: Nanos, jitter: u64) {
        self.membership.heartbeat_failed();
        self.unanswered(engine, Lane::new(0), now, jitter);
    }

    /// This pod stops: whatever is loud is told without waiting for its time, and the fleet that it leaves.
    pub fn drain(&mut self, engine: &Engine, moment: Moment) {
        let snapshot = engine.snapshot();
        let context = &SyncContext {
            engine,
            snapshot: &snapshot,
            moment,
        };
        self.membership.leave();
        for key in engine.take_queued() {
            self.trigger_reached(context, key);
        }
        let mut loud: Vec<StoreKey> = self.loud().collect();
        loud.sort_unstable();
        for key in loud {
            let pending = context
                .subject_of_key(key)
                .and_then(|subject| engine.bucket(&subject).pending());
            let carried = self
                .keys
                .get(&key)
                .map_or(Cells::ZERO, |key_sync| key_sync.unsent.gross);
            if pending.unwrap_or(Cells::ZERO).plus(carried) > Cells::ZERO {
                self.enqueue(context, key, Reason::Drain);
            }
        }
    }

    /// Whether everything loud has been told, and the store has said so, as far as it can be reached.
    pub fn is_settled(&self) -> bool {
        let mut lanes = self.lanes.iter().zip(Lane::all());
        let reported = lanes.all(|(state, lane)| {
            let idle = state.book.is_idle() && self.queue.is_empty_in(lane);
            idle || !self.is_reachable(lane)
        });
        reported && self.refunds.is_settled(|key| self.is_reachable(key.lane()))
    }

    /// Whether the store can be told of what is in `lane`.
    pub fn is_reachable(&self, lane: Lane) -> bool {
        !self.links[self.shard(lane)].is_partitioned()
    }

    /// The next heartbeat, if it is time and the store can be reached.
    fn heartbeat(&mut self, now: Nanos) -> Option<Heartbeat> {
        let is_reachable = self.is_reachable(Lane::new(0));
        is_reachable
            .then(|| self.membership.heartbeat(now))
            .flatten()
    }

    fn loud(&self) -> impl Iterator<Item = StoreKey> {
        let keys = self.keys.iter();
        keys.filter(|(_, key_sync)| key_sync.is_loud())
            .map(|(key, _)| *key)
    }

    fn shard(&self, lane: Lane) -> usize {
        self.shard_of[usize::from(lane.number())]
    }

    fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[usize::from(lane.number())]
    }

    fn gap(&self) -> Span {
        GAP.max(Span::nanos(
            self.fleet_view.pods.saturating_mul(GAP_PER_POD),
        ))
    }
}
