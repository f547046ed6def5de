//! Engines and their rounds against the store's model, under a clock that the test owns: a fleet in one thread.
//!
//! `world.rs` runs it, `accuracy.rs` says how far off a fleet is, `windows.rs` what clocks that differ do to windows.
#![expect(
    clippy::expect_used,
    reason = "a test that expects too much fails, as it should"
)]

mod accuracy;
#[path = "../../simulations/src/store/model.rs"]
#[expect(dead_code, reason = "the histories use the rest")]
mod model;
mod windows;
mod world;
