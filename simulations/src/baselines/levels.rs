//! A GCRA bucket for each key, all with one limit.

use tidegate_core::pure::{Cells, Limit};

use super::Key;
use super::key_map::KeyMap;

/// A TAT for each key. A TAT in the past is the same as none.
#[derive(Debug)]
pub struct Levels {
    limit: Limit,
    tats: KeyMap<u64>,
}

impl Levels {
    pub fn new(limit: Limit) -> Self {
        Self {
            limit,
            tats: KeyMap::new(),
        }
    }

    /// The level of the bucket.
    pub fn level(&self, key: Key, now: u64) -> u64 {
        self.tats.get(key).map_or(0, |tat| tat.saturating_sub(now))
    }

    /// Admits `cells` if they fit.
    pub fn admit(&mut self, key: Key, cells: u64, now: u64) -> bool {
        let level = self.level(key, now).saturating_add(self.price(cells));
        let fits = cells <= self.limit.burst().get() && level <= self.limit.capacity().get();
        if fits {
            self.set(key, level, now);
        }
        fits
    }

    /// Adds `cells` whether they fit or not. Returns the level: above the capacity it is debt.
    pub fn owe(&mut self, key: Key, cells: u64, now: u64) -> u64 {
        let level = self.level(key, now).saturating_add(self.price(cells));
        self.set(key, level, now);
        level
    }

    /// Adds `cells`, and forgets those that do not fit.
    pub fn fill(&mut self, key: Key, cells: u64, now: u64) {
        let level = self.owe(key, cells, now).min(self.limit.capacity().get());
        self.set(key, level, now);
    }

    pub fn set(&mut self, key: Key, level: u64, now: u64) {
        *self.tats.entry(key, |tat| *tat > now) = now.saturating_add(level);
    }

    pub fn price(&self, cells: u64) -> u64 {
        self.limit.interval().times(Cells::new(cells)).get()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::pure::{LimitFault, Unit};

    use super::*;

    const KEY: Key = (0, 0);
    const MS: u64 = 1_000_000;

    #[test]
    fn debt_is_kept_or_forgotten() -> Result<(), LimitFault> {
        let limit = Limit::new(10, Unit::Second, 1, None)?;
        let mut levels = Levels::new(limit);
        assert!(
            levels.admit(KEY, 10, 0)
                && !levels.admit(KEY, 1, 99 * MS)
                && levels.admit(KEY, 1, 100 * MS)
        );
        assert_eq!(levels.owe(KEY, 5, 100 * MS), 1_500 * MS);
        assert!(!levels.admit(KEY, 1, 600 * MS), "it is 500 ms above");
        levels.fill(KEY, 5, 600 * MS);
        assert_eq!(levels.level(KEY, 600 * MS), 1_000 * MS);
        assert!(levels.admit(KEY, 1, 700 * MS));
        Ok(())
    }

    #[test]
    fn what_never_fits_is_denied() -> Result<(), LimitFault> {
        for (requests, cells) in [(0, 0), (0, 1), (10, 11), (10, u64::MAX)] {
            let limit = Limit::new(requests, Unit::Second, 1, None)?;
            let admits = Levels::new(limit).admit(KEY, cells, 0);
            assert_eq!(admits, cells == 0, "{cells} of {limit}");
        }
        Ok(())
    }
}
