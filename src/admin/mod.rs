//! What operators ask: metrics and health, which are safe to expose, and the admin API, which is not.

pub mod api;
pub mod health;
pub mod status;
