//! Shared memory: the buckets and the rules in force. The middle ring.
//!
//! The engine takes the time as an argument and returns values. It reads no clock, does no IO, spawns nothing, logs
//! nothing and never waits for anything but a neighbour's few instructions.

mod admit;
mod answer;
mod atomic;
mod carried;
mod charge;
mod check;
mod collect;
mod fallback;
mod ghosts;
mod identity;
mod mitigations;
mod placement;
mod refund;
mod snapshot;
mod stats;
pub mod store_request;
mod strict;
mod striped_map;
pub mod sync;
pub mod sync_queue;
pub mod table;
mod throttle;
mod unconfirmed;
mod windows;

use std::cell::Cell;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

pub use admit::{RuleBytes, Stale};
pub use answer::{Answer, Hit, Hits, Source, Verdict};
pub use check::{CheckStep, Question};
pub use store_request::StoreClient;

pub use fallback::Shares;
pub use identity::{FleetKey, RuleKey};
pub use snapshot::{CallerRule, Snapshot};
pub use stats::{Stat, Stats};
pub use strict::{CheckEnd, StorePlan};
pub use throttle::Throttle;

use crate::pure::Rules;
use carried::Carried;
use charge::Charges;
use fallback::Fallback;
use mitigations::Mitigations;
use refund::Refunds;
use sync::Figures;
use sync_queue::{SyncQueue, Waker};
use table::Table;
use unconfirmed::UnconfirmedKeys;
use windows::Windows;

/// Of the keys that are held, one in so many may be known only as denied by the fleet.
const MITIGATIONS_PART: usize = 16;

/// How an engine is set up; none of it changes while it runs.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The most keys each of its three tables holds.
    pub keys_max: usize,
    /// What the fleet hashes with.
    pub fleet: FleetKey,
    /// Unguessable numbers that place keys in the table.
    pub seeds: [u64; 2],
    /// Whether admitted cells are noted for a store.
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

/// The rules in force when they were asked for: a snapshot on loan from this thread's memory.
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
    /// The version of `snapshot`, where it can be read without touching that.
    version: AtomicU64,
    table: Table,
    windows: Windows,
    carried: Carried,
    mitigations: Mitigations,
    unconfirmed: UnconfirmedKeys,
    fallback: Fallback,
    sync_queue: SyncQueue,
    refunds: Refunds,
    charges: Charges,
    figures: ArcSwap<Figures>,
    stats: Stats,
}

impl Engine {
    /// A limiter with these rules and no history.
    pub fn new(setup: Setup, rules: Rules) -> Self {
        let first = Snapshot::first(rules, &setup.fleet, setup.reporting);
        Self {
            number: ENGINES.fetch_add(1, Ordering::Relaxed),
            version: AtomicU64::new(first.version()),
            snapshot: ArcSwap::from_pointee(first),
            table: Table::new(setup.keys_max, setup.seeds),
            windows: Windows::new(setup.keys_max, setup.seeds),
            carried: Carried::new(setup.keys_max, setup.seeds),
            mitigations: Mitigations::new(setup.keys_max / MITIGATIONS_PART),
            unconfirmed: UnconfirmedKeys::default(),
            fallback: Fallback::default(),
            sync_queue: SyncQueue::default(),
            refunds: Refunds::default(),
            charges: Charges::default(),
            figures: ArcSwap::default(),
            stats: Stats::default(),
            setup,
        }
    }

    /// Puts `rules` in force. Checks under way finish under the rules they started with; no check waits. One reload at
    /// a time.
    pub fn reload(&self, rules: Rules) {
        let next = self
            .snapshot
            .load()
            .next(rules, &self.setup.fleet, self.setup.reporting);
        let version = next.version();
        self.snapshot.store(Arc::new(next));
        self.announce(version);
    }

    /// Makes it known that the rules of `version` are in force. Whoever holds them may: nobody waits for the thread
    /// that reloads.
    fn announce(&self, version: u64) {
        // Ordering: Release, after the snapshot: who sees the new version finds the new snapshot.
        self.version.fetch_max(version, Ordering::Release);
    }

    /// The rules in force.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The rules in force, without touching anything that threads share unless they have changed.
    #[inline]
    pub fn in_force(&self) -> InForce {
        let current = |last: &LastUsed| {
            last.engine == self.number && last.snapshot.version() == self.version()
        };
        let last = LAST_USED.take().filter(current);
        InForce(Some(last.unwrap_or_else(|| LastUsed {
            engine: self.number,
            snapshot: self.snapshot(),
        })))
    }

    #[inline]
    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Keys held.
    pub fn keys_held(&self) -> u64 {
        self.keys_by_table().iter().map(|(_, held)| held).sum()
    }

    /// Keys held, by what the table is of.
    pub fn keys_by_table(&self) -> [(&'static str, u64); 3] {
        [
            ("level", self.table.held()),
            ("windowed", self.windows.held()),
            ("carried", self.carried.held()),
        ]
    }

    /// Keys that were forgotten while they were in use, because there were too many to remember.
    pub fn keys_forgotten(&self) -> u64 {
        let tables = [self.table.forgotten(), self.windows.forgotten()];
        tables.into_iter().sum::<u64>() + self.carried.forgotten()
    }

    /// The most keys that each of them holds.
    pub const fn keys_max(&self) -> usize {
        self.setup.keys_max
    }

    /// Keys that are known only as denied by the fleet.
    pub fn mitigations_unseen(&self) -> usize {
        self.mitigations.count()
    }

    /// How the rounds stand. Without a store there are none.
    pub fn figures(&self) -> Arc<Figures> {
        self.figures.load_full()
    }

    /// Says whom to wake when keys want a round.
    pub fn set_waker(&self, waker: Waker) {
        self.sync_queue.set_waker(waker);
    }

    /// Says which lanes of the store are cut off and which are late, by a bit each, and what this pod grants of their
    /// keys meanwhile. The rounds say it of their own accord.
    pub fn set_partition(&self, cut_off: u64, late: u64, shares: Shares) {
        self.fallback.set_shares(shares);
        self.fallback.set_lanes(cut_off, late);
    }

    /// Running totals.
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }
}
