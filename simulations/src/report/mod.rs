//! Reports of runs: tables for a terminal and a README, plots, and a page with both.
//!
//! A report depends on the outcomes of the runs and on nothing else: no dates, no durations, no order of a hash map. The
//! same seeds give the same bytes, so that a report can be committed and its difference read.

mod html;
mod markdown;
#[cfg(test)]
mod samples;
mod svg;
mod table;

pub use html::{ReportSection, page};
pub use svg::{CostPoint, admitted_over_time, overshoot_against_cost};
pub use table::{PolicyRow, comparison, failures, sweep, verdicts};
