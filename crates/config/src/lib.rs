//! Turns configuration files into a checked [`Config`].
//!
//! [`load()`] parses the file (`raw.rs`: its shape, with positions; `fields.rs`: its fields), checks every value
//! (`validate.rs`, `doors.rs`, `store.rs`, `rules.rs`) and returns a [`Config`] with its warnings, or all [`Faults`] at
//! once. It never returns half a configuration, and never acts on one: nothing here listens, connects or logs. Only
//! `load.rs` reads files.

mod address;
mod doors;
mod duration;
mod error;
mod fields;
mod limit;
mod load;
mod overlap;
mod raw;
mod reader;
pub mod reference;
mod rules;
mod settings;
mod short_form;
mod store;
mod substitute;
mod validate;

pub use address::{Address, AddressFault};
pub use error::{Fault, Faults, Position, Spot, Warning};
pub use load::{check_text, fingerprint, load};
pub use settings::{
    Bounds, Config, HeaderStyle, ListenSettings, LogFormat, LogLevel, LogSettings, StoreSettings,
    StoreUrl, SyncSettings, TlsSettings, Topology,
};
pub use substitute::Environment;
