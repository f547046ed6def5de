//! The keys that want a round: checks push them, and the driver of the sync takes them.
//!
//! A key is queued once for each time that its pending cells reach the trigger, which is once for each time that they are
//! collected, unless some were refunded meanwhile.
//!
//! The queue is bounded and loses nothing. While it is full, a check queues no key: the cells stay pending in their
//! bucket, and the bucket's trigger moves up, so that the key asks again with a later cell.

use std::fmt;
use std::sync::OnceLock;

use super::atomic::{AtomicBool, Ordering, Queue};
use crate::pure::sync::StoreKey;

/// The queue has room for one key for so many that the pod holds, and for at least `KEYS_MIN`. The sync tracks no more.
const KEYS_PART: usize = 4;
const KEYS_MIN: usize = 1_000;

/// Wakes the driver of the sync. A check calls it, so it must not wait.
pub type Waker = Box<dyn Fn() + Send + Sync>;

/// The queue.
pub struct SyncQueue {
    keys: Queue<StoreKey>,
    keys_max: usize,
    woken: AtomicBool,
    waker: OnceLock<Waker>,
}

impl fmt::Debug for SyncQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SyncQueue({} of {})", self.keys.len(), self.keys_max)
    }
}

impl SyncQueue {
    /// A queue of a pod that holds `keys_max` keys.
    pub fn new(keys_max: usize) -> Self {
        Self {
            keys: Queue::default(),
            keys_max: (keys_max / KEYS_PART).max(KEYS_MIN),
            woken: AtomicBool::new(false),
            waker: OnceLock::new(),
        }
    }

    /// Whether a key may be queued. Threads that ask at the same time may exceed the bound by one key each.
    pub fn has_room(&self) -> bool {
        self.keys.len() < self.keys_max
    }

    /// Puts `key` at the end. A check asks [`SyncQueue::has_room`] first.
    #[cold]
    pub fn push(&self, key: StoreKey) {
        self.keys.push(key);
        self.wake();
    }

    /// Wakes the driver of the sync, once until the queue is next emptied.
    pub fn wake(&self) {
        // Ordering: AcqRel. A driver that clears the flag after this sees what was pushed before; a driver that cleared it
        // before is woken again.
        if !self.woken.swap(true, Ordering::AcqRel)
            && let Some(waker) = self.waker.get()
        {
            waker();
        }
    }

    /// Everything that is queued.
    pub fn drain(&self) -> impl Iterator<Item = StoreKey> {
        // Ordering: AcqRel, and a swap. It reads the last flag that was set, so this thread sees every key that was pushed
        // before it. A flag that is set later finds this one cleared, and wakes. A plain store reads nothing: it can
        // clear the flag of a key that is not seen yet, and that key then waits for the next turn.
        // Shown by: tests/loom/sync_queue.rs, a_key_is_drained_or_wakes_again.
        self.woken.swap(false, Ordering::AcqRel);
        // Takes no more keys than are there now: later ones wake the driver again.
        (0..self.keys.len()).map_while(|_| self.keys.pop())
    }

    /// Says whom to wake. Only the first call counts.
    pub fn set_waker(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_has_no_room_until_it_is_drained() {
        let queue = SyncQueue::new(0);
        for name in 0..1_000 {
            assert!(queue.has_room());
            queue.push(StoreKey::level(1, name));
        }
        assert!(!queue.has_room());
        assert_eq!(queue.drain().count(), 1_000);
        assert!(queue.has_room());
    }
}
