//! Whoever pushes a key and whoever drains the queue, at the same time.

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;
use tidegate_core::engine::sync_queue::SyncQueue;
use tidegate_core::pure::sync::StoreKey;

const fn key(name: u128) -> StoreKey {
    StoreKey::level(1, name)
}

/// A key that is pushed while others are drained is among them, or whoever drains is woken once more: no key waits in
/// the queue for a turn that nobody was asked to take.
#[test]
fn a_key_is_drained_or_wakes_again() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let sync_queue = Arc::new(SyncQueue::new(4));
        // Not loom's: what is counted is not what is explored.
        let woken = std::sync::Arc::new(AtomicUsize::new(0));
        let bell = std::sync::Arc::clone(&woken);
        sync_queue.set_waker(Box::new(move || {
            bell.fetch_add(1, Ordering::Relaxed);
        }));
        sync_queue.push(key(1));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        let checks = Arc::clone(&sync_queue);
        let other = thread::spawn(move || checks.push(key(2)));
        let drained = sync_queue.drain().count();
        other.join().expect("no panic");
        let rings = woken.load(Ordering::Relaxed);
        assert!(
            (1..=2).contains(&drained) && (drained == 2 || rings == 2),
            "{drained} drained, rung {rings} times"
        );
    });
}
