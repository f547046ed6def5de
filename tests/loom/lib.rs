//! The bucket table under every interleaving and every stale read that the memory model allows: `make loom`.
//!
//! A package of its own, because it needs the table built with loom's atomics and locks, which loom can steer.

#[cfg(test)]
mod table;
