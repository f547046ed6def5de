//! The atomics, locks and queues of the engine: the usual ones, or loom's where a test explores every interleaving.

#[cfg(not(feature = "loom"))]
pub use crossbeam_queue::SegQueue as Queue;
#[cfg(feature = "loom")]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};
#[cfg(feature = "loom")]
pub use model::Queue;
#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

/// What memory can be filled with zeros of.
#[cfg(not(feature = "loom"))]
pub trait Word: bytemuck::Zeroable {}
#[cfg(not(feature = "loom"))]
impl<T: bytemuck::Zeroable> Word for T {}

/// What memory can be filled with zeros of.
#[cfg(feature = "loom")]
pub trait Word: Default {}
#[cfg(feature = "loom")]
impl<T: Default> Word for T {}

/// `len` zeroed words. Outside loom they come from the system untouched: a page costs memory once it is used.
#[cfg(not(feature = "loom"))]
pub fn zeroed<T: Word>(len: usize) -> Box<[T]> {
    bytemuck::allocation::zeroed_slice_box(len)
}

/// `len` zeroed words.
#[cfg(feature = "loom")]
pub fn zeroed<T: Word>(len: usize) -> Box<[T]> {
    (0..len).map(|_| T::default()).collect()
}

#[cfg(feature = "loom")]
mod model {
    use std::collections::VecDeque;
    use std::sync::PoisonError;

    use loom::sync::Mutex;
    use loom::sync::atomic::{AtomicUsize, Ordering};

    /// What a model may expect of crossbeam's queue: an item counts once its push has been seen, and a reader that has
    /// not synchronised with whoever pushed it may not see that yet.
    #[derive(Debug)]
    pub struct Queue<T> {
        pushed: AtomicUsize,
        popped: AtomicUsize,
        items: Mutex<VecDeque<T>>,
    }

    impl<T> Default for Queue<T> {
        fn default() -> Self {
            Self {
                pushed: AtomicUsize::new(0),
                popped: AtomicUsize::new(0),
                items: Mutex::new(VecDeque::new()),
            }
        }
    }

    impl<T> Queue<T> {
        pub fn push(&self, item: T) {
            let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
            items.push_back(item);
            drop(items);
            self.pushed.fetch_add(1, Ordering::AcqRel);
        }

        pub fn len(&self) -> usize {
            let popped = self.popped.load(Ordering::Acquire);
            self.pushed.load(Ordering::Acquire).saturating_sub(popped)
        }

        pub fn pop(&self) -> Option<T> {
            let mut items = self.items.lock().unwrap_or_else(PoisonError::into_inner);
            let item = items.pop_front()?;
            drop(items);
            self.popped.fetch_add(1, Ordering::AcqRel);
            Some(item)
        }
    }
}
