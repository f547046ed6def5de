//! Fleets of real sidecars on real stores, in one binary: what they hold together, and what they survive.
//!
//! `tidegate_testing::fleet` has the load, the judge and the scenarios; `make fleet` prints the same scenarios in full
//! length.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on fails"
)]

mod books;
mod budgets;
mod caller_limits;
mod contract;
mod errors;
mod frames;
mod idle;
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
