//! Every algorithm against a slow, exact model of its definition, over random histories.
//!
//! `model.rs` has the models, which share no code with the algorithms; `history.rs` draws limits, times and costs;
//! `level.rs` and `windows.rs` have the properties. A failure prints the smallest history that shows it. The tests
//! write no regression file: a failure becomes a table test beside the algorithm.
#![expect(
    clippy::expect_used,
    reason = "a test that expects too much fails, as it should"
)]

mod history;
mod level;
mod model;
mod windows;

use proptest::test_runner::Config;

/// Many histories, and no regression files.
fn config() -> Config {
    Config {
        cases: 512,
        failure_persistence: None,
        ..Config::default()
    }
}
