//! The bucket table and the sync queue, under every interleaving and every stale read that the memory model allows:
//! `make loom`.
//!
//! This is a package of its own, because it needs `tidegate-core` built with the atomics and locks of loom.

#[cfg(test)]
mod sync_queue;
#[cfg(test)]
mod table;
