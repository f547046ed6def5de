//! The services for operators: metrics and health, which are safe to expose, and the admin API, which is not.

pub mod api;
pub mod health;
mod keys;
mod page;
pub mod status;
mod store;
mod top;
