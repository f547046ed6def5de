//! Plots as SVG, written by hand: small, without scripts, and without anything to load. Why by hand:
//! `docs/decisions/0020`.
//!
//! Each plot has its own background, light or dark as the reader prefers, so that it fits into a README and into the page.

mod axis;
mod canvas;
mod costs;
mod labels;
mod panels;
mod rates;

pub use canvas::escape;
pub use costs::{CostPoint, overshoot_against_cost};
pub use rates::admitted_over_time;
