//! The books of a pod: where each cell is that it admitted and that the store is to hear of.
//!
//! All places are counted at one moment, so that they add up: a cell that moves on between two looks would be counted
//! twice or not at all.

use super::PodSync;
use crate::engine::Engine;
use crate::engine::stats::{Stat, Stats};
use crate::pure::Cells;

/// Where every cell is, at one moment. What is lost without what was found, and the other places, add up to all cells
/// that were admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// The store has them.
    pub settled: Cells,
    /// In batches that the store does not have yet.
    pub in_flight: Cells,
    /// In buckets, or between a bucket and a batch.
    pub pending: Cells,
    /// Kept back by silence.
    pub silent: Cells,
    /// No store will hear of them, for whatever reason.
    pub lost: Cells,
    /// Counted as lost, and the store has them after all.
    pub found: Cells,
}

/// Cells that no store will hear of, beside those of keys that had to leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The store had them and lost them, and they are no longer kept.
    pub store: Cells,
    /// Their key was reset.
    pub reset: Cells,
    /// Their rule is gone.
    pub rule: Cells,
    /// More keys wanted to be told than are kept in mind.
    pub crowd: Cells,
}

impl Loss {
    /// All cells that no store will hear of, by reason.
    pub fn by_reason(&self, stats: &Stats) -> [(&'static str, u64); 8] {
        let reset = stats.total(Stat::CellsReset);
        [
            ("evicted", stats.total(Stat::CellsLost)),
            ("netted", stats.total(Stat::CellsNetted)),
            ("kept_out", stats.total(Stat::CellsUnheld)),
            ("refunded", stats.total(Stat::CellsRefunded)),
            ("reset", reset.saturating_add(self.reset.get())),
            ("store", self.store.get()),
            ("rule", self.rule.get()),
            ("crowd", self.crowd.get()),
        ]
    }
}

impl PodSync {
    /// The books as they are now. Looks through all buckets, from which only the rounds take cells out to report them:
    /// checks that run meanwhile add some.
    pub(super) fn books(&self, engine: &Engine) -> Books {
        let books = self.lanes.iter().map(|lane| &lane.book);
        let unsent = self.keys.values().map(|key_sync| key_sync.unsent.gross);
        let lost = self.totals.lost.by_reason(engine.stats());
        Books {
            settled: sum(books.clone().map(|book| book.settled())),
            in_flight: sum(books.map(|book| book.in_flight())),
            pending: engine.pending().plus(sum(unsent)),
            silent: self.totals.silent,
            lost: sum(lost.iter().map(|(_, cells)| Cells::new(*cells))),
            found: self.totals.found,
        }
    }
}

fn sum(cells: impl Iterator<Item = Cells>) -> Cells {
    cells.fold(Cells::ZERO, Cells::plus)
}
