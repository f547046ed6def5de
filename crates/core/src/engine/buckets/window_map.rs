//! The keys of windowed rules. Counts over windows do not fit one word, so each key has an entry in a [`StripedMap`].
//!
//! Here is what happens to a key under the lock of its stripe. `window_entry.rs` has the entry itself.

use std::sync::MutexGuard;

use super::exchange::{RefundOutcome, ReportedCells};
use super::ghosts::Ghosts;
use super::striped_map::{Admittance, NewKey, Room, Stripe, StripedMap};
use super::table::Booking;
use super::window_entry::{
    Grant, StoreCount, WindowAdmission, WindowEntry, WindowKey, WindowPending, fresh, ghost_of,
    index_of, stricter,
};
use crate::pure::algorithm::summary::Summary;
use crate::pure::algorithm::window::WindowState;
use crate::pure::sync::{ShareCode, Trigger};
use crate::pure::{Algorithm, Cells, Span, Standing};

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct WindowMap(StripedMap<WindowEntry>);

/// What the store answered of a key's window.
#[derive(Clone, Copy, Debug)]
pub struct WindowReport {
    /// Which window.
    pub index: u64,
    /// All cells of it, less those that this pod has yet to give back there.
    pub current: Cells,
    /// Those of them that this pod reported with the batch that is answered.
    pub own: Cells,
}

/// The counts of a key that the store decided.
#[derive(Clone, Copy, Debug)]
pub struct WindowCounts {
    /// Which window.
    pub index: u64,
    /// All cells of it.
    pub current: Cells,
    /// All cells of the one before.
    pub previous: Cells,
}

impl WindowMap {
    /// A table for at most `keys_max` keys. The seeds decide which keys share a stripe and must not be guessable.
    pub fn new(keys_max: usize, seeds: [u64; 2]) -> Self {
        let ghosts = Ghosts::of_windows(keys_max, seeds);
        Self(StripedMap::new(keys_max, seeds, ghosts))
    }

    /// Keys held.
    pub fn held(&self) -> u64 {
        self.0.held()
    }

    /// Ghosts that were dropped while their keys were in use.
    pub fn forgotten(&self) -> u64 {
        self.0.forgotten()
    }

    /// Whether `key` is held.
    pub fn holds(&self, key: &WindowKey<'_>) -> bool {
        self.stripe(key.name).get(key.name).is_some()
    }

    /// How a check of `cost` would stand. Changes nothing. A key that is not held starts with `opening` cells, or with its
    /// ghost.
    pub fn look(&self, key: &WindowKey<'_>, opening: Cells, cost: Cells) -> Standing {
        let mut stripe = self.stripe(key.name);
        match stripe.get_mut(key.name) {
            Some(entry) => {
                let standing = entry.under(key).look(key.limit, key.unix, cost);
                match entry.unreported.share_of(key, cost) {
                    Some((_, by_share)) => stricter(standing, by_share),
                    None => standing,
                }
            }
            None => self.unheld(key, opening).0.look(key.limit, key.unix, cost),
        }
    }

    /// Decides a check of `cost` and counts it if it is allowed. A key that is not held starts as in [`WindowMap::look`].
    pub fn admit(&self, key: &WindowKey<'_>, opening: Cells, cost: Cells) -> WindowAdmission {
        let mut stripe = self.stripe(key.name);
        if let Some(entry) = stripe.get_mut(key.name) {
            return entry.admit(key, cost);
        }
        drop(stripe);
        let (standing, room) = self.with(key, opening, Admittance::IfKnown, |state| {
            let standing = state.decide(key.limit, key.unix, cost);
            (standing, standing.allowed)
        });
        WindowAdmission {
            standing,
            room,
            grant: Grant::Whole,
        }
    }

    /// From now on this pod grants only `share` of the key. Ends the key's flight.
    pub fn grant_by_share(&self, name: u128, share: ShareCode) {
        if let Some(WindowEntry { unreported, .. }) = self.stripe(name).get_mut(name) {
            unreported.in_flight = false;
            unreported.granted = Some(share);
            unreported.share_denied = false;
            unreported.trigger = Trigger::EACH;
        }
    }

