//! Integration tests, in one binary: it links once.
//!
//! Each test starts a real daemon of its own, a `tidegate_testing::Sidecar`, on ports that the system chooses.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on fails"
)]

mod admin;
mod any_value;
mod bad_input;
mod ci;
mod cli;
mod config;
mod envoy;
mod explain;
mod forward;
mod grpc;
mod grpc_services;
mod guides;
mod health;
mod http;
mod http2;
mod json;
mod log;
mod nginx;
mod probes;
mod redis_cell;
mod reference;
mod reload;
mod resp;
mod resp_bounds;
mod resp_clients;
mod resp_pages;
mod rls;
mod shutdown;
mod sockets;
mod tasks;
mod tidy;
mod tidy_names;
mod token_budgets;
mod top;
