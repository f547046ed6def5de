//! One check: find its rules, look at all of them, then admit on all or on none.
//!
//! A check that meets one rule is a single admission (`admit.rs`). One that meets several looks first and then admits, the
//! scarcest first. If another thread took the last cell in between, the check gives back what it took so far.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::answer::{Answer, Hit, Hits, Source};
use super::buckets::{Admission, KeyBucket, Stale, Subject, Trace};
use super::snapshot::{CallerRule, Snapshot};
use super::strict::StorePlan;
use super::throttle::Throttle;
use super::{Engine, InForce, stats::Stat};
use crate::pure::address::PlainAddress;
use crate::pure::rules::{Forms, Lookup};
use crate::pure::{Cells, Check, Entry, Moment, Standing, ValueKind};

/// What a caller asks.
#[derive(Clone, Copy, Debug)]
pub enum Question<'a> {
    /// May these descriptors pass, under the rules?
    Check(&'a Check<'a>),
    /// May this key pass, under a limit that the caller supplies?
    Throttle(&'a Throttle<'a>),
}

impl Question<'_> {
    /// The rules it meets.
    #[inline]
    pub(super) fn hits(&self, snapshot: &Snapshot) -> (Hits, Lookup) {
        match self {
            Self::Check(check) => matched(snapshot, check),
            Self::Throttle(throttle) => (throttle.hits(snapshot), Lookup::Walked),
        }
    }
}

/// How far the engine can decide a question by itself.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every check is decided at once, and that must not allocate"
)]
#[derive(Debug)]
pub enum CheckStep {
    /// It is decided.
    Decided(Answer),
    /// The store has to take cells first: see [`Engine::finish`].
    NeedsStore(Box<StorePlan>),
}

impl Engine {
    /// Answers `question` at `moment`, or says what the store has to take first. Every door enters here. Never waits.
    #[inline]
    pub fn begin(&self, question: Question<'_>, moment: Moment) -> CheckStep {
        let snapshot = self.in_force();
        match snapshot.asks() {
            false => CheckStep::Decided(self.decided(snapshot, question, moment)),
            true => self.begin_strict(snapshot, question, moment),
        }
    }

    /// Decides `check` at `moment` without asking the store. Never waits.
    pub fn check(&self, check: &Check<'_>, moment: Moment) -> Answer {
        self.decided(self.in_force(), Question::Check(check), moment)
    }

    /// Decides under the rules of `snapshot`, or under newer ones.
    #[inline]
    fn decided(&self, mut snapshot: InForce, question: Question<'_>, moment: Moment) -> Answer {
        loop {
            let (mut hits, lookup) = question.hits(&snapshot);
            if let Ok(allowed) = self.decide(&snapshot, &mut hits, moment) {
                return Answer {
                    snapshot,
                    hits,
                    allowed,
                    domain_known: lookup == Lookup::Walked,
                };
            }
            snapshot = self.in_force();
        }
    }

    pub(super) fn decide(
        &self,
        snapshot: &Snapshot,
        hits: &mut Hits,
        moment: Moment,
    ) -> Result<bool, Stale> {
        match hits.as_mut_slice() {
            [] => return Ok(true),
            [hit] if hit.cost > Cells::ZERO && !hit.refund => {
                let Some(subject) = self.subject(snapshot, hit, moment) else {
                    return Ok(true);
                };
                let admission = self.admit(&subject, hit.cost)?;
                self.report_admission(&subject, &admission, hit.cost);
                hit.set(&admission);
            }
            many => {
                for hit in many.iter_mut() {
                    self.look_into(snapshot, hit, moment);
                }
                if allows(snapshot, many) {
                    self.admit_all(snapshot, many, moment, |_, hit| {
                        self.subject(snapshot, hit, moment)
                    })?;
                } else {
                    self.show_unconsumed(snapshot, many, moment);
                }
            }
        }
        let allowed = allows(snapshot, hits);
        if allowed {
            self.refund_all(snapshot, hits, moment);
        }
        if snapshot.charges() {
            self.charge_denied(snapshot, hits, moment, |_| false);
        }
        Ok(allowed)
    }

