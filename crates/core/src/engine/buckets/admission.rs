//! An admission, and what it takes to undo it.

use super::table::Tenancy;
use crate::engine::answer::Source;
use crate::pure::{Nanos, Standing};

/// A reload swapped the rules while a key was about to enter under the old ones: decide again under the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// What a bucket decided, and what it takes to undo that.
#[derive(Debug)]
pub(in crate::engine) struct Admission<'a> {
    pub(in crate::engine) standing: Standing,
    pub(in crate::engine) source: Source,
    pub(in crate::engine) trace: Trace<'a>,
}

/// What an admission changed.
#[derive(Debug)]
pub(in crate::engine) enum Trace<'a> {
    /// Nothing.
    None,
    /// Nothing: the check is allowed without room, because the store is unreachable.
    Forgiven,
    /// The key has no bucket: a ghost remembers what it used, and nothing can be given back.
    Unheld,
    /// A bucket of the table moved from one TAT to the next.
    Slot {
        tenancy: Tenancy<'a>,
        before: Nanos,
        after: Nanos,
    },
    /// A bucket in a striped map moved from one TAT to the next.
    Line { before: Nanos, after: Nanos },
    /// A window counted the cost.
    Count,
}