    /// Whether the pod's share of the key has denied a check since the pod began to grant it.
    pub fn is_share_denied(&self, name: u128) -> bool {
        let stripe = self.stripe(name);
        stripe
            .get(name)
            .is_some_and(|entry| entry.unreported.share_denied)
    }

    /// Whether more than half of the window is used; `false` for a key that is not held.
    pub fn is_half_used(&self, key: &WindowKey<'_>) -> bool {
        let stripe = self.stripe(key.name);
        let used = stripe.get(key.name).map(|entry| entry.used(key.unix));
        used.is_some_and(|used| used.plus(used) > Cells::new(key.limit.requests()))
    }

    /// Counts `cost` although the check was denied. A key that is not held starts with its ghost.
    pub fn charge(&self, key: &WindowKey<'_>, cost: Cells) -> Room {
        self.with(key, Cells::ZERO, Admittance::Sure, |state| {
            (state.charge(key.limit, key.unix, cost), true)
        })
        .1
    }

    /// Undoes an admission of the same instant.
    pub fn give_back(&self, key: &WindowKey<'_>, cost: Cells) {
        let mut stripe = self.stripe(key.name);
        match stripe.get_mut(key.name) {
            Some(entry) => entry.under(key).give_back(key.limit, key.unix, cost),
            None => self.change_ghost(key, |state| state.give_back(key.limit, key.unix, cost)),
        }
    }

    /// Gives back `cost` cells of this window, as far as they are used. Returns how many of them the store may know.
    pub fn refund(&self, key: &WindowKey<'_>, cost: Cells) -> RefundOutcome {
        let mut stripe = self.stripe(key.name);
        let Some(entry) = stripe.get_mut(key.name) else {
            // A ghost does not say which of its cells were reported, so the store is asked to give back none.
            self.change_ghost(key, |state| {
                state.refund(key.limit, key.unix, cost);
            });
            return RefundOutcome::default();
        };
        let given_back = entry.under(key).refund(key.limit, key.unix, cost);
        let unreported = entry.unreported.take_back(key, given_back);
        let reported = given_back.less(unreported);
        // The store will count as many less, and the pod must not take that for a refund of another pod.
        let pending = &mut entry.unreported;
        match pending.in_flight {
            true => pending.returning = pending.returning.plus(reported),
            false => pending.store_count.cells = pending.store_count.cells.less(reported),
        }
        RefundOutcome {
            unreported,
            reported: ReportedCells {
                cells: reported,
                ..ReportedCells::default()
            },
        }
    }

    /// Notes cells that were admitted and are not yet reported. A key without a trigger gets `trigger`.
    pub fn book(&self, key: &WindowKey<'_>, trigger: Trigger, cells: Cells) -> Booking {
        match self.stripe(key.name).get_mut(key.name) {
            Some(entry) => {
                if entry.unreported.trigger == Trigger::NEVER {
                    entry.unreported.trigger = trigger;
                }
                entry.unreported.note(key.limit.window(), key.unix, cells)
            }
            None => Booking::Left,
        }
    }

    /// Moves the trigger of the key above its pending cells, because the sync queue had no room for the key.
    #[cold]
    pub fn rearm(&self, name: u128) {
        if let Some(entry) = self.stripe(name).get_mut(name) {
            let pending = entry.unreported.pending();
            entry.unreported.trigger = Trigger::above(pending);
        }
    }

    /// Collects the pending cells of one window, with the age of the oldest. The key is in flight from then on and keeps
    /// its place until [`WindowMap::land`]. `None` if it is not held.
    pub fn collect(&self, key: &WindowKey<'_>) -> Option<(Cells, Span)> {
        let mut stripe = self.stripe(key.name);
        let unreported = &mut stripe.get_mut(key.name)?.unreported;
        unreported.in_flight = true;
        let (cells, since) = unreported.take();
        Some((cells, key.unix.less(since)))
    }

