//! Buckets of rules whose algorithm is a level: GCRA, token bucket, leaky bucket. One word of the table is the whole state.
//!
//! A check of a key that is held changes one word. A new key takes longer: it may have a bucket under a former limit, it
//! may have a ghost, and it needs a slot.

use super::admission::{Admission, Stale, Trace};
use super::exchange::{
    BucketAddress, FrozenCells, RefundOutcome, ReportedCells, SilentCells, StoreAnswer,
};
use super::news::NewsEffect;
use super::subject::{Subject, decide_level};
use super::table::{
    Booking, BucketSize, BucketState, EntryPermit, MovedBucket, TableKey, Tenancy, Touch,
};
use super::{Buckets, KeyBucket, fold};
use crate::engine::answer::Source;
use crate::engine::snapshot::RuleState;
use crate::engine::stats::Stat;
use crate::pure::algorithm::gcra;
use crate::pure::rule::RuleSpec;
use crate::pure::sync::{BucketKind, KnownUsage, ShareCode, StoreKey, StoreState, Trigger};
use crate::pure::{Cells, Limit, Moment, Nanos, Span, Standing};

/// A key of a level rule.
#[derive(Clone, Copy)]
pub(in crate::engine) struct LevelBucket<'t, 's> {
    pub(super) buckets: &'t Buckets,
    pub(super) subject: &'s Subject<'s>,
}

/// A check of a key whose rule the caller knows.
pub(in crate::engine) struct KnownKey<'a> {
    pub(in crate::engine) spec: &'a RuleSpec,
    pub(in crate::engine) state: &'a RuleState,
    pub(in crate::engine) limit: &'a Limit,
    pub(in crate::engine) name: u128,
}

impl Buckets {
    /// Decides for a level key that is held and of which the pod grants the whole limit; `None` for all others.
    ///
    /// Does what [`LevelBucket::admit`] does, without an `Admission`: nothing undoes this one, and to pass it through
    /// memory would cost as much as the exchange itself.
    #[inline(always)]
    pub(in crate::engine) fn admit_known(
        &self,
        key: &KnownKey<'_>,
        cost: Cells,
        moment: Moment,
    ) -> Option<Standing> {
        if key.state.kind != BucketKind::Level {
            return None;
        }
        let slot = self.level.key(key.name, key.state.variant);
        let step = |tat, granted: Option<ShareCode>| match granted {
            None => (gcra::admit(key.limit, tat, moment.now, cost), Some(tat)),
            // A key of which the pod grants only a share takes the longer way: nothing is taken here.
            Some(_) => (None, None),
        };
        let Touch::Held(Some(before), tenancy) = self.level.touch_granted(&slot, step) else {
            return None;
        };
        let (_, standing) = decide_level(key.spec.algorithm, key.limit, before, moment.now, cost);
        if standing.allowed && key.state.reported {
            self.note_level(key.state.id, key.name, &tenancy, cost);
        }
        Some(standing)
    }

    /// Notes admitted cells for the store.
    #[inline(always)]
    fn note_level(&self, rule: u64, name: u128, tenancy: &Tenancy<'_>, cost: Cells) {
        match self.level.book(tenancy, cost) {
            Booking::Noted => {}
            Booking::Triggered => self.queue_level(rule, name, tenancy),
            Booking::Left => self.stats.count(Stat::CellsLost, cost.get()),
        }
    }

    #[cold]
    fn queue_level(&self, rule: u64, name: u128, tenancy: &Tenancy<'_>) {
        match self.sync_queue.has_room() {
            true => self.sync_queue.push(StoreKey::level(rule, name)),
            false => self.level.rearm(tenancy),
        }
    }

    /// Ends the flight of a key without an answer, and sets its trigger.
    pub(super) fn land_level(&self, key: &TableKey, trigger: Trigger) -> bool {
        self.level.land(key, trigger, self.is_level_mitigated(key))
    }

    fn is_level_mitigated(&self, key: &TableKey) -> bool {
        let held = self.level.look(key);
        held.is_some_and(|state| state.mitigated)
    }
}

