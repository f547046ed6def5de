//! A fleet of real sidecars under a load that does not wait for them, and what becomes of it.
//!
//! `pods.rs` starts the sidecars. `load.rs` sends checks and keeps each answer; `pipeline.rs` sends more of them and
//! counts. `judge.rs` compares the answers with an exact limiter, `books.rs` accounts for every cell. `tests/fleet`
//! asserts the scenarios, `benches/fleet.rs` prints them, and `tests/long` runs the contract and the books for longer.

pub mod books;
pub mod conservation;
pub mod contract;
pub mod figure;
pub mod judge;
pub mod load;
pub mod pipeline;
pub mod pods;
pub mod scenarios;
