//! The state machines of `pure::sync` against a network that loses and repeats calls, and a store that forgets.
//!
//! `book.rs` has a toy store and a network, and the property that the store counts every cell once.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "a test that expects too much fails, as it should"
)]

mod book;
