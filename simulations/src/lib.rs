//! Simulates a fleet of tidegate pods in one thread, with its own clock: measures its error and its cost.
//!
//! The pods run the sidecar's own `engine` and `pure` code. See `simulations/README.md`.

pub mod cli;
pub mod store;

mod baselines;
mod judge;
mod policy;
mod random;
mod regressions;
mod report;
mod run;
mod scenario;
mod sweep;
mod trace;
mod verdict;
mod workload;
mod world;