    /// Admits on every rule that has room, the scarcest first, or on none. Skips hits for which `ask` returns `None`.
    pub(super) fn admit_all<'a>(
        &self,
        snapshot: &'a Snapshot,
        hits: &mut [Hit],
        moment: Moment,
        ask: impl Fn(usize, &Hit) -> Option<Subject<'a>>,
    ) -> Result<(), Stale> {
        let mut order: SmallVec<[usize; 4]> = (0..hits.len()).collect();
        order.sort_by_key(|&index| hits[index].standing.remaining);
        let mut admitted: SmallVec<[Admitted<'_, '_>; 4]> = SmallVec::new();
        for index in order {
            let hit = &hits[index];
            if hit.cost == Cells::ZERO || !hit.standing.allowed || hit.refund {
                continue;
            }
            let Some(subject) = ask(index, hit) else {
                continue;
            };
            let admission = match self.admit(&subject, hit.cost) {
                Ok(admission) => admission,
                Err(stale) => {
                    self.give_back(hits, &admitted);
                    return Err(stale);
                }
            };
            hits[index].set(&admission);
            if admission.standing.allowed {
                admitted.push(Admitted {
                    hit: index,
                    subject,
                    admission,
                });
            } else if !allows(snapshot, hits) {
                self.give_back(hits, &admitted);
                self.show_unconsumed(snapshot, hits, moment);
                return Ok(());
            }
        }
        for it in &admitted {
            self.report_admission(&it.subject, &it.admission, hits[it.hit].cost);
        }
        Ok(())
    }

    fn give_back(&self, hits: &[Hit], admitted: &[Admitted<'_, '_>]) {
        // The last admission first: of two on one key, only the later one left its TAT in the bucket.
        for it in admitted.iter().rev() {
            let cost = hits[it.hit].cost;
            let given_back = match it.admission.trace {
                Trace::None | Trace::Forgiven => true,
                Trace::Unheld => false,
                Trace::Slot { .. } | Trace::Line { .. } | Trace::Count => {
                    let bucket = self.buckets.of(&it.subject);
                    bucket.give_back(&it.admission, cost)
                }
            };
            if !given_back {
                self.buckets.stats.count(Stat::KeptAfterRace, cost.get());
            }
        }
    }

    /// Fills in how a hit would stand. Changes nothing. A look that finds no cell left is a denial; a refund always passes.
    pub(super) fn look_into(&self, snapshot: &Snapshot, hit: &mut Hit, moment: Moment) {
        let Some(subject) = self.subject(snapshot, hit, moment) else {
            return;
        };
        if hit.refund {
            (hit.standing, hit.source) = self.look(&subject, Cells::ZERO);
            hit.standing.allowed = true;
            return;
        }
        (hit.standing, hit.source) = self.look(&subject, hit.cost);
        if hit.cost == Cells::ZERO && hit.standing.remaining == Cells::ZERO {
            let (next, _) = self.look(&subject, Cells::ONE);
            hit.standing = Standing {
                allowed: false,
                retry_after: next.retry_after,
                ..hit.standing
            };
        }
    }

    /// A denied check consumes nothing: rules that had room show all of it.
    pub(super) fn show_unconsumed(&self, snapshot: &Snapshot, hits: &mut [Hit], moment: Moment) {
        for hit in hits
            .iter_mut()
            .filter(|hit| hit.standing.allowed && hit.cost > Cells::ZERO && !hit.refund)
        {
            if let Some(subject) = self.subject(snapshot, hit, moment) {
                (hit.standing, hit.source) = self.look(&subject, Cells::ZERO);
            }
        }
    }
}

/// An admission on one of a check's hits, until all of them have passed.
struct Admitted<'a, 't> {
    hit: usize,
    subject: Subject<'a>,
    admission: Admission<'t>,
}

