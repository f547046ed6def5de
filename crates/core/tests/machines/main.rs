//! The state machines of `pure::sync` against a world that loses, repeats and forgets.
//!
//! `lane.rs` has a toy store and a network, and the property that every cell is counted once.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that expects too much fails, as it should"
)]

mod lane;
