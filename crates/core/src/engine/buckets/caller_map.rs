//! The buckets of keys whose callers carry the limit.
//!
//! Such a key is one time line: whoever asks says what a cell costs and how far the line may reach. Callers that say
//! different things share it, so cells alone do not tell what was used: their price is noted beside them. The limit of
//! the last admission is what the rounds go by.

use std::sync::MutexGuard;
use std::sync::atomic::{AtomicU64, Ordering};

use super::exchange::{RefundOutcome, ReportedCells};
use super::ghosts::{Ghost, Ghosts};
use super::striped_map::{Admittance, Evictable, EvictionRank, Room, Stripe, StripedMap};
use super::table::{Booking, BucketSize, BucketState};
use crate::pure::sync::{FleetView, Share, ShareCode, Trigger};
use crate::pure::{Cells, Limit, Nanos, Span};

/// One key.
#[derive(Debug)]
struct CallerState {
    tat: Nanos,
    /// Whether the fleet's level denies it.
    mitigated: bool,
    /// How large it was for the caller that it entered with.
    size: BucketSize,
    unreported: PricedPending,
}

/// What the store has not been told of a key.
#[derive(Clone, Copy, Debug, Default)]
struct PricedPending {
    /// What the last cell was admitted under.
    limit: Option<Limit>,
    cells: Cells,
    price: Span,
    trigger: Option<Trigger>,
    in_flight: bool,
    /// The share that the pod grants; `None` if it grants all of the key.
    granted: Option<ShareCode>,
    /// Whether that share has denied a check.
    share_denied: bool,
}

