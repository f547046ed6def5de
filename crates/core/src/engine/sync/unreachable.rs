//! Unreachable lanes: which they are, what the pod grants of their keys meanwhile, and what it reports for that later.
//!
//! A lane is *cut off* while the link to its shard is partitioned, and *late* while an answer takes too long. In both cases
//! the lane is unreachable, and this pod sees only its own admissions of its keys.

use super::PodSync;
use super::key_sync::{Detached, Unsent};
use crate::engine::buckets::SilentCells;
use crate::engine::buckets::{KeyBucket, Subject};
use crate::engine::{Engine, Shares};
use crate::pure::sync::{Group, Grouping, Lane, Share};
use crate::pure::{Cells, Moment, Nanos, Span};

/// An answer that takes longer than this, and than so many times what answers take, is late.
const LATE_AFTER: Span = Span::nanos(50_000_000);
const LATE_TRIPS: Cells = Cells::new(4);

/// Which lanes are unreachable, by a bit each.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct UnreachableLanes {
    /// Those that are cut off.
    cut_off: u64,
    /// Those that are cut off or late.
    unreachable: u64,
    /// When the sync last set the shares that this pod grants.
    shared_at: Option<Nanos>,
}

impl PodSync {
    /// Finds out which lanes are unreachable, and passes changes on to the engine.
    pub(super) fn update_unreachable(&mut self, engine: &Engine, now: Nanos) {
        let cut_off = self
            .shard_of
            .iter()
            .enumerate()
            .fold(0_u64, |lanes, (lane, shard)| {
                lanes | u64::from(self.links[*shard].is_partitioned()) << lane
            });
        let late = self.late_lanes(now);
        let unreachable = cut_off | late;
        let before = self.unreachable;
        if (cut_off, unreachable) == (before.cut_off, before.unreachable) {
            return;
        }
        let changes = LaneChanges {
            cut_off: cut_off & !before.cut_off,
            unreachable: unreachable & !before.unreachable,
            reachable: before.unreachable & !unreachable,
        };
        self.unreachable = UnreachableLanes {
            cut_off,
            unreachable,
            ..before
        };
        self.note_unreachable(engine, &changes, now);
        // Lanes become unreachable one after the other: shares of the last interval are good for all of them.
        let interval = self.pace.interval;
        let is_fresh = before.shared_at.is_some_and(|at| at.after(interval) > now);
        if changes.unreachable != 0 && !is_fresh {
            engine.set_shares(self.shares());
            self.unreachable.shared_at = Some(now);
        }
        engine.set_lanes(cut_off, late);
    }

    /// The share of each key that this pod grants without the store.
    fn shares(&self) -> Shares {
        let pods = self.fleet_view.pods;
        let loud = self.keys.iter().filter(|(_, key_sync)| key_sync.is_loud());
        Shares {
            unlearned: Share::even(pods),
            learned: loud
                .map(|(key, key_sync)| (key.name, Share::fallback(key_sync.weight, pods)))
                .collect(),
        }
    }

    /// Notes the state of the keys of lanes that became unreachable: from that the pod sees later what it admitted
    /// meanwhile. When a lane is reachable again, the pod prices those cells before anything else changes the bucket.
    fn note_unreachable(&mut self, engine: &Engine, changes: &LaneChanges, now: Nanos) {
        let snapshot = engine.snapshot();
        let pods = self.fleet_view.pods;
        let mut to_report = Vec::new();
        self.keys.iter_mut().for_each(|(key, key_sync)| {
            let is_in = |lanes: u64| lanes >> key.lane().number() & 1 == 1;
            if !is_in(changes.cut_off | changes.unreachable | changes.reachable) {
                return;
            }
            let subject = engine.subject_of_key(&snapshot, key, Moment::default());
            if is_in(changes.cut_off | changes.unreachable) {
                let unsent = key_sync.unsent;
                let detached = &mut key_sync.history_mut().detached;
                let detached = detached.get_or_insert_with(|| Detached {
                    known_until: subject
                        .map_or(Some(now), |subject| known_until(engine, &subject, unsent)),
                    cut_off: false,
                });
                detached.cut_off |= is_in(changes.cut_off);
            } else if let Some(Detached { cut_off: true, .. }) = key_sync.history().detached
                && key_sync.is_loud()
                && let Some(subject) = subject
                && let Some(tat) = engine.bucket(&subject).tat()
            {
                let SilentCells { cells, worth } = engine.bucket(&subject).take_silent();
                let share = Share::fallback(key_sync.weight, pods);
                let price = subject.limit.interval().times(worth);
                key_sync.unsent.price = key_sync.price(price, share, tat, now);
                key_sync.unsent.gross = key_sync.unsent.gross.plus(cells);
                to_report.push(key);
            }
            if is_in(changes.reachable) {
                let _ = key_sync.attach();
            }
        });
        to_report.sort_unstable();
        for key in to_report {
            self.look_again(key, now);
        }
    }

    /// The lanes whose answer takes too long, by a bit each.
    fn late_lanes(&self, now: Nanos) -> u64 {
        let groups = self.grouping.groups().zip(&self.groups);
        let late = groups.filter(|(group, state)| {
            let waited = state.unanswered_since.map(|since| now.since(since));
            waited.is_some_and(|waited| waited >= self.late_after(group.lane()))
        });
        late.fold(0, |late, (group, _)| late | self.lanes_of(group))
    }

    /// The lanes of a group, by a bit each.
    const fn lanes_of(&self, group: Group) -> u64 {
        match self.grouping {
            Grouping::Whole => u64::MAX,
            Grouping::PerLane | Grouping::Split => 1 << group.lane().number(),
        }
    }

    /// How long an answer of a lane may take before it is late.
    pub(super) fn late_after(&self, lane: Lane) -> Span {
        let trip = self.links[self.shard(lane)].trip();
        LATE_AFTER.max(trip.times(LATE_TRIPS))
    }
}

/// Where a bucket ends without the cells that the pod has not reported.
fn known_until(engine: &Engine, subject: &Subject<'_>, unsent: Unsent) -> Option<Nanos> {
    let pending = engine.bucket(subject).pending().unwrap_or(Cells::ZERO);
    let unreported = subject.limit.interval().times(pending.plus(unsent.gross));
    let tat = engine.bucket(subject).tat();
    tat.map(|tat| tat.before(unreported))
}

/// What changed since the last look; a bit for each lane.
struct LaneChanges {
    /// Lanes that became cut off.
    cut_off: u64,
    /// Lanes that became unreachable: cut off or late.
    unreachable: u64,
    /// Lanes that became reachable again.
    reachable: u64,
}