impl<'t> LevelBucket<'t, '_> {
    fn key(&self) -> TableKey {
        self.buckets
            .level
            .key(self.subject.name, self.subject.state.variant)
    }

    #[inline(always)]
    fn note(&self, tenancy: &Tenancy<'_>, cost: Cells) {
        let Subject { state, name, .. } = self.subject;
        self.buckets.note_level(state.id, *name, tenancy, cost);
    }

    /// The admission on a key of which this pod grants only a share. The first denial queues the key for a report.
    #[cold]
    fn admitted_by_share(&self, before: Nanos, tenancy: Tenancy<'t>, cost: Cells) -> Admission<'t> {
        let (after, standing) = self
            .subject
            .granting(tenancy.granted())
            .decide(before, cost);
        let by_level = tenancy.is_mitigated();
        if !standing.allowed
            && !by_level
            && self.buckets.sync_queue.has_room()
            && self.buckets.level.note_share_denied(&tenancy)
        {
            self.buckets.sync_queue.push(self.subject.store_key());
        }
        Admission {
            standing,
            source: Source::Fallback,
            trace: trace(standing, before, after, tenancy),
        }
    }

    /// The admission of a key that is not held.
    #[cold]
    fn admit_new(&self, key: &TableKey, cost: Cells) -> Result<Admission<'t>, Stale> {
        let (table, subject) = (&self.buckets.level, self.subject);
        let permit = table.permit(key);
        if table.tat(key).is_some() {
            drop(permit);
            return self.admit(cost); // another thread let it enter first
        }
        self.buckets.announce(subject.version);
        if self.buckets.version() != subject.version {
            return Err(Stale);
        }
        let now = subject.moment.now;
        let mitigated = self.buckets.mitigation(subject);
        let former = self.take_former(&permit).map(|taken| MovedBucket {
            tat: taken.tat.max(mitigated.unwrap_or(taken.tat)),
            ..taken
        });
        let unheld = self.unheld_tat();
        let opening = former.unwrap_or(MovedBucket {
            tat: unheld.max(mitigated.unwrap_or(unheld)),
            trigger: subject.state.opening(),
            ..MovedBucket::at(now)
        });
        let (after, standing) = subject.decide(opening.tat, cost);
        // While the table is full, it lets a key in only when the key comes a second time.
        let is_full = table.held() >= table.keys_max();
        let first_sight = former.is_none() && unheld <= now && is_full;
        let enters = former.is_some() || mitigated.is_some() || (standing.allowed && !first_sight);
        let tat = if standing.allowed { after } else { opening.tat };
        let entering = enters.then_some(MovedBucket {
            tat,
            size: BucketSize::of(subject.limit.capacity()),
            ..opening
        });
        let held = self.enter(&permit, key, entering, standing.allowed);
        if mitigated.is_some() && held.is_some() {
            self.buckets.mitigations.remove(subject.name);
            table.mitigate(key, true);
        }
        if opening.pending > Cells::ZERO
            && let Some((_, tenancy)) = &held
        {
            // Under its former limit the key may have passed its trigger already.
            let (rule, name) = (subject.state.id, subject.name);
            self.buckets.queue_level(rule, name, tenancy);
        }
        if held.is_none() {
            self.buckets
                .stats
                .count(Stat::CellsLost, opening.pending.get());
            table.remember(&permit, key, tat, now);
        }
        let trace = match held {
            _ if !standing.allowed => Trace::None,
            Some((after, tenancy)) => Trace::Slot {
                tenancy,
                before: opening.tat,
                after,
            },
            None => Trace::Unheld,
        };
        Ok(Admission {
            standing,
            source: subject.source(opening.tat, mitigated.is_some()),
            trace,
        })
    }

    /// Lets the key enter, if it may, and counts how it got its slot. `is_allowed` says whether the check passes.
    fn enter(
        &self,
        permit: &EntryPermit<'_>,
        key: &TableKey,
        entering: Option<MovedBucket>,
        is_allowed: bool,
    ) -> Option<(Nanos, Tenancy<'t>)> {
        let entrance = entering.map(|bucket| {
            // Before it enters: once the key is held, it may have to leave again at once.
            self.buckets.level.forget_ghost(permit, key);
            let now = self.subject.moment.now;
            self.buckets.level.enter(permit, key, bucket, now)
        });
        if entrance.is_some() || is_allowed {
            let origin = entrance.map(|entrance| entrance.how);
            self.buckets.stats.entered(origin);
        }
        entrance.and_then(|entrance| entrance.held)
    }

    /// Takes out the bucket or the ghost of the key under a former limit, rescaled to the present one.
    fn take_former(&self, permit: &EntryPermit<'_>) -> Option<MovedBucket> {
        let (table, subject) = (&self.buckets.level, self.subject);
        let now = subject.moment.now;
        subject.state.former.iter().find_map(|former| {
            let key = table.key(subject.name, former.variant);
            let remembered = || {
                let tat = table.ghost(&key, now)?;
                table.forget_ghost(permit, &key);
                Some(MovedBucket {
                    trigger: subject.state.opening(),
                    ..MovedBucket::at(tat)
                })
            };
            let taken = table.take(permit, &key).or_else(remembered)?;
            Some(MovedBucket {
                tat: former.rescaled(taken.tat, now, &subject.limit),
                ..taken
            })
        })
    }

    /// The TAT that a key which is not held starts with.
    fn unheld_tat(&self) -> Nanos {
        let ghost = self
            .buckets
            .level
            .ghost(&self.key(), self.subject.moment.now);
        self.subject.unheld_tat(ghost)
    }

    /// Refunds cells of a key that is not held, in its ghost. A ghost does not say which of its cells were reported, so the
    /// store is asked to give back none.
    #[cold]
    fn refund_remembered(&self, price: Span) {
        let (table, now, key) = (&self.buckets.level, self.subject.moment.now, self.key());
        let permit = table.permit(&key);
        if table.tat(&key).is_none()
            && let Some(tat) = table.ghost(&key, now)
        {
            table.remember(&permit, &key, tat.before(price), now);
        }
    }

    /// Moves the bucket to the TAT that `fold` makes of its TAT and of the price of its pending cells.
    fn fold_tat(&self, fold: impl Fn(Nanos, Span) -> Nanos) {
        let (table, key) = (&self.buckets.level, &self.key());
        let _ = table.touch(key, |tat| {
            let pending = table.pending(key).unwrap_or(Cells::ZERO);
            let price = self.subject.limit.interval().times(pending);
            (Some(fold(tat, price)), ())
        });
    }
}

