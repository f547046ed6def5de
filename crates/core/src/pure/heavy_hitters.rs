//! The most frequent names of a stream, in bounded memory.
//!
//! This is the Space-Saving sketch. It counts every name that comes. A new name for which there is no row takes the row
//! with the lowest count and continues from that count. So a count is never too low, it is too high by at most its
//! `error`, and every name that makes up more than one in [`HEAVY_HITTERS_MAX`] of the stream has a row.

use std::cmp::Reverse;

/// The most names that are counted at a time.
pub const HEAVY_HITTERS_MAX: usize = 32;

/// How keys appear in front of people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// With the values that clients sent.
    #[default]
    Plain,
    /// Only by their hashed names.
    Hashed,
}

/// A frequent name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeavyHitter<T> {
    /// The name.
    pub name: u128,
    /// The highest number of times that it may have come.
    pub count: u64,
    /// How many of those may have been other names.
    pub error: u64,
    /// What the caller knows of the name.
    pub about: T,
}

/// The most frequent names of one stream.
#[derive(Clone, Debug)]
pub struct HeavyHitters<T> {
    rows: Vec<HeavyHitter<T>>,
    seen: u64,
}

impl<T> Default for HeavyHitters<T> {
    fn default() -> Self {
        Self {
            rows: Vec::new(),
            seen: 0,
        }
    }
}

impl<T: Clone> HeavyHitters<T> {
    /// Counts `name`. Calls `about` only when the name gets a row.
    pub fn note(&mut self, name: u128, about: impl FnOnce() -> T) {
        self.seen = self.seen.saturating_add(1);
        // A scan of so few rows is faster than hashing, and there is no order to maintain.
        if let Some(row) = self.rows.iter_mut().find(|row| row.name == name) {
            row.count = row.count.saturating_add(1);
            return;
        }
        let mut newcomer = HeavyHitter {
            name,
            count: 1,
            error: 0,
            about: about(),
        };
        if self.rows.len() < HEAVY_HITTERS_MAX {
            self.rows.push(newcomer);
        } else if let Some(least) = self.rows.iter_mut().min_by_key(|row| row.count) {
            newcomer.error = least.count;
            newcomer.count = least.count.saturating_add(1);
            *least = newcomer;
        }
    }

    /// The number of times that any name came.
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// The names of two streams as if they had been one, most frequent first.
    pub fn of_both(&self, other: &Self) -> Vec<HeavyHitter<T>> {
        let mut both: Vec<_> = self.rows.iter().map(|row| row.and(other)).collect();
        let known = |row: &&HeavyHitter<T>| self.row(row.name).is_none();
        both.extend(other.rows.iter().filter(known).map(|row| row.and(self)));
        both.sort_by_key(|row| (Reverse(row.count), row.name));
        both
    }

    fn row(&self, name: u128) -> Option<&HeavyHitter<T>> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// How often a name without a row may have come.
    fn unknown(&self) -> u64 {
        let full = self.rows.len() == HEAVY_HITTERS_MAX;
        let least = self.rows.iter().map(|row| row.count).min();
        least.filter(|_| full).unwrap_or_default()
    }
}

impl<T: Clone> HeavyHitter<T> {
    /// The counts of this name in its own stream and in `other`.
    fn and(&self, other: &HeavyHitters<T>) -> Self {
        let unknown = || (other.unknown(), other.unknown());
        let (count, error) = other
            .row(self.name)
            .map_or_else(unknown, |row| (row.count, row.error));
        Self {
            count: self.count.saturating_add(count),
            error: self.error.saturating_add(error),
            ..self.clone()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn of(names: &[u128]) -> HeavyHitters<()> {
        let mut heavy_hitters = HeavyHitters::default();
        for name in names {
            heavy_hitters.note(*name, || ());
        }
        heavy_hitters
    }

    fn counts(names: &[u128]) -> BTreeMap<u128, u64> {
        names.iter().fold(BTreeMap::new(), |mut counts, name| {
            *counts.entry(*name).or_default() += 1;
            counts
        })
    }

    #[test]
    fn as_long_as_there_is_room_every_count_is_exact() {
        let found = of(&[7, 8, 7, 9, 7, 8]).of_both(&HeavyHitters::default());
        let found: Vec<_> = found
            .iter()
            .map(|row| (row.name, row.count, row.error))
            .collect();
        assert_eq!(found, [(7, 3, 0), (8, 2, 0), (9, 1, 0)]);
    }

    #[test]
    fn what_is_known_of_a_name_is_asked_for_once() {
        let mut heavy_hitters = HeavyHitters::default();
        let mut asked = 0;
        for _ in 0..3 {
            heavy_hitters.note(7, || asked += 1);
        }
        assert_eq!((asked, heavy_hitters.seen()), (1, 3));
    }

    proptest! {
        /// For any stream: no count is too low, none is too high by more than its error, every frequent name has a row,
        /// and there are never more rows than the bound.
        #[test]
        fn counts_are_within_their_errors(
            first in prop::collection::vec((0_u128..200).prop_map(|n| n * n % 97), 0..2_000),
            second in prop::collection::vec(0_u128..60, 0..500),
        ) {
            let (one, two) = (of(&first), of(&second));
            prop_assert!(one.rows.len() <= HEAVY_HITTERS_MAX);
            let all: Vec<u128> = first.iter().chain(&second).copied().collect();
            let exact = counts(&all);
            let found = one.of_both(&two);
            for row in &found {
                let exact = exact.get(&row.name).copied().unwrap_or_default();
                prop_assert!(row.count >= exact, "{row:?} came {exact} times");
                prop_assert!(row.count - row.error <= exact, "{row:?} came {exact} times");
            }
            for (name, count) in counts(&first) {
                let frequent = count.saturating_mul(32) > one.seen();
                prop_assert!(!frequent || found.iter().any(|row| row.name == name), "{name}");
            }
            prop_assert!(found.is_sorted_by_key(|row| Reverse(row.count)));
        }
    }
}
