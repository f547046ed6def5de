//! A key and a limit that the caller carries: no rule has to be found, and `carried.rs` has the bucket.

use super::Engine;
use super::admit::{Admission, Subject, Trace};
use super::answer::{Hit, Hits, Source};
use super::carried::Stood;
use super::snapshot::{CallerRule, Snapshot};
use super::stats::Stat;
use super::striped_map::Room;
use super::table::{Booking, Size};
use crate::pure::{Cells, Limit, Standing};

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

impl Engine {
    /// Takes `cost` cells of the key if they are there.
    pub(super) fn admit_carried(&self, subject: &Subject<'_>, cost: Cells) -> Admission<'_> {
        let now = subject.moment.now;
        let opening = || self.carried_opening(subject);
        let step = |stood: &Stood| subject.next(stood.tat, stood.granted, cost);
        let (stood, room) = self.carried.admit(subject.name, now, opening, step);
        let by_share = stood.granted.is_some();
        let (after, standing) = match by_share {
            false => subject.decide(stood.tat, cost),
            true => subject.granting(stood.granted).decide(stood.tat, cost),
        };
        self.stats.room(room);
        if by_share
            && !standing.allowed
            && !stood.mitigated
            && self.carried.note_share_denied(subject.name)
        {
            self.sync_queue.push(subject.store_key());
        }
        let trace = match room {
            _ if !standing.allowed => Trace::None,
            Room::Free | Room::Settled(_) | Room::InUse(_) => Trace::Carried {
                before: stood.tat,
                after,
            },
            Room::Nowhere => Trace::Unheld,
        };
        let source = subject.source(stood.tat, stood.mitigated);
        Admission {
            standing,
            source: source.granted(by_share),
            trace,
        }
    }

    /// How a key that is not held has to be assumed to stand.
    fn carried_opening(&self, subject: &Subject<'_>) -> Stood {
        let (mitigated, unheld) = (self.mitigation(subject), self.unheld(subject));
        Stood {
            tat: unheld.max(mitigated.unwrap_or(unheld)),
            mitigated: mitigated.is_some(),
            size: Size::of(subject.limit.capacity()),
            granted: None,
        }
    }

    /// Holds a denied key: the store can only be asked for one whose limit is known.
    pub(super) fn hold_carried(&self, subject: &Subject<'_>) {
        let stood = self.carried_opening(subject);
        let now = subject.moment.now;
        let room = self.carried.hold(subject.name, &subject.limit, stood, now);
        self.stats.room(room);
    }

    /// How a check of `cost` would stand. Changes nothing.
    pub(super) fn look_carried(&self, subject: &Subject<'_>, cost: Cells) -> (Standing, Source) {
        let opening = || self.carried_opening(subject);
        let stood = self.carried.look(subject.name).unwrap_or_else(opening);
        let (_, standing) = subject.granting(stood.granted).decide(stood.tat, cost);
        let source = subject.source(stood.tat, stood.mitigated);
        (standing, source.granted(stood.granted.is_some()))
    }

    /// Notes admitted cells for the store.
    pub(super) fn report_carried(&self, subject: &Subject<'_>, cost: Cells) {
        match self.carried.book(subject.name, &subject.limit, cost) {
            Booking::Noted => {}
            Booking::Triggered => self.sync_queue.push(subject.store_key()),
            Booking::Left => self.stats.count(Stat::CellsLost, cost.get()),
        }
    }
}
