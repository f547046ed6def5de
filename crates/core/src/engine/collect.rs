//! What passes between the buckets and the rounds: cells go out, levels come in.

use super::admit::Subject;
use super::refund::ReportedCells;
use super::snapshot::Snapshot;
use super::stats::Stat;
use super::table::{TableKey, Touch};
use super::windows::WindowReport;
use super::{Answer, Engine, Hit};
use crate::pure::limit::CAPACITY_MAX;
use crate::pure::rule::Consistency;
use crate::pure::sync::{Family, Known, ShareCode, StoreKey, StoreState, Terms, Trigger};
use crate::pure::{Cells, Moment, Nanos, Span};

/// What a fold may be above the least it has to be, beside one cell: checks that ran while the answer was on its way.
const FOLD_SLACK: Span = Span::nanos(5_000_000);

/// Cells that were collected for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrozenCells {
    /// How many.
    pub(super) cells: Cells,
    /// What they cost; of no meaning for windows.
    pub(super) price: Span,
    /// The bucket's TAT with them; of no meaning for windows.
    pub(super) tat: Nanos,
    /// When.
    pub(super) at: Nanos,
    /// For how long the oldest was pending; windows only.
    pub(super) age: Span,
}

impl FrozenCells {
    /// No cells of a key that is not held.
    pub(super) const fn nothing(now: Nanos) -> Self {
        Self {
            cells: Cells::ZERO,
            price: Span::ZERO,
            tat: now,
            at: now,
            age: Span::ZERO,
        }
    }
}

/// Cells that were collected and are not to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct SilentCells {
    /// How many.
    pub(super) cells: Cells,
    /// How many of the key's limit cost as much. Only where callers carry different limits is it another number.
    pub(super) worth: Cells,
}

impl SilentCells {
    const fn of(cells: Cells) -> Self {
        Self {
            cells,
            worth: cells,
        }
    }
}

/// What the store said, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// How the key stands.
    pub(super) store_state: StoreState,
    /// The point on this pod's clock that the answer holds for.
    pub(super) anchor: Nanos,
    /// What the key's bucket was when it was asked.
    pub(super) frozen: FrozenCells,
    /// What callers gave back of that, and the store has yet to hear of.
    pub(super) refund_due: ReportedCells,
}

/// Where the bucket of a key in flight is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// Nowhere: only what was carried is told.
    None,
    Level(TableKey),
    Window(u128),
    Carried(u128),
}

/// What news of a full key changed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewsEffect {
    /// As much was known.
    Nothing,
    /// Its bucket ended at `from`, or would have been empty since, and ends at `to`.
    Level { from: Nanos, to: Nanos },
    /// So many cells were counted in the window of this index, which still is so long.
    Window {
        index: u64,
        cells: Cells,
        left: Span,
    },
}

impl NewsEffect {
    fn level(from: Nanos, to: Nanos) -> Self {
        match to > from {
            true => Self::Level { from, to },
            false => Self::Nothing,
        }
    }
}

