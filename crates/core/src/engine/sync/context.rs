//! The surroundings of one event of the sync: the engine, the rules in force, and the time.

use crate::engine::buckets::Subject;
use crate::engine::{Engine, Snapshot};
use crate::pure::sync::StoreKey;
use crate::pure::{Moment, Nanos, Span};

/// What every event of the sync needs.
pub(super) struct SyncContext<'a> {
    pub(super) engine: &'a Engine,
    pub(super) snapshot: &'a Snapshot,
    pub(super) moment: Moment,
}

impl<'a> SyncContext<'a> {
    pub(super) const fn now(&self) -> Nanos {
        self.moment.now
    }

    pub(super) fn subject_of_key(&self, key: StoreKey) -> Option<Subject<'a>> {
        self.engine.subject_of_key(self.snapshot, key, self.moment)
    }
}

/// When a call was sent and when its answer came.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Before it was sent.
    pub sent: Nanos,
    /// After the answer was read.
    pub back: Moment,
}

impl RoundTrip {
    /// The point on this pod's clock that an answer holds for. The store answered at some point of the round trip; the
    /// middle is never far off.
    pub(super) fn anchor(&self) -> Nanos {
        let there_and_back = self.back.now.since(self.sent).get();
        self.sent.after(Span::nanos(there_and_back / 2))
    }
}
