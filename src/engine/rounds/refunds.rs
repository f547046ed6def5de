//! Cells that callers gave back: what of them the store has to hear.
//!
//! What this pod was silent of, the store does not know. The rest is given back there once nothing of the key is on its
//! way: the store takes no more than it has. Other pods learn of it with their next round. While the store cannot be
//! told, a refund stays with this pod: that can deny too much, never too little.

use super::tracked::Carry;
use super::{Here, Rounds, Trip};
use crate::engine::Engine;
use crate::pure::sync::{StoreKey, Take, Told};
use crate::pure::{Cells, Nanos};

impl Rounds {
    /// What to give back in the store now.
    pub(super) fn refunds(&mut self, here: &Here<'_>) -> Vec<Take> {
        for (key, cells) in here.engine.refunds.drain() {
            let told = self.spoken_of(here, key, cells);
            let owed = self.owed.entry(key).or_default();
            *owed = owed.plus(told);
        }
        let on_its_way = |key: &StoreKey| {
            let tracked = self.keys.get(key);
            tracked.is_some_and(|key| key.flight.is_some() || key.carry != Carry::default())
        };
        let landed = self.owed.keys().filter(|key| !on_its_way(key));
        let landed: Vec<StoreKey> = landed.copied().collect();
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

    /// The store gave cells back and said how the key stands since. What it said before may have undone the refund here.
    pub fn given_back(&self, engine: &Engine, take: &Take, told: Told, trip: Trip) {
        let snapshot = engine.snapshot();
        let in_flight = self
            .keys
            .get(&take.key)
            .is_some_and(|key| key.flight.is_some());
        if let Some(asked) = engine
            .subject(&snapshot, take.key, trip.back)
            .filter(|_| !in_flight)
        {
            engine.lower(&asked, told, trip.anchor());
        }
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
