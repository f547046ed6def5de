//! The keys that a rule denied most in the last 30 to 60 seconds, in bounded memory.
//!
//! The sketch is `pure/heavy_hitters.rs` of the core crate. A denial never waits for it: one that comes while another is
//! being recorded counts as missed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use tidegate_core::engine::{Answer, Hit, Question};
use tidegate_core::pure::{DisplayText, HeavyHitter, HeavyHitters, KeyDisplay};

/// The most bytes that are stored of one key's entries.
const ENTRIES_BYTES_MAX: usize = 256;

/// The entries of a key, if they may be shown.
pub type Entries = Option<Box<[(Box<str>, Box<str>)]>>;

fn entries(question: Question<'_>, answer: &Answer, hit: &Hit, shown: KeyDisplay) -> Entries {
    let mut entries = Vec::new();
    let mut left = ENTRIES_BYTES_MAX;
    let mut keep = |key: &[u8], value: &[u8]| {
        entries.push((kept(key, &mut left), kept(value, &mut left)));
    };
    match (shown, question) {
        (KeyDisplay::Hashed, _) => return None,
        (KeyDisplay::Plain, Question::Check(check)) => answer.key_entries(hit, check, keep),
        (KeyDisplay::Plain, Question::Throttle(throttle)) => keep(b"key", throttle.key),
    }
    Some(entries.into_boxed_slice())
}

/// Cuts `bytes` to the `left` bytes, and subtracts what it used from `left`.
fn kept(bytes: &[u8], left: &mut usize) -> Box<str> {
    let shown = DisplayText::new(bytes, *left).to_string();
    *left = left.saturating_sub(bytes.len());
    shown.into_boxed_str()
}

/// The keys of one rule that were denied in the current half minute and in the one before.
#[derive(Debug, Default)]
pub(super) struct DeniedKeys {
    halves: Mutex<[HeavyHitters<Entries>; 2]>,
    missed: [AtomicU64; 2],
}

/// The recent denials of a rule.
#[derive(Clone, Debug, Default)]
pub struct RecentDenials {
    /// Their number.
    pub denied: u64,
    /// The number of denials without a key below, because another denial was being recorded.
    pub missed: u64,
    /// The keys, the most denied first.
    pub keys: Vec<HeavyHitter<Entries>>,
}

impl DeniedKeys {
    /// Records that `hit` of `answer` was denied.
    pub(super) fn note(
        &self,
        question: Question<'_>,
        answer: &Answer,
        hit: &Hit,
        shown: KeyDisplay,
    ) {
        let mut halves = match self.halves.try_lock() {
            Ok(halves) => halves,
            Err(TryLockError::Poisoned(halves)) => halves.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Ordering: Relaxed. Only a figure for people.
                self.missed[0].fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        halves[0].note(hit.name, || entries(question, answer, hit, shown));
    }

    /// Starts the next half minute.
    pub(super) fn turn(&self) {
        let missed = self.missed[0].swap(0, Ordering::Relaxed);
        self.missed[1].store(missed, Ordering::Relaxed);
        let mut halves = self.lock();
        halves[1] = std::mem::take(&mut halves[0]);
    }

    /// The number of denials.
    pub(super) fn denied(&self) -> u64 {
        let [now, before] = &*self.lock();
        now.seen() + before.seen() + self.missed()
    }

    pub(super) fn recent(&self) -> RecentDenials {
        let missed = self.missed();
        let [now, before] = &*self.lock();
        RecentDenials {
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
    fn a_stored_key_is_bounded_and_a_cut_one_is_tagged() {
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
