//! The atomics and locks of the engine: the standard library's, or loom's where a test explores every interleaving.

#[cfg(feature = "loom")]
pub use loom::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};
#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

/// `len` zeroed words. Outside loom they come from the system untouched: a page costs memory once it is used.
#[cfg(not(feature = "loom"))]
pub fn zeroed(len: usize) -> Box<[AtomicU64]> {
    bytemuck::allocation::zeroed_slice_box(len)
}

/// `len` zeroed words.
#[cfg(feature = "loom")]
pub fn zeroed(len: usize) -> Box<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}