    /// Ends the flight of a key. Counts what other pods admitted in the window that the store answered, if it did. `true`
    /// if the key wants another round already.
    pub fn land(
        &self,
        key: &WindowKey<'_>,
        trigger: Trigger,
        answer: Option<WindowReport>,
    ) -> bool {
        let mut stripe = self.stripe(key.name);
        let Some(entry) = stripe.get_mut(key.name) else {
            return false;
        };
        let count = answer.map(|answer| StoreCount {
            index: answer.index,
            cells: answer.current,
        });
        let own = answer.map_or(Cells::ZERO, |answer| answer.own);
        let expected = entry.unreported.land(count, own);
        entry.unreported.trigger = trigger;
        if let Some(answer) = answer {
            let is_this_one = answer.index == index_of(key);
            let state = entry.under(key);
            state.charge(key.limit, key.unix, answer.current.less(expected));
            if is_this_one {
                // Other pods gave cells back, or the store has lost some.
                state.refund(key.limit, key.unix, expected.less(answer.current));
            }
        }
        let pending = entry.unreported.pending();
        trigger.cells().is_some_and(|at| pending >= at)
    }

    /// Makes the key's counts those of the store, plus the cells that the store does not know yet. Returns whether there
    /// was room.
    pub fn mirror(&self, key: &WindowKey<'_>, counts: WindowCounts) -> Room {
        let ((), room) = self.with(key, Cells::ZERO, Admittance::Sure, |_| ((), true));
        let mut stripe = self.stripe(key.name);
        let Some(entry) = stripe.get_mut(key.name) else {
            return room;
        };
        let before = entry.unreported.store_count;
        let known = if before.index == counts.index {
            before.cells
        } else {
            Cells::ZERO
        };
        entry.unreported.store_count = StoreCount {
            index: counts.index,
            cells: counts.current,
        };
        let unreported = &entry.unreported;
        let comparable = counts.index == index_of(key);
        // A log knows more than two counts, and cells in flight may or may not be in the store's count.
        if key.rule.spec.algorithm == Algorithm::SlidingLog || unreported.in_flight || !comparable {
            let foreign = counts.current.less(known);
            entry.under(key).charge(key.limit, key.unix, foreign);
            return room;
        }
        let current = counts.current.plus(unreported.pending());
        let earlier = key.unix.less(key.limit.window());
        entry.limit = *key.limit;
        entry.state = fresh(key, Cells::ZERO);
        entry.state.charge(key.limit, earlier, counts.previous);
        entry.state.charge(key.limit, key.unix, current);
        room
    }

    /// Lets a key enter whose window the fleet has used up; nothing else is known of it.
    pub fn mirror_full(&self, key: &WindowKey<'_>) -> Room {
        let counts = WindowCounts {
            index: index_of(key),
            current: Cells::new(key.limit.requests()),
            previous: Cells::ZERO,
        };
        self.mirror(key, counts)
    }

    /// Collects all pending cells of a key, without a flight.
    pub fn take_silent(&self, name: u128) -> Cells {
        match self.stripe(name).get_mut(name) {
            Some(entry) => {
                let cells = entry.unreported.pending();
                (entry.unreported.older, entry.unreported.newest) = (Cells::ZERO, Cells::ZERO);
                cells
            }
            None => Cells::ZERO,
        }
    }

    /// Ends the flight of a key without an answer. Its next cell triggers a report.
    pub fn release(&self, name: u128) {
        if let Some(entry) = self.stripe(name).get_mut(name) {
            let _ = entry.unreported.land(None, Cells::ZERO);
            entry.unreported.trigger = Trigger::EACH;
        }
    }

    /// Fills the key's window, because the fleet has used it up. Returns how many cells that took; `None` if the key is not
    /// held.
    pub fn fill(&self, key: &WindowKey<'_>) -> Option<Cells> {
        let mut stripe = self.stripe(key.name);
        let state = stripe.get_mut(key.name)?.under(key);
        let left = state.look(key.limit, key.unix, Cells::ZERO).remaining;
        state.charge(key.limit, key.unix, left);
        Some(left)
    }