impl Engine {
    /// What the store calls `key`, if it is a key of these rules.
    pub(super) fn subject_of_key<'a>(
        &self,
        snapshot: &'a Snapshot,
        key: StoreKey,
        moment: Moment,
    ) -> Option<Subject<'a>> {
        let (rule, state) = snapshot.rule(snapshot.rule_of_id(key.rule)?);
        let limit = match key.family {
            Family::Level | Family::Window => rule.spec.limit?,
            Family::Caller => self.carried.limit(key.name)?,
        };
        (state.reported && state.family == key.family).then_some(Subject {
            rule,
            state,
            limit,
            name: key.name,
            moment,
            version: snapshot.version(),
            detached: false,
        })
    }

    /// Collects the pending cells for a batch. The key keeps its slot until it lands. `None` if it is not held.
    pub(super) fn freeze(&self, subject: &Subject<'_>) -> Option<FrozenCells> {
        let at = subject.moment.now;
        let frozen = |cells, price, tat| FrozenCells {
            cells,
            price,
            tat,
            at,
            age: Span::ZERO,
        };
        match subject.state.family {
            Family::Level => {
                let collected = self.table.collect(&self.table_key(subject), true)?;
                let price = subject.limit.interval().times(collected.cells);
                Some(frozen(collected.cells, price, collected.tat))
            }
            Family::Caller => {
                let collected = self.carried.collect(subject.name)?;
                Some(frozen(collected.cells, collected.price, collected.tat))
            }
            Family::Window => {
                let (cells, age) = self.windows.collect(&subject.window())?;
                let frozen = frozen(cells, Span::ZERO, Nanos::default());
                Some(FrozenCells { age, ..frozen })
            }
        }
    }

    /// How full a key is without the cells that were just collected.
    pub(super) fn known(&self, subject: &Subject<'_>, frozen: &FrozenCells) -> Known {
        let (level, cells) = match subject.state.family {
            Family::Level | Family::Caller => {
                let level = frozen.tat.since(frozen.at).less(frozen.price);
                (level, Cells::ZERO)
            }
            Family::Window => {
                let used = self.windows.used(&subject.window());
                (Span::ZERO, used.less(frozen.cells))
            }
        };
        Known { level, cells }
    }

    /// Collects the pending cells of a key that are not to be told.
    pub(super) fn take_silent(&self, subject: &Subject<'_>) -> SilentCells {
        match subject.state.family {
            Family::Level => {
                let collected = self.table.collect(&self.table_key(subject), false);
                collected.map_or_else(SilentCells::default, |collected| {
                    SilentCells::of(collected.cells)
                })
            }
            Family::Caller => {
                let (cells, price) = self.carried.take_silent(subject.name);
                let interval = subject.limit.interval().get().max(1);
                let worth = Cells::new(price.get().div_ceil(interval));
                SilentCells { cells, worth }
            }
            Family::Window => SilentCells::of(self.windows.take_silent(subject.name)),
        }
    }

    /// The pending cells; `None` if the key is not held.
    pub(super) fn pending_of(&self, subject: &Subject<'_>) -> Option<Cells> {
        match subject.state.family {
            Family::Level => self.table.pending(&self.table_key(subject)),
            Family::Caller => self.carried.pending(subject.name),
            Family::Window => self.windows.pending(subject.name),
        }
    }

    /// Where the bucket of a key ends; `None` if it is not held, or has no end because it is windowed.
    pub(super) fn tat_of(&self, subject: &Subject<'_>) -> Option<Nanos> {
        match subject.state.family {
            Family::Level => self.table.tat(&self.table_key(subject)),
            Family::Caller => self.carried.look(subject.name).map(|stood| stood.tat),
            Family::Window => None,
        }
    }

    /// Ends a flight that brought nothing, and sets the trigger. `true` if the key wants a round already.
    pub(super) fn land(&self, subject: &Subject<'_>, trigger: Trigger) -> bool {
        match subject.state.family {
            Family::Level => self.land_level(&self.table_key(subject), trigger),
            Family::Caller => self.carried.land(subject.name, trigger, None),
            Family::Window => self.windows.land(&subject.window(), trigger, None),
        }
    }

    fn land_level(&self, key: &TableKey, trigger: Trigger) -> bool {
        self.table.land(key, trigger, self.is_mitigated(key))
    }

    fn is_mitigated(&self, key: &TableKey) -> bool {
        let held = self.table.look(key);
        held.is_some_and(|state| state.mitigated)
    }

    /// Grants a key by `share` from now on, and ends its flight, if it is in one.
    pub(super) fn grant_by_share(&self, subject: &Subject<'_>, share: ShareCode) {
        match subject.state.family {
            Family::Level => {
                let key = self.table_key(subject);
                self.table
                    .grant_by_share(&key, share, self.is_mitigated(&key));
            }
            Family::Caller => self.carried.grant_by_share(subject.name, share),
            Family::Window => self.windows.grant_by_share(subject.name, share),
        }
    }

    /// Whether a key is granted by share, and that has denied a check since.
    pub(super) fn is_share_denied(&self, subject: &Subject<'_>) -> bool {
        match subject.state.family {
            Family::Level => self.table.is_share_denied(&self.table_key(subject)),
            Family::Caller => self.carried.is_share_denied(subject.name),
            Family::Window => self.windows.is_share_denied(subject.name),
        }
    }

    /// Whether more than half of a key is in use, as far as this pod knows.
    pub(super) fn is_half_used(&self, subject: &Subject<'_>) -> bool {
        let level = match subject.state.family {
            Family::Level | Family::Caller => self
                .tat_of(subject)
                .map_or(Span::ZERO, |tat| tat.since(subject.moment.now)),
            Family::Window => return self.windows.is_half_used(&subject.window()),
        };
        level.plus(level) > subject.limit.capacity()
    }

    /// Raises the bucket of a key to `tat`, if it is below.
    pub(super) fn raise_tat(&self, subject: &Subject<'_>, tat: Nanos) {
        match subject.state.family {
            Family::Level => {
                let raised = |held: Nanos| (Some(held.max(tat)), ());
                let _ = self.table.touch(&self.table_key(subject), raised);
            }
            Family::Caller => self.carried.fold(subject.name, |held, _| held.max(tat)),
            Family::Window => {}
        }
    }

    /// Takes in what the store said. `true` if the key wants another round already.
    pub(super) fn fold(
        &self,
        subject: &Subject<'_>,
        answered: &Answered,
        trigger: Trigger,
    ) -> bool {
        if self.mitigations.count() > 0 {
            self.fold_mitigation(subject, answered);
        }
        match answered.store_state {
            StoreState::Level { level, .. } => {
                let full = level.plus(subject.limit.interval()) > subject.limit.capacity();
                self.fold_level(subject, level, answered);
                match subject.state.family {
                    Family::Caller => self.carried.land(subject.name, trigger, Some(full)),
                    Family::Level | Family::Window => {
                        self.table.land(&self.table_key(subject), trigger, full)
                    }
                }
            }
            StoreState::Window { current, left, .. } => {
                let FrozenCells { cells, at, age, .. } = answered.frozen;
                let window = subject.limit.window();
                let index = window_index(subject.moment.unix.plus(left), window);
                let admitted_at = subject
                    .moment
                    .unix
                    .less(subject.moment.now.since(at).plus(age));
                let due = answered.refund_due;
                let news_received = WindowReport {
                    index,
                    current: match due.unix.whole(window).get() == index {
                        true => current.less(due.cells),
                        false => current,
                    },
                    // What was admitted in the window before is counted there.
                    own: match admitted_at.whole(window).get() == index {
                        true => cells,
                        false => Cells::ZERO,
                    },
                };
                self.windows
                    .land(&subject.window(), trigger, Some(news_received))
            }
        }
    }

    /// A key that is known only as denied by the fleet is denied for as long as the store says.
    fn fold_mitigation(&self, subject: &Subject<'_>, answered: &Answered) {
        let now = subject.moment.now;
        let ends = match answered.store_state {
            StoreState::Level { level, .. } => {
                let full = level.plus(subject.limit.interval()) > subject.limit.capacity();
                full.then(|| answered.anchor.after(level))
            }
            StoreState::Window { current, left, .. } => {
                let full = current >= Cells::new(subject.limit.requests());
                full.then(|| now.after(left))
            }
        };
        if self.mitigations.get(subject.name, now).is_some() {
            self.mitigations.remove(subject.name);
            if let Some(ends) = ends {
                self.mitigations.put(subject.name, ends, now);
            }
        }
    }

    /// The new TAT is where the store's level ends, plus what was admitted here since the freeze. How much that was can
    /// be seen in two ways. The bucket has moved by as much since the freeze, or by more where it had run empty. And as
    /// much is pending, or a little less while a check has been admitted and not yet noted. So the bucket is moved along
    /// with what it was, but to no less than the pending cells demand and to little more than that. What callers gave back
    /// since the freeze has moved the bucket too; the store's level still has it, and is taken without it.
    fn fold_level(&self, subject: &Subject<'_>, level: Span, answered: &Answered) {
        let interval = subject.limit.interval();
        let (ends, frozen) = (answered.anchor.after(level), answered.frozen);
        let without_refunds = answered.anchor.after(level.less(answered.refund_due.price));
        let folded = |tat: Nanos, pending: Span| {
            let least = without_refunds.max(frozen.at).after(pending);
            let moved = match ends >= frozen.tat {
                true => tat.after(ends.since(frozen.tat)),
                false => tat.before(frozen.tat.since(ends)),
            };
            let most = least.after(interval).after(FOLD_SLACK);
            moved.clamp(least, most).max(Nanos::new(1))
        };
        if subject.state.family == Family::Caller {
            self.carried.fold(subject.name, folded);
            return;
        }
        let key = &self.table_key(subject);
        let _ = self.table.touch(key, |tat| {
            let pending = self.table.pending(key).unwrap_or(Cells::ZERO);
            (Some(folded(tat, interval.times(pending))), ())
        });
    }

    /// Takes in how a key stands since the store gave cells of it back, while nothing of it was on its way. The store has
    /// yet to give back `refund_due` of that.
    pub(super) fn fold_refund(
        &self,
        subject: &Subject<'_>,
        store_state: StoreState,
        anchor: Nanos,
        refund_due: Span,
    ) {
        let StoreState::Level { level, .. } = store_state else {
            return; // windows learn of it with their next round
        };
        let (level, interval) = (level.less(refund_due), subject.limit.interval());
        let full = level.plus(interval) > subject.limit.capacity();
        let ends = anchor.after(level);
        // The store decides a strict key: its bucket is never ahead of the store.
        let is_strict = subject.rule.spec.consistency == Consistency::Strict;
        let folded = |tat: Nanos, pending: Span| {
            let least = ends.after(pending);
            let most = least.after(interval).after(FOLD_SLACK);
            let least = if is_strict { Nanos::default() } else { least };
            tat.clamp(least, most).max(Nanos::new(1))
        };
        if subject.state.family == Family::Caller {
            self.carried.fold(subject.name, folded);
            self.carried.mitigate(subject.name, full);
            return;
        }
        let key = &self.table_key(subject);
        let _ = self.table.touch(key, |tat| {
            let pending = self.table.pending(key).unwrap_or(Cells::ZERO);
            (Some(folded(tat, interval.times(pending))), ())
        });
        self.table.mitigate(key, full);
    }

    /// Where the bucket of a key is.
    pub(super) fn seat(&self, subject: &Subject<'_>) -> Seat {
        match subject.state.family {
            Family::Level => Seat::Level(self.table_key(subject)),
            Family::Caller => Seat::Carried(subject.name),
            Family::Window => Seat::Window(subject.name),
        }
    }

    /// Ends a flight whose answer is not taken in.
    pub(super) fn release(&self, seat: Seat) {
        match seat {
            Seat::None => {}
            Seat::Level(key) => {
                self.land_level(&key, Trigger::EACH);
            }
            Seat::Carried(name) => {
                self.carried.land(name, Trigger::EACH, None);
            }
            Seat::Window(name) => self.windows.release(name),
        }
    }

    /// Takes in that the fleet denies a key: its level, or how long its window still is. Says what that changed.
    pub(super) fn raise(&self, subject: &Subject<'_>, level: Span) -> NewsEffect {
        let now = subject.moment.now;
        if subject.rule.spec.algorithm.is_windowed() {
            return self.raise_window(subject, level);
        }
        let rarest = Span::nanos(u64::MAX);
        let level = level.min(subject.terms().heard_every(rarest).level_max());
        let full = level.plus(subject.limit.interval()) > subject.limit.capacity();
        if subject.state.family == Family::Caller {
            let moved = self.carried.raise(subject.name, now.after(level), full);
            return moved.map_or(NewsEffect::Nothing, |(from, to)| {
                NewsEffect::level(from.max(now), to)
            });
        }
        let key = self.table_key(subject);
        // What is pending here is not in that level yet.
        let pending = self.table.pending(&key).unwrap_or(Cells::ZERO);
        let ends = now
            .after(level)
            .after(subject.limit.interval().times(pending));
        match self.table.touch(&key, |tat| (Some(tat.max(ends)), tat)) {
            Touch::Held(before, _) => {
                self.table.mitigate(&key, full);
                NewsEffect::level(before.max(now), ends)
            }
            Touch::Missing => {
                self.mitigations.put(subject.name, ends, now);
                NewsEffect::level(now, ends)
            }
        }
    }

    fn raise_window(&self, subject: &Subject<'_>, left: Span) -> NewsEffect {
        let (moment, window) = (subject.moment, subject.limit.window());
        let index = window_index(moment.unix.plus(left), window);
        // By our clock that window may be over already: nothing is known of the one we are in.
        if index != moment.unix.whole(window).get() {
            return NewsEffect::Nothing;
        }
        let left = left.min(window);
        let cells = match self.windows.fill(&subject.window()) {
            Some(Cells::ZERO) => return NewsEffect::Nothing,
            Some(cells) => cells,
            None => {
                let ends = moment.now.after(left);
                self.mitigations.put(subject.name, ends, moment.now);
                Cells::ZERO
            }
        };
        NewsEffect::Window { index, cells, left }
    }

    /// Undoes that news moved a bucket up by so much, but moves it no lower than where it ended `before`.
    pub(super) fn unraise(&self, subject: &Subject<'_>, by: Span, before: Nanos) {
        let lowered = |tat: Nanos| tat.before(by).max(tat.min(before)).max(Nanos::new(1));
        if subject.state.family == Family::Caller {
            self.carried.fold(subject.name, |tat, _| lowered(tat));
            self.carried.mitigate(subject.name, false);
            return;
        }
        let key = self.table_key(subject);
        let _ = self.table.touch(&key, |tat| (Some(lowered(tat)), ()));
        self.table.mitigate(&key, false);
    }

    /// Undoes that news counted cells in the window of this index.
    pub(super) fn unfill(&self, subject: &Subject<'_>, index: u64, cells: Cells) {
        if subject.moment.unix.whole(subject.limit.window()).get() == index {
            self.windows.unfill(&subject.window(), cells);
        }
    }

    /// Forgets the key of a hit, on this pod alone.
    pub fn forget_hit(&self, answer: &Answer, hit: &Hit, moment: Moment) {
        if let Some(subject) = self.subject(&answer.snapshot, hit, moment) {
            self.forget(&subject);
        }
    }

    /// What the store calls the key of a hit and counts it under, if it is told of it.
    pub fn store_key(
        &self,
        answer: &Answer,
        hit: &Hit,
        moment: Moment,
    ) -> Option<(StoreKey, Terms)> {
        let subject = self.subject(&answer.snapshot, hit, moment)?;
        subject
            .state
            .reported
            .then(|| (subject.store_key(), subject.terms()))
    }

    /// Forgets a key.
    pub(super) fn forget(&self, subject: &Subject<'_>) {
        self.mitigations.remove(subject.name);
        let lost = match subject.state.family {
            Family::Level => self.forget_level(subject),
            Family::Caller => self.carried.remove(subject.name),
            Family::Window => self.windows.remove(subject.name),
        };
        self.stats.count(Stat::CellsReset, lost.get());
    }

    fn forget_level(&self, subject: &Subject<'_>) -> Cells {
        let key = self.table_key(subject);
        let permit = self.table.permit(&key);
        let variants = subject.state.former.iter().map(|former| former.variant);
        let pending = [subject.state.variant]
            .into_iter()
            .chain(variants)
            .filter_map(|variant| {
                let key = self.table.key(subject.name, variant);
                let taken = self.table.take(&permit, &key);
                // Afterwards: until it is taken, it may have to leave and be remembered.
                self.table.forget_ghost(&permit, &key);
                taken
            })
            .map(|taken| taken.pending);
        pending.fold(Cells::ZERO, Cells::plus)
    }

    /// Forgets a key of which no limit is known.
    pub(super) fn forget_unheld(&self, name: u128) {
        self.mitigations.remove(name);
        let lost = self.carried.remove(name);
        self.stats.count(Stat::CellsReset, lost.get());
    }

    /// Takes in that the fleet denies a key of which nothing is held here, and no limit is known.
    pub(super) fn deny_unheld(&self, name: u128, level: Span, now: Nanos) -> NewsEffect {
        let ends = now.after(level.min(CAPACITY_MAX));
        self.mitigations.put(name, ends, now);
        NewsEffect::level(now, ends)
    }

    /// The cells that are pending in all buckets.
    pub fn pending(&self) -> Cells {
        self.table
            .pending_in_all()
            .plus(self.windows.pending_in_all())
            .plus(self.carried.pending_in_all())
    }

    pub(super) fn table_key(&self, subject: &Subject<'_>) -> TableKey {
        self.table.key(subject.name, subject.state.variant)
    }
}

/// Which window ends at `ends`, as the store sees it: its clock and ours are not far apart, so the nearest end is meant.
pub(super) fn window_index(ends: Span, window: Span) -> u64 {
    let half = Span::nanos(window.get() / 2);
    ends.plus(half).whole(window).get().saturating_sub(1)
}
