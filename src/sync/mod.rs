//! The client of the store (Redis), and the loop that runs the sync rounds.
//!
//! [`RedisStore`] is everything that a pod may ask of the store. Below it: `connect` keeps one connection per server
//! (`dial` opens it, `stream` limits the length of answers), `sentinel` and `cluster` find the servers, `listen`
//! receives news from other pods, `codec` turns values into bytes and back, and `lua/` runs inside Redis. [`Driver`]
//! runs the rounds. Nothing here decides anything: `pure/sync` and `engine` do. Why this is not the `redis` crate's
//! own cluster client: `docs/decisions/0019`.

mod address;
mod cluster;
pub mod codec;
mod connect;
mod dial;
mod driver;
mod error;
mod listen;
mod script;
mod sentinel;
mod store;
mod stream;

pub use connect::StoreSetupError;
pub use driver::{Driver, DriverSetup, StartError};
pub use error::{ErrorKind, StoreError};
pub use store::RedisStore;
