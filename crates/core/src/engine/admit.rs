//! One key and one rule: look, admit, and what has to be known to give it back.
//!
//! A known key is a single change of one bucket. A new one takes the slow way: it may have a bucket under a former
//! limit, may be remembered from before it had to leave, and has to find a slot.

use super::answer::Source;
use super::snapshot::{RuleState, Snapshot};
use super::striped_map::Room;
use super::table::{Booking, BucketState, EntryPermit, Size, TableKey, Taken, Tenancy, Touch};
use super::windows::{Grant, WindowAdmission, WindowKey};
use super::{Engine, stats::Stat};
use crate::pure::algorithm::{gcra, leaky_bucket, token_bucket};
use crate::pure::rules::RuleIndex;
use crate::pure::sync::{Family, ShareCode, StoreKey, Terms};
use crate::pure::{Algorithm, Cells, Limit, Moment, Nanos, Rule, Span, Standing};

/// The rules were swapped while a key was about to enter under the old ones: decide again under the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// A key of one rule, encoded as `pure::key` does it.
#[derive(Clone, Copy, Debug)]
pub struct RuleBytes<'a> {
    /// The rule.
    pub rule: RuleIndex,
    /// Its key.
    pub bytes: &'a [u8],
}

/// An admission, as long as it may have to be given back.
#[derive(Debug)]
pub(super) struct Admission<'a> {
    pub(super) standing: Standing,
    pub(super) source: Source,
    pub(super) trace: Trace<'a>,
}

#[derive(Debug)]
pub(super) enum Trace<'a> {
    /// Nothing was changed.
    None,
    /// Nothing was changed; allowed without room, because the store cannot be reached.
    Forgiven,
    /// The key is not held: what it used is remembered where nothing can be given back.
    Unheld,
    Level {
        tenancy: Tenancy<'a>,
        before: Nanos,
        after: Nanos,
    },
    Window,
    Carried {
        before: Nanos,
        after: Nanos,
    },
}

/// What a hit needs to be decided.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) rule: &'a Rule,
    pub(super) state: &'a RuleState,
    pub(super) limit: Limit,
    pub(super) name: u128,
    pub(super) moment: Moment,
    /// Of the rules it is decided by.
    pub(super) version: u64,
    /// Whether the store cannot be told of it.
    pub(super) detached: bool,
}

impl Subject<'_> {
    /// What the store calls it.
    pub(super) const fn store_key(&self) -> StoreKey {
        StoreKey {
            family: self.state.family,
            rule: self.state.id,
            name: self.name,
        }
    }

    /// What it is counted under in the store.
    pub(super) fn terms(&self) -> Terms {
        match self.rule.spec.algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                match self.rule.spec.count_rejected {
                    true => Terms::charging(&self.limit),
                    false => Terms::level(&self.limit),
                }
            }
            Algorithm::FixedWindow => Terms::window(&self.limit),
            Algorithm::SlidingWindow | Algorithm::SlidingLog => Terms::sliding(&self.limit),
        }
    }

    pub(super) fn window(&self) -> WindowKey<'_> {
        WindowKey {
            name: self.name,
            rule: self.rule,
            limit: &self.limit,
            unix: self.moment.unix,
        }
    }

    /// The next TAT if there is room, and the TAT it was decided on.
    #[inline(always)]
    fn step(&self, tat: Nanos, granted: Option<ShareCode>, cost: Cells) -> (Option<Nanos>, Nanos) {
        (self.next(tat, granted, cost), tat)
    }

    /// The next TAT if there is room in what this pod grants of the key.
    #[inline(always)]
    pub(super) fn next(
        &self,
        tat: Nanos,
        granted: Option<ShareCode>,
        cost: Cells,
    ) -> Option<Nanos> {
        match granted {
            None => gcra::admit(&self.limit, tat, self.moment.now, cost),
            Some(_) => self.step_by_share(tat, granted, cost),
        }
    }

    #[cold]
    fn step_by_share(&self, tat: Nanos, granted: Option<ShareCode>, cost: Cells) -> Option<Nanos> {
        gcra::admit(&self.granting(granted).limit, tat, self.moment.now, cost)
    }

    /// The same under what this pod grants of the key. While the store cannot be told, the limit is its share already.
    pub(super) fn granting(&self, granted: Option<ShareCode>) -> Self {
        match granted {
            Some(code) if !self.detached => Self {
                limit: self.limit.shared(code.share()),
                ..*self
            },
            Some(_) | None => *self,
        }
    }

    #[inline(always)]
    pub(super) fn decide(&self, tat: Nanos, cost: Cells) -> (Nanos, Standing) {
        decide_level(
            self.rule.spec.algorithm,
            &self.limit,
            tat,
            self.moment.now,
            cost,
        )
    }

    /// A level above capacity did not come from this pod's own admissions; from its own charges it may have.
    pub(super) fn source(&self, tat: Nanos, mitigated: bool) -> Source {
        let is_debt = gcra::level(tat, self.moment.now) > self.limit.capacity();
        match mitigated || (is_debt && !self.rule.spec.count_rejected) {
            true => Source::Mitigation,
            false => Source::Local,
        }
    }
}

