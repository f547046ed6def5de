//! Values and functions: limits, rules, algorithms. The innermost ring.
//!
//! Standard library only. Nothing here reads a clock, does IO, spawns, sleeps, logs or counts a metric: what it needs
//! comes in as an argument, what it found goes out. No floats, no casts with `as`, no arithmetic that can wrap.
#![deny(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::float_arithmetic,
    clippy::indexing_slicing
)]
#![cfg_attr(
    test,
    expect(
        clippy::arithmetic_side_effects,
        reason = "a test that overflows fails, as it should"
    )
)]

pub mod address;
pub mod algorithm;
pub mod check;
pub mod heavy_hitters;
pub mod key;
pub mod limit;
pub mod path;
pub mod pattern;
pub mod rule;
pub mod rules;
pub mod shown;
pub mod sync;
pub mod time;

pub use address::Addresses;
pub use algorithm::{Algorithm, Standing};
pub use check::{Check, Descriptor, Entry, ValueKind};
pub use heavy_hitters::{HeavyHitter, HeavyHitters, KeysShown};
pub use limit::{Limit, LimitFault, Unit};
pub use path::Paths;
pub use rule::Rule;
pub use rules::Rules;
pub use shown::Shown;
pub use time::{Cells, Moment, Nanos, Span};
