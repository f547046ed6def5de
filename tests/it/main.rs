//! Integration tests, in one binary: it links once.
//!
//! `sidecar` starts the real daemon; each test has one of its own, on ports that the system chooses.
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
mod client;
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
mod prometheus;
mod redis_cell;
#[expect(dead_code, reason = "tests/fleet uses the rest")]
#[path = "../redis/server.rs"]
mod redis_server;
mod reference;
mod reload;
mod resp;
mod resp_bounds;
mod resp_clients;
mod resp_pages;
mod rls;
mod shutdown;
mod sidecar;
mod sockets;
mod tasks;
mod tidy;
mod token_budgets;
mod top;
