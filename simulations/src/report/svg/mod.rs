//! Plots as SVG, written by hand: small, without scripts, and without anything to load.
//!
//! Each stands on a panel of its own, light or dark as the reader prefers, and so can go into a README or the page.

mod axis;
mod canvas;
mod costs;
mod labels;
mod panels;
mod rates;

pub use canvas::escape;
pub use costs::{Point, overshoot_against_cost};
pub use rates::admitted_over_time;
