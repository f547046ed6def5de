//! The sync of one pod: which cells it reports to the store, when, and what it does with the answers.
//!
//! [`PodSync`] connects the machines of `pure/sync` with the buckets. Its caller says what happened (keys that want a round,
//! answers, news, failures, the time), and it says what to send. It sends nothing itself: `src/sync/driver.rs` and the
//! simulations each run the same machine. It has one owner and no locks.
//!
//! A key is *silent* while this pod uses it within its even share. The first pod to exceed its share makes the key *loud*:
//! it reports its current usage, then every cell, and the store asks the other pods to do the same.
//!
//! `keys.rs` decides for one key, `phase.rs` has its phases, `queue.rs` the order of reports, `freeze.rs` the batches,
//! `riders.rs` the keys that ride along with a call, `groups.rs` the calls and their answers.

mod books;
mod context;
mod figures;
mod freeze;
mod groups;
mod key_sync;
mod keys;
mod membership;
mod news_pacing;
mod news_trust;
mod overdue;
mod phase;
mod queue;
mod refunds;
mod riders;
mod slot_heap;
mod tracked_keys;
mod unreachable;

use std::collections::VecDeque;
use std::sync::Arc;

use super::buckets::KeyBucket;
use super::{Engine, Snapshot};
use crate::pure::sync::{
    Budget, Call, CallId, FleetView, Group, Grouping, Heartbeat, HeartbeatReply, LANES, Lane, Link,
    News, Refund, Share, StoreKey, StoreReply,
};
use crate::pure::{Cells, Moment, Nanos, Span};
use context::SyncContext;
use figures::{KeyCounts, Totals};
use groups::GroupState;
use key_sync::SharedTerms;
use membership::Membership;
use news_pacing::NewsPacing;
use news_trust::NewsTrust;
use queue::SendQueue;
use refunds::RefundQueue;
use tracked_keys::TrackedKeys;
use unreachable::UnreachableLanes;

pub use books::{Books, Loss};
pub use context::RoundTrip;
pub use figures::{Figures, Reason, RuleOvershoot, ShardState};

/// A key that wants a round before its time waits this long for other keys of its group.
const COALESCE: Span = Span::nanos(1_000_000);
/// The pod reports a key at most once in this time, and more rarely in a large fleet.
const GAP: Span = Span::nanos(5_000_000);
const GAP_PER_POD: u64 = 20_000;
/// How long a key stays loud after this pod or another used more than its even share.
const HOLD: Span = Span::seconds(10);

/// The sync tracks one key for so many that the pod holds: a tracked key takes several times the memory of a held one.
const TRACKED_PART: usize = 4;
const TRACKED_MIN: usize = 1_000;

/// How often and how exactly the pod reports.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// The longest time between two reports of a key that has cells to report.
    pub interval: Span,
    /// The part of a bucket that the store may not know.
    pub accuracy: Share,
}

/// What the shell has to send.
#[derive(Debug, Default)]
pub struct SyncActions {
    /// Calls, to be sent in this order.
    pub calls: Vec<Call>,
    /// A heartbeat, if one is due.
    pub heartbeat: Option<Heartbeat>,
    /// Refunds that the store is to give back.
    pub give_back: Vec<Refund>,
}

/// The sync of one pod.
#[derive(Debug)]
pub struct PodSync {
    pace: Pace,
    fleet_view: FleetView,
    grouping: Grouping,
    groups: Vec<GroupState>,
    links: Vec<Link>,
    shard_of: Vec<usize>,
    keys: TrackedKeys,
    terms: SharedTerms,
    keys_max: usize,
    refunds: RefundQueue,
    /// News of keys, and how far this pod trusts it.
    news_trust: NewsTrust,
    budget: Budget,
    /// Keys that wait to be reported.
    queue: SendQueue,
    /// Loud keys that may ride along with the next call, those first that were looked at longest ago.
    riders: VecDeque<StoreKey>,
    membership: Membership,
    unreachable: UnreachableLanes,
    news_pacing: NewsPacing,
    totals: Totals,
    counts: KeyCounts,
    version: u64,
}

