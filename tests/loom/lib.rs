//! The bucket table and the queue of keys that want a round, under every interleaving and every stale read that the
//! memory model allows: `make loom`.
//!
//! A package of its own, because it needs them built with loom's atomics and locks, which loom can steer.

#[cfg(test)]
mod sync_queue;
#[cfg(test)]
mod table;
