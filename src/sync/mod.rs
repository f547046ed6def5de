//! The way to the store: Redis, what it runs for us, and who drives the rounds.
//!
//! [`Store`] is what a pod may ask of the store. Below it: `connect` keeps one connection per server (`dial`
//! makes it, `stream` bounds what comes on it), `sentinel` and
//! `cluster` know where the servers are, `listen` hears other pods, `codec` turns values into bytes and back, and
//! `lua/` is what runs inside Redis. Nothing here decides anything: that is `pure/sync` and `engine`.

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
pub use driver::{Driver, StartError};
pub use error::{ErrorKind, StoreError};
pub use store::Store;
