//! The rules in force, with the engine's state of each.
//!
//! A reload makes a new snapshot out of new rules and the old snapshot. A rule that stands where one stood before keeps
//! its keys. If its limit is another, its buckets are found under the former limit's variant and rescaled when they
//! are next touched: nothing walks the table, and no check can see a bucket on the wrong scale.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};

use super::buckets::{CALLER_KIND, Subject, kind_of};
use super::identity::{FleetKey, RuleKey, fingerprint};
use crate::pure::rule::Consistency;
use crate::pure::rules::RuleIndex;
use crate::pure::sync::{BucketKind, Trigger};
use crate::pure::{Limit, Moment, Nanos, Rule, Rules, algorithm::gcra};

/// Former limits of a rule whose buckets are still recognised. Beyond that, the oldest is forgotten and its buckets
/// start anew.
const FORMER_LIMITS_MAX: usize = 8;

/// Who asks with a limit of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallerRule {
    /// `CL.THROTTLE`: a key and a limit, and nothing else.
    Throttle,
    /// A descriptor that overrides the limit of its rule.
    Override,
}

impl CallerRule {
    /// Every one, in the order of their rules.
    pub const ALL: [Self; 2] = [Self::Throttle, Self::Override];

    /// What its rule is called. A configured one is never called so: it has a domain and a key.
    const fn name(self) -> &'static str {
        match self {
            Self::Throttle => "throttle",
            Self::Override => "override",
        }
    }
}

/// A key, as far as it matters for the limit that holds for it.
#[derive(Clone, Copy, Debug)]
pub struct LimitedKey<'a> {
    /// Its name.
    pub name: u128,
    /// The limit that its caller supplies.
    pub caller_limit: Option<&'a Limit>,
}

/// The rules in force.
#[derive(Debug)]
pub struct Snapshot {
    rules: Rules,
    /// The rules of caller-supplied limits.
    caller_rules: [Rule; CallerRule::ALL.len()],
    /// Of the configured rules, and then of the rules of caller-supplied limits.
    states: Vec<RuleState>,
    by_id: HashMap<u64, RuleIndex>,
    version: u64,
    asks: bool,
    charges: bool,
}

/// What the engine knows of one rule.
#[derive(Debug)]
pub struct RuleState {
    /// What it is called in the store.
    pub id: u64,
    /// How its keys are counted, here and there.
    pub kind: BucketKind,
    /// What its keys are hashed with.
    pub key: RuleKey,
    /// Tells its buckets apart from those of its former limits.
    pub variant: u128,
    /// The limits under which its buckets may still be, newest first.
    pub former: Vec<FormerLimit>,
    /// Whether admitted cells are noted for the store.
    pub reported: bool,
    /// The code of the trigger that its new keys start with.
    opening: AtomicU8,
}

impl RuleState {
    /// The trigger of a new key.
    pub fn opening(&self) -> Trigger {
        // Ordering: Relaxed. A hint: with an older value the pod reports a key a little earlier or later.
        Trigger::of_code(self.opening.load(Ordering::Relaxed))
    }

    /// Sets the trigger of new keys.
    pub fn set_opening(&self, trigger: Trigger) {
        self.opening.store(trigger.code(), Ordering::Relaxed);
    }
}

/// A limit that was in force before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FormerLimit {
    /// The variant of its buckets.
    pub variant: u128,
    limit: Limit,
}

impl FormerLimit {
    /// A TAT of its scale on the scale of `limit`: half full stays half full.
    pub fn rescaled(&self, tat: Nanos, now: Nanos, limit: &Limit) -> Nanos {
        now.after(gcra::level(tat, now).rescaled(self.limit.capacity(), limit.capacity()))
    }
}

/// How rules and keys are named, and whether the pod reports them.
#[derive(Clone, Copy)]
struct Naming<'a> {
    fleet: &'a FleetKey,
    reporting: bool,
}

impl Snapshot {
    /// The first rules.
    pub fn first(rules: Rules, fleet: &FleetKey, reporting: bool) -> Self {
        let states = rules.all().iter();
        let states = states.map(|rule| state(rule, fleet, reporting)).collect();
        Self::of(rules, states, Naming { fleet, reporting }, 1)
    }

    fn of(rules: Rules, mut states: Vec<RuleState>, naming: Naming<'_>, version: u64) -> Self {
        let caller_rules =
            CallerRule::ALL.map(|by| Rule::at(by.name(), &[], rules.caller_spec().clone()));
        states.extend(caller_rules.iter().map(|rule| RuleState {
            kind: CALLER_KIND,
            ..state(rule, naming.fleet, naming.reporting)
        }));
        let ids = states.iter().enumerate();
        let mut known = rules.all().iter().chain(&caller_rules).zip(&states);
        Self {
            asks: known.any(|(rule, state)| {
                state.reported && rule.spec.consistency == Consistency::Strict
            }),
            charges: rules.all().iter().any(|rule| rule.spec.count_rejected),
            by_id: ids.map(|(index, state)| (state.id, index)).collect(),
            rules,
            caller_rules,
            states,
            version,
        }
    }

