//! Keeps one-hit keys out of a table that is nearly full.
//!
//! A small sketch counts the cells of keys that are not held. A key is let in when it comes a second time, and then
//! starts with what was counted for it, so that nobody gains a free cell by being forgotten. Two keys may share a
//! count; then both start fuller than they are, never emptier.
//!
//! Counts fade: after [`FADE_AFTER`], or once the sketch has taken in as many cells as it has counters, a count weighs
//! half, and after that again nothing.

use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use crate::pure::{Cells, Nanos, Span};

/// The most and the fewest counters of a row.
const COUNTERS_MAX: usize = 1 << 22;
const COUNTERS_MIN: usize = 1 << 10;
/// A key is counted in as many places; the lowest count is the one that counts.
const ROWS: usize = 2;
/// The most cells that are remembered of a key.
pub(super) const COUNT_MAX: Cells = Cells::new(u8::MAX as u64);
/// How long a count is fully remembered.
const FADE_AFTER: Span = Span::seconds(60);

/// The sketch.
#[derive(Debug)]
pub struct Doorkeeper {
    /// Each an epoch (high byte) and a count (low byte).
    counters: Box<[AtomicU16]>,
    counters_per_row: usize,
    epoch: AtomicU64,
    epoch_began: AtomicU64,
    counted: AtomicU64,
}

impl Doorkeeper {
    /// A sketch for a table of `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        let counters_per_row = keys_max
            .next_power_of_two()
            .clamp(COUNTERS_MIN, COUNTERS_MAX);
        Self {
            counters: bytemuck::allocation::zeroed_slice_box(counters_per_row * ROWS),
            counters_per_row,
            epoch: AtomicU64::new(1),
            epoch_began: AtomicU64::new(0),
            counted: AtomicU64::new(0),
        }
    }

    /// Cells remembered for `name`.
    pub fn count(&self, name: u128, now: Nanos) -> Cells {
        if now.since(Nanos::new(self.epoch_began.load(Ordering::Relaxed)))
            >= FADE_AFTER.plus(FADE_AFTER)
        {
            return Cells::ZERO; // nobody was kept out for so long that the page was not even turned
        }
        let epoch = self.epoch_byte();
        let lowest = self
            .places(name)
            .map(|counter| faded(counter.load(Ordering::Relaxed), epoch))
            .min();
        Cells::new(u64::from(lowest.unwrap_or(0)))
    }

    /// Remembers `cells` more for `name`.
    pub fn add(&self, name: u128, cells: Cells, now: Nanos) {
        self.turn(cells, now);
        let epoch = self.epoch_byte();
        let cells = u8::try_from(cells.get()).unwrap_or(u8::MAX);
        for counter in self.places(name) {
            // Ordering: Relaxed. A count is an estimate on its own; nothing is published by it.
            let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
                Some(u16::from(epoch) << 8 | u16::from(faded(word, epoch).saturating_add(cells)))
            });
        }
    }

    /// Begins a new epoch when it is time.
    fn turn(&self, cells: Cells, now: Nanos) {
        let (page, cells) = (self.counters_per_row as u64, cells.get().min(1 << 16));
        let counted = self.counted.fetch_add(cells, Ordering::Relaxed);
        // One thread turns a page that is full: the one that filled it.
        let full = counted / page != (counted + cells) / page;
        let began = self.epoch_began.load(Ordering::Relaxed);
        // And one that is old: the one whose exchange succeeds, as `now` is another time by far.
        let old = || {
            now.since(Nanos::new(began)) >= FADE_AFTER
                && self
                    .epoch_began
                    .compare_exchange(began, now.get(), Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok()
        };
        if full {
            self.epoch_began.store(now.get(), Ordering::Relaxed);
        }
        if full || old() {
            self.epoch.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn epoch_byte(&self) -> u8 {
        self.epoch.load(Ordering::Relaxed) as u8
    }

    fn places(&self, name: u128) -> impl Iterator<Item = &AtomicU16> {
        let halves = [name as u64, (name >> 64) as u64];
        halves.into_iter().enumerate().map(|(row, half)| {
            &self.counters
                [row * self.counters_per_row + (half as usize & (self.counters_per_row - 1))]
        })
    }
}

/// What a counter's word is worth in `epoch`.
const fn faded(word: u16, epoch: u8) -> u8 {
    let [count, written] = word.to_le_bytes();
    match epoch.wrapping_sub(written) {
        0 => count,
        1 => count / 2,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_is_never_below_what_was_added() {
        let doorkeeper = Doorkeeper::new(0);
        for name in 0..100_u128 {
            doorkeeper.add(name, Cells::new(3), Nanos::new(1));
        }
        assert!((0..100).all(|name| doorkeeper.count(name, Nanos::new(1)) >= Cells::new(3)));
        assert_eq!(doorkeeper.count(u128::MAX, Nanos::new(1)), Cells::ZERO);
    }

    #[test]
    fn counts_fade_with_time() {
        let doorkeeper = Doorkeeper::new(0);
        let at = |seconds| Nanos::new(0).after(Span::seconds(seconds));
        doorkeeper.add(7, Cells::new(8), at(1));
        doorkeeper.add(8, Cells::ONE, at(61));
        assert_eq!(doorkeeper.count(7, at(61)), Cells::new(4));
        doorkeeper.add(8, Cells::ONE, at(122));
        assert_eq!(doorkeeper.count(7, at(122)), Cells::ZERO);
        assert_eq!(doorkeeper.count(8, at(500)), Cells::ZERO);
    }

    #[test]
    fn a_page_is_turned_by_one_thread() {
        let doorkeeper = Doorkeeper::new(0);
        let (threads, adds) = (8, 64 * COUNTERS_MIN as u64);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let add = || (0..adds).for_each(|_| doorkeeper.add(7, Cells::ONE, Nanos::new(1)));
                scope.spawn(add);
            }
        });
        let turned = doorkeeper.epoch.load(Ordering::Relaxed) - 1;
        assert_eq!(turned, threads * 64);
    }

    #[test]
    fn counts_fade_under_a_flood() {
        let doorkeeper = Doorkeeper::new(0);
        doorkeeper.add(7, Cells::new(200), Nanos::new(1));
        for name in 0..3 * COUNTERS_MIN as u128 {
            doorkeeper.add(name << 32, Cells::ONE, Nanos::new(2));
        }
        assert!(doorkeeper.count(7, Nanos::new(2)) < Cells::new(200));
    }
}
