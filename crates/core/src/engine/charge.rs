//! What was denied and is charged all the same, under rules with `count_rejected`.
//!
//! A window counts it. A bucket books it as debt, up to one burst above capacity; what is beyond that is forgiven and
//! counted. At that cap nothing is booked and nothing becomes pending, so a flood costs the store at most the rate.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::admit::Subject;
use super::check::allows;
use super::snapshot::Snapshot;
use super::stats::Stat;
use super::striped_map::Room;
use super::table::Touch;
use super::{Engine, Hit};
use crate::pure::algorithm::gcra;
use crate::pure::sync::{Family, StoreKey};
use crate::pure::{Cells, Moment, Nanos, Standing};

/// Keys whose charges wait for the rounds. Charges of more of them count as overshoot.
const CHARGED_KEYS_MAX: usize = 16_384;

/// Cells that were charged as debt since the rounds last asked. They are pending like admitted ones; this only tells
/// the two apart, because what a merge puts above capacity is overshoot of the admitted ones alone.
#[derive(Debug, Default)]
pub(super) struct Charges(Mutex<BTreeMap<StoreKey, Cells>>);

impl Charges {
    /// Everything that is there.
    pub(super) fn take(&self) -> BTreeMap<StoreKey, Cells> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, key: StoreKey, cells: Cells) {
        let mut charged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if charged.len() < CHARGED_KEYS_MAX || charged.contains_key(&key) {
            let known = charged.entry(key).or_default();
            *known = known.plus(cells);
        }
    }
}

/// What came of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChargeOutcome {
    /// The cells that are booked.
    pub(super) cells: Cells,
    /// Whether that is not all of them.
    pub(super) capped: bool,
}

impl Engine {
    /// Charges what was denied where the rule says so: every hit of a check that does not pass, and of one that does
    /// those that would not have. `in_store` are hits that the store has charged already.
    #[cold]
    pub(super) fn charge_denied(
        &self,
        snapshot: &Snapshot,
        hits: &mut [Hit],
        moment: Moment,
        in_store: impl Fn(usize) -> bool,
    ) {
        let passes = allows(snapshot, hits);
        for (index, hit) in hits.iter_mut().enumerate() {
            let is_denied = !passes || !hit.standing.allowed;
            if !is_denied || hit.cost == Cells::ZERO || hit.refund || in_store(index) {
                continue;
            }
            let subject = self.subject(snapshot, hit, moment);
            let Some(subject) = subject.filter(|subject| subject.rule.spec.count_rejected) else {
                continue;
            };
            let charged = self.charge(&subject, hit.cost);
            (hit.charged, hit.capped) = (charged.cells, charged.capped);
            // What is said is how the key stands after the charge: a retry has to wait for that, too.
            let asked_for = match hit.standing.allowed {
                true => Cells::ZERO,
                false => hit.cost,
            };
            hit.standing = Standing {
                allowed: hit.standing.allowed,
                ..self.look(&subject, asked_for).0
            };
        }
    }

    /// Charges `cost` cells, whether or not they are there.
    pub(super) fn charge(&self, subject: &Subject<'_>, cost: Cells) -> ChargeOutcome {
        let subject = &Subject {
            limit: self.granted(subject),
            ..*subject
        };
        let cells = match subject.state.family {
            Family::Level => self.charge_level(subject, cost),
            Family::Window => self.charge_window(subject, cost),
            // Who brings a limit along says nothing of what is denied.
            Family::Caller => Cells::ZERO,
        };
        ChargeOutcome {
            cells,
            // A limit of nothing has no debt, so there is none to forgive.
            capped: cells < cost && subject.limit.burst() > Cells::ZERO,
        }
    }

    fn charge_level(&self, subject: &Subject<'_>, cost: Cells) -> Cells {
        let (now, level_max) = (subject.moment.now, subject.terms().level_max());
        let key = self.table_key(subject);
        let step = |tat: Nanos| {
            let (after, cells) = gcra::charge(&subject.limit, level_max, tat, now, cost);
            ((cells > Cells::ZERO).then_some(after), cells)
        };
        let mut touched = self.table.touch(&key, step);
        if matches!(touched, Touch::Missing) {
            // A check of nothing lets it enter.
            let _ = self.admit_synced(subject, Cells::ZERO);
            touched = self.table.touch(&key, step);
        }
        let permit = match touched {
            Touch::Held(..) => None,
            Touch::Missing => Some(self.table.permit(&key)),
        };
        if permit.is_some() {
            touched = self.table.touch(&key, step); // another thread may have let it enter
        }
        match (touched, permit) {
            (Touch::Held(cells, tenancy), _) => {
                if subject.state.reported && cells > Cells::ZERO {
                    self.charges.add(subject.store_key(), cells);
                    self.report((subject.state.id, subject.name), &tenancy, cells);
                }
                cells
            }
            (Touch::Missing, permit) => {
                let (after, cells) = step(self.unheld(subject));
                if let (Some(permit), Some(after)) = (permit, after) {
                    self.table.remember(&permit, &key, after, now);
                }
                if subject.state.reported {
                    self.stats.count(Stat::CellsUnheld, cells.get());
                }
                cells
            }
        }
    }

    fn charge_window(&self, subject: &Subject<'_>, cost: Cells) -> Cells {
        let (key, now) = (subject.window(), subject.moment.now);
        if self.mitigations.get(subject.name, now).is_some() && !self.windows.holds(&key) {
            // The charge lets it enter: from then on its own count has to deny it.
            self.stats.room(self.windows.mirror_full(&key));
        }
        let room = self.windows.charge(&key, cost);
        self.stats.room(room);
        match room {
            _ if !subject.state.reported => {}
            Room::Nowhere => self.stats.count(Stat::CellsUnheld, cost.get()),
            Room::Free | Room::Settled(_) | Room::InUse(_) => self.report_window(subject, cost),
        }
        cost
    }
}
