//! The buckets of keys whose callers supply the limit.
//!
//! A key has one TAT. Each caller says what a cell costs and how far the TAT may reach. Callers with different limits share
//! the TAT, so a number of cells does not say what was used: the bucket keeps their price as well. The sync uses the limit
//! of the last admission.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::exchange::{RefundOutcome, ReportedCells};
use super::ghosts::{Ghost, Ghosts};
use super::striped_map::{Admittance, Evictable, EvictionRank, NewKey, Room, Stripe, StripedMap};
use super::table::{Booking, BucketSize, BucketState};
use crate::pure::limit::CompactLimit;
use crate::pure::sync::{FleetView, Share, ShareCode, Trigger};
use crate::pure::{Cells, Limit, Nanos, Span};

/// The bucket of one key.
#[derive(Debug)]
struct CallerState {
    tat: Nanos,
    /// Whether the fleet's level denies the key.
    mitigated: bool,
    /// Its size by the limit of the caller that it entered with.
    size: BucketSize,
    unreported: PricedPending,
}

/// The cells of a key that the pod has not reported, with their price.
#[derive(Clone, Copy, Debug, Default)]
struct PricedPending {
    /// The limit of the last admission.
    limit: Option<CompactLimit>,
    cells: Cells,
    price: Span,
    trigger: Option<Trigger>,
    in_flight: bool,
    /// The share that the pod grants; `None` if it grants the whole key.
    granted: Option<ShareCode>,
    /// Whether that share has denied a check.
    share_denied: bool,
}

impl PricedPending {
    /// Takes refunded cells of `limit` out by their price, because they may have been admitted under another limit. The
    /// refund has emptied the bucket by `emptied`; it ends at `tat` now.
    fn refund(&mut self, limit: &Limit, emptied: Span, tat: Nanos) -> RefundOutcome {
        let interval = limit.interval();
        let cells = emptied.cells_up(interval);
        // A cell that has drained in part was noted as a whole cell, and is taken out as one.
        let taken = self.price.min(interval.times(cells));
        self.price = self.price.less(taken);
        let unreported = match self.price {
            Span::ZERO => self.cells,
            // A price is reported with at least one cell.
            _ => taken.whole(interval).min(self.cells.less(Cells::ONE)),
        };
        self.cells = self.cells.less(unreported);
        let price = emptied.less(taken);
        RefundOutcome {
            unreported,
            reported: ReportedCells {
                cells: price.cells_up(interval),
                price,
                tat,
                unix: Span::ZERO,
            },
        }
    }
}

impl Evictable for CallerState {
    fn pending(&self) -> Cells {
        self.unreported.cells
    }

    fn is_in_flight(&self) -> bool {
        self.unreported.in_flight
    }

    fn rank(&self, now: Nanos) -> EvictionRank {
        let level = self.tat.since(now);
        let part = self.size.part_of(level.get());
        (level > Span::ZERO, u128::from(part), level)
    }

    fn ghost(&self, _: Nanos) -> Option<Ghost> {
        Some(Ghost::at(self.tat))
    }
}

impl CallerState {
    /// A bucket that moves from `state` to `tat`.
    const fn at(tat: Nanos, state: &BucketState) -> Self {
        Self {
            tat,
            mitigated: state.mitigated,
            size: state.size,
            unreported: PricedPending {
                limit: None,
                cells: Cells::ZERO,
                price: Span::ZERO,
                trigger: None,
                in_flight: false,
                granted: None,
                share_denied: false,
            },
        }
    }

    const fn state(&self) -> BucketState {
        BucketState {
            tat: self.tat,
            mitigated: self.mitigated,
            size: self.size,
            granted: self.unreported.granted,
        }
    }
}

/// A bucket as it was when its cells were collected.
#[derive(Clone, Copy, Debug)]
pub struct PricedCells {
    /// The cells that were pending.
    pub cells: Cells,
    /// Their price.
    pub price: Span,
    /// Its TAT, with those cells.
    pub tat: Nanos,
}

