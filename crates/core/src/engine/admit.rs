//! One key and one rule: look or admit, with the store or without it.
//!
//! The bucket decides (`buckets`). Here is what holds for every kind: a detached key goes by its rule's `on_store_error`
//! (`fallback.rs`), and a key that is denied because of news makes the sync ask the store.

use super::answer::Source;
use super::buckets::{Admission, KeyBucket, KnownKey, Stale, Subject, Trace};
use super::snapshot::{LimitedKey, Snapshot};
use super::stats::Stat;
use super::{Engine, Hit};
use crate::pure::rules::RuleIndex;
use crate::pure::sync::StoreKey;
use crate::pure::{Cells, Moment, Span, Standing};

/// A key of one rule, encoded as `pure::key` does it.
#[derive(Clone, Copy, Debug)]
pub struct RuleBytes<'a> {
    /// The rule.
    pub rule: RuleIndex,
    /// Its key.
    pub bytes: &'a [u8],
}

/// A check of one key, by its name.
#[derive(Clone, Copy)]
struct KeyCheck {
    rule: RuleIndex,
    name: u128,
    cost: Cells,
    moment: Moment,
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
        let limited = LimitedKey {
            name: state.key.name_of(key.bytes),
            caller_limit: None,
        };
        let Some(limit) = rules.limit_for(rule, &limited) else {
            return Ok(UNLIMITED);
        };
        let name = limited.name;
        if !(state.reported && self.fallback.holds_for(&rule.spec, name)) {
            let known = KnownKey {
                spec: &rule.spec,
                state,
                limit,
                name,
            };
            if let Some(standing) = self.buckets.admit_known(&known, cost, moment) {
                if !standing.allowed && self.unconfirmed.may_hold(name) {
                    self.ask_store(StoreKey {
                        kind: state.kind,
                        rule: state.id,
                        name,
                    });
                }
                if standing.allowed || !rule.spec.count_rejected {
                    return Ok(standing);
                }
            }
        }
        let check = KeyCheck {
            rule: key.rule,
            name,
            cost,
            moment,
        };
        self.check_new_key(rules, check)
    }

    #[cold]
    fn check_new_key(
        &self,
        rules: &Snapshot,
        KeyCheck {
            rule,
            name,
            cost,
            moment,
        }: KeyCheck,
    ) -> Result<Standing, Stale> {
        let hit = Hit::new(rule, name, cost);
        let Some(subject) = self.subject(rules, &hit, moment) else {
            return Ok(UNLIMITED);
        };
        let admission = self.admit(&subject, cost)?;
        self.report_admission(&subject, &admission, cost);
        if !admission.standing.allowed && subject.rule.spec.count_rejected {
            self.charge(&subject, cost);
        }
        Ok(admission.standing)
    }

    /// The key of a hit, by the limit that holds for it; `None` if none does.
    #[inline(always)]
    pub(super) fn subject<'a>(
        &self,
        snapshot: &'a Snapshot,
        hit: &Hit,
        moment: Moment,
    ) -> Option<Subject<'a>> {
        let subject = snapshot.subject(hit.rule, &hit.key(), moment)?;
        let spec = &subject.rule.spec;
        Some(Subject {
            detached: subject.state.reported && self.fallback.holds_for(spec, hit.name),
            ..subject
        })
    }

    /// What the store calls `key`, if the rules have such a key and report it.
    pub(super) fn subject_of_key<'a>(
        &self,
        snapshot: &'a Snapshot,
        key: StoreKey,
        moment: Moment,
    ) -> Option<Subject<'a>> {
        let rule = snapshot.rule_of_id(key.rule)?;
        let caller_limit = self.buckets.caller_limit(key);
        let limited = LimitedKey {
            name: key.name,
            caller_limit: caller_limit.as_ref(),
        };
        let subject = snapshot.subject(rule, &limited, moment)?;
        let is_it = subject.state.reported && subject.state.kind == key.kind;
        is_it.then_some(subject)
    }

    /// Takes `cost` cells of the key if there is room for them.
    #[inline(always)]
    pub(super) fn admit<'a>(
        &'a self,
        subject: &Subject<'_>,
        cost: Cells,
    ) -> Result<Admission<'a>, Stale> {
        match subject.detached {
            false => {
                let admission = self.buckets.of(subject).admit(cost);
                // Read in place: to move the admission out and back costs as much as the exchange itself.
                if admission.as_ref().is_ok_and(|it| !it.standing.allowed) {
                    self.denied(subject);
                }
                admission
            }
            true => self.admit_detached(subject, cost),
        }
    }

    /// How a check of `cost` would stand. Takes no cells.
    pub(super) fn look(&self, subject: &Subject<'_>, cost: Cells) -> (Standing, Source) {
        if subject.detached {
            return self.look_detached(subject, cost);
        }
        let looked = self.buckets.of(subject).look(cost);
        if !looked.0.allowed {
            self.denied(subject);
        }
        looked
    }

    /// A check was denied: if only news says so, the sync asks the store.
    #[inline(always)]
    fn denied(&self, subject: &Subject<'_>) {
        if self.unconfirmed.may_hold(subject.name) {
            if self.unconfirmed.holds(subject.name) {
                self.buckets.of(subject).hold();
            }
            self.ask_store(subject.store_key());
        }
    }

    #[cold]
    fn ask_store(&self, key: StoreKey) {
        let queue = &self.buckets.sync_queue;
        if queue.has_room() && self.unconfirmed.take(key.name) {
            queue.push(key);
        }
    }

    /// Notes the cells of an admission as pending, if the pod reports the rule.
    #[inline(always)]
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
            Trace::Unheld => self.buckets.stats.count(Stat::CellsUnheld, cost.get()),
            Trace::Slot { .. } | Trace::Line { .. } | Trace::Count => {
                self.buckets.of(subject).note_admitted(admission, cost);
            }
        }
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
