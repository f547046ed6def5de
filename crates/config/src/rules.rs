//! Domains and their trees of descriptors, as envoyproxy/ratelimit writes them.
//!
//! Domains are added one by one, from one file or many; what only all of them together show (a domain given twice, too
//! many rules) is found here. Which rule a descriptor meets is not: that is `pure/rules.rs`.

use std::collections::{BTreeMap, BTreeSet};

use super::check::{Check, Named, Word};
use super::error::{Spot, quote};
use super::fields::{RawDefaults, RawDomain, RawNode};
use super::limit::{Rated, rated};
use super::overlap;
use super::raw::{Field, List, Text};
use tidegate_core::pure::rule::{
    Consistency, DomainSpec, Matching, NodeSpec, OnStoreError, Report, RuleSpec,
};
use tidegate_core::pure::rules::Forms;
use tidegate_core::pure::{Algorithm, Rules};

/// Levels of descriptors.
const DEPTH_MAX: usize = 16;
/// Rules, in all files together.
const RULES_MAX: usize = 10_000;
/// Descriptors, with and without a rule, in all files together.
const NODES_MAX: usize = 100_000;

const CONSISTENCIES: [(&str, Consistency); 3] = [
    ("local", Consistency::Local),
    ("hybrid", Consistency::Hybrid),
    ("strict", Consistency::Strict),
];
const ON_STORE_ERRORS: [(&str, OnStoreError); 4] = [
    ("local_share", OnStoreError::LocalShare),
    ("local_full", OnStoreError::LocalFull),
    ("allow", OnStoreError::Allow),
    ("deny", OnStoreError::Deny),
];
const REPORTS: [(&str, Report); 2] = [("contested", Report::Contested), ("always", Report::Always)];

/// The rule that a rule which says nothing is.
pub fn defaults(check: &mut Check<'_>, root: &Spot, raw: &Field<RawDefaults>) -> RuleSpec {
    let absent = RawDefaults::default();
    let (at, raw) = check.section(root, ("defaults", raw), &absent);
    let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let algorithm = check.choice(&at, ("algorithm", &raw.algorithm), &algorithms);
    let consistency = check.choice(&at, ("consistency", &raw.consistency), &CONSISTENCIES);
    let fallback = ("on_store_error", &raw.on_store_error);
    let on_store_error = check.choice(&at, fallback, &ON_STORE_ERRORS);
    let report = check.choice(&at, ("report", &raw.report), &REPORTS);
    RuleSpec {
        algorithm: algorithm.unwrap_or_default(),
        consistency: consistency.unwrap_or_default(),
        on_store_error: on_store_error.unwrap_or_default(),
        report: report.unwrap_or_default(),
        ..RuleSpec::unlimited()
    }
}

/// The domains so far.
pub struct Domains<'d, 'c> {
    pub check: &'d mut Check<'c>,
    defaults: RuleSpec,
    forms: Forms,
    specs: Vec<DomainSpec>,
    seen: BTreeMap<String, Spot>,
    depth: usize,
    nodes: usize,
    rules: usize,
    /// Of the domain at hand: the names of its rules, and those they replace.
    names: BTreeSet<String>,
    replaced: Vec<Word>,
}

impl<'d, 'c> Domains<'d, 'c> {
    pub fn new(check: &'d mut Check<'c>, defaults: RuleSpec, forms: Forms) -> Self {
        Self {
            check,
            defaults,
            forms,
            specs: Vec::new(),
            seen: BTreeMap::new(),
            depth: 0,
            nodes: 0,
            rules: 0,
            names: BTreeSet::new(),
            replaced: Vec::new(),
        }
    }

    /// Every rule of every domain.
    pub fn compile(self) -> Rules {
        Rules::compile_with(self.specs, self.forms).with_defaults(&self.defaults)
    }

    /// Adds the domain that stands at `at`.
    pub fn add(&mut self, at: &Spot, raw: &RawDomain) {
        self.check.unknown(at, raw);
        let name = self.check.filled(at, ("domain", &raw.domain));
        if raw.domain.found().is_none() {
            let text = "is missing: say which domain these descriptors belong to";
            self.check.fault(&at.field("domain"), text);
        }
        if let Some(Word { text, spot }) = &name {
            if let Some(first) = self.seen.get(text) {
                let text = format!(
                    "{} is given twice: the first is {}",
                    quote(text),
                    first.seen_from(spot)
                );
                self.check.fault(spot, text);
            } else {
                self.seen.insert(text.clone(), spot.clone());
            }
        }
        let matchings = [("specific", Matching::Specific), ("path", Matching::Path)];
        let matching = self.check.choice(at, ("match", &raw.matching), &matchings);
        let nodes = self.level(at, &raw.descriptors);
        let names = std::mem::take(&mut self.names);
        for word in std::mem::take(&mut self.replaced) {
            if !names.contains(&word.text) {
                let text = format!("no rule of this domain is named {}", quote(&word.text));
                self.check.warn(&word.spot, text);
            }
        }
        self.specs.push(DomainSpec {
            name: name.map(|name| name.text).unwrap_or_default(),
            matching: matching.unwrap_or_default(),
            nodes,
        });
    }

