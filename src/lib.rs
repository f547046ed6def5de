//! tidegate: a rate-limit sidecar that decides from its own memory.
//!
//! Three rings, dependencies point inward only: [`pure`] values and functions, [`engine`] shared memory, and the shell
//! around them. ARCHITECTURE.md has the map and the invariants.

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