    /// The used cells of the key's window; none if the key is not held.
    pub fn used(&self, key: &WindowKey<'_>) -> Cells {
        let mut stripe = self.stripe(key.name);
        let entry = stripe.get_mut(key.name);
        entry.map_or(Cells::ZERO, |entry| {
            entry.under(key);
            entry.used(key.unix)
        })
    }

    /// Takes back cells that [`WindowMap::fill`] counted.
    pub fn unfill(&self, key: &WindowKey<'_>, cells: Cells) {
        if let Some(entry) = self.stripe(key.name).get_mut(key.name) {
            entry.under(key).refund(key.limit, key.unix, cells);
        }
    }

    /// Drops the key. Returns its pending cells, which are lost.
    pub fn remove(&self, name: u128) -> Cells {
        self.0.remove(name)
    }

    /// The pending cells of the key; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.0.pending(name)
    }

    /// The pending cells of all keys.
    pub fn pending_in_all(&self) -> Cells {
        self.0.pending_in_all()
    }

    /// Runs `step` on the key's state. Keeps a new state only if `step` returns `true` with it.
    fn with<R>(
        &self,
        key: &WindowKey<'_>,
        opening: Cells,
        admittance: Admittance,
        step: impl FnOnce(&mut WindowState) -> (R, bool),
    ) -> (R, Room) {
        let mut stripe = self.stripe(key.name);
        if let Some(entry) = stripe.get_mut(key.name) {
            return (step(entry.under(key)).0, Room::Free);
        }
        let (mut state, reported) = self.unheld(key, opening);
        let (said, keep) = step(&mut state);
        if !keep {
            return (said, Room::Free);
        }
        let store_count = StoreCount {
            index: index_of(key),
            cells: reported,
        };
        let entry = WindowEntry {
            state,
            limit: *key.limit,
            unreported: WindowPending::new(Trigger::NEVER, store_count),
        };
        let new = NewKey {
            name: key.name,
            kept: entry,
            admittance,
        };
        let room = self.0.put(&mut stripe, new, key.now());
        (said, room)
    }

    /// The state of a key that is not held, and how many cells of its window the store is assumed to know. The pod reported
    /// the cells of a ghost, except those that it counted as lost.
    fn unheld(&self, key: &WindowKey<'_>, opening: Cells) -> (WindowState, Cells) {
        let remembered = match opening {
            Cells::ZERO => self.remembered(key),
            _ => None,
        };
        let Some(state) = remembered else {
            return (fresh(key, opening), Cells::ZERO);
        };
        let reported = state.cells_in_window(key.limit, key.unix);
        (state, reported)
    }

    /// The state that the ghost of a key says. The caller holds the lock of the key's stripe.
    fn remembered(&self, key: &WindowKey<'_>) -> Option<WindowState> {
        let ghost = self.0.ghost(key.name, key.now())?;
        let summary = Summary {
            ends: Span::nanos(ghost.ends.get()),
            used: ghost.used,
        };
        let algorithm = key.rule.spec.algorithm;
        let state = WindowState::from_summary(algorithm, key.limit, summary, key.unix);
        // The ghost is of a longer window, or the calendar was set back: what is used of this window ends with it.
        if let Some(now_ends) = ghost_of(&state, key.limit, key.unix)
            && now_ends.ends < ghost.ends
        {
            self.0.set_ghost(key.name, Some(now_ends), key.now());
        }
        Some(state)
    }

    /// Changes the ghost of a key that is not held, if it has one. The caller holds the lock of the key's stripe.
    fn change_ghost(&self, key: &WindowKey<'_>, change: impl FnOnce(&mut WindowState)) {
        if let Some(mut state) = self.remembered(key) {
            change(&mut state);
            let ghost = ghost_of(&state, key.limit, key.unix);
            self.0.set_ghost(key.name, ghost, key.now());
        }
    }

    fn stripe(&self, name: u128) -> MutexGuard<'_, Stripe<WindowEntry>> {
        self.0.of(name)
    }
}
