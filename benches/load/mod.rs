//! What the doors' benchmark measures with: the floor, and the load.

pub mod floor;
pub mod requests;
