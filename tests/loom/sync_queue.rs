//! One thread pushes a key while another drains the queue.

use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::Arc;
use loom::thread;
use tidegate_core::engine::sync_queue::SyncQueue;
use tidegate_core::pure::sync::StoreKey;

const fn key(name: u128) -> StoreKey {
    StoreKey::level(1, name)
}

/// A key that is pushed while the queue is drained is either drained with the others or wakes the drainer once more. So
/// no key waits in the queue for a turn that nobody will take.
#[test]
fn a_key_is_drained_or_wakes_again() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(|| {
        let sync_queue = Arc::new(SyncQueue::new(4));
        // Not an atomic of loom: loom need not explore the counter.
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
