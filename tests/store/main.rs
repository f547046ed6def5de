//! The store against a real server: what the scripts do, what a pod may ask, and what becomes of every failure.

#[path = "../redis/server.rs"]
#[expect(
    dead_code,
    reason = "other tests restart servers and send them signals"
)]
mod server;

mod histories;
mod model;
mod random;