impl Engine {
    /// Decides for a caller that knows its rule and has the rules at hand, such as one that asks many times in a row.
    #[inline]
    pub fn check_key(
        &self,
        rules: &Snapshot,
        key: RuleBytes<'_>,
        cost: Cells,
        moment: Moment,
    ) -> Result<Standing, Stale> {
        let (rule, state) = rules.rule(key.rule);
        let Some(limit) = rule.spec.limit else {
            return Ok(UNLIMITED);
        };
        let name = state.key.name_of(key.bytes);
        let detached = state.reported && self.fallback.holds_for(&rule.spec, name);
        // What `admit` does for a held key, without an `Admission`: nobody gives it back, and passing one on through
        // memory costs as much as the exchange itself.
        if state.family == Family::Level && !detached {
            let key = self.table.key(name, state.variant);
            let step = |tat, granted: Option<ShareCode>| match granted {
                None => (gcra::admit(&limit, tat, moment.now, cost), Some(tat)),
                Some(_) => (None, None),
            };
            // Of a key that is granted by share nothing is taken here: it goes the longer way.
            if let Touch::Held(Some(before), tenancy) = self.table.touch_granted(&key, step) {
                let (_, standing) =
                    decide_level(rule.spec.algorithm, &limit, before, moment.now, cost);
                if standing.allowed {
                    if state.reported {
                        self.report((state.id, name), &tenancy, cost);
                    }
                } else if self.unconfirmed.may_hold(name) {
                    let family = Family::Level;
                    let rule = state.id;
                    self.ask_store(StoreKey { family, rule, name });
                }
                if standing.allowed || !rule.spec.count_rejected {
                    return Ok(standing);
                }
            }
        }
        self.check_new_key(
            &Subject {
                rule,
                state,
                limit,
                name,
                moment,
                version: rules.version(),
                detached,
            },
            cost,
        )
    }

    #[cold]
    fn check_new_key(&self, subject: &Subject<'_>, cost: Cells) -> Result<Standing, Stale> {
        let admission = self.admit(subject, cost)?;
        self.report_admission(subject, &admission, cost);
        if !admission.standing.allowed && subject.rule.spec.count_rejected {
            self.charge(subject, cost);
        }
        Ok(admission.standing)
    }