impl PricedPending {
    /// Takes cells of `limit` out by what they cost: they may have been admitted under another one. The bucket is
    /// emptier by `emptied`, and ends at `tat`.
    fn refund(&mut self, limit: &Limit, emptied: Span, tat: Nanos) -> RefundOutcome {
        let interval = limit.interval();
        let cells = emptied.cells_up(interval);
        // A cell that has drained in part was booked as a whole one, and leaves the book as a whole one.
        let taken = self.price.min(interval.times(cells));
        self.price = self.price.less(taken);
        let unreported = match self.price {
            Span::ZERO => self.cells,
            // As long as there is a price to tell, there is a cell to tell it with.
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

    fn missed(&self, now: Nanos) -> EvictionRank {
        let level = self.tat.since(now);
        let part = self.size.part_of(level.get());
        (level > Span::ZERO, u128::from(part), level)
    }

    fn ghost(&self, _: Nanos) -> Option<Ghost> {
        Some(Ghost::at(self.tat))
    }
}

impl CallerState {
    /// A bucket at `tat` of a key that state so.
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
    /// What was pending.
    pub cells: Cells,
    /// What that costs.
    pub price: Span,
    /// Its TAT, with those cells.
    pub tat: Nanos,
}

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct CallerMap {
    buckets: StripedMap<CallerState>,
    /// Pods that may each be silent of their even share; 0 while everything is told.
    silent_pods: AtomicU64,
}

impl CallerMap {
    /// A table for at most `keys_max` keys. The seeds decide who shares a shard and must not be guessable.
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

    /// Keys that were forgotten while they were in use.
    pub fn forgotten(&self) -> u64 {
        self.buckets.forgotten()
    }

    /// The TAT that is remembered of a key that is not held.
    pub fn ghost(&self, name: u128, now: Nanos) -> Option<Nanos> {
        let ghost = self.buckets.ghost(name, now)?;
        Some(ghost.ends)
    }

    /// How the key stands, if it is held.
    pub fn look(&self, name: u128) -> Option<BucketState> {
        let stripe = self.stripe(name);
        stripe.get(name).map(CallerState::state)
    }

    /// Moves the key to the TAT that `step` answers to the one it has, if any, and says how it state before. One that is
    /// not held starts as `opening`, and is kept once it is moved.
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
                let entry = Admittance::Sure;
                self.buckets.put(&mut stripe, (name, bucket), entry, now)
            }
            None => Room::Free,
        };
        (state, room)
    }

    /// Undoes an admission that made the TAT `after` out of `before`, if nobody has touched the bucket since.
    pub fn give_back(&self, name: u128, after: Nanos, before: Nanos) -> bool {
        match self.stripe(name).get_mut(name) {
            Some(bucket) if bucket.tat == after => {
                bucket.tat = before;
                true
            }
            Some(_) | None => false,
        }
    }

    /// Gives back cells, as far as they are used, and says how many of them the store may know of.
    pub fn refund(&self, name: u128, limit: &Limit, cells: Cells, now: Nanos) -> RefundOutcome {
        let mut stripe = self.stripe(name);
        let Some(bucket) = stripe.get_mut(name) else {
            // Nobody knows whether the store was told of what is remembered: it hears nothing.
            if let Some(tat) = self.ghost(name, now) {
                let tat = tat.before(limit.interval().times(cells));
                self.buckets.set_ghost(name, Some(Ghost::at(tat)), now);
            }
            return RefundOutcome::default();
        };
        let before = bucket.tat.max(now);
        bucket.tat = before.before(limit.interval().times(cells)).max(now);
        bucket.unreported.limit.get_or_insert(*limit);
        let emptied = before.since(bucket.tat);
        bucket.unreported.refund(limit, emptied, bucket.tat)
    }

    /// Notes cells as admitted under `limit` and not yet told.
    pub fn book(&self, name: u128, limit: &Limit, cells: Cells) -> Booking {
        let mut stripe = self.stripe(name);
        let Some(bucket) = stripe.get_mut(name) else {
            return Booking::Left;
        };
        let unreported = &mut bucket.unreported;
        let before = unreported.cells;
        unreported.limit = Some(*limit);
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

    /// Moves the trigger of the key above what is pending: nobody could be told that it was reached.
    #[cold]
    pub fn rearm(&self, name: u128) {
        if let Some(CallerState { unreported, .. }) = self.stripe(name).get_mut(name) {
            unreported.trigger = Some(Trigger::above(unreported.cells));
        }
    }

    /// The limit of the key's last admission.
    pub fn limit(&self, name: u128) -> Option<Limit> {
        self.stripe(name).get(name)?.unreported.limit
    }

    /// Collects what was noted of the key since the last time. It is in flight from then on and keeps its place until
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

    /// Collects what was noted of the key and is not to be told, and what it cost.
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

    /// Ends the flight of the key, if it is in one, and sets at how many pending cells it wants to be collected. `true`
    /// if as many are pending already.
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

    /// Ends the flight of the key, if it is in one, and grants it by `share` from now on.
    pub fn grant_by_share(&self, name: u128, share: ShareCode) {
        if let Some(bucket) = self.stripe(name).get_mut(name) {
            bucket.unreported.in_flight = false;
            bucket.unreported.granted = Some(share);
            bucket.unreported.share_denied = false;
            bucket.unreported.trigger = Some(Trigger::EACH);
        }
    }

    /// Notes that the share of the key has denied a check. `true` for the first time since it was granted.
    pub fn note_share_denied(&self, name: u128) -> bool {
        match self.stripe(name).get_mut(name) {
            Some(CallerState { unreported, .. }) => {
                unreported.granted.is_some()
                    && !std::mem::replace(&mut unreported.share_denied, true)
            }
            None => false,
        }
    }

    /// Whether the share of the key has denied a check since it was granted.
    pub fn is_share_denied(&self, name: u128) -> bool {
        let stripe = self.stripe(name);
        stripe
            .get(name)
            .is_some_and(|bucket| bucket.unreported.share_denied)
    }

    /// Moves the key to the TAT that `fold` makes of the one it has and of what is pending.
    pub fn fold(&self, name: u128, fold: impl FnOnce(Nanos, Span) -> Nanos) {
        if let Some(bucket) = self.stripe(name).get_mut(name) {
            bucket.tat = fold(bucket.tat, bucket.unreported.price);
        }
    }

    /// Raises the key to where the fleet's level ends, with what is pending here. Says from where to where; `None` if
    /// it is not held.
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

    /// Holds a key of `limit` that was denied without being held, so that the store can be asked for it.
    pub fn hold(&self, name: u128, limit: &Limit, state: BucketState, now: Nanos) -> Room {
        let mut stripe = self.stripe(name);
        if stripe.get(name).is_some() {
            return Room::Free;
        }
        let mut bucket = CallerState::at(state.tat, &state);
        bucket.unreported.limit = Some(*limit);
        self.buckets
            .put(&mut stripe, (name, bucket), Admittance::Sure, now)
    }

    /// Moves the key to what the store said, which decides it. Whether it is held.
    pub fn set(&self, name: u128, limit: &Limit, ends: Nanos, mitigated: bool) -> bool {
        match self.stripe(name).get_mut(name) {
            Some(bucket) => {
                (bucket.tat, bucket.mitigated) = (ends, mitigated);
                bucket.unreported.limit = Some(*limit);
                true
            }
            None => false,
        }
    }

    /// Drops the key, and says what was not told of it.
    pub fn remove(&self, name: u128) -> Cells {
        self.buckets.remove(name)
    }

    /// What was noted of the key and not collected; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.buckets.pending(name)
    }

    /// The cells not told of all keys.
    pub fn pending_in_all(&self) -> Cells {
        self.buckets.pending_in_all()
    }

    /// Says how many pods may each be silent of their even share of a key; 0: none.
    pub fn set_silent_pods(&self, pods: u64) {
        // Ordering: Relaxed. A hint: with an older one a key is told a little earlier or later.
        self.silent_pods.store(pods, Ordering::Relaxed);
    }

    /// At how many cells a new key of `limit` is noticed.
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

    /// Admits to 1,500, lets `between` happen, and gives back: whether that was possible, and the TAT then.
    fn given_back(between: impl FnOnce(&CallerMap)) -> (bool, Option<u64>) {
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
    fn only_a_bucket_that_nobody_touched_gives_back() {
        assert_eq!(given_back(|_| {}), (true, Some(1_000)));
        let folded = |callers: &CallerMap| callers.fold(7, |_, _| Nanos::new(1_200));
        assert_eq!(given_back(folded), (false, Some(1_200)));
        let reset = |callers: &CallerMap| {
            callers.remove(7);
        };
        assert_eq!(given_back(reset), (false, None));
    }
}
