//! The books of a pod: where each cell is that it admitted under a rule that it reports.
//!
//! The sync counts all places at one moment, so that they add up: a cell that moves between two looks would be counted
//! twice or not at all. Each admitted cell is reported at most once and is always accounted for.

use super::PodSync;
use crate::engine::Engine;
use crate::engine::stats::{Stat, Stats};
use crate::pure::Cells;

/// Where every cell is, at one moment. All places, with `lost` less `found`, add up to the cells that were admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Books {
    /// The store has them.
    pub settled: Cells,
    /// In batches that the store does not have yet.
    pub in_flight: Cells,
    /// In buckets, or between a bucket and a batch.
    pub pending: Cells,
    /// Not reported, because the pod was silent about their key.
    pub silent: Cells,
    /// The store will never have them, for any reason but silence.
    pub lost: Cells,
    /// Counted as lost, and the store has them after all.
    pub found: Cells,
}

/// Cells that the store will never have, beside those of evicted keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss {
    /// The store lost them, and the pod no longer keeps them for a replay.
    pub store: Cells,
    /// Their key was reset.
    pub reset: Cells,
    /// Their rule is gone.
    pub rule: Cells,
    /// More keys wanted a report than the sync tracks.
    pub crowd: Cells,
}

impl Loss {
    /// All cells that the store will never have, by reason.
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
    /// The books as they are now. Looks through all buckets. Only the sync takes cells out of them to report them; checks
    /// that run meanwhile add some.
    pub(super) fn books(&self, engine: &Engine) -> Books {
        let books = self.groups.iter().map(|group| &group.book);
        let unsent = self.keys.values().map(|key_sync| key_sync.unsent.gross);
        let lost = self.totals.lost.by_reason(engine.stats());
        Books {
            settled: sum(books.clone().map(|book| book.settled())).plus(self.totals.settled_before),
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