impl PodSync {
    /// The sync of a pod that has reported nothing yet.
    ///
    /// A pod that holds `keys_max` keys tracks one in [`TRACKED_PART`] of them. For a replay it keeps as many deltas as it
    /// tracks keys.
    pub fn new(pace: Pace, keys_max: usize, grouping: Grouping) -> Self {
        let fleet_view = FleetView {
            accuracy: pace.accuracy,
            pods: 1,
        };
        let news_trust = NewsTrust::new(keys_max);
        let keys_max = (keys_max / TRACKED_PART).max(TRACKED_MIN);
        Self {
            pace,
            fleet_view,
            grouping,
            groups: GroupState::all(grouping, keys_max),
            links: vec![Link::new()],
            shard_of: vec![0; usize::from(LANES)],
            keys: TrackedKeys::default(),
            terms: SharedTerms::default(),
            keys_max,
            refunds: RefundQueue::default(),
            news_trust,
            budget: Budget::new(1),
            queue: SendQueue::new(grouping),
            riders: VecDeque::new(),
            membership: Membership::default(),
            unreachable: UnreachableLanes::default(),
            news_pacing: NewsPacing::default(),
            totals: Totals::default(),
            counts: KeyCounts::default(),
            version: 0,
        }
    }

    /// Sets the shard of each lane. Links of shards that stay keep their state.
    pub fn set_shards(&mut self, shard_of: impl Fn(Lane) -> usize, shards: usize) {
        self.links.resize_with(shards.max(1), Link::new);
        let last = self.links.len() - 1;
        self.shard_of = Lane::all().map(|lane| shard_of(lane).min(last)).collect();
    }

