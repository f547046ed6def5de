//! The doors: how a check comes in and its answer goes out.
//!
//! A door reads bytes, has `protocol` decode them, decides with [`limiter::Limiter`], and sends what `protocol`
//! encodes. Between decoding and encoding there is no `.await`, except in `strict.rs`. Whether a door listens on TCP or
//! on a Unix socket is a property of its listener (`net`).
#![deny(clippy::indexing_slicing)]

mod body;
mod forward;
pub mod grpc;
pub mod http;
pub mod limiter;
pub mod resp;
pub mod strict;