/// The map. All methods may be called from any thread.
#[derive(Debug)]
pub struct CallerMap {
    buckets: StripedMap<CallerState>,
    /// Pods that may each be silent about their even share; 0 while the pod reports every cell.
    silent_pods: AtomicU64,
}

impl CallerMap {
    /// A map of at most `keys_max` keys. The seeds decide which keys share a stripe and must not be guessable.
    pub fn new(keys_max: usize, seeds: [u64; 2]) -> Self {
        let ghosts = Ghosts::of_times(keys_max, seeds);
        Self {
            buckets: StripedMap::new(keys_max, seeds, ghosts),
            silent_pods: AtomicU64::new(0),
        }
    }

    /// Keys held.
    pub fn held(&self) -> u64 {
        self.buckets.held()
    }

    /// Ghosts that were dropped while their keys were in use.
    pub fn forgotten(&self) -> u64 {
        self.buckets.forgotten()
    }

    /// The TAT of the ghost of a key that is not held.
    pub fn ghost(&self, name: u128, now: Nanos) -> Option<Nanos> {
        let ghost = self.buckets.ghost(name, now)?;
        Some(ghost.ends)
    }

    /// How the key stands, if it is held.
    pub fn look(&self, name: u128) -> Option<BucketState> {
        let stripe = self.stripe(name);
        stripe.get(name).map(CallerState::state)
    }

    /// Moves the key to the TAT that `step` returns, if it does. Returns the state before. A key that is not held starts as
    /// `opening`, and is kept if `step` moves it.
    pub fn admit(
        &self,
        name: u128,
        now: Nanos,
        opening: impl FnOnce() -> BucketState,
        step: impl FnOnce(&BucketState) -> Option<Nanos>,
    ) -> (BucketState, Room) {
        let mut stripe = self.stripe(name);
        if let Some(bucket) = stripe.get_mut(name) {
            let state = bucket.state();
            bucket.tat = step(&state).unwrap_or(bucket.tat);
            return (state, Room::Free);
        }
        let state = opening();
        let room = match step(&state) {
            Some(tat) => {
                let bucket = CallerState::at(tat, &state);
                self.put_sure(&mut stripe, name, bucket, now)
            }
            None => Room::Free,
        };
        (state, room)
    }

