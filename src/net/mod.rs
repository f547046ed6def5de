//! Listening, connections and HTTP: what the doors and the admin pages share.
//!
//! `listen` binds, `accept` accepts and bounds connections, `drain` ends them in order, `http1` and `http2` serve
//! requests, `idle_timeout` closes idle connections, `connection_slots` keeps a listener open for probes, `response`
//! builds replies. It decides nothing and knows no protocol of checks.
#![deny(clippy::indexing_slicing)]

pub mod accept;
pub mod connection_slots;
pub mod drain;
pub mod http1;
pub mod http2;
mod idle_timeout;
pub mod listen;
mod response;
mod secret;

pub use response::{HttpReply, json, method_refusal, refusal, reply};
pub use secret::{is_secret, unguessable};
