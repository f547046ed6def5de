//! What passes between the buckets and the rounds: cells go out, levels come in.

use super::admit::Asked;
use super::snapshot::Snapshot;
use super::stats::Stat;
use super::table::{TableKey, Touched};
use super::windows::Heard;
use super::{Answer, Engine, Hit};
use crate::pure::limit::CAPACITY_MAX;
use crate::pure::sync::{Family, StoreKey, Terms, Told, Trigger};
use crate::pure::{Cells, Moment, Nanos, Span};

/// What a fold may be above the least it has to be, beside one cell: checks that ran while the answer was on its way.
const FOLD_SLACK: Span = Span::nanos(5_000_000);

/// Cells that were collected for a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Frozen {
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

/// Cells that were collected and are not to be told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Hushed {
    /// How many.
    pub(super) cells: Cells,
    /// How many of the key's limit cost as much. Only where callers carry different limits is it another number.
    pub(super) worth: Cells,
}

impl Hushed {
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
    pub(super) told: Told,
    /// The point on this pod's clock that the answer holds for.
    pub(super) anchor: Nanos,
    /// What the key's bucket was when it was asked.
    pub(super) frozen: Frozen,
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

impl Engine {
    /// What the store calls `key`, if it is a key of these rules.
    pub(super) fn subject<'a>(
        &self,
        snapshot: &'a Snapshot,
        key: StoreKey,
        moment: Moment,
    ) -> Option<Asked<'a>> {
        let (rule, state) = snapshot.rule(snapshot.rule_of_id(key.rule)?);
        let limit = match key.family {
            Family::Level | Family::Window => rule.spec.limit?,
            Family::Carried => self.carried.limit(key.name)?,
        };
        (state.reported && state.family == key.family).then_some(Asked {
            rule,
            state,
            limit,
            name: key.name,
            moment,
            version: snapshot.version(),
            alone: false,
        })
    }

    /// Collects the pending cells for a batch. The key keeps its slot until it lands. `None` if it is not held.
    pub(super) fn freeze(&self, asked: &Asked<'_>) -> Option<Frozen> {
        let at = asked.moment.now;
        let frozen = |cells, price, tat| Frozen {
            cells,
            price,
            tat,
            at,
            age: Span::ZERO,
        };
        match asked.state.family {
            Family::Level => {
                let collected = self.table.collect(&self.table_key(asked), true)?;
                let price = asked.limit.interval().times(collected.cells);
                Some(frozen(collected.cells, price, collected.tat))
            }
            Family::Carried => {
                let collected = self.carried.collect(asked.name)?;
                Some(frozen(collected.cells, collected.price, collected.tat))
            }
            Family::Window => {
                let (cells, age) = self.windows.collect(&asked.window())?;
                let frozen = frozen(cells, Span::ZERO, Nanos::default());
                Some(Frozen { age, ..frozen })
            }
        }
    }

    /// Collects the pending cells of a key that are not to be told.
    pub(super) fn hush(&self, asked: &Asked<'_>) -> Hushed {
        match asked.state.family {
            Family::Level => {
                let collected = self.table.collect(&self.table_key(asked), false);
                collected.map_or_else(Hushed::default, |collected| Hushed::of(collected.cells))
            }
            Family::Carried => {
                let (cells, price) = self.carried.hush(asked.name);
                let interval = asked.limit.interval().get().max(1);
                let worth = Cells::new(price.get().div_ceil(interval));
                Hushed { cells, worth }
            }
            Family::Window => Hushed::of(self.windows.hush(asked.name)),
        }
    }

    /// The pending cells; `None` if the key is not held.
    pub(super) fn pending_of(&self, asked: &Asked<'_>) -> Option<Cells> {
        match asked.state.family {
            Family::Level => self.table.pending(&self.table_key(asked)),
            Family::Carried => self.carried.pending(asked.name),
            Family::Window => self.windows.pending(asked.name),
        }
    }

    /// Where the bucket of a key ends; `None` if it is not held, or has no end because it is windowed.
    pub(super) fn tat_of(&self, asked: &Asked<'_>) -> Option<Nanos> {
        match asked.state.family {
            Family::Level => self.table.tat(&self.table_key(asked)),
            Family::Carried => self.carried.look(asked.name).map(|stood| stood.tat),
            Family::Window => None,
        }
    }

    /// Ends a flight that brought nothing, and sets the trigger. `true` if the key wants a round already.
    pub(super) fn land(&self, asked: &Asked<'_>, trigger: Trigger) -> bool {
        match asked.state.family {
            Family::Level => self.land_level(&self.table_key(asked), trigger),
            Family::Carried => self.carried.land(asked.name, trigger, None),
            Family::Window => self.windows.land(&asked.window(), trigger, None),
        }
    }

    fn land_level(&self, key: &TableKey, trigger: Trigger) -> bool {
        let held = self.table.look(key);
        let mitigated = held.is_some_and(|(_, mitigated)| mitigated);
        self.table.land(key, trigger, mitigated)
    }

    /// Takes in what the store said. `true` if the key wants another round already.
    pub(super) fn fold(&self, asked: &Asked<'_>, answered: &Answered, trigger: Trigger) -> bool {
        match answered.told {
            Told::Level { level, .. } => {
                let full = level.plus(asked.limit.interval()) > asked.limit.capacity();
                self.fold_level(asked, level, answered);
                match asked.state.family {
                    Family::Carried => self.carried.land(asked.name, trigger, Some(full)),
                    Family::Level | Family::Window => {
                        self.table.land(&self.table_key(asked), trigger, full)
                    }
                }
            }
            Told::Window { current, left, .. } => {
                let Frozen { cells, at, age, .. } = answered.frozen;
                let window = asked.limit.window();
                let index = window_index(asked.moment.unix.plus(left), window);
                let admitted_at = asked.moment.unix.less(asked.moment.now.since(at).plus(age));
                let heard = Heard {
                    index,
                    current,
                    // What was admitted in the window before is counted there.
                    own: match admitted_at.whole(window).get() == index {
                        true => cells,
                        false => Cells::ZERO,
                    },
                };
                self.windows.land(&asked.window(), trigger, Some(heard))
            }
        }
    }

    /// The new TAT is where the store's level ends, plus what was admitted here since the freeze. How much that was can
    /// be seen in two ways. The bucket has moved by as much since the freeze, or by more where it had run empty. And as
    /// much is pending, or a little less while a check has been admitted and not yet noted. So the bucket is moved along
    /// with what it was, but to no less than the pending cells demand and to little more than that.
    fn fold_level(&self, asked: &Asked<'_>, level: Span, answered: &Answered) {
        let interval = asked.limit.interval();
        let (ends, frozen) = (answered.anchor.after(level), answered.frozen);
        let folded = |tat: Nanos, pending: Span| {
            let least = ends.max(frozen.at).after(pending);
            let moved = match ends >= frozen.tat {
                true => tat.after(ends.since(frozen.tat)),
                false => tat.before(frozen.tat.since(ends)),
            };
            let most = least.after(interval).after(FOLD_SLACK);
            moved.clamp(least, most).max(Nanos::new(1))
        };
        if asked.state.family == Family::Carried {
            self.carried.fold(asked.name, folded);
            return;
        }
        let key = &self.table_key(asked);
        let _ = self.table.touch(key, |tat| {
            let pending = self.table.pending(key).unwrap_or(Cells::ZERO);
            (Some(folded(tat, interval.times(pending))), ())
        });
    }

    /// Takes in that the store has less of a key than was known: its bucket goes no lower than what is pending demands.
    pub(super) fn lower(&self, asked: &Asked<'_>, told: Told, anchor: Nanos) {
        let Told::Level { level, .. } = told else {
            return; // windows learn of it with their next round
        };
        let (ends, interval) = (anchor.after(level), asked.limit.interval());
        let lowered = |tat: Nanos, pending: Span| {
            let most = ends.after(pending).after(interval).after(FOLD_SLACK);
            tat.min(most).max(Nanos::new(1))
        };
        if asked.state.family == Family::Carried {
            self.carried.fold(asked.name, lowered);
            return;
        }
        let key = &self.table_key(asked);
        let _ = self.table.touch(key, |tat| {
            let pending = self.table.pending(key).unwrap_or(Cells::ZERO);
            (Some(lowered(tat, interval.times(pending))), ())
        });
    }

    /// Where the bucket of a key is.
    pub(super) fn seat(&self, asked: &Asked<'_>) -> Seat {
        match asked.state.family {
            Family::Level => Seat::Level(self.table_key(asked)),
            Family::Carried => Seat::Carried(asked.name),
            Family::Window => Seat::Window(asked.name),
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

    /// Takes in that the fleet denies a key: its level, or how long its window still is.
    pub(super) fn raise(&self, asked: &Asked<'_>, level: Span) {
        let now = asked.moment.now;
        if asked.rule.spec.algorithm.is_windowed() {
            let (unix, window) = (asked.moment.unix, asked.limit.window());
            // By our clock that window may be over already: nothing is known of the one we are in.
            let is_this_one = window_index(unix.plus(level), window) == unix.whole(window).get();
            if is_this_one && !self.windows.fill(&asked.window()) {
                let left = level.min(window);
                self.mitigations.put(asked.name, now.after(left), now);
            }
            return;
        }
        let rarest = Span::nanos(u64::MAX);
        let level = level.min(Terms::level(&asked.limit).heard_every(rarest).level_max());
        let full = level.plus(asked.limit.interval()) > asked.limit.capacity();
        if asked.state.family == Family::Carried {
            self.carried.raise(asked.name, now.after(level), full);
            return;
        }
        let key = self.table_key(asked);
        // What is pending here is not in that level yet.
        let pending = self.table.pending(&key).unwrap_or(Cells::ZERO);
        let ends = now
            .after(level)
            .after(asked.limit.interval().times(pending));
        match self.table.touch(&key, |tat| (Some(tat.max(ends)), ())) {
            Touched::Held((), _) => self.table.mitigate(&key, full),
            Touched::Missing => self.mitigations.put(asked.name, ends, now),
        }
    }

    /// Forgets the key of a hit, on this pod alone.
    pub fn forget_hit(&self, answer: &Answer, hit: &Hit, moment: Moment) {
        if let Some(asked) = self.asked(&answer.snapshot, hit, moment) {
            self.forget(&asked);
        }
    }

    /// What the store calls the key of a hit and counts it under, if it is told of it.
    pub fn store_key(
        &self,
        answer: &Answer,
        hit: &Hit,
        moment: Moment,
    ) -> Option<(StoreKey, Terms)> {
        let asked = self.asked(&answer.snapshot, hit, moment)?;
        asked
            .state
            .reported
            .then(|| (asked.store_key(), asked.terms()))
    }

    /// Forgets a key.
    pub(super) fn forget(&self, asked: &Asked<'_>) {
        self.mitigations.remove(asked.name);
        let lost = match asked.state.family {
            Family::Level => self.forget_level(asked),
            Family::Carried => self.carried.remove(asked.name),
            Family::Window => self.windows.remove(asked.name),
        };
        self.stats.count(Stat::CellsReset, lost.get());
    }

    fn forget_level(&self, asked: &Asked<'_>) -> Cells {
        let key = self.table_key(asked);
        let permit = self.table.permit(&key);
        let variants = asked.state.former.iter().map(|former| former.variant);
        let pending = [asked.state.variant]
            .into_iter()
            .chain(variants)
            .filter_map(|variant| {
                self.table
                    .take(&permit, &self.table.key(asked.name, variant))
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
    pub(super) fn deny_unheld(&self, name: u128, level: Span, now: Nanos) {
        let ends = now.after(level.min(CAPACITY_MAX));
        self.mitigations.put(name, ends, now);
    }

    /// The cells that are pending in all buckets.
    pub fn pending(&self) -> Cells {
        self.table
            .pending_in_all()
            .plus(self.windows.pending_in_all())
            .plus(self.carried.pending_in_all())
    }

    pub(super) fn table_key(&self, asked: &Asked<'_>) -> TableKey {
        self.table.key(asked.name, asked.state.variant)
    }
}

/// Which window ends at `ends`, as the store sees it: its clock and ours are not far apart, so the nearest end is meant.
pub(super) fn window_index(ends: Span, window: Span) -> u64 {
    let half = Span::nanos(window.get() / 2);
    ends.plus(half).whole(window).get().saturating_sub(1)
}
