//! Cells that callers gave back: what of them the store has to hear.
//!
//! What this pod was silent of, the store does not know. The rest is given back there once nothing of the key is on its
//! way: the store takes no more than it has. Other pods learn of it with their next round. While the store cannot be
//! told, a refund stays with this pod: that can deny too much, never too little.

use super::{Here, Rounds};
use crate::pure::sync::{StoreKey, Take};
use crate::pure::{Cells, Nanos};

impl Rounds {
    /// What to give back in the store now.
    pub(super) fn refunds(&mut self, here: &Here<'_>) -> Vec<Take> {
        for (key, cells) in here.engine.refunds.drain() {
            let told = self.spoken_of(here, key, cells);
            let owed = self.owed.entry(key).or_default();
            *owed = owed.plus(told);
        }
        let in_flight = |key: &StoreKey| self.keys.get(key).is_some_and(|key| key.flight.is_some());
        let landed: Vec<StoreKey> = self
            .owed
            .keys()
            .filter(|key| !in_flight(key))
            .copied()
            .collect();
        let given_back = landed.into_iter().filter_map(|key| {
            let cost = self.owed.remove(&key)?;
            let asked = here.subject(key)?;
            let tellable = cost > Cells::ZERO && self.is_reachable(key.lane());
            tellable.then(|| Take {
                key,
                terms: asked.terms(),
                cost,
            })
        });
        given_back.collect()
    }

    /// Those of a key's refunded cells that this pod was not silent of. The others are free again in its even share.
    fn spoken_of(&mut self, here: &Here<'_>, key: StoreKey, cells: Cells) -> Cells {
        let now = here.now();
        let allowance = here.subject(key).and_then(|asked| self.even_share(&asked));
        let tracked = self.keys.get_mut(&key).filter(|tracked| !tracked.is_loud());
        let (Some(allowance), Some(tracked)) = (allowance, tracked) else {
            return cells;
        };
        let silent = tracked.in_use(&allowance, now).min(cells);
        let even: Nanos = tracked.even.before(allowance.interval.times(silent));
        tracked.even = even.max(now);
        cells.less(silent)
    }
}
