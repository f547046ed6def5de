//! How the pods of a fleet hold one limit together: what a pod reports to the store, when, and what it does while the
//! store is unreachable.
//!
//! These are state machines: the caller tells them what happened, and they say what to do next. They never do it.
//! `engine/sync` puts them together, and the shell (or a simulation) sends the calls to a store and brings the answers.
//!
//! Invariant: an admitted cell is in exactly one place: pending in its bucket, in a frozen batch, booked by the store,
//! withheld because its key is silent, or counted as lost.

pub mod book;
pub mod budget;
pub mod call;
pub mod link;
pub mod reading;
pub mod share;
pub mod store_key;
pub mod terms;
pub mod trigger;

pub use book::{
    Batch, BookOutcome, BookStep, CALLS_IN_FLIGHT_MAX, GroupBook, KEPT_FOR, KEPT_MAX, KEPT_MIN,
};
pub use budget::{Budget, CALL_COST, STORE_UPDATES_PER_SECOND};
pub use call::{
    BATCH_MAX, Call, CallId, Delta, Heartbeat, HeartbeatReply, NEWS_STEP, News, NewsKind,
    Overshoot, Refund, StoreReply, StoreState, Take, TakeReply,
};
pub use link::{Circuit, Link};
pub use reading::StoreReading;
pub use share::{Demand, Share, ShareCode};
pub use store_key::{BucketKind, Group, Grouping, LANES, Lane, StoreKey};
pub use terms::{KnownUsage, Terms};
pub use trigger::{Allowance, FleetView, Trigger};
