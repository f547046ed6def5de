//! A fleet of real sidecars under a load that does not wait for them, and what is found out about it.
//!
//! Used by the tests beside it and by `benches/fleet.rs`: the same scenarios, asserted there and printed here.

pub mod books;
pub mod conservation;
pub mod contract;
pub mod figure;
pub mod fleet;
pub mod judge;
pub mod load;
pub mod scenarios;
