//! A key and a limit that the caller carries: no rule has to be found, and `carried.rs` has the bucket.

use super::admit::{Admission, Asked, Trace};
use super::answer::{Hit, Hits, Source};
use super::carried::Stood;
use super::shards::Room;
use super::snapshot::{Carrier, Snapshot};
use super::stats::Stat;
use super::table::{Booked, Size};
use super::{Begun, Engine};
use crate::pure::rules::Lookup;
use crate::pure::{Cells, Limit, Moment, Standing};

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

    /// Takes `cost` cells of the key if they are there.
    pub(super) fn admit_carried(&self, asked: &Asked<'_>, cost: Cells) -> Admission<'_> {
        let now = asked.moment.now;
        let opening = || self.carried_opening(asked);
        let step = |stood: &Stood| asked.next(stood.tat, stood.granted, cost);
        let (stood, room) = self.carried.admit(asked.name, now, opening, step);
        let by_share = stood.granted.is_some();
        let (after, standing) = match by_share {
            false => asked.decide(stood.tat, cost),
            true => asked.granting(stood.granted).decide(stood.tat, cost),
        };
        self.stats.room(room);
        if by_share
            && !standing.allowed
            && !stood.mitigated
            && self.carried.note_share_denied(asked.name)
        {
            self.wanting.push(asked.store_key());
        }
        let trace = match room {
            _ if !standing.allowed => Trace::None,
            Room::Free | Room::Settled(_) | Room::InUse(_) => Trace::Carried {
                before: stood.tat,
                after,
            },
            Room::Nowhere => Trace::KeptOut,
        };
        let source = asked.source(stood.tat, stood.mitigated);
        Admission {
            standing,
            source: source.granted(by_share),
            trace,
        }
    }

    /// How a key that is not held has to be assumed to stand.
    fn carried_opening(&self, asked: &Asked<'_>) -> Stood {
        let (mitigated, unheld) = (self.mitigation(asked), self.unheld(asked));
        Stood {
            tat: unheld.max(mitigated.unwrap_or(unheld)),
            mitigated: mitigated.is_some(),
            size: Size::of(asked.limit.capacity()),
            granted: None,
        }
    }

    /// Holds a denied key: the store can only be asked for one whose limit is known.
    pub(super) fn hold_carried(&self, asked: &Asked<'_>) {
        let stood = self.carried_opening(asked);
        let now = asked.moment.now;
        let room = self.carried.hold(asked.name, &asked.limit, stood, now);
        self.stats.room(room);
    }

    /// How a check of `cost` would stand. Changes nothing.
    pub(super) fn look_carried(&self, asked: &Asked<'_>, cost: Cells) -> (Standing, Source) {
        let opening = || self.carried_opening(asked);
        let stood = self.carried.look(asked.name).unwrap_or_else(opening);
        let (_, standing) = asked.granting(stood.granted).decide(stood.tat, cost);
        let source = asked.source(stood.tat, stood.mitigated);
        (standing, source.granted(stood.granted.is_some()))
    }

    /// Notes admitted cells for the store.
    pub(super) fn report_carried(&self, asked: &Asked<'_>, cost: Cells) {
        match self.carried.book(asked.name, &asked.limit, cost) {
            Booked::Noted => {}
            Booked::Triggered => self.wanting.push(asked.store_key()),
            Booked::Left => self.stats.count(Stat::CellsLost, cost.get()),
        }
    }
}
