//! The keys that want a round, from the checks that noticed it to whoever drives the rounds.
//!
//! A key is here once for each time that its cells reach the trigger, which is once for each time that they are collected,
//! unless some were refunded meanwhile.

use std::fmt;
use std::sync::OnceLock;

use super::atomic::{AtomicBool, Ordering, Queue};
use crate::pure::sync::StoreKey;

/// Wakes whoever drives the rounds. Called by a check: must not wait.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// The queue.
#[derive(Default)]
pub struct SyncQueue {
    keys: Queue<StoreKey>,
    woken: AtomicBool,
    waker: OnceLock<Waker>,
}

impl fmt::Debug for SyncQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Wanting({})", self.keys.len())
    }
}

impl SyncQueue {
    /// Puts `key` at the end.
    #[cold]
    pub fn push(&self, key: StoreKey) {
        self.keys.push(key);
        self.wake();
    }

    /// Wakes whoever drives the rounds, once until the queue is next emptied.
    pub fn wake(&self) {
        // Ordering: AcqRel. Whoever clears the flag after this sees what was left before; whoever cleared it before is
        // rung again.
        if !self.woken.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            waker();
        }
    }

    /// Everything that is there.
    pub fn drain(&self) -> impl Iterator<Item = StoreKey> {
        // Ordering: AcqRel, and a swap. It reads the last flag that was set, so this thread sees every key that was pushed
        // before it. A flag that is set later finds this one cleared, and rings. A plain store reads nothing: it can
        // clear the flag of a key that is not seen yet, and that key then waits for the next turn.
        // Shown by: tests/loom/wanting.rs, a_key_is_drained_or_rings_again.
        self.woken.swap(false, Ordering::AcqRel);
        // Those that come meanwhile ring again: no more than are there now.
        (0..self.keys.len()).map_while(|_| self.keys.pop())
    }

    /// Says whom to wake. Only the first call counts.
    pub fn set_waker(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }
}
