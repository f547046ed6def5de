//! Reading a check out of a request.
#![deny(clippy::indexing_slicing)]

pub mod decode;
pub mod envoy;
pub mod proto;
