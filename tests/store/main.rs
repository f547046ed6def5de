//! The store against a real server: what the scripts do, what a pod may ask, and what becomes of every failure.
//!
//! `histories.rs`: the script that books batches equals the simulations' model of it. `asks.rs`: the rest of what a pod may ask.
//! `failures.rs`: what goes wrong has a name, and does so in time.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

#[path = "../redis/server.rs"]
#[expect(
    dead_code,
    reason = "other tests restart servers and send them signals"
)]
mod server;

mod asks;
mod failures;
mod histories;
#[path = "../../simulations/src/store/model/mod.rs"]
mod model;
mod random;
mod scripted;
mod world;
