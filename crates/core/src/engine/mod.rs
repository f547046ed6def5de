//! Shared memory: the buckets and the rules in force. The middle ring.
//!
//! The engine takes the time as an argument and returns values. It reads no clock, does no IO, spawns nothing, logs
//! nothing, and waits for nothing but a lock that another thread holds for a few instructions.

mod admit;
mod answer;
mod atomic;
pub mod buckets;
mod charge;
mod check;
mod fallback;
mod identity;
mod refund;
mod snapshot;
mod stats;
pub mod store_request;
mod strict;
pub mod sync;
mod sync_access;
pub mod sync_queue;
mod throttle;
mod unconfirmed;

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

pub use admit::RuleBytes;
pub use answer::{Answer, Hit, Hits, Source, Verdict};
pub use buckets::Stale;
pub use check::{CheckStep, Question};
pub use fallback::Shares;
pub use identity::{FleetKey, RuleKey};
pub use snapshot::{CallerRule, LimitedKey, Snapshot};
pub use stats::{Stat, Stats};
pub use store_request::StoreClient;
pub use strict::{CheckEnd, StorePlan};
pub use throttle::Throttle;

use crate::pure::{Cells, Rules};
use buckets::Buckets;
use fallback::Fallback;
use refund::RefundInbox;
use sync::Figures;
use sync_queue::Waker;
use unconfirmed::UnconfirmedKeys;

/// How an engine is set up; none of it changes while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The most keys each of its three tables holds.
    pub keys_max: usize,
    /// What the fleet hashes with.
    pub fleet: FleetKey,
    /// Unguessable numbers that place keys in the table.
    pub seeds: [u64; 2],
    /// Whether the pod reports admitted cells to a store.
    pub reporting: bool,
}

thread_local! {
    /// The snapshot this thread used last, so that a check of unchanged rules touches no shared counter.
    static LAST_USED: Cell<Option<LastUsed>> = const { Cell::new(None) };
}

#[derive(Debug)]
struct LastUsed {
    engine: u64,
    snapshot: Arc<Snapshot>,
}

/// The rules in force when a check began: a snapshot that this thread's cache lends, and gets back on drop.
#[derive(Debug)]
pub struct InForce(Option<LastUsed>);

impl Deref for InForce {
    type Target = Snapshot;

    #[inline]
    fn deref(&self) -> &Snapshot {
        match &self.0 {
            Some(last) => &last.snapshot,
            None => unreachable!("it is given back only when it is dropped"),
        }
    }
}

impl Drop for InForce {
    fn drop(&mut self) {
        LAST_USED.set(self.0.take());
    }
}

/// Numbers the engines of a process.
static ENGINES: AtomicU64 = AtomicU64::new(0);

/// The limiter of one pod.
#[derive(Debug)]
pub struct Engine {
    number: u64,
    setup: Setup,
    snapshot: ArcSwap<Snapshot>,
    buckets: Buckets,
    /// Keys that only news denies.
    unconfirmed: UnconfirmedKeys,
    fallback: Fallback,
    refunds: RefundInbox,
    figures: ArcSwap<Figures>,
}

impl Engine {
    /// A limiter with these rules and no history.
    pub fn new(setup: Setup, rules: Rules) -> Self {
        let first = Snapshot::first(rules, &setup.fleet, setup.reporting);
        Self {
            number: ENGINES.fetch_add(1, Ordering::Relaxed),
            buckets: Buckets::new(setup.keys_max, setup.seeds, first.version()),
            snapshot: ArcSwap::from_pointee(first),
            unconfirmed: UnconfirmedKeys::default(),
            fallback: Fallback::default(),
            refunds: RefundInbox::default(),
            figures: ArcSwap::default(),
            setup,
        }
    }

    /// Puts `rules` in force. Running checks finish under the rules that they started with; no check waits. The caller
    /// runs one reload at a time.
    pub fn reload(&self, rules: Rules) {
        let next = self
            .snapshot
            .load()
            .next(rules, &self.setup.fleet, self.setup.reporting);
        let version = next.version();
        self.snapshot.store(Arc::new(next));
        self.buckets.announce(version);
    }

    /// The rules in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The rules in force, without touching anything that threads share unless they have changed.
    #[inline]
    pub fn in_force(&self) -> InForce {
        let current = |last: &LastUsed| {
            last.engine == self.number && last.snapshot.version() == self.buckets.version()
        };
        let last = LAST_USED.take().filter(current);
        InForce(Some(last.unwrap_or_else(|| LastUsed {
            engine: self.number,
            snapshot: self.snapshot(),
        })))
    }

    /// Keys held.
    pub fn keys_held(&self) -> u64 {
        self.keys_by_table().iter().map(|(_, held)| held).sum()
    }

    /// Keys held, by the kind of their buckets.
    pub fn keys_by_table(&self) -> [(&'static str, u64); 3] {
        self.buckets.held_by_kind()
    }

    /// Ghosts that were dropped while their keys were in use, because there were too many.
    pub fn keys_forgotten(&self) -> u64 {
        self.buckets.forgotten()
    }

    /// The pending cells of all buckets.
    pub fn pending(&self) -> Cells {
        self.buckets.pending()
    }

    /// The most keys that each of the three tables holds.
    pub const fn keys_max(&self) -> usize {
        self.setup.keys_max
    }

    /// Keys without a bucket that the fleet denies.
    pub fn mitigations_unseen(&self) -> usize {
        self.buckets.mitigations_unseen()
    }

    /// The figures of the sync; empty without a store.
    pub fn figures(&self) -> Arc<Figures> {
        self.figures.load_full()
    }

    /// Sets whom to wake when keys want a round.
    pub fn set_waker(&self, waker: Waker) {
        self.buckets.sync_queue.set_waker(waker);
    }

    /// Sets which lanes of the store are cut off and which are late, by a bit each, and what this pod grants of their keys
    /// meanwhile. The sync sets the same by itself.
    pub fn set_partition(&self, cut_off: u64, late: u64, shares: Shares) {
        self.set_shares(shares);
        self.set_lanes(cut_off, late);
    }

    /// Running totals.
    pub const fn stats(&self) -> &Stats {
        &self.buckets.stats
    }
}
