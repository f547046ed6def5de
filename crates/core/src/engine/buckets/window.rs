//! Buckets of windowed rules: fixed window, sliding window, sliding log. The counts are in `window_map.rs`.

use super::admission::{Admission, Stale, Trace};
use super::exchange::{
    BucketAddress, FrozenCells, RefundOutcome, ReportedCells, SilentCells, StoreAnswer,
};
use super::news::NewsEffect;
use super::striped_map::Room;
use super::subject::Subject;
use super::table::Booking;
use super::window_entry::{Grant, WindowAdmission};
use super::window_map::{WindowCounts, WindowReport};
use super::{Buckets, KeyBucket};
use crate::engine::answer::Source;
use crate::engine::stats::Stat;
use crate::pure::sync::{KnownUsage, ShareCode, StoreState, Trigger};
use crate::pure::{Algorithm, Cells, Nanos, Span, Standing};

/// A sliding window is nearly full if less than this part (one in so many) of its limit is left.
const NEARLY_FULL_PART: u64 = 8;
/// The answers that a pod wants in each window of a key that is nearly full.
const ANSWERS_PER_WINDOW: u64 = 32;

/// A key of a windowed rule.
#[derive(Clone, Copy)]
pub(in crate::engine) struct WindowBucket<'t, 's> {
    pub(super) buckets: &'t Buckets,
    pub(super) subject: &'s Subject<'s>,
}

impl WindowBucket<'_, '_> {
    /// The cells that a key which is not held starts with, beside those of its ghost.
    fn opening(&self) -> Cells {
        let Subject { name, moment, .. } = self.subject;
        match self.buckets.mitigations.get(*name, moment.now) {
            Some(_) => Cells::new(self.subject.limit.requests()),
            None => Cells::ZERO,
        }
    }

    /// Notes admitted cells for the store.
    fn note(&self, cost: Cells) {
        let opening = self.subject.state.opening();
        let key = self.subject.window();
        match self.buckets.windows.book(&key, opening, cost) {
            Booking::Noted => {}
            Booking::Triggered if self.buckets.sync_queue.has_room() => {
                self.buckets.sync_queue.push(self.subject.store_key());
            }
            Booking::Triggered => self.buckets.windows.rearm(self.subject.name),
            Booking::Left => self.buckets.stats.count(Stat::CellsLost, cost.get()),
        }
    }

    /// The window of the key that ends in `left`, by the store's clock.
    fn index_ending_in(&self, left: Span) -> u64 {
        window_index(
            self.subject.moment.unix.plus(left),
            self.subject.limit.window(),
        )
    }

    /// The window that this pod's calendar is in.
    fn index_now(&self) -> u64 {
        let window = self.subject.limit.window();
        self.subject.moment.unix.whole(window).get()
    }
}

