//! The bucket table under every interleaving and every stale read that the memory model allows.
//!
//! `RUSTFLAGS="--cfg tidegate_loom" cargo test --profile quick --test loom`. Without that flag there is nothing here: the
//! table then uses the standard library's atomics, which loom cannot steer.

#[cfg(tidegate_loom)]
mod table;
