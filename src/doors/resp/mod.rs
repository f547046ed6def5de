//! Checks over the Redis protocol: `CL.THROTTLE` as redis-cell has it, and `TG.CHECK` under the rules.
//!
//! `connection` reads and writes, `frame` finds commands in bytes, `command` knows their names, `checks` decides,
//! `session` answers what clients say to set a connection up, `reply` writes answers. RESP2 and RESP3.

mod command;
mod connection;
mod session;

pub use connection::Resp;