impl<'t> KeyBucket<'t> for WindowBucket<'t, '_> {
    fn admit(&self, cost: Cells) -> Result<Admission<'t>, Stale> {
        let key = self.subject.window();
        let WindowAdmission {
            standing,
            room,
            grant,
        } = self.buckets.windows.admit(&key, self.opening(), cost);
        self.buckets.stats.room(room);
        if grant == Grant::FirstDenial {
            self.buckets.sync_queue.push(self.subject.store_key());
        }
        let trace = match room {
            _ if !standing.allowed => Trace::None,
            Room::Free | Room::Settled(_) | Room::InUse(_) => Trace::Count,
            Room::Nowhere => Trace::Unheld,
        };
        Ok(Admission {
            standing,
            source: Source::Local.granted(grant != Grant::Whole),
            trace,
        })
    }

    fn look(&self, cost: Cells) -> (Standing, Source) {
        let key = self.subject.window();
        let standing = self.buckets.windows.look(&key, self.opening(), cost);
        (standing, Source::Local)
    }

    #[inline]
    fn note_admitted(&self, _admission: &Admission<'_>, cost: Cells) {
        self.note(cost);
    }

    fn give_back(&self, _admission: &Admission<'_>, cost: Cells) -> bool {
        self.buckets.windows.give_back(&self.subject.window(), cost);
        true
    }

    fn refund(&self, cost: Cells) -> RefundOutcome {
        self.buckets.windows.refund(&self.subject.window(), cost)
    }

    fn charge(&self, cost: Cells) -> Cells {
        let (map, key) = (&self.buckets.windows, self.subject.window());
        let Subject { name, moment, .. } = self.subject;
        if self.buckets.mitigations.get(*name, moment.now).is_some() && !map.holds(&key) {
            // The charge lets the key enter. From then on its own count has to deny it.
            self.buckets.stats.room(map.mirror_full(&key));
        }
        let room = map.charge(&key, cost);
        self.buckets.stats.room(room);
        match room {
            _ if !self.subject.state.reported => {}
            Room::Nowhere => self.buckets.stats.count(Stat::CellsUnheld, cost.get()),
            Room::Free | Room::Settled(_) | Room::InUse(_) => self.note(cost),
        }
        cost
    }

    fn follow(&self, state: StoreState) {
        let StoreState::Window {
            current,
            previous,
            left,
        } = state
        else {
            return;
        };
        let counts = WindowCounts {
            index: self.index_ending_in(left),
            current,
            previous,
        };
        let room = self.buckets.windows.mirror(&self.subject.window(), counts);
        self.buckets.stats.room(room);
        if room == Room::Nowhere && current >= Cells::new(self.subject.limit.requests()) {
            let Subject { name, moment, .. } = self.subject;
            let ends = moment.now.after(left);
            self.buckets.mitigations.put(*name, ends, moment.now);
        }
    }

    /// The bucket follows the store, so both say the same.
    fn standing_in_store(&self, _state: StoreState, cost: Cells) -> Standing {
        self.look(cost).0
    }

    fn freeze(&self) -> Option<FrozenCells> {
        let (cells, age) = self.buckets.windows.collect(&self.subject.window())?;
        Some(FrozenCells {
            cells,
            price: Span::ZERO,
            tat: Nanos::default(),
            at: self.subject.moment.now,
            age,
        })
    }

    fn known(&self, frozen: &FrozenCells) -> KnownUsage {
        let used = self.buckets.windows.used(&self.subject.window());
        KnownUsage {
            level: Span::ZERO,
            cells: used.less(frozen.cells),
        }
    }

    fn take_silent(&self) -> SilentCells {
        SilentCells::of(self.buckets.windows.take_silent(self.subject.name))
    }

    /// The store bills a window by its counts, whatever this pod grants: the cells stay pending.
    fn take_priced(&self) -> SilentCells {
        SilentCells::default()
    }

    fn pending(&self) -> Option<Cells> {
        self.buckets.windows.pending(self.subject.name)
    }

    fn tat(&self) -> Option<Nanos> {
        None
    }

    fn land(&self, trigger: Trigger) -> bool {
        let key = self.subject.window();
        self.buckets.windows.land(&key, trigger, None)
    }

    fn grant_by_share(&self, share: ShareCode) {
        self.buckets
            .windows
            .grant_by_share(self.subject.name, share);
    }

    fn is_share_denied(&self) -> bool {
        self.buckets.windows.is_share_denied(self.subject.name)
    }

    fn is_half_used(&self) -> bool {
        self.buckets.windows.is_half_used(&self.subject.window())
    }

    fn raise_tat(&self, _tat: Nanos) {}

    fn fold(&self, answer: &StoreAnswer, trigger: Trigger) -> bool {
        let StoreState::Window { current, left, .. } = answer.state else {
            return self.land(trigger);
        };
        let (moment, window) = (self.subject.moment, self.subject.limit.window());
        let FrozenCells { cells, at, age, .. } = answer.frozen;
        let index = self.index_ending_in(left);
        let admitted_at = moment.unix.less(moment.now.since(at).plus(age));
        let due = answer.refund_due;
        let report = WindowReport {
            index,
            current: match due.unix.whole(window).get() == index {
                true => current.less(due.cells),
                false => current,
            },
            // The store counts cells of the window before in that window.
            own: match admitted_at.whole(window).get() == index {
                true => cells,
                false => Cells::ZERO,
            },
        };
        let key = self.subject.window();
        self.buckets.windows.land(&key, trigger, Some(report))
    }

    /// A window learns of a refund with its next report.
    fn fold_refund(&self, _state: StoreState, _anchor: Nanos, _refund_due: Span) {}

    fn raise(&self, left: Span, unsettled: &ReportedCells) -> NewsEffect {
        if unsettled.cells > Cells::ZERO {
            return NewsEffect::Nothing; // the store's answer to the refund will say how the window stands
        }
        let index = self.index_ending_in(left);
        // By this pod's clock that window may be over already, and the news says nothing of the present one.
        if index != self.index_now() {
            return NewsEffect::Nothing;
        }
        let left = left.min(self.subject.limit.window());
        let cells = match self.buckets.windows.fill(&self.subject.window()) {
            Some(Cells::ZERO) => return NewsEffect::Nothing,
            Some(cells) => cells,
            None => {
                let Subject { name, moment, .. } = self.subject;
                let ends = moment.now.after(left);
                self.buckets.mitigations.put(*name, ends, moment.now);
                Cells::ZERO
            }
        };
        NewsEffect::Window { index, cells, left }
    }

    fn lower(&self, _by: Span, _before: Nanos) {}

    fn uncount(&self, index: u64, cells: Cells) {
        if self.index_now() == index {
            self.buckets.windows.unfill(&self.subject.window(), cells);
        }
    }

    /// Room in a sliding window comes back all the time, and every pod sees it. A pod that goes by an old answer takes the
    /// same room as the others.
    fn answer_age_max(&self) -> Option<Span> {
        let limit = &self.subject.limit;
        let is_sliding = self.subject.rule.spec.algorithm == Algorithm::SlidingWindow;
        let remaining = self.look(Cells::ZERO).0.remaining.get();
        (is_sliding && remaining <= limit.requests() / NEARLY_FULL_PART)
            .then(|| Span::nanos(limit.window().get() / ANSWERS_PER_WINDOW))
    }

    fn address(&self) -> BucketAddress {
        BucketAddress::Window(self.subject.name)
    }

    fn forget(&self) -> Cells {
        self.buckets.windows.remove(self.subject.name)
    }
}

/// The window that ends at `ends` by the store's clock. The two clocks are not far apart, so the nearest end is meant.
fn window_index(ends: Span, window: Span) -> u64 {
    let half = Span::nanos(window.get() / 2);
    ends.plus(half).whole(window).get().saturating_sub(1)
}