impl Hit {
    fn set(&mut self, admission: &Admission<'_>) {
        self.standing = admission.standing;
        self.forgiven = matches!(admission.trace, Trace::Forgiven);
        self.source = match (admission.source, admission.standing.allowed) {
            (Source::Mitigation, true) => Source::Local,
            (source, _) => source,
        };
    }
}

/// Whether the check passes as its hits stand: no rule denies it, and of those in quota mode not all do. One that is in
/// shadow mode as well never denies, so that the others never do it alone.
pub(super) fn allows(snapshot: &Snapshot, hits: &[Hit]) -> bool {
    let (mut quotas, mut quotas_over) = (0_usize, 0_usize);
    for hit in hits {
        let spec = &snapshot.rule(hit.rule).0.spec;
        if hit.refund {
            continue;
        }
        let over = !hit.standing.allowed && !spec.shadow;
        if spec.quota {
            quotas += 1;
            quotas_over += usize::from(over);
        } else if over {
            return false;
        }
    }
    quotas == 0 || quotas_over < quotas
}

/// The rules that `check` meets, without those that another of them replaces.
fn matched(snapshot: &Snapshot, check: &Check<'_>) -> (Hits, Lookup) {
    let rules = snapshot.rules();
    let mut hits = Hits::new();
    let mut lookup = Lookup::Walked;
    for (index, descriptor) in check.descriptors.iter().enumerate() {
        let cost = check.cost_of(descriptor);
        let mut meet = |rule, name| {
            hits.push(Hit {
                descriptor: index,
                refund: descriptor.refund,
                caller_limit: descriptor.limit.map(Box::new),
                ..Hit::new(rule, name, cost)
            });
        };
        with_forms(snapshot, descriptor.entries, |entries| {
            if descriptor.limit.is_none() {
                lookup = rules.walk(check.domain, entries, |index| {
                    let (rule, state) = snapshot.rule(index);
                    meet(index, state.key.name(rule, entries));
                });
            } else if rules.matching(check.domain).is_some() {
                let rule = snapshot.caller_rule(CallerRule::Override);
                let (_, state) = snapshot.rule(rule);
                meet(rule, state.key.name_of_all(check.domain, entries));
            } else {
                lookup = Lookup::NoDomain;
            }
        });
    }
    if hits
        .iter()
        .any(|hit| !snapshot.rule(hit.rule).0.spec.replaces.is_empty())
    {
        let replaced: SmallVec<[&String; 4]> = hits
            .iter()
            .flat_map(|hit| &snapshot.rule(hit.rule).0.spec.replaces)
            .collect();
        hits.retain(|hit| {
            snapshot
                .rule(hit.rule)
                .0
                .spec
                .name
                .as_ref()
                .is_none_or(|name| !replaced.contains(&name))
        });
    }
    (hits, lookup)
}

/// A value in the form in which the engine counts it.
enum NormalValue<'a> {
    Address(PlainAddress),
    Path(Cow<'a, [u8]>),
}

/// Runs `then` on `entries` with addresses in their plain form and paths in their normal one.
fn with_forms(snapshot: &Snapshot, entries: &[Entry<'_>], then: impl FnOnce(&[Entry<'_>])) {
    let forms = snapshot.rules().forms();
    if !entries.iter().any(|entry| forms.change(entry)) {
        return then(entries);
    }
    let Forms { addresses, paths } = forms;
    let formed: SmallVec<[(usize, NormalValue<'_>); 2]> = entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| {
            let address = addresses.plain(entry.key, entry.value);
            let formed = match address.map(NormalValue::Address) {
                Some(address) => address,
                None => NormalValue::Path(paths.normal(entry)?),
            };
            Some((index, formed))
        })
        .collect();
    let mut changed: SmallVec<[Entry<'_>; 8]> = entries.into();
    for (index, formed) in &formed {
        let entry = &mut changed[*index];
        match formed {
            NormalValue::Address(plain) => entry.value = plain.as_str().as_bytes(),
            NormalValue::Path(path) => {
                (entry.value, entry.kind) = (path, ValueKind::Path);
            }
        }
    }
    then(&changed);
}
