//! Charges for denied checks, under rules with `count_rejected`.
//!
//! A window counts it. A bucket books it as debt, up to one burst above capacity; what is beyond that is forgiven and
//! counted. At that cap nothing is booked and nothing becomes pending, so a flood costs the store at most the rate.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::buckets::{KeyBucket, Subject};
use super::check::allows;
use super::snapshot::Snapshot;
use super::{Engine, Hit};
use crate::pure::sync::StoreKey;
use crate::pure::{Cells, Moment, Standing};

/// Keys whose charges wait for the sync. Charges of further keys count as overshoot.
const CHARGED_KEYS_MAX: usize = 16_384;

/// Cells that were charged as debt since the sync last took them. They are pending like admitted cells. This only tells the
/// two apart, because what a merge puts above capacity is overshoot of the admitted ones alone.
#[derive(Debug, Default)]
pub(super) struct Charges(Mutex<BTreeMap<StoreKey, Cells>>);

impl Charges {
    /// Everything that is there.
    pub(super) fn take(&self) -> BTreeMap<StoreKey, Cells> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add(&self, key: StoreKey, cells: Cells) {
        let mut charged = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if charged.len() < CHARGED_KEYS_MAX || charged.contains_key(&key) {
            let known = charged.entry(key).or_default();
            *known = known.plus(cells);
        }
    }
}

/// The result of a charge.
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
            // The answer shows how the key stands after the charge: a retry has to wait for that, too.
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
        let cells = self.buckets.of(subject).charge(cost);
        ChargeOutcome {
            cells,
            // A limit of nothing has no debt, so there is none to forgive.
            capped: cells < cost && subject.limit.burst() > Cells::ZERO,
        }
    }
}