    /// Takes `cost` cells of the key if they are there.
    #[inline(always)]
    pub(super) fn admit<'a>(
        &'a self,
        subject: &Subject<'_>,
        cost: Cells,
    ) -> Result<Admission<'a>, Stale> {
        match subject.detached {
            false => {
                let admission = self.admit_synced(subject, cost);
                // Looked at where it is: taking it out and putting it back costs as much as the exchange itself.
                if admission.as_ref().is_ok_and(|it| !it.standing.allowed) {
                    self.denied(subject);
                }
                admission
            }
            true => self.admit_detached(subject, cost),
        }
    }

    /// A check was denied: if that is hearsay, the rounds ask the store.
    #[inline(always)]
    fn denied(&self, subject: &Subject<'_>) {
        if self.unconfirmed.may_hold(subject.name) {
            if subject.state.family == Family::Caller && self.unconfirmed.holds(subject.name) {
                self.hold_carried(subject);
            }
            self.ask_store(subject.store_key());
        }
    }

    #[cold]
    fn ask_store(&self, key: StoreKey) {
        if self.unconfirmed.take(key.name) {
            self.sync_queue.push(key);
        }
    }

    #[inline(always)]
    pub(super) fn admit_synced<'a>(
        &'a self,
        subject: &Subject<'_>,
        cost: Cells,
    ) -> Result<Admission<'a>, Stale> {
        match subject.state.family {
            Family::Level => {}
            Family::Window => return Ok(self.admit_window(subject, cost)),
            Family::Caller => return Ok(self.admit_carried(subject, cost)),
        }
        let key = self.table.key(subject.name, subject.state.variant);
        let step = |tat, granted| subject.step(tat, granted, cost);
        match self.table.touch_granted(&key, step) {
            Touch::Held(before, tenancy) if tenancy.granted().is_some() => {
                Ok(self.admitted_by_share(subject, before, tenancy, cost))
            }
            Touch::Held(before, tenancy) => {
                let (after, standing) = subject.decide(before, cost);
                let trace = if standing.allowed {
                    Trace::Level {
                        tenancy,
                        before,
                        after,
                    }
                } else {
                    Trace::None
                };
                Ok(Admission {
                    standing,
                    source: subject.source(before, tenancy.is_mitigated()),
                    trace,
                })
            }
            Touch::Missing => self.admit_new(subject, &key, cost),
        }
    }

    /// What became of a check of a key that this pod grants by share. The first denial is a reason to report it at once.
    #[cold]
    fn admitted_by_share<'a>(
        &'a self,
        subject: &Subject<'_>,
        before: Nanos,
        tenancy: Tenancy<'a>,
        cost: Cells,
    ) -> Admission<'a> {
        let (after, standing) = subject.granting(tenancy.granted()).decide(before, cost);
        let trace = match standing.allowed {
            true => Trace::Level {
                tenancy,
                before,
                after,
            },
            false => Trace::None,
        };
        let by_level = tenancy.is_mitigated();
        if !standing.allowed && !by_level && self.table.note_share_denied(&tenancy) {
            self.sync_queue.push(subject.store_key());
        }
        Admission {
            standing,
            source: Source::Fallback,
            trace,
        }
    }

    /// The same for a key that is not held.
    #[cold]
    fn admit_new<'a>(
        &'a self,
        subject: &Subject<'_>,
        key: &TableKey,
        cost: Cells,
    ) -> Result<Admission<'a>, Stale> {
        let permit = self.table.permit(key);
        if self.table.tat(key).is_some() {
            drop(permit);
            return self.admit_synced(subject, cost); // another thread let it enter first
        }
        self.announce(subject.version);
        if self.version() != subject.version {
            return Err(Stale);
        }
        let now = subject.moment.now;
        let mitigated = self.mitigation(subject);
        let former = self.take_former(subject, &permit).map(|taken| Taken {
            tat: taken.tat.max(mitigated.unwrap_or(taken.tat)),
            ..taken
        });
        let unheld = self.unheld(subject);
        let opening = former.unwrap_or(Taken {
            tat: unheld.max(mitigated.unwrap_or(unheld)),
            trigger: subject.state.opening(),
            ..Taken::at(now)
        });
        let (after, standing) = subject.decide(opening.tat, cost);
        let first_sight = former.is_none() && unheld <= now && self.is_full();
        let enters = former.is_some() || mitigated.is_some() || (standing.allowed && !first_sight);
        let tat = if standing.allowed { after } else { opening.tat };
        let entrance = enters.then(|| {
            // Before it enters: once it is held it may have to leave again at once.
            self.table.forget_ghost(&permit, key);
            let size = Size::of(subject.limit.capacity());
            let bucket = Taken {
                tat,
                size,
                ..opening
            };
            self.table.enter(&permit, key, bucket, now)
        });
        if enters || standing.allowed {
            self.stats.entered(entrance.map(|entrance| entrance.how));
        }
        let held = entrance.and_then(|entrance| entrance.held);
        if mitigated.is_some() && held.is_some() {
            self.mitigations.remove(subject.name);
            self.table.mitigate(key, true);
        }
        if opening.pending > Cells::ZERO && held.is_some() {
            // Under its former limit it may have passed its trigger already.
            self.sync_queue.push(subject.store_key());
        }
        if held.is_none() {
            self.stats.count(Stat::CellsLost, opening.pending.get());
            self.table.remember(&permit, key, tat, now);
        }
        let trace = match held {
            _ if !standing.allowed => Trace::None,
            Some((after, tenancy)) => Trace::Level {
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

    /// Takes out what is held or remembered of the key under a former limit, on the scale of this one.
    fn take_former(&self, subject: &Subject<'_>, permit: &EntryPermit<'_>) -> Option<Taken> {
        let now = subject.moment.now;
        subject.state.former.iter().find_map(|former| {
            let key = self.table.key(subject.name, former.variant);
            let remembered = || {
                let tat = self.table.ghost(&key, now)?;
                self.table.forget_ghost(permit, &key);
                Some(Taken {
                    trigger: subject.state.opening(),
                    ..Taken::at(tat)
                })
            };
            let taken = self.table.take(permit, &key).or_else(remembered)?;
            Some(Taken {
                tat: former.rescaled(taken.tat, now, &subject.limit),
                ..taken
            })
        })
    }

    fn admit_window(&self, subject: &Subject<'_>, cost: Cells) -> Admission<'_> {
        let key = subject.window();
        let opening = self.window_opening(subject);
        let WindowAdmission {
            standing,
            room,
            grant,
        } = self.windows.admit(&key, opening, cost);
        self.stats.room(room);
        if grant == Grant::FirstDenial {
            self.sync_queue.push(subject.store_key());
        }
        let trace = match room {
            _ if !standing.allowed => Trace::None,
            Room::Free | Room::Settled(_) | Room::InUse(_) => Trace::Window,
            Room::Nowhere => Trace::Unheld,
        };
        Admission {
            standing,
            source: Source::Local.granted(grant != Grant::Whole),
            trace,
        }
    }

    /// What a key of a windowed rule that is not held has to be assumed to have used, beside what is remembered of it.
    fn window_opening(&self, subject: &Subject<'_>) -> Cells {
        match self.mitigations.get(subject.name, subject.moment.now) {
            Some(_) => Cells::new(subject.limit.requests()),
            None => Cells::ZERO,
        }
    }

    /// The TAT of a key that is not held, if the fleet is known to deny it.
    pub(super) fn mitigation(&self, subject: &Subject<'_>) -> Option<Nanos> {
        let now = subject.moment.now;
        let ends = self.mitigations.get(subject.name, now)?;
        Some(ends.min(now.after(subject.terms().level_max())))
    }

    /// The TAT that a key which is not held has to be assumed to have.
    pub(super) fn unheld(&self, subject: &Subject<'_>) -> Nanos {
        let now = subject.moment.now;
        let ghost = match subject.state.family {
            Family::Level => self.table.ghost(&self.table_key(subject), now),
            Family::Caller => self.carried.ghost(subject.name, now),
            Family::Window => None,
        };
        // It may be another key's, of a longer limit.
        let most = now.after(subject.terms().level_max());
        ghost.map_or(now, |tat| tat.min(most))
    }

    /// Whether the table is full, so that a key has to come twice to be let in.
    fn is_full(&self) -> bool {
        self.table.held() >= self.table.keys_max()
    }

    pub(super) fn report_admission(
        &self,
        subject: &Subject<'_>,
        admission: &Admission<'_>,
        cost: Cells,
    ) {
        if !subject.state.reported {
            return;
        }
        match &admission.trace {
            Trace::None | Trace::Forgiven => {}
            Trace::Level { tenancy, .. } => {
                self.report((subject.state.id, subject.name), tenancy, cost);
            }
            Trace::Window => self.report_window(subject, cost),
            Trace::Carried { .. } => self.report_carried(subject, cost),
            Trace::Unheld => self.stats.count(Stat::CellsUnheld, cost.get()),
        }
    }

    /// Notes admitted cells of a rule's key for the store.
    #[inline(always)]
    pub(super) fn report(&self, (rule, name): (u64, u128), tenancy: &Tenancy<'_>, cost: Cells) {
        match self.table.book(tenancy, cost) {
            Booking::Noted => {}
            Booking::Triggered => self.sync_queue.push(StoreKey {
                family: Family::Level,
                rule,
                name,
            }),
            Booking::Left => self.stats.count(Stat::CellsLost, cost.get()),
        }
    }

    /// The same for a windowed rule.
    pub(super) fn report_window(&self, subject: &Subject<'_>, cost: Cells) {
        match self
            .windows
            .book(&subject.window(), subject.state.opening(), cost)
        {
            Booking::Noted => {}
            Booking::Triggered => self.sync_queue.push(subject.store_key()),
            Booking::Left => self.stats.count(Stat::CellsLost, cost.get()),
        }
    }

    /// How a check of `cost` would stand. Changes nothing of that.
    pub(super) fn look(&self, subject: &Subject<'_>, cost: Cells) -> (Standing, Source) {
        if subject.detached {
            return self.look_detached(subject, cost);
        }
        let looked = self.look_synced(subject, cost);
        if !looked.0.allowed {
            self.denied(subject);
        }
        looked
    }

    pub(super) fn look_synced(&self, subject: &Subject<'_>, cost: Cells) -> (Standing, Source) {
        match subject.state.family {
            Family::Level => {}
            Family::Window => {
                let opening = self.window_opening(subject);
                let standing = self.windows.look(&subject.window(), opening, cost);
                return (standing, Source::Local);
            }
            Family::Caller => return self.look_carried(subject, cost),
        }
        let now = subject.moment.now;
        let held = self
            .table
            .look(&self.table.key(subject.name, subject.state.variant));
        let former = || {
            subject.state.former.iter().find_map(|former| {
                let key = self.table.key(subject.name, former.variant);
                let ghost = || self.table.ghost(&key, now).map(BucketState::at);
                let state = self.table.look(&key).or_else(ghost)?;
                let tat = former.rescaled(state.tat, now, &subject.limit);
                Some(BucketState { tat, ..state })
            })
        };
        let state = held.or_else(former).unwrap_or_else(|| {
            let mitigated = self.mitigation(subject);
            let unheld = self.unheld(subject);
            BucketState {
                tat: unheld.max(mitigated.unwrap_or(unheld)),
                mitigated: mitigated.is_some(),
                granted: None,
            }
        });
        let (_, standing) = subject.granting(state.granted).decide(state.tat, cost);
        let source = subject.source(state.tat, state.mitigated);
        (standing, source.granted(state.granted.is_some()))
    }
}

/// The TAT after a check of a level algorithm, and what to say.
#[inline(always)]
fn decide_level(
    algorithm: Algorithm,
    limit: &Limit,
    tat: Nanos,
    now: Nanos,
    cost: Cells,
) -> (Nanos, Standing) {
    match algorithm {
        Algorithm::TokenBucket => token_bucket::decide(limit, tat, now, cost),
        Algorithm::LeakyBucket => leaky_bucket::decide(limit, tat, now, cost),
        Algorithm::Gcra
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => gcra::decide(limit, tat, now, cost),
    }
}

/// How a rule without a limit stands, as envoyproxy/ratelimit says it.
pub(super) const UNLIMITED: Standing = Standing {
    allowed: true,
    remaining: Cells::new(u32::MAX as u64),
    retry_after: None,
    reset_after: Span::ZERO,
    delay: Span::ZERO,
};
