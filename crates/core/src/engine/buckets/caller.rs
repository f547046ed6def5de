//! Buckets of keys whose callers supply the limit: `CL.THROTTLE`, and descriptors that override their rule's limit.

use super::admission::{Admission, Stale, Trace};
use super::exchange::{
    BucketAddress, FrozenCells, RefundOutcome, ReportedCells, SilentCells, StoreAnswer,
};
use super::news::NewsEffect;
use super::striped_map::Room;
use super::subject::Subject;
use super::table::{Booking, BucketSize, BucketState};
use super::{Buckets, KeyBucket, fold};
use crate::engine::answer::Source;
use crate::engine::stats::Stat;
use crate::pure::sync::{KnownUsage, ShareCode, StoreState, Trigger};
use crate::pure::{Cells, Nanos, Span, Standing};

/// A key with a caller-supplied limit.
#[derive(Clone, Copy)]
pub(in crate::engine) struct CallerBucket<'t, 's> {
    pub(super) buckets: &'t Buckets,
    pub(super) subject: &'s Subject<'s>,
}

impl CallerBucket<'_, '_> {
    /// The state that a key which is not held starts with.
    fn opening(&self) -> BucketState {
        let Subject { name, moment, .. } = self.subject;
        let ghost = self.buckets.callers.ghost(*name, moment.now);
        let unheld = self.subject.unheld_tat(ghost);
        BucketState {
            size: BucketSize::of(self.subject.limit.capacity()),
            ..self.buckets.opening(self.subject, unheld)
        }
    }
}

