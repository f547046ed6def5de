//! A check of a key with a caller-supplied limit: no rule has to be found, and `buckets/caller.rs` has the bucket.

use super::answer::{Hit, Hits};
use super::snapshot::{CallerRule, Snapshot};
use crate::pure::{Cells, Limit};

/// A check of a key whose caller supplies the limit.
#[derive(Clone, Copy, Debug)]
pub struct Throttle<'a> {
    /// The key.
    pub key: &'a [u8],
    /// What it is held to.
    pub limit: Limit,
    /// Cells it uses; zero is a look.
    pub cost: Cells,
    /// Gives them back instead.
    pub refund: bool,
}

impl Throttle<'_> {
    pub(super) fn hits(&self, snapshot: &Snapshot) -> Hits {
        let rule = snapshot.caller_rule(CallerRule::Throttle);
        let hit = Hit {
            caller_limit: Some(Box::new(self.limit)),
            refund: self.refund,
            ..Hit::new(rule, snapshot.rule(rule).1.key.name_of(self.key), self.cost)
        };
        Hits::from_iter([hit])
    }
}
