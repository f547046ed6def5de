//! The limiter without its surroundings: [`pure`] values and functions, and [`engine`], shared memory around them.
//!
//! Nothing here reads a clock, does IO, spawns, sleeps, logs or records a metric. Time is an argument, and what was found
//! is a value. The daemon and the simulations run the same code.

pub mod engine;
pub mod pure;

/// Whether atomics and locks are those of a model checker. The daemon refuses to be built so.
pub const IS_MODEL: bool = cfg!(feature = "loom");
