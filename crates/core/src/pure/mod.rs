//! Limits, rules, algorithms and the state machines of the sync: values and functions. The innermost ring.
//!
//! This module uses the standard library only. Nothing here reads a clock, does IO, spawns, sleeps, logs or records a
//! metric: a function takes what it needs as arguments and returns what it found. There are no floats, no casts with
//! `as`, and no arithmetic that can wrap.
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
pub mod display_text;
pub mod heavy_hitters;
pub mod key;
pub mod limit;
pub mod path;
pub mod pattern;
pub mod rule;
pub mod rules;
pub mod sync;
pub mod time;

pub use address::Addresses;
pub use algorithm::{Algorithm, Standing};
pub use check::{Check, Descriptor, Entry, ValueKind};
pub use display_text::DisplayText;
pub use heavy_hitters::{HeavyHitter, HeavyHitters, KeyDisplay};
pub use limit::{Limit, LimitFault, Unit};
pub use path::Paths;
pub use rule::Rule;
pub use rules::Rules;
pub use time::{Cells, Moment, Nanos, Span};
