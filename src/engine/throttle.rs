//! A key and a limit that the caller carries: no rule has to be found.

use super::answer::{Hit, Hits};
use super::snapshot::{Carrier, Snapshot};
use super::{Begun, Engine};
use crate::pure::rules::Lookup;
use crate::pure::{Cells, Limit, Moment};

/// A check of a key whose caller carries the limit.
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
    fn hits(&self, snapshot: &Snapshot) -> (Hits, Lookup) {
        let rule = snapshot.carried(Carrier::Throttle);
        let hit = Hit {
            carried: Some(Box::new(self.limit)),
            refund: self.refund,
            ..Hit::new(rule, snapshot.rule(rule).1.key.name_of(self.key), self.cost)
        };
        (Hits::from_iter([hit]), Lookup::Walked)
    }
}

impl Engine {
    /// Decides `throttle` at `moment`, or says what has to be taken in the store first. Never waits.
    pub fn begin_throttle(&self, throttle: &Throttle<'_>, moment: Moment) -> Begun {
        self.begin_with(|snapshot| throttle.hits(snapshot), moment)
    }
}
