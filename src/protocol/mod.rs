//! The protocols of checks: bytes into a check, an answer into bytes.
//!
//! `native` is our JSON and query, `envoy` is Envoy's rate limit service, `resp` is the Redis protocol. Each has a
//! `decode` and an `encode` side by side, and each `encode` maps a [`Verdict`](tidegate_core::engine::Verdict) exactly
//! once. `raw_check` is a check as a client sent it; `headers` are the rate-limit headers that native and Envoy share.
//!
//! Nothing here does IO, decides, or knows a door: `doors` reads the bytes, asks the engine and sends the result.
#![deny(clippy::indexing_slicing)]

pub mod envoy;
pub mod headers;
mod http_response;
mod json;
pub mod native;
mod raw_check;
pub mod resp;

pub use raw_check::{RawCheck, Refusal};
