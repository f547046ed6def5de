//! The bucket table under every interleaving and every stale read that the memory model allows.
//!
//! `RUSTFLAGS="--cfg tidegate_loom" cargo test --release --test loom`. Without that flag there is nothing here: the
//! table then uses the standard library's atomics, which loom cannot steer.
#![cfg_attr(
    tidegate_loom,
    expect(
        clippy::expect_used,
        reason = "a model that expects too much fails, as it should"
    )
)]

#[cfg(tidegate_loom)]
mod table;
