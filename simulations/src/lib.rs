//! A fleet of tidegate pods in one thread, under a clock of its own: how far off it is, and what it costs.
//!
//! The pods run the sidecar's own `engine` and `pure` code. See `simulations/README.md`.

pub mod cli;
pub mod store;

mod baselines;
mod dice;
mod judge;
mod policy;
mod regressions;
mod report;
mod run;
mod scenario;
mod sweep;
mod trace;
mod verdict;
mod workload;
mod world;
