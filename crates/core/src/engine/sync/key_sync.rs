//! One key that the rounds know of: whether it is told or kept back, what is under way, when to look again.

use super::HOLD;
use super::fleet::Reason;
use super::overdue::Overdue;
use super::queue::Place;
use crate::engine::buckets::{BucketAddress, FrozenCells};
use crate::pure::sync::{Allowance, Demand, Reading, Share, Terms};
use crate::pure::{Cells, Limit, Nanos, Span};

/// A key that is told, or was looked at because it might have to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySync {
    pub(super) limit: Limit,
    pub(super) terms: Terms,
    /// Whether a pod's part of its accuracy is less than a cell: each cell is told at once. That is never often, because
    /// such a limit is low.
    pub(super) is_thin: bool,
    /// Until when everything of it is told; `None` while it is silent.
    pub(super) loud_until: Option<Nanos>,
    /// The TAT of this pod's even share of it.
    pub(super) even: Nanos,
    /// When that was last brought up to date.
    pub(super) looked: Nanos,
    /// Whether the other pods are to tell it too.
    pub(super) announce: bool,
    /// The batch it is in.
    pub(super) flight: Option<Flight>,
    /// When it was last put in a batch.
    pub(super) sent: Nanos,
    /// When to look at it again.
    pub(super) due: Nanos,
    /// Why it wants a round that it has to wait for.
    pub(super) postponed: Option<Reason>,
    /// Its place among the keys that wait to be reported.
    pub(super) place: Option<Place>,
    /// Set while it cannot be reported in time.
    pub(super) overdue: Option<Overdue>,
    /// Whether the store is to say how it stands, even if there is nothing to tell.
    pub(super) ask: bool,
    /// Whether the store has said how it stands.
    pub(super) answered: bool,
    /// Cells that were collected and are yet to be told.
    pub(super) unsent: Unsent,
    /// Those cells yet to be told, here and in the bucket, that were charged although they were denied.
    pub(super) charged: Cells,
    pub(super) demand: Demand,
    pub(super) weight: Share,
    /// How it stood when its lane became blind.
    pub(super) detached: Option<Detached>,
    /// Until when the store's level denies it.
    pub(super) full_until: Nanos,
}

/// A key on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) frozen: FrozenCells,
    pub(super) terms: Terms,
    /// Those of its cells that were charged although they were denied.
    pub(super) charged: Cells,
    /// Where its bucket is.
    pub(super) address: BucketAddress,
    /// Whether the key was reset meanwhile: the answer is not of what it is now.
    pub(super) stale: bool,
}

/// A key of a lane that does not answer, or did not when what is pending was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detached {
    /// Where the bucket ended without what was pending: what the store knows of.
    pub(super) known_until: Nanos,
    /// Whether the lane was cut off: what was admitted meanwhile is billed net of what has drained.
    pub(super) cut_off: bool,
}

/// Cells between a bucket and a batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Unsent {
    pub(super) gross: Cells,
    pub(super) price: Span,
}

/// Whether a pod's use of a key stays within its even share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Within,
    Beyond,
}

impl KeySync {
    pub(super) fn new(limit: Limit, terms: Terms, weight: Share, now: Nanos) -> Self {
        Self {
            limit,
            terms,
            is_thin: false,
            loud_until: None,
            even: now,
            looked: now,
            announce: false,
            flight: None,
            sent: Nanos::default(),
            due: Nanos::default(),
            postponed: None,
            place: None,
            overdue: None,
            ask: false,
            answered: false,
            unsent: Unsent::default(),
            charged: Cells::ZERO,
            demand: Demand::default(),
            weight,
            detached: None,
            full_until: Nanos::default(),
        }
    }

    /// Charges `cells`, admitted since the last look, to this pod's even share.
    pub(super) fn used(&mut self, allowance: &Allowance, cells: Cells, now: Nanos) -> Use {
        let from = self.even.max(self.looked);
        self.even = from.after(allowance.interval.times(cells));
        self.looked = now;
        match self.even.since(now) > allowance.capacity() {
            true => Use::Beyond,
            false => Use::Within,
        }
    }

    /// The same for cells that are told: they need not be told once more, so no more of them is remembered than it takes
    /// to see that the share is exceeded.
    pub(super) fn used_and_reported(
        &mut self,
        allowance: &Allowance,
        cells: Cells,
        now: Nanos,
    ) -> Use {
        let used = self.used(allowance, cells, now);
        let most = now.after(allowance.capacity()).after(allowance.interval);
        self.even = self.even.min(most);
        used
    }

    /// All that was used is told: the even share is as good as new.
    pub(super) const fn all_reported(&mut self, now: Nanos) {
        self.even = now;
        self.looked = now;
    }

    /// The cells by which the even share is in use.
    pub(super) fn in_use(&self, allowance: &Allowance, now: Nanos) -> Cells {
        let level = self.even.since(now).get();
        Cells::new(level.div_ceil(allowance.interval.get().max(1)))
    }

    /// When the even share is as good as new.
    pub(super) const fn even_ends(&self) -> Nanos {
        self.even
    }

    pub(super) const fn is_loud(&self) -> bool {
        self.loud_until.is_some()
    }

    /// Tells everything of it until `until` at least.
    pub(super) fn stay_loud(&mut self, until: Nanos) {
        self.loud_until = Some(self.loud_until.map_or(until, |known| known.max(until)));
    }

    /// Learns this pod's part of the key's demand from an answer, and how long the key denies or stays loud.
    pub(super) fn learn(&mut self, reading: &Reading, pods: u64, now: Nanos) {
        if reading.demand > 0 {
            let measured = Demand::weight(self.demand.at(now), reading.demand);
            self.weight = measured.min(self.weight.grown(pods));
        }
        if reading.is_half_used {
            // A pod that is silent about a key close to its limit sees no room but its own.
            self.stay_loud(now.after(HOLD));
        }
        if let Some(full_for) = reading.full_for {
            self.full_until = now.after(full_for);
        }
    }

