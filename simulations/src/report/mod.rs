//! What is said of runs: tables for a terminal and a README, plots, and a page with both.
//!
//! Everything here is a function of what came of the runs: no dates, no durations, no order of a hash. The same seeds
//! give the same bytes, so that a report can be committed and its difference read.

mod html;
mod markdown;
#[cfg(test)]
mod samples;
mod svg;
mod table;

pub use html::{Section, page};
pub use svg::{Point, admitted_over_time, overshoot_against_cost};
pub use table::{Row, comparison, failures, sweep, verdicts};
