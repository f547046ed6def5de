//! Configuration: from a file as written to a [`Config`] that cannot be wrong.
//!
//! [`load()`] reads the file (`raw.rs`: its shape, with places; `fields.rs`: what it may hold), checks every value
//! (`validate.rs`, `doors.rs`, `store.rs`, `rules.rs`) and answers a [`Config`] with its warnings, or all [`Faults`] at
//! once. It never answers half a configuration, and never acts on one: nothing here listens, connects or logs. Only
//! `load.rs` reads files.

mod address;
mod check;
mod doors;
mod duration;
mod error;
mod fields;
mod limit;
mod load;
mod overlap;
mod raw;
pub mod reference;
mod rules;
mod settings;
mod short_form;
mod store;
mod substitute;
mod validate;

pub use address::{Address, AddressFault};
pub use error::{Fault, Faults, Place, Spot, Warning};
pub use load::{check_text, fingerprint, load};
pub use settings::{
    Bounds, Config, HeaderStyle, Listen, Log, LogFormat, LogLevel, Store, StoreUrl, Sync, Tls,
    Topology,
};
pub use substitute::Environment;