impl<'t> KeyBucket<'t> for LevelBucket<'t, '_> {
    #[inline(always)]
    fn admit(&self, cost: Cells) -> Result<Admission<'t>, Stale> {
        let key = self.key();
        let step = |tat, granted| (self.subject.next(tat, granted, cost), tat);
        match self.buckets.level.touch_granted(&key, step) {
            Touch::Held(before, tenancy) if tenancy.granted().is_some() => {
                Ok(self.admitted_by_share(before, tenancy, cost))
            }
            Touch::Held(before, tenancy) => {
                let (after, standing) = self.subject.decide(before, cost);
                Ok(Admission {
                    standing,
                    source: self.subject.source(before, tenancy.is_mitigated()),
                    trace: trace(standing, before, after, tenancy),
                })
            }
            Touch::Missing => self.admit_new(&key, cost),
        }
    }

    fn look(&self, cost: Cells) -> (Standing, Source) {
        let (table, subject) = (&self.buckets.level, self.subject);
        let now = subject.moment.now;
        let former = || {
            subject.state.former.iter().find_map(|former| {
                let key = table.key(subject.name, former.variant);
                let ghost = || table.ghost(&key, now).map(BucketState::at);
                let state = table.look(&key).or_else(ghost)?;
                let tat = former.rescaled(state.tat, now, &subject.limit);
                Some(BucketState { tat, ..state })
            })
        };
        let state = table.look(&self.key()).or_else(former);
        let state = state.unwrap_or_else(|| self.buckets.opening(subject, self.unheld_tat()));
        subject.standing(&state, cost)
    }

    #[inline(always)]
    fn note_admitted(&self, admission: &Admission<'_>, cost: Cells) {
        if let Trace::Slot { tenancy, .. } = &admission.trace {
            self.note(tenancy, cost);
        }
    }

    fn give_back(&self, admission: &Admission<'_>, _cost: Cells) -> bool {
        match admission.trace {
            // An empty bucket is as empty now as it was then, and `now` is a TAT that no other key has had.
            Trace::Slot {
                tenancy,
                before,
                after,
            } => {
                let before = before.max(self.subject.moment.now);
                self.buckets.level.give_back(&tenancy, after, before)
            }
            Trace::None | Trace::Forgiven | Trace::Unheld | Trace::Line { .. } | Trace::Count => {
                false
            }
        }
    }

    fn refund(&self, cost: Cells) -> RefundOutcome {
        let (table, subject) = (&self.buckets.level, self.subject);
        let (now, interval) = (subject.moment.now, subject.limit.interval());
        let price = interval.times(cost);
        let key = self.key();
        let step = |tat: Nanos| {
            let after = tat.before(price).max(now).max(Nanos::new(1));
            ((after < tat).then_some(after), (tat.since(after), after))
        };
        let mut remembered = false;
        let touched = match table.touch(&key, step) {
            // The bucket may still be that of a former limit: a check of no cells rescales it.
            Touch::Missing if !subject.state.former.is_empty() => {
                remembered = subject.state.former.iter().any(|former| {
                    let former = table.key(subject.name, former.variant);
                    table.ghost(&former, now).is_some()
                });
                let _ = self.admit(Cells::ZERO);
                table.touch(&key, step)
            }
            touched @ (Touch::Held(..) | Touch::Missing) => touched,
        };
        let Touch::Held((emptied, tat), tenancy) = touched else {
            self.refund_remembered(price);
            return RefundOutcome::default();
        };
        if remembered {
            return RefundOutcome::default();
        }
        let given_back = emptied.cells_up(interval).min(cost);
        let unreported = table.unbook(&tenancy, given_back);
        RefundOutcome {
            unreported,
            reported: ReportedCells {
                cells: given_back.less(unreported),
                price: emptied.less(interval.times(unreported)),
                tat,
                unix: Span::ZERO,
            },
        }
    }

    fn charge(&self, cost: Cells) -> Cells {
        let (table, subject) = (&self.buckets.level, self.subject);
        let (now, level_max) = (subject.moment.now, subject.terms().level_max());
        let key = self.key();
        let step = |tat: Nanos| {
            let (after, cells) = gcra::charge(&subject.limit, level_max, tat, now, cost);
            ((cells > Cells::ZERO).then_some(after), cells)
        };
        let mut touched = table.touch(&key, step);
        if matches!(touched, Touch::Missing) {
            // A check of no cells lets the key enter.
            let _ = self.admit(Cells::ZERO);
            touched = table.touch(&key, step);
        }
        let permit = match touched {
            Touch::Held(..) => None,
            Touch::Missing => Some(table.permit(&key)),
        };
        if permit.is_some() {
            touched = table.touch(&key, step); // another thread may have let it enter
        }
        match (touched, permit) {
            (Touch::Held(cells, tenancy), _) => {
                if subject.state.reported && cells > Cells::ZERO {
                    self.buckets.charges.add(subject.store_key(), cells);
                    self.note(&tenancy, cells);
                }
                cells
            }
            (Touch::Missing, permit) => {
                let (after, cells) = step(self.unheld_tat());
                if let (Some(permit), Some(after)) = (permit, after) {
                    table.remember(&permit, &key, after, now);
                }
                if subject.state.reported {
                    self.buckets.stats.count(Stat::CellsUnheld, cells.get());
                }
                cells
            }
        }
    }

    fn follow(&self, state: StoreState) {
        let StoreState::Level { level, .. } = state else {
            return;
        };
        let (table, now) = (&self.buckets.level, self.subject.moment.now);
        let level = level.min(self.subject.terms().level_max());
        let full = self.subject.is_full(level);
        let ends = now.after(level).max(Nanos::new(1));
        let key = self.key();
        let set = || match table.touch(&key, |_| (Some(ends), ())) {
            Touch::Held((), _) => {
                table.mitigate(&key, full);
                true
            }
            Touch::Missing => false,
        };
        // If a reload has swapped the rules meanwhile, the key cannot enter, and need not.
        let is_set = set() || (self.admit(Cells::ZERO).is_ok() && set());
        if !is_set && full {
            let name = self.subject.name;
            self.buckets.mitigations.put(name, now.after(level), now);
        }
    }

    fn standing_in_store(&self, state: StoreState, cost: Cells) -> Standing {
        self.subject.standing_at(state, cost)
    }

    fn freeze(&self) -> Option<FrozenCells> {
        let collected = self.buckets.level.collect(&self.key(), true)?;
        Some(FrozenCells {
            cells: collected.cells,
            price: self.subject.limit.interval().times(collected.cells),
            tat: collected.tat,
            at: self.subject.moment.now,
            age: Span::ZERO,
        })
    }

    fn known(&self, frozen: &FrozenCells) -> KnownUsage {
        KnownUsage {
            level: frozen.tat.since(frozen.at).less(frozen.price),
            cells: Cells::ZERO,
        }
    }

    fn take_silent(&self) -> SilentCells {
        let collected = self.buckets.level.collect(&self.key(), false);
        collected.map_or_else(SilentCells::default, |collected| {
            SilentCells::of(collected.cells)
        })
    }

    fn pending(&self) -> Option<Cells> {
        self.buckets.level.pending(&self.key())
    }

    fn tat(&self) -> Option<Nanos> {
        self.buckets.level.tat(&self.key())
    }

    fn land(&self, trigger: Trigger) -> bool {
        self.buckets.land_level(&self.key(), trigger)
    }

    fn grant_by_share(&self, share: ShareCode) {
        let key = self.key();
        let mitigated = self.buckets.is_level_mitigated(&key);
        self.buckets.level.grant_by_share(&key, share, mitigated);
    }

    fn is_share_denied(&self) -> bool {
        self.buckets.level.is_share_denied(&self.key())
    }

    fn is_half_used(&self) -> bool {
        self.subject.is_half_used_at(self.tat())
    }

    fn raise_tat(&self, tat: Nanos) {
        let raised = |held: Nanos| (Some(held.max(tat)), ());
        let _ = self.buckets.level.touch(&self.key(), raised);
    }

    fn fold(&self, answer: &StoreAnswer, trigger: Trigger) -> bool {
        let StoreState::Level { level, .. } = answer.state else {
            return self.land(trigger);
        };
        self.fold_tat(fold::after_answer(self.subject, level, answer));
        let full = self.subject.is_full(level);
        self.buckets.level.land(&self.key(), trigger, full)
    }

    fn fold_refund(&self, state: StoreState, anchor: Nanos, refund_due: Span) {
        let StoreState::Level { level, .. } = state else {
            return;
        };
        let level = level.less(refund_due);
        self.fold_tat(fold::after_refund(self.subject, anchor.after(level)));
        let full = self.subject.is_full(level);
        self.buckets.level.mitigate(&self.key(), full);
    }

    fn raise(&self, level: Span, unsettled: &ReportedCells) -> NewsEffect {
        let (table, now) = (&self.buckets.level, self.subject.moment.now);
        let level = self.subject.news_level(level.less(unsettled.price));
        let full = self.subject.is_full(level);
        let key = self.key();
        // That level does not include the pending cells of this pod yet.
        let pending = table.pending(&key).unwrap_or(Cells::ZERO);
        let ends = now
            .after(level)
            .after(self.subject.limit.interval().times(pending));
        match table.touch(&key, |tat| (Some(tat.max(ends)), tat)) {
            Touch::Held(before, _) => {
                table.mitigate(&key, full);
                NewsEffect::level(before.max(now), ends)
            }
            Touch::Missing => {
                self.buckets.mitigations.put(self.subject.name, ends, now);
                NewsEffect::level(now, ends)
            }
        }
    }

    fn lower(&self, by: Span, before: Nanos) {
        let lowered = fold::without_news(by, before);
        let key = self.key();
        let _ = self
            .buckets
            .level
            .touch(&key, |tat| (Some(lowered(tat)), ()));
        self.buckets.level.mitigate(&key, false);
    }

    fn address(&self) -> BucketAddress {
        BucketAddress::Level(self.key())
    }

    fn forget(&self) -> Cells {
        let (table, subject) = (&self.buckets.level, self.subject);
        let permit = table.permit(&self.key());
        let former = subject.state.former.iter().map(|former| former.variant);
        let variants = [subject.state.variant].into_iter().chain(former);
        let taken = variants.filter_map(|variant| {
            let key = table.key(subject.name, variant);
            let taken = table.take(&permit, &key);
            // Afterwards: until the key is taken out, it may be evicted and leave a ghost.
            table.forget_ghost(&permit, &key);
            taken
        });
        taken
            .map(|taken| taken.pending)
            .fold(Cells::ZERO, Cells::plus)
    }
}

#[inline(always)]
fn trace(standing: Standing, before: Nanos, after: Nanos, tenancy: Tenancy<'_>) -> Trace<'_> {
    match standing.allowed {
        true => Trace::Slot {
            tenancy,
            before,
            after,
        },
        false => Trace::None,
    }
}
