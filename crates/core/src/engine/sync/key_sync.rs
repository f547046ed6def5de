//! One key that the sync tracks: its phase, this pod's use of its even share, its unsent cells, and what they cost.

use std::collections::HashMap;
use std::sync::Arc;

use super::HOLD;
use super::overdue::OverdueGrant;
use super::phase::{Flight, KeyPhase, PhaseEvent};
use crate::engine::buckets::Subject;
use crate::pure::sync::{Allowance, BucketKind, Demand, Share, StoreReading, Terms, Trigger};
use crate::pure::{Cells, Limit, Nanos, Span};

/// A key that this pod reports, or may have to report soon. What few keys have, or many keys share, is elsewhere: a flood
/// fills all the room for tracked keys.
#[derive(Clone, Debug)]
pub(super) struct KeySync {
    /// What it shares with other keys of its rule.
    pub(super) terms: Arc<KeyTerms>,
    /// Whether a pod's part of the accuracy is less than a cell: this pod reports each cell at once. That is never often,
    /// because such a limit is low.
    pub(super) is_thin: bool,
    /// Where the key is on its way to the store.
    pub(super) phase: KeyPhase,
    /// This pod's use of its even share.
    pub(super) even: EvenShareUse,
    /// Whether the other pods are to report it too.
    pub(super) announce: bool,
    /// Set while the pod cannot report it in time.
    pub(super) overdue: Option<OverdueGrant>,
    /// The trigger of the last answer.
    pub(super) trigger: Trigger,
    /// Whether it is among the keys that may ride along with a call for another key.
    pub(super) is_rider: bool,
    /// Whether the pod asks the store for its state even if there is nothing to report.
    pub(super) asks_store: bool,
    /// Whether the store has answered its state.
    pub(super) is_answered: bool,
    /// Cells that left the bucket and are in no batch yet.
    pub(super) unsent: Unsent,
    pub(super) weight: Share,
    /// `None` for most keys that were asked for once.
    history: Option<Box<ReportHistory>>,
}

/// What a key shares with others: its rule, and how the store counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KeyTerms {
    pub(super) kind: BucketKind,
    pub(super) rule: u64,
    pub(super) limit: Limit,
    pub(super) store: Terms,
}

impl KeyTerms {
    pub(super) fn of(subject: &Subject<'_>) -> Self {
        let key = subject.store_key();
        Self {
            kind: key.kind,
            rule: key.rule,
            limit: subject.limit,
            store: subject.terms(),
        }
    }
}

/// The terms of keys, each rule's once. Callers that supply many limits may make more of them.
#[derive(Debug, Default)]
pub(super) struct SharedTerms {
    /// The last ones of each rule.
    last: HashMap<(BucketKind, u64), Arc<KeyTerms>>,
}

impl SharedTerms {
    /// The terms of `subject`.
    pub(super) fn of(&mut self, subject: &Subject<'_>) -> Arc<KeyTerms> {
        let terms = KeyTerms::of(subject);
        let last = self.last.entry((terms.kind, terms.rule));
        let last = last.or_insert_with(|| Arc::new(terms));
        if **last != terms {
            *last = Arc::new(terms);
        }
        Arc::clone(last)
    }

    /// Drops those that no key has.
    pub(super) fn clear(&mut self) {
        self.last.clear();
    }
}

/// What a key has only after the pod reported it, charged it, or lost the way to its lane.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ReportHistory {
    /// When the pod last put it in a batch; `None`: never.
    pub(super) sent_at: Option<Nanos>,
    /// Those of the unsent and of the pending cells that were charged although they were denied.
    pub(super) charged: Cells,
    pub(super) demand: Demand,
    /// Its state when its lane became unreachable.
    pub(super) detached: Option<Detached>,
    /// Until when the store's level denies it; `None`: it has room.
    pub(super) full_until: Option<Nanos>,
}

/// This pod's use of its even share of a key: a bucket of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct EvenShareUse {
    /// Where that bucket ends: never before the last look at it.
    pub(super) tat: Nanos,
}

