//! Running totals of what happened to keys. The shell turns them into metrics.

use std::sync::atomic::{AtomicU64, Ordering};

use super::buckets::Room;
use super::buckets::table::SlotOrigin;

/// Something that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stat {
    /// Keys that left while their bucket was as good as new.
    EvictedSettled,
    /// Keys that left full, with pending cells.
    EvictedNetted,
    /// Keys that left while in use. What they have used is remembered.
    EvictedInUse,
    /// Checks of keys that came for the first time while the table was full, or for which there was no slot. What they
    /// have used is remembered.
    Unheld,
    /// Admitted cells that the pod never reports, because their key was evicted.
    CellsLost,
    /// Admitted cells that the pod never reports, because they had drained when their key left.
    CellsNetted,
    /// Admitted cells that the pod never reports, because the table did not let their key in.
    CellsUnheld,
    /// Admitted cells that the pod never reports, because their key was reset.
    CellsReset,
    /// Admitted cells that the pod never reports, because they were refunded before.
    CellsRefunded,
    /// Cells of a denied check that stayed charged, because the bucket changed while they were given back.
    KeptAfterRace,
}

const STATS: usize = 10;

/// The totals since start.
#[derive(Debug, Default)]
pub struct Stats([AtomicU64; STATS]);

impl Stats {
    /// The total of `stat`.
    pub fn total(&self, stat: Stat) -> u64 {
        // Ordering: Relaxed. Totals for people; each stands alone.
        self.0[stat as usize].load(Ordering::Relaxed)
    }

    pub(super) fn count(&self, stat: Stat, by: u64) {
        self.0[stat as usize].fetch_add(by, Ordering::Relaxed);
    }

    /// Counts how a key entered the table; `None` is one that was not let in.
    pub(super) fn entered(&self, entered: Option<SlotOrigin>) {
        match entered {
            Some(SlotOrigin::Vacant) => {}
            Some(SlotOrigin::Settled) => self.count(Stat::EvictedSettled, 1),
            Some(SlotOrigin::Netted(cells)) => {
                self.count(Stat::EvictedNetted, 1);
                self.count(Stat::CellsNetted, cells.get());
            }
            Some(SlotOrigin::InUse(cells)) => {
                self.count(Stat::EvictedInUse, 1);
                self.count(Stat::CellsLost, cells.get());
            }
            Some(SlotOrigin::Nowhere) | None => self.count(Stat::Unheld, 1),
        }
    }

    pub(super) fn room(&self, room: Room) {
        match room {
            Room::Free => {}
            Room::Settled(cells) => {
                self.count(Stat::EvictedSettled, 1);
                self.count(Stat::CellsNetted, cells.get());
            }
            Room::InUse(cells) => {
                self.count(Stat::EvictedInUse, 1);
                self.count(Stat::CellsLost, cells.get());
            }
            Room::Nowhere => self.count(Stat::Unheld, 1),
        }
    }
}
