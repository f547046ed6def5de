//! tidegate: a rate-limit sidecar that decides from its own memory.
//!
//! This crate is the daemon around `tidegate_core`: it reads bytes, clocks and files, and the core decides.
//! ARCHITECTURE.md has the map and the invariants.

pub mod clock;
pub mod telemetry;

pub mod net;
pub mod protocol;

pub mod admin;
pub mod doors;
pub mod sync;

pub mod cli;
pub mod daemon;
pub mod reload;