    /// Everything that the shell has to send now.
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
        while let Some(key) = self.keys.take_due(moment.now) {
            self.look_due(context, key);
        }
        for (key, cells) in engine.take_charges() {
            if let Some(key_sync) = self.keys.get_mut(&key) {
                let history = key_sync.history_mut();
                history.charged = history.charged.plus(cells);
            }
        }
        self.review_news(context);
        self.update_unreachable(engine, moment.now);
        let heartbeat = self.heartbeat(moment.now);
        if heartbeat.is_some() && !self.membership.is_prompted() {
            self.doubt_next(moment.now);
        }
        // Before the calls: a busy key is at rest only now and then.
        self.note_refunds(context);
        let give_back = self.send_refunds(context);
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
        let due = self.keys.next_look();
        let groups = self.grouping.groups();
        let groups = groups.filter_map(|group| self.group_opens(group, now));
        let reachable = self.is_reachable(Lane::new(0));
        let heartbeat = reachable.then(|| self.membership.heartbeat_due(now));
        let affordable = self.affordable_at(now);
        let refunds = self.refunds_open(now);
        let all = due.into_iter().chain(groups).chain(heartbeat);
        let all = all
            .chain(self.news_trust.next_at())
            .chain(affordable)
            .chain(refunds);
        // There is always something to do later: a probe, a heartbeat.
        all.min().unwrap_or_else(|| now.after(self.pace.interval))
    }

    /// The store answered a call.
    pub fn call_answered(
        &mut self,
        engine: &Engine,
        id: CallId,
        reply: &StoreReply,
        trip: RoundTrip,
    ) {
        let snapshot = engine.snapshot();
        let context = SyncContext {
            engine,
            snapshot: &snapshot,
            moment: trip.back,
        };
        self.group_answered(&context, id, reply, trip);
    }

    /// The store did not answer a call, or gave an invalid answer. `jitter` is any random number.
    pub fn call_failed(&mut self, engine: &Engine, id: CallId, now: Nanos, jitter: u64) {
        self.group_failed(id);
        self.totals.rounds.returned += 1;
        self.request_failed(engine, id.group.lane(), now, jitter);
    }

    /// The server refused a call because its keys are in several slots: it is no single server. Nothing was applied.
    pub fn call_refused(&mut self, engine: &Engine, id: CallId, now: Nanos) {
        self.group_refused(id);
        self.totals.rounds.returned += 1;
        self.link_succeeded(engine, id.group.lane(), now);
    }

    /// The store answered a request in `lane` that is not a call of the sync.
    pub fn request_answered(&mut self, engine: &Engine, lane: Lane, now: Nanos) {
        self.link_succeeded(engine, lane, now);
    }

    /// The store did not answer a request in `lane` that is not a call of the sync.
    pub fn request_failed(&mut self, engine: &Engine, lane: Lane, now: Nanos, jitter: u64) {
        let shard = self.shard(lane);
        self.links[shard].failed(now, jitter);
        self.update_unreachable(engine, now);
    }

    /// Another pod, or the store, published news.
    pub fn news_received(&mut self, engine: &Engine, news: News, moment: Moment) {
        let snapshot: Arc<Snapshot> = engine.snapshot();
        let context = SyncContext {
            engine,
            snapshot: &snapshot,
            moment,
        };
        self.receive_news(&context, news);
    }

    /// The store answered a heartbeat.
    pub fn heartbeat_answered(&mut self, engine: &Engine, reply: &HeartbeatReply, moment: Moment) {
        let snapshot = engine.snapshot();
        let context = SyncContext {
            engine,
            snapshot: &snapshot,
            moment,
        };
        self.link_succeeded(engine, Lane::new(0), moment.now);
        for key in &reply.reset_keys {
            self.reset(&context, *key);
        }
        self.membership.heartbeat_answered(reply);
        // A higher number of pods counts at once. A lower one does not: after an outage pods come back one by one.
        if reply.pods > self.fleet_view.pods || self.membership.is_steady() {
            self.fleet_view.pods = reply.pods.max(1);
            self.budget.set_pods(self.fleet_view.pods, moment.now);
        }
        self.set_openings(&context);
    }

    /// The store did not answer a heartbeat.
    pub fn heartbeat_failed(&mut self, engine: &Engine, now: Nanos, jitter: u64) {
        self.membership.heartbeat_failed();
        self.request_failed(engine, Lane::new(0), now, jitter);
    }

    /// This pod stops: it reports all loud keys at once, and tells the fleet with its last heartbeat that it leaves.
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
            let unsent = self
                .keys
                .get(&key)
                .map_or(Cells::ZERO, |key_sync| key_sync.unsent.gross);
            if pending.unwrap_or(Cells::ZERO).plus(unsent) > Cells::ZERO {
                self.enqueue(context, key, Reason::Drain);
            }
        }
    }

    /// Whether the store has confirmed every cell of the loud keys, as far as it is reachable.
    pub fn is_settled(&self) -> bool {
        let mut groups = self.groups.iter().zip(self.grouping.groups());
        let reported = groups.all(|(state, group)| {
            let idle = state.book.is_idle() && self.queue.is_empty_in(group);
            idle || !self.is_reachable(group.lane())
        });
        reported && self.refunds.is_settled(|key| self.is_reachable(key.lane()))
    }

    /// Whether the shard of `lane` is reachable.
    pub fn is_reachable(&self, lane: Lane) -> bool {
        !self.links[self.shard(lane)].is_partitioned()
    }

    /// The next heartbeat, if it is due and the store is reachable.
    fn heartbeat(&mut self, now: Nanos) -> Option<Heartbeat> {
        let is_reachable = self.is_reachable(Lane::new(0));
        is_reachable
            .then(|| self.membership.heartbeat(now))
            .flatten()
    }

    fn loud(&self) -> impl Iterator<Item = StoreKey> {
        let keys = self.keys.iter();
        keys.filter(|(_, key_sync)| key_sync.is_loud())
            .map(|(key, _)| key)
    }

    fn shard(&self, lane: Lane) -> usize {
        self.shard_of[usize::from(lane.number())]
    }

    fn group_of(&self, key: StoreKey) -> Group {
        self.grouping.group_of(key.lane())
    }

    fn group_mut(&mut self, group: Group) -> &mut GroupState {
        &mut self.groups[group.index()]
    }

    fn gap(&self) -> Span {
        GAP.max(Span::nanos(
            self.fleet_view.pods.saturating_mul(GAP_PER_POD),
        ))
    }
}
