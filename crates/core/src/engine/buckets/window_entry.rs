//! The state of one windowed key: its counts, the cells that the store does not know yet, and the share that the pod grants.
//!
//! `window_map.rs` keeps these entries, each under the lock of its stripe. Nothing here locks or evicts.

use super::ghosts::Ghost;
use super::striped_map::{Evictable, EvictionRank, Room};
use super::table::Booking;
use crate::pure::algorithm::window::WindowState;
use crate::pure::algorithm::{fixed_window, gcra};
use crate::pure::sync::{ShareCode, Trigger};
use crate::pure::{Algorithm, Cells, Limit, Nanos, Rule, Span, Standing};

/// A key of a windowed rule at one instant.
#[derive(Clone, Copy, Debug)]
pub struct WindowKey<'a> {
    /// Its name.
    pub name: u128,
    /// Its rule.
    pub rule: &'a Rule,
    /// The rule's limit.
    pub limit: &'a Limit,
    /// The time since the Unix epoch.
    pub unix: Span,
}

impl WindowKey<'_> {
    /// The same time as a point on the calendar's time line.
    pub(super) const fn now(&self) -> Nanos {
        Nanos::new(self.unix.get())
    }
}

/// The result of a check of a windowed key.
#[derive(Clone, Copy, Debug)]
pub struct WindowAdmission {
    /// How the check stands.
    pub standing: Standing,
    /// How the key got its place.
    pub room: Room,
    /// What this pod grants of the key.
    pub grant: Grant,
}

/// What a pod grants of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// The whole limit.
    Whole,
    /// The pod's share of it.
    Share,
    /// The pod's share of it, which has just denied its first check.
    FirstDenial,
}

/// A key's counts, and the limit they were counted under.
#[derive(Debug)]
pub(super) struct WindowEntry {
    pub(super) state: WindowState,
    pub(super) limit: Limit,
    pub(super) unreported: WindowPending,
}

/// The cells of a key that the store does not know yet, and what the store last said of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowPending {
    /// Cells of windows before the newest. The pod reports them first, because a delta has one age.
    pub(super) older: Cells,
    /// Cells of the newest window that has any.
    pub(super) newest: Cells,
    /// When the first cell of `older`, and of `newest`, was admitted.
    since: [Span; 2],
    pub(super) trigger: Trigger,
    pub(super) in_flight: bool,
    /// The share that the pod grants; `None` if it grants the whole key.
    pub(super) granted: Option<ShareCode>,
    /// Whether that share has denied a check.
    pub(super) share_denied: bool,
    /// Until when that share is used up: a TAT on the calendar's time line.
    share_tat: Nanos,
    /// The count that the store last answered, less what the pod has given back there since.
    pub(super) store_count: StoreCount,
    /// Reported cells that callers refunded while an answer was on its way.
    pub(super) returning: Cells,
}

/// The cells that the store has in one window.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StoreCount {
    pub(super) index: u64,
    pub(super) cells: Cells,
}

impl WindowPending {
    pub(super) const fn new(trigger: Trigger, store_count: StoreCount) -> Self {
        Self {
            older: Cells::ZERO,
            newest: Cells::ZERO,
            since: [Span::ZERO; 2],
            trigger,
            in_flight: false,
            granted: None,
            share_denied: false,
            share_tat: Nanos::new(0),
            store_count,
            returning: Cells::ZERO,
        }
    }

    pub(super) const fn pending(&self) -> Cells {
        self.older.plus(self.newest)
    }

    /// Notes cells that were admitted at `unix`.
    pub(super) fn note(&mut self, window: Span, unix: Span, cells: Cells) -> Booking {
        if self.newest > Cells::ZERO && self.since[1].whole(window) != unix.whole(window) {
            if self.older == Cells::ZERO {
                self.since[0] = self.since[1];
            }
            self.older = self.pending();
            self.newest = Cells::ZERO;
        }
        if self.newest == Cells::ZERO {
            self.since[1] = unix;
        }
        let before = self.pending();
        self.newest = self.newest.plus(cells);
        match self.trigger.cells() {
            Some(at) if before < at && at <= self.pending() => Booking::Triggered,
            Some(_) | None => Booking::Noted,
        }
    }

    /// Takes back at most `cells` of the present window. Returns how many it took.
    pub(super) fn take_back(&mut self, key: &WindowKey<'_>, cells: Cells) -> Cells {
        let window = key.limit.window();
        match self.since[1].whole(window) == key.unix.whole(window) {
            true => {
                let taken = self.newest.min(cells);
                self.newest = self.newest.less(taken);
                taken
            }
            false => Cells::ZERO,
        }
    }

    /// Ends the flight with the count that the store answered, if it did. Returns how many cells of that window the pod
    /// expects the store to have, `own` of them from this flight.
    pub(super) fn land(&mut self, answer: Option<StoreCount>, own: Cells) -> Cells {
        let returning = std::mem::take(&mut self.returning);
        let before = self.store_count;
        let count = answer.unwrap_or(StoreCount {
            index: before.index,
            cells: before.cells.less(returning),
        });
        self.store_count = count;
        self.in_flight = false;
        self.granted = None;
        self.share_denied = false;
        let known = match before.index == count.index {
            true => before.cells,
            false => Cells::ZERO,
        };
        known.plus(own).less(returning)
    }