    fn level(&mut self, at: &Spot, list: &List<RawNode>) -> Vec<NodeSpec> {
        let items = self.check.items(at, ("descriptors", list));
        let items = items.unwrap_or_default();
        if self.depth == DEPTH_MAX {
            if let Some((spot, _)) = items.first() {
                let text = format!("is too deep: descriptors have at most {DEPTH_MAX} levels");
                self.check.fault(spot, text);
            }
            return Vec::new();
        }
        self.depth += 1;
        let mut nodes = Vec::new();
        for (spot, raw) in items {
            if let Some(node) = self.node(&spot, raw) {
                nodes.push((spot, node));
            }
        }
        self.depth -= 1;
        overlap::duplicates(self.check, &nodes);
        overlap::shadowed(self.check, &nodes, &self.forms);
        overlap::formed(self.check, &nodes, &self.forms);
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    fn node(&mut self, at: &Spot, raw: &RawNode) -> Option<NodeSpec> {
        // One more than the bound is the one to complain about; what follows is left unread.
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > NODES_MAX {
            if self.nodes == NODES_MAX + 1 {
                let text = format!("is one too many: there may be {NODES_MAX} descriptors");
                self.check.fault(at, text);
            }
            return None;
        }
        self.check.unknown(at, raw);
        let key = self.check.filled(at, ("key", &raw.key));
        if raw.key.found().is_none() {
            let text = "is missing: say which entry this descriptor is about";
            self.check.fault(&at.field("key"), text);
        }
        let value = self.check.word(at, ("value", &raw.value));
        let value = value
            .map(|value| value.text)
            .filter(|value| !value.is_empty());
        let share_threshold = self.flag(at, ("share_threshold", &raw.share_threshold));
        if share_threshold && !value.as_deref().unwrap_or_default().contains('*') {
            let text = "needs a value with a * in it: what else would share a limit";
            self.fault_at(at, ("share_threshold", &raw.share_threshold), text);
        }
        self.metric_fields(at, raw);
        let rule = self.rule(at, raw);
        Some(NodeSpec {
            key: key.map(|key| key.text).unwrap_or_default(),
            value,
            share_threshold,
            rule,
            children: self.level(at, &raw.descriptors),
        })
    }

    /// What envoyproxy/ratelimit adds to metrics by these, we never do: a value is no label here.
    fn metric_fields(&mut self, at: &Spot, raw: &RawNode) {
        for field in [
            ("detailed_metric", &raw.detailed_metric),
            ("value_to_metric", &raw.value_to_metric),
        ] {
            if self.flag(at, field) {
                let text = "does nothing here: a value never becomes a metric label";
                self.warn_at(at, field, text);
            }
        }
    }

    fn rule(&mut self, at: &Spot, raw: &RawNode) -> Option<RuleSpec> {
        let shadow = self.flag(at, ("shadow_mode", &raw.shadow_mode));
        let quota = self.flag(at, ("quota_mode", &raw.quota_mode));
        let count_rejected = self.flag(at, ("count_rejected", &raw.count_rejected));
        let check = &mut *self.check;
        let consistency = check.choice(at, ("consistency", &raw.consistency), &CONSISTENCIES);
        let fallback = ("on_store_error", &raw.on_store_error);
        let on_store_error = check.choice(at, fallback, &ON_STORE_ERRORS);
        let report = check.choice(at, ("report", &raw.report), &REPORTS);
        if raw.rate_limit.found().is_none() {
            self.idle_fields(at, raw);
        }
        let (spot, rate) = self.check.given(at, ("rate_limit", &raw.rate_limit))?;
        self.count_rule(&spot);
        let Rated {
            limit,
            algorithm,
            name,
            replaces,
        } = rated(self.check, &spot, rate, self.defaults.algorithm)?;
        self.names.extend(name.iter().map(|name| name.text.clone()));
        self.replaced.extend(replaces.iter().cloned());
        Some(RuleSpec {
            limit,
            algorithm,
            name: name.map(|name| name.text),
            replaces: replaces.into_iter().map(|name| name.text).collect(),
            shadow,
            quota,
            count_rejected,
            consistency: consistency.unwrap_or(self.defaults.consistency),
            on_store_error: on_store_error.unwrap_or(self.defaults.on_store_error),
            report: report.unwrap_or(self.defaults.report),
        })
    }

    fn count_rule(&mut self, at: &Spot) {
        self.rules = self.rules.saturating_add(1);
        if self.rules == RULES_MAX + 1 {
            let text = format!("is one too many: there may be {RULES_MAX} rules");
            self.check.fault(at, text);
        }
    }

    /// Fields that only a rule can have.
    fn idle_fields(&mut self, at: &Spot, raw: &RawNode) {
        for field in [
            ("shadow_mode", &raw.shadow_mode),
            ("quota_mode", &raw.quota_mode),
            ("consistency", &raw.consistency),
            ("on_store_error", &raw.on_store_error),
            ("report", &raw.report),
            ("count_rejected", &raw.count_rejected),
        ] {
            let text = "does nothing on a descriptor without rate_limit";
            self.warn_at(at, field, text);
        }
    }

    fn flag(&mut self, at: &Spot, field: Named<'_, Text>) -> bool {
        self.check.flag(at, field).unwrap_or(false)
    }

    fn fault_at(&mut self, at: &Spot, (name, field): Named<'_, Text>, text: &str) {
        if let Some((place, _)) = field.found() {
            self.check.fault(&at.field(name).at(place), text);
        }
    }

    fn warn_at(&mut self, at: &Spot, (name, field): Named<'_, Text>, text: &str) {
        if let Some((place, _)) = field.found() {
            self.check.warn(&at.field(name).at(place), text);
        }
    }
}
