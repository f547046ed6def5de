//! The doors: how a check comes in and its answer goes out.
//!
//! A door turns bytes into a [`Check`](tidegate_core::pure::Check), reads the clock once, asks the engine and encodes the
//! answer. Between the two there is no `.await`, except in `strict.rs`. Whether it listens on TCP or on a Unix socket is
//! a property of its listener.
#![deny(clippy::indexing_slicing)]

mod body;
mod forward;
pub mod grpc;
pub mod http;
pub mod limiter;
pub mod resp;
pub mod strict;