    /// The share's TAT after a check of `cost`, and how the check stands by it; `None` while the pod grants the whole key.
    pub(super) fn share_of(&self, key: &WindowKey<'_>, cost: Cells) -> Option<(Nanos, Standing)> {
        let limit = key.limit.shared(self.granted?.share());
        let now = Nanos::new(key.unix.get());
        Some(gcra::decide(&limit, self.share_tat, now, cost))
    }

    /// Takes the oldest cells. Returns them and when the first of them was admitted.
    pub(super) fn take(&mut self) -> (Cells, Span) {
        if self.older > Cells::ZERO {
            return (std::mem::take(&mut self.older), self.since[0]);
        }
        (std::mem::take(&mut self.newest), self.since[1])
    }
}

impl Evictable for WindowEntry {
    fn pending(&self) -> Cells {
        self.unreported.pending()
    }

    fn is_in_flight(&self) -> bool {
        self.unreported.in_flight
    }

    /// In this order: windows that have passed, the least used part of a limit, the window that ends first.
    fn rank(&self, now: Nanos) -> EvictionRank {
        let unix = Span::nanos(now.get());
        let ends = self.state.ends(&self.limit, unix);
        let used = u128::from(self.used(unix).get()) << 32;
        let part = used / u128::from(self.limit.requests().max(1));
        (ends > Span::ZERO, part, ends)
    }

    fn ghost(&self, now: Nanos) -> Option<Ghost> {
        ghost_of(&self.state, &self.limit, Span::nanos(now.get()))
    }
}

impl WindowEntry {
    /// The state under the limit and the algorithm of `key`. Another limit rescales it; under another algorithm it starts
    /// anew with the cells that are used.
    pub(super) fn under(&mut self, key: &WindowKey<'_>) -> &mut WindowState {
        if self.limit != *key.limit {
            self.state.rescale(&self.limit, key.limit, key.unix);
            self.limit = *key.limit;
        }
        if algorithm(&self.state) != key.rule.spec.algorithm {
            self.state = fresh(key, self.used(key.unix));
        }
        &mut self.state
    }

    /// Decides a check of `cost` and counts it if it is allowed. While the pod grants only its share of the key, both the
    /// window and the share must have room.
    pub(super) fn admit(&mut self, key: &WindowKey<'_>, cost: Cells) -> WindowAdmission {
        let room = Room::Free;
        let Some((share_tat, by_share)) = self.unreported.share_of(key, cost) else {
            return WindowAdmission {
                standing: self.under(key).decide(key.limit, key.unix, cost),
                room,
                grant: Grant::Whole,
            };
        };
        let state = self.under(key);
        let standing = match by_share.allowed {
            true => state.decide(key.limit, key.unix, cost),
            false => state.look(key.limit, key.unix, cost),
        };
        let grant = match (standing.allowed, by_share.allowed) {
            (true, true) => {
                self.unreported.share_tat = share_tat;
                Grant::Share
            }
            (true, false) if !std::mem::replace(&mut self.unreported.share_denied, true) => {
                Grant::FirstDenial
            }
            (true, false) | (false, _) => Grant::Share,
        };
        WindowAdmission {
            standing: stricter(standing, by_share),
            room,
            grant,
        }
    }

    pub(super) fn used(&self, unix: Span) -> Cells {
        let left = self.state.look(&self.limit, unix, Cells::ZERO).remaining;
        Cells::new(self.limit.requests()).less(left)
    }
}

/// The standing that allows no more than either of the two.
pub(super) fn stricter(a: Standing, b: Standing) -> Standing {
    Standing {
        allowed: a.allowed && b.allowed,
        remaining: a.remaining.min(b.remaining),
        retry_after: a.retry_after.max(b.retry_after),
        reset_after: a.reset_after.max(b.reset_after),
        delay: a.delay.max(b.delay),
    }
}

pub(super) fn ghost_of(state: &WindowState, limit: &Limit, unix: Span) -> Option<Ghost> {
    let summary = state.summary(limit, unix)?;
    Some(Ghost {
        ends: Nanos::new(summary.ends.get()),
        used: summary.used,
    })
}

/// The window that the time of `key` is in.
pub(super) fn index_of(key: &WindowKey<'_>) -> u64 {
    key.unix.whole(key.limit.window()).get()
}

const fn algorithm(state: &WindowState) -> Algorithm {
    match state {
        WindowState::Fixed(_) => Algorithm::FixedWindow,
        WindowState::Sliding(_) => Algorithm::SlidingWindow,
        WindowState::Log(_) => Algorithm::SlidingLog,
    }
}

pub(super) fn fresh(key: &WindowKey<'_>, opening: Cells) -> WindowState {
    let counts = || WindowState::Fixed(fixed_window::FixedWindowState::default());
    let mut state = WindowState::new(key.rule.spec.algorithm).unwrap_or_else(counts);
    if opening > Cells::ZERO {
        state.charge(key.limit, key.unix, opening);
    }
    state
}
