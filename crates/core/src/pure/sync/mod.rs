//! How pods keep one limit together: what is told to the store, when, and what to do while it cannot be told.
//!
//! State machines that are told what happened and say what to do next. They never do it: `engine/sync` puts them
//! together, and the shell (or a simulation) carries calls to a store and answers back.
//!
//! Invariant: a cell that was admitted is in exactly one place: pending in its bucket, in a frozen batch, in the store's
//! books, kept back by silence, or counted as lost.

pub mod budget;
pub mod call;
pub mod lane;
pub mod link;
pub mod reading;
pub mod share;
pub mod trigger;

pub use budget::{Budget, CALL_COST, STORE_UPDATES_PER_SECOND};
pub use call::{
    BATCH_MAX, BucketKind, Call, Delta, Heartbeat, HeartbeatReply, Known, LANES, Lane, NEWS_STEP,
    News, NewsKind, Overshoot, Refund, Reply, StoreKey, StoreState, Take, Taken, Terms,
};
pub use lane::{Batch, KEPT_FOR, KEPT_MAX, KEPT_MIN, LaneBook, Outcome, Step};
pub use link::{Circuit, Link};
pub use reading::Reading;
pub use share::{Demand, Share, ShareCode};
pub use trigger::{Allowance, FleetView, Trigger};
