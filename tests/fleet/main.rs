//! Fleets of real sidecars on real stores, in one binary: what they hold together, and what they survive.
//!
//! `harness` has the load, the judge and the scenarios; `make fleet` prints the same scenarios in full length.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails"
)]

#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/client.rs"]
mod client;
mod harness;
#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/prometheus.rs"]
mod prometheus;
#[path = "../redis/mod.rs"]
mod redis;
#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/sidecar.rs"]
mod sidecar;

mod books;
mod budgets;
mod caller_limits;
mod contract;
mod errors;
mod frames;
mod judge;
mod limits;
mod load;
mod proxy;
mod rules;
mod stores;

use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Held by every test: those that measure time hold it alone.
static MACHINE: RwLock<()> = RwLock::new(());

/// The machine, with others.
fn shared() -> RwLockReadGuard<'static, ()> {
    MACHINE
        .read()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// The machine, alone.
fn alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE
        .write()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
