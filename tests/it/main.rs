//! Integration tests, in one binary: it links once.

mod config;
mod tidy;
