//! What the tests, the benchmarks and the long runs share: stores, sidecars, a proxy that fails, rules, random numbers.
//!
//! Each of these exists once, here. Nothing of this crate is part of the product, and the product never depends on it.
//!
//! - [`Sidecar`] is the real daemon; [`SidecarSetup`] writes its configuration and starts it in a [`Folder`] of its own.
//! - [`Client`] speaks HTTP/1.1 to an [`Endpoint`], to the byte; [`MetricsPage`] reads what Prometheus would.
//! - [`stores`] starts Redis in every topology, and the proxy that fails. [`fleet`] puts sidecars and a load on them.
//! - [`rules`] and [`engine`] build rules and engines in a line. [`Random`] is the only random source.
//! - [`until`] is the only way to wait, [`now`] the only reader of the clock.
//! - [`podman`] builds the image and runs it. [`benchmark`] pins servers and loads to cores.
//!
//! It depends on the standard library, `serde_json` and `tidegate-core` only: the tests of `tidegate-core` use it too.
#![expect(
    missing_docs,
    reason = "a helper of tests is documented where its name does not say it all"
)]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a failed test prints what the daemon said, a benchmark what it could not do"
)]

pub mod benchmark;
pub mod engine;
pub mod fleet;
pub mod podman;
pub mod rules;
pub mod stores;

mod client;
mod folder;
mod port;
mod process;
mod prometheus;
mod random;
mod sidecar;
mod wait;

pub use client::{Client, Endpoint, Response, request};
pub use folder::Folder;
pub use port::free_port;
pub use process::{CommandOutput, OutputLines, repository, send_signal, tidegate_binary};
pub use prometheus::{MetricsPage, Sample};
pub use random::Random;
pub use sidecar::{LISTEN, Sidecar, SidecarSetup};
pub use wait::{SOON, now, rest_until, until};
