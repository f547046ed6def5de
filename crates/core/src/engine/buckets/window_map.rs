//! The state of windowed rules: a count over windows does not fit one word, so it is kept in [`StripedMap`].

use std::sync::MutexGuard;

use super::exchange::{RefundOutcome, ReportedCells};
use super::ghosts::{Ghost, Ghosts};
use super::striped_map::{Admittance, Evictable, EvictionRank, Room, Stripe, StripedMap};
use super::table::Booking;
use crate::pure::algorithm::summary::Summary;
use crate::pure::algorithm::window::WindowState;
use crate::pure::algorithm::{fixed_window, gcra};
use crate::pure::sync::{ShareCode, Trigger};
use crate::pure::{Algorithm, Cells, Limit, Nanos, Rule, Span, Standing};

/// A key's counts, and the limit they were counted under.
#[derive(Debug)]
struct WindowEntry {
    state: WindowState,
    limit: Limit,
    unreported: WindowPending,
}

/// What the store has not been told of a key, and what it last told.
#[derive(Clone, Copy, Debug)]
struct WindowPending {
    /// Cells of windows before the newest: they go first, because a delta has one age.
    older: Cells,
    /// Cells of the newest window that has any.
    newest: Cells,
    /// When the first cell of `older`, and of `newest`, was admitted.
    since: [Span; 2],
    trigger: Trigger,
    in_flight: bool,
    /// The share that the pod grants; `None` if it grants all of the key.
    granted: Option<ShareCode>,
    /// Whether that share has denied a check.
    share_denied: bool,
    /// Until when that share is used: a TAT on the calendar's time line.
    share_tat: Nanos,
    /// The store's window and its count when it was last heard, less what is given back there since.
    reported: (u64, Cells),
    /// What was refunded while an answer is on its way, and is not pending.
    returning: Cells,
}

impl WindowPending {
    const fn new(trigger: Trigger) -> Self {
        Self {
            older: Cells::ZERO,
            newest: Cells::ZERO,
            since: [Span::ZERO; 2],
            trigger,
            in_flight: false,
            granted: None,
            share_denied: false,
            share_tat: Nanos::new(0),
            reported: (0, Cells::ZERO),
            returning: Cells::ZERO,
        }
    }

    const fn pending(&self) -> Cells {
        self.older.plus(self.newest)
    }