    /// Undoes an admission that moved the TAT from `before` to `after`, if nothing has changed the bucket since.
    pub fn give_back(&self, name: u128, after: Nanos, before: Nanos) -> bool {
        match self.stripe(name).get_mut(name) {
            Some(bucket) if bucket.tat == after => {
                bucket.tat = before;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Gives back cells, as far as they are used. Returns how many of them the store may know.
    pub fn refund(&self, name: u128, limit: &Limit, cells: Cells, now: Nanos) -> RefundOutcome {
        let mut stripe = self.stripe(name);
        let Some(bucket) = stripe.get_mut(name) else {
            // A ghost does not say which of its cells were reported, so the store is asked to give back none.
            if let Some(tat) = self.ghost(name, now) {
                let tat = tat.before(limit.interval().times(cells));
                self.buckets.set_ghost(name, Some(Ghost::at(tat)), now);
            }
            return RefundOutcome::default();
        };
        let before = bucket.tat.max(now);
        bucket.tat = before.before(limit.interval().times(cells)).max(now);
        bucket.unreported.limit.get_or_insert(limit.compact());
        let emptied = before.since(bucket.tat);
        bucket.unreported.refund(limit, emptied, bucket.tat)
    }

    /// Notes cells that were admitted under `limit` and are not yet reported.
    #[inline(always)]
    pub fn book(&self, name: u128, limit: &Limit, cells: Cells) -> Booking {
        let mut stripe = self.stripe(name);
        let Some(bucket) = stripe.get_mut(name) else {
            return Booking::Left;
        };
        let unreported = &mut bucket.unreported;
        let before = unreported.cells;
        unreported.limit = Some(limit.compact());
        unreported.cells = before.plus(cells);
        unreported.price = unreported.price.plus(limit.interval().times(cells));
        let trigger = *unreported
            .trigger
            .get_or_insert_with(|| self.opening(limit));
        match trigger.is_crossed(before.get(), unreported.cells.get()) {
            true => Booking::Triggered,
            false => Booking::Noted,
        }
    }

    /// Moves the trigger of the key above its pending cells, because the sync queue had no room for the key.
    #[cold]
    pub fn rearm(&self, name: u128) {
        if let Some(CallerState { unreported, .. }) = self.stripe(name).get_mut(name) {
            unreported.trigger = Some(Trigger::above(unreported.cells));
        }
    }

    /// The limit of the key's last admission.
    pub fn limit(&self, name: u128) -> Option<Limit> {
        let limit = self.stripe(name).get(name)?.unreported.limit?;
        Some(limit.limit())
    }

    /// Collects the pending cells of the key. The key is in flight from then on and keeps its place until
    /// [`CallerMap::land`]. `None` if it is not held.
    pub fn collect(&self, name: u128) -> Option<PricedCells> {
        let mut stripe = self.stripe(name);
        let CallerState {
            tat, unreported, ..
        } = stripe.get_mut(name)?;
        unreported.in_flight = true;
        Some(PricedCells {
            cells: std::mem::take(&mut unreported.cells),
            price: std::mem::take(&mut unreported.price),
            tat: *tat,
        })
    }

    /// Collects the pending cells of a key that is silent, and their price.
    pub fn take_silent(&self, name: u128) -> (Cells, Span) {
        let mut stripe = self.stripe(name);
        match stripe.get_mut(name) {
            Some(CallerState { unreported, .. }) => (
                std::mem::take(&mut unreported.cells),
                std::mem::take(&mut unreported.price),
            ),
            None => (Cells::ZERO, Span::ZERO),
        }
    }

    /// Ends the flight of the key, if it is in one, and sets its trigger. `true` if the pending cells have reached it
    /// already.
    pub fn land(&self, name: u128, trigger: Trigger, mitigated: Option<bool>) -> bool {
        let mut stripe = self.stripe(name);
        let Some(bucket) = stripe.get_mut(name) else {
            return false;
        };
        bucket.mitigated = mitigated.unwrap_or(bucket.mitigated);
        bucket.unreported.in_flight = false;
        bucket.unreported.granted = None;
        bucket.unreported.share_denied = false;
        bucket.unreported.trigger = Some(trigger);
        trigger
            .cells()
            .is_some_and(|at| bucket.unreported.cells >= at)
    }

    /// From now on this pod grants only `share` of the key. Ends the key's flight.
    pub fn grant_by_share(&self, name: u128, share: ShareCode) {
        if let Some(bucket) = self.stripe(name).get_mut(name) {
            bucket.unreported.in_flight = false;
            bucket.unreported.granted = Some(share);
            bucket.unreported.share_denied = false;
            bucket.unreported.trigger = Some(Trigger::EACH);
        }
    }

    /// Notes that the pod's share of the key has denied a check. `true` for the first denial.
    pub fn note_share_denied(&self, name: u128) -> bool {
        match self.stripe(name).get_mut(name) {
            Some(CallerState { unreported, .. }) => {
                unreported.granted.is_some()
                    && !std::mem::replace(&mut unreported.share_denied, true)
            }
            None => false,
        }
    }

    /// Whether the pod's share of the key has denied a check since the pod began to grant it.
    pub fn is_share_denied(&self, name: u128) -> bool {
        let stripe = self.stripe(name);
        stripe
            .get(name)
            .is_some_and(|bucket| bucket.unreported.share_denied)
    }

    /// Moves the key to the TAT that `fold` makes of its TAT and of the price of its pending cells.
    pub fn fold(&self, name: u128, fold: impl FnOnce(Nanos, Span) -> Nanos) {
        if let Some(bucket) = self.stripe(name).get_mut(name) {
            bucket.tat = fold(bucket.tat, bucket.unreported.price);
        }
    }

    /// Raises the key to where the fleet's level ends, plus the pending cells of this pod. Returns the TATs before and
    /// after; `None` if the key is not held.
    pub fn raise(&self, name: u128, ends: Nanos, mitigated: bool) -> Option<(Nanos, Nanos)> {
        let mut stripe = self.stripe(name);
        let bucket = stripe.get_mut(name)?;
        let before = bucket.tat;
        bucket.tat = before.max(ends.after(bucket.unreported.price));
        bucket.mitigated = mitigated;
        Some((before, bucket.tat))
    }

    /// Sets whether the fleet's level denies the key.
    pub fn mitigate(&self, name: u128, mitigated: bool) {
        if let Some(bucket) = self.stripe(name).get_mut(name) {
            bucket.mitigated = mitigated;
        }
    }

    /// Lets a denied key of `limit` enter, so that the sync can ask the store for it.
    pub fn hold(&self, name: u128, limit: &Limit, state: BucketState, now: Nanos) -> Room {
        let mut stripe = self.stripe(name);
        if stripe.get(name).is_some() {
            return Room::Free;
        }
        let mut bucket = CallerState::at(state.tat, &state);
        bucket.unreported.limit = Some(limit.compact());
        self.put_sure(&mut stripe, name, bucket, now)
    }

    fn put_sure(
        &self,
        stripe: &mut Stripe<CallerState>,
        name: u128,
        kept: CallerState,
        now: Nanos,
    ) -> Room {
        let admittance = Admittance::Sure;
        let new = NewKey {
            name,
            kept,
            admittance,
        };
        self.buckets.put(stripe, new, now)
    }

    /// Moves the key to the level that the store, which decides it, answered. `false` if it is not held.
    pub fn set(&self, name: u128, limit: &Limit, ends: Nanos, mitigated: bool) -> bool {
        match self.stripe(name).get_mut(name) {
            Some(bucket) => {
                (bucket.tat, bucket.mitigated) = (ends, mitigated);
                bucket.unreported.limit = Some(limit.compact());
                true
            }
            None => false,
        }
    }

    /// Drops the key. Returns its pending cells, which are lost.
    pub fn remove(&self, name: u128) -> Cells {
        self.buckets.remove(name)
    }

    /// The pending cells of the key; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.buckets.pending(name)
    }

    /// The pending cells of all keys.
    pub fn pending_in_all(&self) -> Cells {
        self.buckets.pending_in_all()
    }

    /// Sets how many pods may each be silent about their even share of a key; 0: none.
    pub fn set_silent_pods(&self, pods: u64) {
        // Ordering: Relaxed. A hint: with an older value the pod reports a key a little earlier or later.
        self.silent_pods.store(pods, Ordering::Relaxed);
    }

    /// The trigger of a new key of `limit`.
    fn opening(&self, limit: &Limit) -> Trigger {
        let fleet_view = FleetView {
            accuracy: Share::NONE,
            pods: self.silent_pods.load(Ordering::Relaxed),
        };
        let allowance = (fleet_view.pods > 0)
            .then(|| fleet_view.allowance(limit))
            .flatten();
        allowance.map_or(Trigger::EACH, |allowance| allowance.trigger())
    }

    fn stripe(&self, name: u128) -> MutexGuard<'_, Stripe<CallerState>> {
        self.buckets.of(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::new(1_000);

    /// Admits to 1,500, runs `between`, and gives back. Returns whether that was possible, and the TAT then.
    fn give_back_after(between: impl FnOnce(&CallerMap)) -> (bool, Option<u64>) {
        let callers = CallerMap::new(4, [1, 2]);
        let opening = || BucketState {
            tat: NOW,
            mitigated: false,
            size: BucketSize::UNKNOWN,
            granted: None,
        };
        let after = Nanos::new(1_500);
        callers.admit(7, NOW, opening, |_| Some(after));
        between(&callers);
        let given_back = callers.give_back(7, after, NOW);
        (given_back, callers.look(7).map(|state| state.tat.get()))
    }

    #[test]
    fn only_an_unchanged_bucket_gives_back() {
        assert_eq!(give_back_after(|_| {}), (true, Some(1_000)));
        let folded = |callers: &CallerMap| callers.fold(7, |_, _| Nanos::new(1_200));
        assert_eq!(give_back_after(folded), (false, Some(1_200)));
        let reset = |callers: &CallerMap| {
            callers.remove(7);
        };
        assert_eq!(give_back_after(reset), (false, None));
    }
}
