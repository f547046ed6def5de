//! Checks over the Redis protocol: `CL.THROTTLE` as redis-cell has it, and `TG.CHECK` under the rules.
//!
//! `connection` reads and writes, `command` knows the commands by name, `session` answers the commands that set a
//! connection up. `protocol/resp` parses and writes RESP2 and RESP3.

mod command;
mod connection;
mod session;

pub use connection::RespDoor;