    /// Notes cells that were admitted at `unix`.
    fn note(&mut self, window: Span, unix: Span, cells: Cells) -> Booking {
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

    /// Takes back up to so many cells of the present window, and says how many.
    fn take_back(&mut self, key: &WindowKey<'_>, cells: Cells) -> Cells {
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

    /// The flight has ended with this count of the store, if any. Answers which cells of its window this pod expects the
    /// store to have, `own` of them told just now.
    fn landed(&mut self, reported: Option<(u64, Cells)>, own: Cells) -> Cells {
        let returning = std::mem::take(&mut self.returning);
        let (index, known) = self.reported;
        let (index_told, count) = reported.unwrap_or((index, known.less(returning)));
        self.reported = (index_told, count);
        self.in_flight = false;
        self.granted = None;
        self.share_denied = false;
        let known = match index == index_told {
            true => known,
            false => Cells::ZERO,
        };
        known.plus(own).less(returning)
    }

    /// The share's TAT after a check of `cost`, and how the check stands by it; `None` while all of the key is granted.
    fn share_of(&self, key: &WindowKey<'_>, cost: Cells) -> Option<(Nanos, Standing)> {
        let limit = key.limit.shared(self.granted?.share());
        let now = Nanos::new(key.unix.get());
        Some(gcra::decide(&limit, self.share_tat, now, cost))
    }

    /// Takes the oldest cells, and says since when they are there.
    fn take(&mut self) -> (Cells, Span) {
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

    /// Smaller is missed less: windows that have passed, then the least used part of a limit, then the soonest to pass.
    fn missed(&self, now: Nanos) -> EvictionRank {
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

/// The table. All methods may be called from any thread.
#[derive(Debug)]
pub struct WindowMap(StripedMap<WindowEntry>);

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
    /// The same time as a point on the calendar's line.
    const fn now(&self) -> Nanos {
        Nanos::new(self.unix.get())
    }
}

/// What a check of a windowed key came to.
#[derive(Clone, Copy, Debug)]
pub struct WindowAdmission {
    /// How it stands.
    pub standing: Standing,
    /// How the key got its place.
    pub room: Room,
    /// What this pod grants of the key.
    pub grant: Grant,
}

/// What a pod grants of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// All of it.
    Whole,
    /// Its share.
    Share,
    /// Its share, which has just denied a check for the first time.
    FirstDenial,
}

/// What the store said of a key's window.
#[derive(Clone, Copy, Debug)]
pub struct WindowReport {
    /// Which window.
    pub index: u64,
    /// All cells of it, without those that this pod has yet to give back there.
    pub current: Cells,
    /// Those of them that this pod told just now.
    pub own: Cells,
}

/// What the store said of a key that it decided.
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
    /// A table for at most `keys_max` keys. The seeds decide who shares a shard and must not be guessable.
    pub fn new(keys_max: usize, seeds: [u64; 2]) -> Self {
        let ghosts = Ghosts::of_windows(keys_max, seeds);
        Self(StripedMap::new(keys_max, seeds, ghosts))
    }

    /// Keys held.
    pub fn held(&self) -> u64 {
        self.0.held()
    }

    /// Keys that were forgotten while they were in use.
    pub fn forgotten(&self) -> u64 {
        self.0.forgotten()
    }

    /// Whether `key` is held.
    pub fn holds(&self, key: &WindowKey<'_>) -> bool {
        self.stripe(key.name).get(key.name).is_some()
    }

    /// What a check of `cost` would be told. Changes nothing. A key that is not held starts with `opening` cells, or with
    /// what is remembered of it.
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
        let (standing, room) = self.with(key, (opening, Admittance::IfKnown), |state| {
            let standing = state.decide(key.limit, key.unix, cost);
            (standing, standing.allowed)
        });
        WindowAdmission {
            standing,
            room,
            grant: Grant::Whole,
        }
    }

    /// Grants the key by `share` from now on, and ends its flight, if it is in one.
    pub fn grant_by_share(&self, name: u128, share: ShareCode) {
        if let Some(WindowEntry { unreported, .. }) = self.stripe(name).get_mut(name) {
            unreported.in_flight = false;
            unreported.granted = Some(share);
            unreported.share_denied = false;
            unreported.trigger = Trigger::EACH;
        }
    }

    /// Whether the share of the key has denied a check since it was granted.
    pub fn is_share_denied(&self, name: u128) -> bool {
        let stripe = self.stripe(name);
        stripe
            .get(name)
            .is_some_and(|entry| entry.unreported.share_denied)
    }

    /// Whether more than half of the window is used; of a key that is not held it is not.
    pub fn is_half_used(&self, key: &WindowKey<'_>) -> bool {
        let stripe = self.stripe(key.name);
        let used = stripe.get(key.name).map(|entry| entry.used(key.unix));
        used.is_some_and(|used| used.plus(used) > Cells::new(key.limit.requests()))
    }

    /// Counts `cost` although it was denied. A key that is not held starts with what is remembered of it.
    pub fn charge(&self, key: &WindowKey<'_>, cost: Cells) -> Room {
        self.with(key, (Cells::ZERO, Admittance::Sure), |state| {
            (state.charge(key.limit, key.unix, cost), true)
        })
        .1
    }

    /// Takes back what an admission at this instant counted.
    pub fn give_back(&self, key: &WindowKey<'_>, cost: Cells) {
        let mut stripe = self.stripe(key.name);
        match stripe.get_mut(key.name) {
            Some(entry) => entry.under(key).give_back(key.limit, key.unix, cost),
            None => self.change_ghost(key, |state| state.give_back(key.limit, key.unix, cost)),
        }
    }

    /// Gives back `cost` cells of this window, as far as they were used, and says how many of them the store may know of.
    pub fn refund(&self, key: &WindowKey<'_>, cost: Cells) -> RefundOutcome {
        let mut stripe = self.stripe(key.name);
        let Some(entry) = stripe.get_mut(key.name) else {
            // Nobody knows whether the store was told of what is remembered: it hears nothing.
            self.change_ghost(key, |state| {
                state.refund(key.limit, key.unix, cost);
            });
            return RefundOutcome::default();
        };
        let given_back = entry.under(key).refund(key.limit, key.unix, cost);
        let unreported = entry.unreported.take_back(key, given_back);
        let reported = given_back.less(unreported);
        // The store will have as many less, and that is no news then.
        match entry.unreported.in_flight {
            true => entry.unreported.returning = entry.unreported.returning.plus(reported),
            false => entry.unreported.reported.1 = entry.unreported.reported.1.less(reported),
        }
        RefundOutcome {
            unreported,
            reported: ReportedCells {
                cells: reported,
                ..ReportedCells::default()
            },
        }
    }

    /// Notes cells as admitted and not yet told. A key that starts to be told does so at `trigger`.
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

    /// Moves the trigger of the key above what is pending: nobody could be told that it was reached.
    #[cold]
    pub fn rearm(&self, name: u128) {
        if let Some(entry) = self.stripe(name).get_mut(name) {
            let pending = entry.unreported.pending();
            entry.unreported.trigger = Trigger::above(pending);
        }
    }

    /// Collects what was noted of one window, and for how long it has been there. The key is in flight from then on and
    /// keeps its place until [`WindowMap::land`]. `None` if it is not held.
    pub fn collect(&self, key: &WindowKey<'_>) -> Option<(Cells, Span)> {
        let mut stripe = self.stripe(key.name);
        let unreported = &mut stripe.get_mut(key.name)?.unreported;
        unreported.in_flight = true;
        let (cells, since) = unreported.take();
        Some((cells, key.unix.less(since)))
    }

    /// Ends the flight of a key: counts what other pods admitted in the store's window `index`, which has `current`
    /// cells, `own` of them told just now. `true` if the key wants another round already.
    pub fn land(
        &self,
        key: &WindowKey<'_>,
        trigger: Trigger,
        news_received: Option<WindowReport>,
    ) -> bool {
        let mut stripe = self.stripe(key.name);
        let Some(entry) = stripe.get_mut(key.name) else {
            return false;
        };
        let reported =
            news_received.map(|news_received| (news_received.index, news_received.current));
        let own = news_received.map_or(Cells::ZERO, |news_received| news_received.own);
        let expected = entry.unreported.landed(reported, own);
        entry.unreported.trigger = trigger;
        if let Some(news_received) = news_received {
            let is_this_one = news_received.index == index_of(key);
            let state = entry.under(key);
            state.charge(key.limit, key.unix, news_received.current.less(expected));
            if is_this_one {
                // Other pods gave cells back, or the store has lost some.
                state.refund(key.limit, key.unix, expected.less(news_received.current));
            }
        }
        let pending = entry.unreported.pending();
        trigger.cells().is_some_and(|at| pending >= at)
    }

    /// Makes the key's counts those of the store, with what that has not been told. Whether there was room.
    pub fn mirror(&self, key: &WindowKey<'_>, news_received: WindowCounts) -> Room {
        let ((), room) = self.with(key, (Cells::ZERO, Admittance::Sure), |_| ((), true));
        let mut stripe = self.stripe(key.name);
        let Some(entry) = stripe.get_mut(key.name) else {
            return room;
        };
        let (index, known) = entry.unreported.reported;
        let known = if index == news_received.index {
            known
        } else {
            Cells::ZERO
        };
        entry.unreported.reported = (news_received.index, news_received.current);
        let unreported = &entry.unreported;
        let comparable = news_received.index == index_of(key);
        // A log knows more than two counts, and cells on their way may be in the store's count or not.
        if key.rule.spec.algorithm == Algorithm::SlidingLog || unreported.in_flight || !comparable {
            let foreign = news_received.current.less(known);
            entry.under(key).charge(key.limit, key.unix, foreign);
            return room;
        }
        let current = news_received.current.plus(unreported.pending());
        let earlier = key.unix.less(key.limit.window());
        entry.limit = *key.limit;
        entry.state = fresh(key, Cells::ZERO);
        entry
            .state
            .charge(key.limit, earlier, news_received.previous);
        entry.state.charge(key.limit, key.unix, current);
        room
    }

    /// Lets a key enter of which only that is known that the fleet has used up its window.
    pub fn mirror_full(&self, key: &WindowKey<'_>) -> Room {
        let news_received = WindowCounts {
            index: index_of(key),
            current: Cells::new(key.limit.requests()),
            previous: Cells::ZERO,
        };
        self.mirror(key, news_received)
    }

    /// Collects all that was noted of a key.
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

    /// Ends the flight of a key without an answer. It wants to be told of its next cell.
    pub fn release(&self, name: u128) {
        if let Some(entry) = self.stripe(name).get_mut(name) {
            let _ = entry.unreported.landed(None, Cells::ZERO);
            entry.unreported.trigger = Trigger::EACH;
        }
    }

    /// Fills the key's window, if it is held: the fleet has used it up. Says how many cells that took.
    pub fn fill(&self, key: &WindowKey<'_>) -> Option<Cells> {
        let mut stripe = self.stripe(key.name);
        let state = stripe.get_mut(key.name)?.under(key);
        let left = state.look(key.limit, key.unix, Cells::ZERO).remaining;
        state.charge(key.limit, key.unix, left);
        Some(left)
    }

    /// The cells that are used of the key's window; none of one that is not held.
    pub fn used(&self, key: &WindowKey<'_>) -> Cells {
        let mut stripe = self.stripe(key.name);
        let entry = stripe.get_mut(key.name);
        entry.map_or(Cells::ZERO, |entry| {
            entry.under(key);
            entry.used(key.unix)
        })
    }

    /// Takes back what filled the key's window.
    pub fn unfill(&self, key: &WindowKey<'_>, cells: Cells) {
        if let Some(entry) = self.stripe(key.name).get_mut(key.name) {
            entry.under(key).refund(key.limit, key.unix, cells);
        }
    }

    /// Drops the key, and says what was not told of it.
    pub fn remove(&self, name: u128) -> Cells {
        self.0.remove(name)
    }

    /// What was noted of the key and not collected; `None` if it is not held.
    pub fn pending(&self, name: u128) -> Option<Cells> {
        self.0.pending(name)
    }

    /// The cells not told of all keys.
    pub fn pending_in_all(&self) -> Cells {
        self.0.pending_in_all()
    }

    /// Runs `step` on the key's state; keeps a state that is new only if `step` says it is worth it.
    fn with<R>(
        &self,
        key: &WindowKey<'_>,
        (opening, admittance): (Cells, Admittance),
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
        let mut unreported = WindowPending::new(Trigger::NEVER);
        unreported.reported = (index_of(key), reported);
        let entry = WindowEntry {
            state,
            limit: *key.limit,
            unreported,
        };
        let room = self
            .0
            .put(&mut stripe, (key.name, entry), admittance, key.now());
        (said, room)
    }

    /// The state of a key that is not held, and what the store may be taken to know of its window: what is remembered was
    /// told, but for what is counted as lost.
    fn unheld(&self, key: &WindowKey<'_>, opening: Cells) -> (WindowState, Cells) {
        let remembered = match opening {
            Cells::ZERO => self.remembered(key),
            _ => None,
        };
        let Some(state) = remembered else {
            return (fresh(key, opening), Cells::ZERO);
        };
        let reported = state.counted(key.limit, key.unix);
        (state, reported)
    }

    /// The state of a key that is not held and remembered. Its shard is held by the caller.
    fn remembered(&self, key: &WindowKey<'_>) -> Option<WindowState> {
        let ghost = self.0.ghost(key.name, key.now())?;
        let summary = Summary {
            ends: Span::nanos(ghost.ends.get()),
            used: ghost.used,
        };
        let algorithm = key.rule.spec.algorithm;
        let state = WindowState::remembered(algorithm, key.limit, summary, key.unix);
        // Of a longer window, or from before the calendar was set back: what is used of this window ends with it.
        if let Some(now_ends) = ghost_of(&state, key.limit, key.unix)
            && now_ends.ends < ghost.ends
        {
            self.0.set_ghost(key.name, Some(now_ends), key.now());
        }
        Some(state)
    }

    /// Changes what is remembered of a key that is not held, if anything is. Its shard is held by the caller.
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

impl WindowEntry {
    /// The state, rescaled if it was counted under another limit, and begun anew with what is used if it was counted by
    /// another algorithm.
    fn under(&mut self, key: &WindowKey<'_>) -> &mut WindowState {
        if self.limit != *key.limit {
            self.state.rescale(&self.limit, key.limit, key.unix);
            self.limit = *key.limit;
        }
        if algorithm(&self.state) != key.rule.spec.algorithm {
            self.state = fresh(key, self.used(key.unix));
        }
        &mut self.state
    }

    /// Decides a check of `cost` and counts it if it is allowed. Of a key that is granted by share there must be room in
    /// the window and in the share.
    fn admit(&mut self, key: &WindowKey<'_>, cost: Cells) -> WindowAdmission {
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

    fn used(&self, unix: Span) -> Cells {
        let left = self.state.look(&self.limit, unix, Cells::ZERO).remaining;
        Cells::new(self.limit.requests()).less(left)
    }
}

/// The one of two standings that allows less.
fn stricter(a: Standing, b: Standing) -> Standing {
    Standing {
        allowed: a.allowed && b.allowed,
        remaining: a.remaining.min(b.remaining),
        retry_after: a.retry_after.max(b.retry_after),
        reset_after: a.reset_after.max(b.reset_after),
        delay: a.delay.max(b.delay),
    }
}

fn ghost_of(state: &WindowState, limit: &Limit, unix: Span) -> Option<Ghost> {
    let summary = state.summary(limit, unix)?;
    Some(Ghost {
        ends: Nanos::new(summary.ends.get()),
        used: summary.used,
    })
}

/// The window that we are in.
fn index_of(key: &WindowKey<'_>) -> u64 {
    key.unix.whole(key.limit.window()).get()
}

const fn algorithm(state: &WindowState) -> Algorithm {
    match state {
        WindowState::Fixed(_) => Algorithm::FixedWindow,
        WindowState::Sliding(_) => Algorithm::SlidingWindow,
        WindowState::Log(_) => Algorithm::SlidingLog,
    }
}

fn fresh(key: &WindowKey<'_>, opening: Cells) -> WindowState {
    let counts = || WindowState::Fixed(fixed_window::State::default());
    let mut state = WindowState::new(key.rule.spec.algorithm).unwrap_or_else(counts);
    if opening > Cells::ZERO {
        state.charge(key.limit, key.unix, opening);
    }
    state
}