    /// Whether nothing of it is between its bucket and the store.
    pub(super) fn is_at_rest(&self) -> bool {
        self.flight.is_none() && self.place.is_none() && self.unsent == Unsent::default()
    }

    /// What cells that cost `price` when they were admitted cost now, and what is carried with them: all of it, or, after
    /// the store was cut off, what of it has not drained. A pod that grants its share owns that share of its bucket, whose `tat` has moved on from where
    /// the store knew it to be, or from now on if that has drained too. Of an overdue key the same holds for what was
    /// admitted since it is granted by share; what is carried was admitted before and costs all of its price.
    pub(super) fn price(&self, price: Span, share: Share, tat: Nanos, now: Nanos) -> Span {
        let whole = price.plus(self.unsent.price);
        match self.detached {
            Some(Detached {
                known_until,
                cut_off: true,
            }) => {
                // Admissions fill a bucket to its capacity, charges beyond that.
                let fill_max = match self.charged {
                    Cells::ZERO => self.limit.capacity(),
                    _ => self.terms.level_max(),
                };
                let filled = tat.since(known_until.max(now)).min(fill_max);
                whole.min(share.of_span(filled))
            }
            Some(Detached { cut_off: false, .. }) | None => match self.overdue {
                Some(overdue) => {
                    // What was charged although it was denied was used, whoever grants what.
                    let charged = self.limit.interval().times(self.charged).min(price);
                    let by_share = overdue.price(&self.limit, tat, now);
                    let admitted = price.less(charged).min(by_share);
                    self.unsent.price.plus(charged).plus(admitted)
                }
                None => whole,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::Unit;
    use crate::pure::sync::ShareCode;

    const NOW: Nanos = Nanos::new(100_000_000_000);

    fn ms(ms: u64) -> Span {
        Span::nanos(ms * 1_000_000)
    }

    /// What 50 cells of 100/s cost a pod with a quarter of the limit: 500 ms if all of it is billed. The bucket ends
    /// so many milliseconds from now; the store knew of it until `known_until`.
    fn price(detached: Option<Detached>, ends: u64) -> u64 {
        let limit = Limit::new(100, Unit::Second, 1, None).unwrap();
        let key_sync = KeySync {
            detached,
            ..KeySync::new(limit, Terms::level(&limit), Share::even(4), NOW)
        };
        let price = key_sync.price(ms(500), Share::even(4), NOW.after(ms(ends)), NOW);
        price.get() / 1_000_000
    }

    fn cut_off(known_until: Nanos) -> Option<Detached> {
        let cut_off = true;
        Some(Detached {
            known_until,
            cut_off,
        })
    }

    #[test]
    fn in_health_and_while_only_late_all_is_billed() {
        assert_eq!(price(None, 10), 500);
        let cut_off = false;
        assert_eq!(
            price(
                Some(Detached {
                    known_until: NOW,
                    cut_off
                }),
                10
            ),
            500
        );
    }

    #[test]
    fn after_a_cut_a_pod_bills_its_share_of_what_filled_up() {
        assert_eq!(price(cut_off(NOW), 800), 200);
        assert_eq!(
            price(cut_off(NOW.before(ms(9_000))), 800),
            200,
            "long drained"
        );
        assert_eq!(
            price(cut_off(NOW.after(ms(600))), 800),
            50,
            "the store has the rest"
        );
        assert_eq!(price(cut_off(NOW), 0), 0, "all of it has drained");
        assert_eq!(
            price(cut_off(NOW.after(ms(900))), 800),
            0,
            "less than it knew"
        );
    }

    /// What the same 50 cells cost if they were admitted since the pod grants a quarter of the key, which the store knew
    /// to be empty; so many of them were charged although they were denied.
    fn overdue_price(charged: u64, ends: u64) -> u64 {
        let limit = Limit::new(100, Unit::Second, 1, None).unwrap();
        let (share, from) = (ShareCode::at_most(Share::even(4)), NOW);
        let key_sync = KeySync {
            overdue: Some(Overdue { share, from }),
            charged: Cells::new(charged),
            ..KeySync::new(limit, Terms::level(&limit), Share::even(4), NOW)
        };
        let price = key_sync.price(ms(500), Share::even(4), NOW.after(ms(ends)), NOW);
        price.get() / 1_000_000
    }

    #[test]
    fn an_overdue_key_bills_its_share_of_the_fill_and_all_that_was_charged() {
        assert_eq!(overdue_price(0, 800), 200);
        assert_eq!(overdue_price(0, 0), 0, "all of it has drained");
        assert_eq!(overdue_price(20, 0), 200, "what was charged was used");
        assert_eq!(overdue_price(50, 800), 500);
    }

    #[test]
    fn it_bills_no_more_than_it_admitted_and_no_more_than_its_share() {
        assert_eq!(price(cut_off(NOW), 60_000), 250);
    }

    #[test]
    fn what_was_charged_beyond_capacity_is_billed_too() {
        let limit = Limit::new(100, Unit::Second, 1, None).unwrap();
        let key_sync = KeySync {
            detached: cut_off(NOW),
            charged: Cells::new(25),
            ..KeySync::new(limit, Terms::charging(&limit), Share::even(4), NOW)
        };
        let price = |ends| key_sync.price(ms(500), Share::even(4), NOW.after(ms(ends)), NOW);
        assert_eq!([1_600, 60_000].map(price), [ms(400), ms(500)]);
    }
}
