//! Our own protocol: a check in JSON or in a query, answered in JSON.

pub mod decode;
pub mod encode;
