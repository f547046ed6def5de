//! Lanes that do not answer: which they are, what their keys are granted meanwhile, and what is owed for that after.
//!
//! A lane is *cut off* while the link to its shard is partitioned, and *late* while an answer takes too long. Either
//! way this pod is blind there: it sees its own admissions and nobody else's.

use super::Rounds;
use super::tracked::{Alone, Carry};
use crate::engine::admit::Asked;
use crate::engine::collect::Hushed;
use crate::engine::{Engine, Shares};
use crate::pure::sync::Share;
use crate::pure::{Cells, Moment, Nanos, Span};

/// An answer that takes longer than this, and than so many times what answers take, is late.
const LATE_AFTER: Span = Span::nanos(50_000_000);
const LATE_TRIPS: Cells = Cells::new(4);

impl Rounds {
    /// Which lanes are cut off may have changed: says so to the checks.
    pub(super) fn links_changed(&mut self, engine: &Engine, now: Nanos) {
        let cut_off = self
            .shard_of
            .iter()
            .enumerate()
            .fold(0_u64, |lanes, (lane, shard)| {
                lanes | u64::from(self.links[*shard].is_partitioned()) << lane
            });
        let late = self.late_lanes(now);
        let blind = cut_off | late;
        if (cut_off, blind) == (self.fleet.cut_off, self.fleet.blind) {
            return;
        }
        let newly = Newly {
            cut_off: cut_off & !self.fleet.cut_off,
            blind: blind & !self.fleet.blind,
            sighted: self.fleet.blind & !blind,
        };
        self.fleet.cut_off = cut_off;
        self.fleet.blind = blind;
        self.note_blind(engine, &newly, now);
        // Lanes fall behind one after the other: what was learned within an interval is good for all of them.
        let fresh = self.fleet.shared_at.after(self.pace.interval) > now;
        if newly.blind != 0 && !(fresh && self.fleet.shared_at > Nanos::default()) {
            engine.fallback.set_shares(self.shares());
            self.fleet.shared_at = now;
        }
        engine.fallback.set_lanes(cut_off, late);
    }

    /// What this pod grants of each key without the store.
    fn shares(&self) -> Shares {
        let pods = self.terrain.pods;
        let loud = self.keys.iter().filter(|(_, tracked)| tracked.is_loud());
        Shares {
            unlearned: Share::even(pods),
            learned: loud
                .map(|(key, tracked)| (key.name, Share::fallback(tracked.weight, pods)))
                .collect(),
        }
    }

    /// Notes how the keys of lanes stand that do not answer, which tells later what was admitted meanwhile. Once they
    /// answer again, that is settled before anything else happens to the bucket.
    fn note_blind(&mut self, engine: &Engine, newly: &Newly, now: Nanos) {
        let snapshot = engine.snapshot();
        let pods = self.terrain.pods;
        let mut to_tell = Vec::new();
        self.keys.iter_mut().for_each(|(key, tracked)| {
            let is_in = |lanes: u64| lanes >> key.lane().number() & 1 == 1;
            if !is_in(newly.cut_off | newly.blind | newly.sighted) {
                return;
            }
            let asked = engine.subject(&snapshot, *key, Moment::default());
            if is_in(newly.cut_off | newly.blind) {
                let alone = tracked.alone.get_or_insert_with(|| Alone {
                    told: asked.map_or(now, |asked| told_until(engine, &asked, tracked.carry)),
                    cut_off: false,
                });
                alone.cut_off |= is_in(newly.cut_off);
            } else if let Some(Alone { cut_off: true, .. }) = tracked.alone
                && tracked.is_loud()
                && let Some(asked) = asked
                && let Some(tat) = engine.tat_of(&asked)
            {
                let Hushed { cells, worth } = engine.hush(&asked);
                let share = Share::fallback(tracked.weight, pods);
                let price = asked.limit.interval().times(worth);
                tracked.carry.price = tracked.price(price, share, tat, now);
                tracked.carry.gross = tracked.carry.gross.plus(cells);
                to_tell.push(*key);
            }
            if is_in(newly.sighted) {
                tracked.alone = None;
            }
        });
        to_tell.sort_unstable();
        for key in to_tell {
            self.look_again(key, now);
        }
    }

    /// The lanes that have been waiting for an answer for too long, by a bit each.
    fn late_lanes(&self, now: Nanos) -> u64 {
        let lanes = self.lanes.iter().enumerate();
        lanes.fold(0, |late, (number, lane)| {
            let waited = lane.unanswered_since.map(|since| now.since(since));
            let is_late = waited.is_some_and(|waited| waited >= self.late_after(number));
            late | u64::from(is_late) << number
        })
    }

    /// After how long an answer of a lane is late.
    pub(super) fn late_after(&self, lane: usize) -> Span {
        let trip = self.links[self.shard_of[lane]].trip();
        LATE_AFTER.max(trip.times(LATE_TRIPS))
    }
}

/// Where a bucket ends without the cells that the store has not heard of.
fn told_until(engine: &Engine, asked: &Asked<'_>, carry: Carry) -> Nanos {
    let pending = engine.pending_of(asked).unwrap_or(Cells::ZERO);
    let untold = asked.limit.interval().times(pending.plus(carry.gross));
    engine.tat_of(asked).unwrap_or_default().before(untold)
}

/// Lanes, by a bit each.
struct Newly {
    /// That cannot be told any more ...
    cut_off: u64,
    /// ... or do not answer in time any more.
    blind: u64,
    /// That do both again.
    sighted: u64,
}