/// A key of a lane that is unreachable, or was when the pending cells were admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Detached {
    /// Where the bucket ended without the pending cells, which is what the store knows; `None`: nothing is known.
    pub(super) known_until: Option<Nanos>,
    /// Whether the lane was cut off: what has drained is subtracted from the price of what was admitted meanwhile.
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
    pub(super) const fn new(terms: Arc<KeyTerms>, weight: Share, now: Nanos) -> Self {
        Self {
            terms,
            is_thin: false,
            phase: KeyPhase::Silent,
            even: EvenShareUse { tat: now },
            announce: false,
            overdue: None,
            trigger: Trigger::EACH,
            is_rider: false,
            asks_store: false,
            is_answered: false,
            unsent: Unsent {
                gross: Cells::ZERO,
                price: Span::ZERO,
            },
            weight,
            history: None,
        }
    }

    /// What has happened to it.
    pub(super) fn history(&self) -> ReportHistory {
        self.history.as_deref().copied().unwrap_or_default()
    }

    /// What has happened to it, to note more.
    pub(super) fn history_mut(&mut self) -> &mut ReportHistory {
        self.history.get_or_insert_default()
    }

    /// What has happened to it, if anything has.
    pub(super) fn known_history_mut(&mut self) -> Option<&mut ReportHistory> {
        self.history.as_deref_mut()
    }

    /// Takes out the charged cells that are among `gross` cells.
    pub(super) fn take_charged(&mut self, gross: Cells) -> Cells {
        let Some(history) = self.known_history_mut() else {
            return Cells::ZERO;
        };
        let charged = history.charged.min(gross);
        history.charged = history.charged.less(charged);
        charged
    }

    /// Its lane is reachable, or what it used meanwhile is priced. Returns its state when the lane became unreachable.
    pub(super) fn attach(&mut self) -> Option<Detached> {
        self.known_history_mut()?.detached.take()
    }

    /// Charges `cells`, admitted since the last look, to this pod's even share.
    pub(super) fn use_share(
        &mut self,
        allowance: &Allowance,
        cells: Cells,
        now: Nanos,
    ) -> ShareUse {
        let tat = self.even.tat.after(allowance.interval.times(cells));
        self.even.tat = tat.max(now);
        match tat.since(now) > allowance.capacity() {
            true => ShareUse::Beyond,
            false => ShareUse::Within,
        }
    }

    /// The same for cells that the pod reports. It need not report them again, so it remembers no more of them than it
    /// takes to see that it exceeds the share.
    pub(super) fn use_share_reported(
        &mut self,
        allowance: &Allowance,
        cells: Cells,
        now: Nanos,
    ) -> ShareUse {
        let used = self.use_share(allowance, cells, now);
        let most = now.after(allowance.capacity()).after(allowance.interval);
        self.even.tat = self.even.tat.min(most);
        used
    }

    /// A pod that uses more than its even share, or is not sure, reports the key for a while and says so: other pods may be
    /// sure, and silent.
    pub(super) fn stay_loud_beyond(&mut self, share_use: ShareUse, now: Nanos) {
        if matches!(share_use, ShareUse::Beyond) {
            self.announce = true;
            self.stay_loud(now.after(HOLD));
        }
    }

    /// The pod has reported all that it used: the even share is as good as new.
    pub(super) const fn reset_share(&mut self, now: Nanos) {
        self.even = EvenShareUse { tat: now };
    }

    /// The cells of the even share that are in use.
    pub(super) fn in_use(&self, allowance: &Allowance, now: Nanos) -> Cells {
        let level = self.even.tat.since(now).get();
        Cells::new(level.div_ceil(allowance.interval.get().max(1)))
    }

    /// When the even share is as good as new.
    pub(super) const fn even_ends(&self) -> Nanos {
        self.even.tat
    }

    pub(super) fn is_loud(&self) -> bool {
        self.phase.loud_until().is_some()
    }

    /// Moves the key to the phase after `event`.
    pub(super) fn happen(&mut self, event: PhaseEvent) {
        let before = std::mem::replace(&mut self.phase, KeyPhase::Silent);
        self.phase = before.after(event);
    }

    /// Makes the pod report every cell of it until `until` at least.
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
        self.history().full_until.is_some_and(|until| until > now)
    }

    /// Takes from an answer this pod's part of the key's demand, how long the key denies, and whether it stays loud.
    pub(super) fn learn(&mut self, reading: &StoreReading, pods: u64, now: Nanos) {
        if reading.demand > 0 {
            let demand = self.history().demand.at(now);
            let measured = Demand::weight(demand, reading.demand);
            self.weight = measured.min(self.weight.grown(pods));
        }
        if reading.is_half_used {
            // A pod that is silent about a key close to its limit sees only its own usage.
            self.stay_loud(now.after(HOLD));
        }
        if let Some(full_for) = reading.full_for {
            self.history_mut().full_until = Some(now.after(full_for));
        }
    }

    /// Whether no cell of it is between its bucket and the store.
    pub(super) fn is_at_rest(&self) -> bool {
        self.phase.is_resting() && self.unsent == Unsent::default()
    }

    /// The price to report for cells that cost `price` when they were admitted, and for the unsent ones.
    ///
    /// Normally that is the full price. After a cut of the lane it is the part that has not drained: a pod that granted its
    /// share owes that share of what its bucket filled up, from where the store knew it to end, or from now if that has
    /// drained too, to `tat`. For an overdue key the same holds for cells that were admitted since the pod grants only its
    /// share; the unsent cells were admitted before and cost their full price.
    pub(super) fn price(&self, price: Span, share: Share, tat: Nanos, now: Nanos) -> Span {
        let whole = price.plus(self.unsent.price);
        let KeyTerms { limit, store, .. } = &*self.terms;
        let ReportHistory {
            detached, charged, ..
        } = self.history();
        match detached {
            Some(Detached {
                known_until,
                cut_off: true,
            }) => {
                // Admissions fill a bucket to its capacity, charges fill it beyond.
                let fill_max = match charged {
                    Cells::ZERO => limit.capacity(),
                    _ => store.level_max(),
                };
                let filled = tat
                    .since(known_until.map_or(now, |known| known.max(now)))
                    .min(fill_max);
                whole.min(share.of_span(filled))
            }
            Some(Detached { cut_off: false, .. }) | None => match self.overdue {
                Some(overdue) => {
                    // Cells that were charged although they were denied cost their full price, whatever the pod grants.
                    let charged = limit.interval().times(charged).min(price);
                    let by_share = overdue.price(limit, tat, now);
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

    /// A key of 100/s that a pod of four tracks.
    fn tracked(store: impl Fn(&Limit) -> Terms, history: ReportHistory) -> KeySync {
        let limit = Limit::new(100, Unit::Second, 1, None).unwrap();
        let terms = Arc::new(KeyTerms {
            kind: BucketKind::Level,
            rule: 1,
            store: store(&limit),
            limit,
        });
        KeySync {
            history: Some(Box::new(history)),
            ..KeySync::new(terms, Share::even(4), NOW)
        }
    }

    /// A flood fills the room for tracked keys, so each of these bytes counts for a quarter of `keys_max`.
    #[test]
    fn a_tracked_key_is_small() {
        assert!(size_of::<KeySync>() <= 88, "{}", size_of::<KeySync>());
    }

    /// What 50 cells of 100/s cost a pod with a quarter of the limit: 500 ms if they are billed in full. The bucket ends
    /// `ends` milliseconds from now; the store knew it to end at `known_until`.
    fn price(detached: Option<Detached>, ends: u64) -> u64 {
        let history = ReportHistory {
            detached,
            ..ReportHistory::default()
        };
        let key_sync = tracked(Terms::level, history);
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
    fn a_reachable_or_late_lane_bills_the_full_price() {
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
    fn after_a_cut_a_pod_bills_its_share_of_the_fill() {
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
    /// to be empty. `charged` of them were charged although they were denied.
    fn overdue_price(charged: u64, ends: u64) -> u64 {
        let (share, from) = (ShareCode::at_most(Share::even(4)), NOW);
        let history = ReportHistory {
            charged: Cells::new(charged),
            ..ReportHistory::default()
        };
        let key_sync = KeySync {
            overdue: Some(OverdueGrant::new(share, from)),
            ..tracked(Terms::level, history)
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
        let history = ReportHistory {
            detached: cut_off(NOW),
            charged: Cells::new(25),
            ..ReportHistory::default()
        };
        let key_sync = tracked(Terms::charging, history);
        let price = |ends| key_sync.price(ms(500), Share::even(4), NOW.after(ms(ends)), NOW);
        assert_eq!([1_600, 60_000].map(price), [ms(400), ms(500)]);
    }
}