impl<'t> KeyBucket<'t> for CallerBucket<'t, '_> {
    fn admit(&self, cost: Cells) -> Result<Admission<'t>, Stale> {
        let (map, subject) = (&self.buckets.callers, self.subject);
        let step = |state: &BucketState| subject.next(state.tat, state.granted, cost);
        let now = subject.moment.now;
        let (state, room) = map.admit(subject.name, now, || self.opening(), step);
        let by_share = state.granted.is_some();
        let (after, standing) = match by_share {
            false => subject.decide(state.tat, cost),
            true => subject.granting(state.granted).decide(state.tat, cost),
        };
        self.buckets.stats.room(room);
        if by_share
            && !standing.allowed
            && !state.mitigated
            && self.buckets.sync_queue.has_room()
            && map.note_share_denied(subject.name)
        {
            self.buckets.sync_queue.push(subject.store_key());
        }
        let trace = match room {
            _ if !standing.allowed => Trace::None,
            Room::Free | Room::Settled(_) | Room::InUse(_) => Trace::Line {
                before: state.tat,
                after,
            },
            Room::Nowhere => Trace::Unheld,
        };
        let source = subject.source(state.tat, state.mitigated);
        Ok(Admission {
            standing,
            source: source.granted(by_share),
            trace,
        })
    }

    fn look(&self, cost: Cells) -> (Standing, Source) {
        let held = self.buckets.callers.look(self.subject.name);
        let state = held.unwrap_or_else(|| self.opening());
        self.subject.standing(&state, cost)
    }

    fn note_admitted(&self, _admission: &Admission<'_>, cost: Cells) {
        let (map, subject) = (&self.buckets.callers, self.subject);
        match map.book(subject.name, &subject.limit, cost) {
            Booking::Noted => {}
            Booking::Triggered if self.buckets.sync_queue.has_room() => {
                self.buckets.sync_queue.push(subject.store_key());
            }
            Booking::Triggered => map.rearm(subject.name),
            Booking::Left => self.buckets.stats.count(Stat::CellsLost, cost.get()),
        }
    }

    fn give_back(&self, admission: &Admission<'_>, _cost: Cells) -> bool {
        match admission.trace {
            Trace::Line { before, after } => {
                let name = self.subject.name;
                self.buckets.callers.give_back(name, after, before)
            }
            Trace::None | Trace::Forgiven | Trace::Unheld | Trace::Slot { .. } | Trace::Count => {
                false
            }
        }
    }

    fn refund(&self, cost: Cells) -> RefundOutcome {
        let Subject {
            name,
            limit,
            moment,
            ..
        } = self.subject;
        self.buckets.callers.refund(*name, limit, cost, moment.now)
    }

    /// A caller supplies a limit, and not whether denied checks count: nothing is charged.
    fn charge(&self, _cost: Cells) -> Cells {
        Cells::ZERO
    }

    fn follow(&self, state: StoreState) {
        let StoreState::Level { level, .. } = state else {
            return;
        };
        let (map, subject) = (&self.buckets.callers, self.subject);
        let now = subject.moment.now;
        let level = level.min(subject.terms().level_max());
        let full = subject.is_full(level);
        let ends = now.after(level).max(Nanos::new(1));
        let set = || map.set(subject.name, &subject.limit, ends, full);
        let is_set = set() || (self.admit(Cells::ZERO).is_ok() && set());
        if !is_set && full {
            self.buckets
                .mitigations
                .put(subject.name, now.after(level), now);
        }
    }

    fn standing_in_store(&self, state: StoreState, cost: Cells) -> Standing {
        self.subject.standing_at(state, cost)
    }

    /// Lets the key enter: the sync can ask the store only for a key whose limit it knows.
    fn hold(&self) {
        let Subject {
            name,
            limit,
            moment,
            ..
        } = self.subject;
        let state = self.opening();
        let room = self.buckets.callers.hold(*name, limit, state, moment.now);
        self.buckets.stats.room(room);
    }

    fn freeze(&self) -> Option<FrozenCells> {
        let collected = self.buckets.callers.collect(self.subject.name)?;
        Some(FrozenCells {
            cells: collected.cells,
            price: collected.price,
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
        let (cells, price) = self.buckets.callers.take_silent(self.subject.name);
        let interval = self.subject.limit.interval().get().max(1);
        let worth = Cells::new(price.get().div_ceil(interval));
        SilentCells { cells, worth }
    }

    fn pending(&self) -> Option<Cells> {
        self.buckets.callers.pending(self.subject.name)
    }

    fn tat(&self) -> Option<Nanos> {
        let held = self.buckets.callers.look(self.subject.name);
        held.map(|state| state.tat)
    }

    fn land(&self, trigger: Trigger) -> bool {
        self.buckets.callers.land(self.subject.name, trigger, None)
    }

    fn grant_by_share(&self, share: ShareCode) {
        self.buckets
            .callers
            .grant_by_share(self.subject.name, share);
    }

    fn is_share_denied(&self) -> bool {
        self.buckets.callers.is_share_denied(self.subject.name)
    }

    fn is_half_used(&self) -> bool {
        self.subject.is_half_used_at(self.tat())
    }

    fn raise_tat(&self, tat: Nanos) {
        let raised = |held: Nanos, _| held.max(tat);
        self.buckets.callers.fold(self.subject.name, raised);
    }

    fn fold(&self, answer: &StoreAnswer, trigger: Trigger) -> bool {
        let StoreState::Level { level, .. } = answer.state else {
            return self.land(trigger);
        };
        let (map, name) = (&self.buckets.callers, self.subject.name);
        map.fold(name, fold::after_answer(self.subject, level, answer));
        map.land(name, trigger, Some(self.subject.is_full(level)))
    }

    fn fold_refund(&self, state: StoreState, anchor: Nanos, refund_due: Span) {
        let StoreState::Level { level, .. } = state else {
            return;
        };
        let level = level.less(refund_due);
        let (map, name) = (&self.buckets.callers, self.subject.name);
        map.fold(name, fold::after_refund(self.subject, anchor.after(level)));
        map.mitigate(name, self.subject.is_full(level));
    }

    fn raise(&self, level: Span, unsettled: &ReportedCells) -> NewsEffect {
        let now = self.subject.moment.now;
        let level = self.subject.news_level(level.less(unsettled.price));
        let full = self.subject.is_full(level);
        let name = self.subject.name;
        let moved = self.buckets.callers.raise(name, now.after(level), full);
        moved.map_or(NewsEffect::Nothing, |(from, to)| {
            NewsEffect::level(from.max(now), to)
        })
    }

    fn lower(&self, by: Span, before: Nanos) {
        let (map, name) = (&self.buckets.callers, self.subject.name);
        let lowered = fold::without_news(by, before);
        map.fold(name, |tat, _| lowered(tat));
        map.mitigate(name, false);
    }

    fn address(&self) -> BucketAddress {
        BucketAddress::Caller(self.subject.name)
    }

    fn forget(&self) -> Cells {
        self.buckets.callers.remove(self.subject.name)
    }
}
