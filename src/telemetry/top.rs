//! Which keys a rule denies most: the last half to whole minute of them, in bounded memory.
//!
//! The sketch is `pure/heavy_hitters.rs`. A denial never waits for it: one that comes while another is being noted is
//! counted as missed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use tidegate_core::engine::{Answer, Hit};
use tidegate_core::pure::{Check, DisplayText, HeavyHitter, HeavyHitters, KeyDisplay};

/// Bytes that are kept of one key's entries.
const ENTRIES_BYTES_MAX: usize = 256;

/// What a check was about.
#[derive(Clone, Copy, Debug)]
pub enum About<'a> {
    /// Descriptors.
    Check(&'a Check<'a>),
    /// A key whose caller carries the limit.
    Throttle(&'a [u8]),
}

/// The entries that make a key, if they may be shown.
pub type Entries = Option<Box<[(Box<str>, Box<str>)]>>;

impl About<'_> {
    fn entries(&self, answer: &Answer, hit: &Hit, shown: KeyDisplay) -> Entries {
        let mut entries = Vec::new();
        let mut left = ENTRIES_BYTES_MAX;
        let mut keep = |key: &[u8], value: &[u8]| {
            entries.push((kept(key, &mut left), kept(value, &mut left)));
        };
        match (shown, self) {
            (KeyDisplay::Hashed, _) => return None,
            (KeyDisplay::Plain, About::Check(check)) => answer.key_entries(hit, check, keep),
            (KeyDisplay::Plain, About::Throttle(key)) => keep(b"key", key),
        }
        Some(entries.into_boxed_slice())
    }
}

/// As much of `bytes` as is left, which is then less.
fn kept(bytes: &[u8], left: &mut usize) -> Box<str> {
    let shown = DisplayText::new(bytes, *left).to_string();
    *left = left.saturating_sub(bytes.len());
    shown.into_boxed_str()
}

/// The keys of one rule that were denied in this half of the minute and in the one before.
#[derive(Debug, Default)]
pub(super) struct Top {
    halves: Mutex<[HeavyHitters<Entries>; 2]>,
    missed: [AtomicU64; 2],
}

/// What a rule denied lately.
#[derive(Clone, Debug, Default)]
pub struct Recent {
    /// How many.
    pub denied: u64,
    /// How many of them are of no key below, because another was being noted.
    pub missed: u64,
    /// Whom, most often denied first.
    pub keys: Vec<HeavyHitter<Entries>>,
}

impl Top {
    /// Notes that `hit` of `answer` was denied.
    pub(super) fn note(&self, about: About<'_>, answer: &Answer, hit: &Hit, shown: KeyDisplay) {
        let mut halves = match self.halves.try_lock() {
            Ok(halves) => halves,
            Err(TryLockError::Poisoned(halves)) => halves.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Ordering: Relaxed. A number for people.
                self.missed[0].fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        halves[0].note(hit.name, || about.entries(answer, hit, shown));
    }

    /// Begins the next half of the minute.
    pub(super) fn turn(&self) {
        let missed = self.missed[0].swap(0, Ordering::Relaxed);
        self.missed[1].store(missed, Ordering::Relaxed);
        let mut halves = self.lock();
        halves[1] = std::mem::take(&mut halves[0]);
    }

    /// How many were denied.
    pub(super) fn denied(&self) -> u64 {
        let [now, before] = &*self.lock();
        now.seen() + before.seen() + self.missed()
    }

    pub(super) fn recent(&self) -> Recent {
        let missed = self.missed();
        let [now, before] = &*self.lock();
        Recent {
            denied: now.seen() + before.seen() + missed,
            missed,
            keys: now.of_both(before),
        }
    }

    fn missed(&self) -> u64 {
        let missed = self.missed.iter();
        missed.map(|missed| missed.load(Ordering::Relaxed)).sum()
    }

    fn lock(&self) -> MutexGuard<'_, [HeavyHitters<Entries>; 2]> {
        self.halves.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_key_is_bounded_and_what_is_cut_is_tagged() {
        for (text, left, expected, rest) in [
            ("abc", 3, "abc", 0),
            ("abc", 4, "abc", 1),
            ("abc", 2, "ab…[3 bytes, ", 0),
            ("é", 1, "…[2 bytes, ", 0),
            ("", 0, "", 0),
            ("a", 0, "…[1 bytes, ", 0),
        ] {
            let mut room = left;
            let kept = kept(text.as_bytes(), &mut room);
            assert!(kept.starts_with(expected), "{kept} of {text} in {left}");
            assert_eq!(room, rest, "{text} in {left}");
        }
    }
}
