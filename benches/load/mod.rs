//! What the doors' benchmark measures with: the floors, and the load.

pub mod floor;
pub mod floor_grpc;
pub mod requests;
pub mod wire;
