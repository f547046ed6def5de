//! One key that the rounds know of: whether it is told or kept back, what is under way, when to look again.

use super::HOLD;
use super::overdue::OverdueGrant;
use super::phase::{Flight, KeyPhase, PhaseEvent};
use crate::pure::sync::{Allowance, Demand, Reading, Share, Terms};
use crate::pure::{Cells, Limit, Nanos, Span};

/// A key that this pod reports, or looked at because it might have to.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeySync {
    pub(super) limit: Limit,
    pub(super) terms: Terms,
    /// Whether a pod's part of the accuracy is less than a cell: this pod reports each cell at once. That is never often,
    /// because such a limit is low.
    pub(super) is_thin: bool,
    /// Where the key is on its way to the store.
    pub(super) phase: KeyPhase,
    /// This pod's use of its even share.
    pub(super) even: EvenShareUse,
    /// Whether the other pods are to report it too.
    pub(super) announce: bool,
    /// When it was last put in a batch; `None`: never.
    pub(super) sent_at: Option<Nanos>,
    /// When to look at it again; `None`: nobody planned to.
    pub(super) due: Option<Nanos>,
    /// Set while it cannot be reported in time.
    pub(super) overdue: Option<OverdueGrant>,
    /// Whether the store is to say how it stands, even if there is nothing to report.
    pub(super) asks_store: bool,
    /// Whether the store has said how it stands.
    pub(super) is_answered: bool,
    /// Cells that were collected and are yet to be sent.
    pub(super) unsent: Unsent,
    /// Those cells yet to be sent, here and in the bucket, that were charged although they were denied.
    pub(super) charged: Cells,
    pub(super) demand: Demand,
    pub(super) weight: Share,
    /// How it stood when its lane became unreachable.
    pub(super) detached: Option<Detached>,
    /// Until when the store's level denies it; `None`: it has room.
    pub(super) full_until: Option<Nanos>,
}

/// This pod's use of its even share of a key: a bucket of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvenShareUse {
    /// Where it ends.
    pub(super) tat: Nanos,
    /// When it was last brought up to date.
    looked_at: Nanos,
}

/// A key of a lane that does not answer, or did not when what is pending was admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detached {
    /// Where the bucket ended without what was pending, which is what the store knows of; `None`: nothing is known.
    pub(super) known_until: Option<Nanos>,
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
pub(super) enum ShareUse {
    Within,
    Beyond,
}

impl KeySync {
    pub(super) fn new(limit: Limit, terms: Terms, weight: Share, now: Nanos) -> Self {
        Self {
            limit,
            terms,
            is_thin: false,
            phase: KeyPhase::Silent,
            even: EvenShareUse {
                tat: now,
                looked_at: now,
            },
            announce: false,
            sent_at: None,
            due: None,
            overdue: None,
            asks_store: false,
            is_answered: false,
            unsent: Unsent::default(),
            charged: Cells::ZERO,
            demand: Demand::default(),
            weight,
            detached: None,
            full_until: None,
        }
    }

    /// Charges `cells`, admitted since the last look, to this pod's even share.
    pub(super) fn used(&mut self, allowance: &Allowance, cells: Cells, now: Nanos) -> ShareUse {
        let from = self.even.tat.max(self.even.looked_at);
        self.even = EvenShareUse {
            tat: from.after(allowance.interval.times(cells)),
            looked_at: now,
        };
        match self.even.tat.since(now) > allowance.capacity() {
            true => ShareUse::Beyond,
            false => ShareUse::Within,
        }
    }

    /// The same for cells that are told: they need not be told once more, so no more of them is remembered than it takes
    /// to see that the share is exceeded.
    pub(super) fn used_and_reported(
        &mut self,
        allowance: &Allowance,
        cells: Cells,
        now: Nanos,
    ) -> ShareUse {
        let used = self.used(allowance, cells, now);
        let most = now.after(allowance.capacity()).after(allowance.interval);
        self.even.tat = self.even.tat.min(most);
        used
    }

    /// All that was used is told: the even share is as good as new.
    pub(super) const fn all_reported(&mut self, now: Nanos) {
        self.even = EvenShareUse {
            tat: now,
            looked_at: now,
        };
    }

    /// The cells by which the even share is in use.
    pub(super) fn in_use(&self, allowance: &Allowance, now: Nanos) -> Cells {
        let level = self.even.tat.since(now).get();
        Cells::new(level.div_ceil(allowance.interval.get().max(1)))
    }

    /// When the even share is as good as new.
    pub(super) const fn even_ends(&self) -> Nanos {
        self.even.tat
    }

    pub(super) const fn is_loud(&self) -> bool {
        self.phase.loud_until().is_some()
    }

    /// Something happens to the key.
    pub(super) fn happen(&mut self, event: PhaseEvent) {
        self.phase = self.phase.after(event);
    }

    /// Reports everything of it until `until` at least.
    pub(super) fn stay_loud(&mut self, until: Nanos) {
        self.happen(PhaseEvent::Contend(until));
    }

    /// Ends the key's flight, if it is in one.
    pub(super) fn land(&mut self) -> Option<Flight> {
        let flight = self.phase.flight().copied();
        self.happen(PhaseEvent::Land);
        flight
    }

    /// Whether the store's level denies it at `now`.
    pub(super) fn is_full_at(&self, now: Nanos) -> bool {
        self.full_until.is_some_and(|until| until > now)
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
            self.full_until = Some(now.after(full_for));
        }
    }

    /// Whether nothing of it is between its bucket and the store.
    pub(super) fn is_at_rest(&self) -> bool {
        self.phase.is_resting() && self.unsent == Unsent::default()
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
                let filled = tat
                    .since(known_until.map_or(now, |known| known.max(now)))
                    .min(fill_max);
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
        let known_until = Some(known_until);
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
                    known_until: Some(NOW),
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
            overdue: Some(OverdueGrant { share, from }),
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