    /// `rules` in place of these.
    pub fn next(&self, rules: Rules, fleet: &FleetKey, reporting: bool) -> Self {
        let before: HashMap<&[u8], (&Rule, &RuleState)> = self
            .rules
            .all()
            .iter()
            .zip(&self.states)
            .map(|(rule, state)| (rule.place(), (rule, state)))
            .collect();
        let states = rules
            .all()
            .iter()
            .map(|rule| {
                let mut state = state(rule, fleet, reporting);
                if let Some((old_rule, old)) = before.get(rule.place()) {
                    state.former = former(old_rule, old, state.variant);
                }
                state
            })
            .collect();
        Self::of(rules, states, Naming { fleet, reporting }, self.version + 1)
    }

    /// The rules.
    pub const fn rules(&self) -> &Rules {
        &self.rules
    }

    /// How many times rules were put in force.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Whether any rule asks the store before it decides.
    #[inline]
    pub const fn asks(&self) -> bool {
        self.asks
    }

    /// Whether any rule charges what was denied.
    #[inline]
    pub const fn charges(&self) -> bool {
        self.charges
    }

    /// The rule that the store calls `id`.
    pub fn rule_of_id(&self, id: u64) -> Option<RuleIndex> {
        self.by_id.get(&id).copied()
    }

    /// Every rule that is configured and what the engine knows of it.
    pub fn all(&self) -> impl Iterator<Item = (&Rule, &RuleState)> {
        self.rules.all().iter().zip(&self.states)
    }

    /// The index of a rule of caller-supplied limits: they come after the configured rules.
    pub const fn caller_rule(&self, by: CallerRule) -> RuleIndex {
        self.states.len() - CallerRule::ALL.len() + by as usize
    }

    /// Which limit holds for `key` under `rule`: the one that its caller supplies, else the rule's own. `None`: no limit.
    ///
    /// The one place that says so.
    #[inline(always)]
    pub fn limit_for<'a>(&'a self, rule: &'a Rule, key: &LimitedKey<'a>) -> Option<&'a Limit> {
        key.caller_limit.or(rule.spec.limit.as_ref())
    }

    /// `key` under `rule` at `moment`, by the limit that holds for it; `None` if none does. The key is not detached.
    #[inline(always)]
    pub(super) fn subject(
        &self,
        rule: RuleIndex,
        key: &LimitedKey<'_>,
        moment: Moment,
    ) -> Option<Subject<'_>> {
        let (rule, state) = self.rule(rule);
        let limit = *self.limit_for(rule, key)?;
        Some(Subject {
            rule,
            state,
            limit,
            name: key.name,
            moment,
            version: self.version,
            detached: false,
        })
    }

    /// A rule and what the engine knows of it. The index comes from these rules.
    pub fn rule(&self, index: RuleIndex) -> (&Rule, &RuleState) {
        let rules = self.rules.all();
        let rule = match rules.get(index) {
            Some(rule) => rule,
            None => &self.caller_rules[index - rules.len()],
        };
        (rule, &self.states[index])
    }
}

fn state(rule: &Rule, fleet: &FleetKey, reporting: bool) -> RuleState {
    let reported = reporting && rule.spec.consistency != Consistency::Local;
    RuleState {
        id: fleet.rule_id(rule),
        kind: kind_of(&rule.spec),
        key: fleet.rule(rule),
        variant: rule.spec.limit.map_or(0, |limit| {
            fingerprint(&[limit.interval().get(), limit.capacity().get()])
        }),
        former: Vec::new(),
        reported,
        opening: AtomicU8::new(Trigger::EACH.code()),
    }
}

/// The limits before `variant`, newest first, each once.
fn former(old_rule: &Rule, old: &RuleState, variant: u128) -> Vec<FormerLimit> {
    let current = old_rule.spec.limit.map(|limit| FormerLimit {
        variant: old.variant,
        limit,
    });
    let mut all: Vec<FormerLimit> = current
        .into_iter()
        .chain(old.former.iter().copied())
        .collect();
    all.retain(|former| former.variant != variant);
    let mut seen = Vec::new();
    all.retain(|former| {
        !seen.contains(&former.variant) && {
            seen.push(former.variant);
            true
        }
    });
    all.truncate(FORMER_LIMITS_MAX);
    all
}
