//! Domains and their trees of descriptors, as envoyproxy/ratelimit writes them.
//!
//! The loader adds domains one by one, from one file or many. This file also finds the faults that only all domains
//! together show: a domain given twice, too many rules. It does not decide which rule a descriptor matches; that is
//! `pure/rules.rs` of the core crate.

use std::collections::{BTreeMap, BTreeSet};

use super::error::{Spot, quote};
use super::fields::{RawDefaults, RawDomain, RawNode};
use super::limit::{RateLimit, read_rate_limit};
use super::overlap;
use super::raw::{Field, ListField, TextField};
use super::reader::{FieldReader, FieldValue, NamedField};
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

/// Reads `defaults` into the rule from which every other rule takes what it does not set.
pub fn defaults(reader: &mut FieldReader<'_>, root: &Spot, raw: &Field<RawDefaults>) -> RuleSpec {
    let absent = RawDefaults::default();
    let (at, raw) = reader.section(root, ("defaults", raw), &absent);
    let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let algorithm = reader.choice(&at, ("algorithm", &raw.algorithm), &algorithms);
    let consistency = reader.choice(&at, ("consistency", &raw.consistency), &CONSISTENCIES);
    let fallback = ("on_store_error", &raw.on_store_error);
    let on_store_error = reader.choice(&at, fallback, &ON_STORE_ERRORS);
    let report = reader.choice(&at, ("report", &raw.report), &REPORTS);
    RuleSpec {
        algorithm: algorithm.unwrap_or_default(),
        consistency: consistency.unwrap_or_default(),
        on_store_error: on_store_error.unwrap_or_default(),
        report: report.unwrap_or_default(),
        ..RuleSpec::unlimited()
    }
}

/// The domains added so far.
pub struct Domains<'d, 'c> {
    pub reader: &'d mut FieldReader<'c>,
    defaults: RuleSpec,
    forms: Forms,
    specs: Vec<DomainSpec>,
    seen: BTreeMap<String, Spot>,
    depth: usize,
    nodes: usize,
    rules: usize,
    /// The rule names of the current domain, and the names that its rules replace.
    names: BTreeSet<String>,
    replaced: Vec<FieldValue>,
}

impl<'d, 'c> Domains<'d, 'c> {
    pub fn new(reader: &'d mut FieldReader<'c>, defaults: RuleSpec, forms: Forms) -> Self {
        Self {
            reader,
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

    /// Adds the domain at `at`.
    pub fn add(&mut self, at: &Spot, raw: &RawDomain) {
        self.reader.unknown(at, raw);
        let name = self.reader.filled(at, ("domain", &raw.domain));
        if raw.domain.found().is_none() {
            let text = "is missing: say which domain these descriptors belong to";
            self.reader.fault(&at.field("domain"), text);
        }
        if let Some(FieldValue { text, spot }) = &name {
            if let Some(first) = self.seen.get(text) {
                let text = format!(
                    "{} is given twice: the first is {}",
                    quote(text),
                    first.seen_from(spot)
                );
                self.reader.fault(spot, text);
            } else {
                self.seen.insert(text.clone(), spot.clone());
            }
        }
        let matchings = [("specific", Matching::Specific), ("path", Matching::Path)];
        let matching = self.reader.choice(at, ("match", &raw.matching), &matchings);
        let nodes = self.level(at, &raw.descriptors);
        let names = std::mem::take(&mut self.names);
        for name in std::mem::take(&mut self.replaced) {
            if !names.contains(&name.text) {
                let text = format!("no rule of this domain is named {}", quote(&name.text));
                self.reader.warn(&name.spot, text);
            }
        }
        self.specs.push(DomainSpec {
            name: name.map(|name| name.text).unwrap_or_default(),
            matching: matching.unwrap_or_default(),
            nodes,
        });
    }

    fn level(&mut self, at: &Spot, list: &ListField<RawNode>) -> Vec<NodeSpec> {
        let items = self.reader.items(at, ("descriptors", list));
        let items = items.unwrap_or_default();
        if self.depth == DEPTH_MAX {
            if let Some((spot, _)) = items.first() {
                let text = format!("is too deep: descriptors have at most {DEPTH_MAX} levels");
                self.reader.fault(spot, text);
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
        overlap::duplicates(self.reader, &nodes);
        overlap::shadowed(self.reader, &nodes, &self.forms);
        overlap::formed(self.reader, &nodes, &self.forms);
        nodes.into_iter().map(|(_, node)| node).collect()
    }

    fn node(&mut self, at: &Spot, raw: &RawNode) -> Option<NodeSpec> {
        // Only the first descriptor past the bound is reported; the rest are not read.
        self.nodes = self.nodes.saturating_add(1);
        if self.nodes > NODES_MAX {
            if self.nodes == NODES_MAX + 1 {
                let text = format!("is one too many: there may be {NODES_MAX} descriptors");
                self.reader.fault(at, text);
            }
            return None;
        }
        self.reader.unknown(at, raw);
        let key = self.reader.filled(at, ("key", &raw.key));
        if raw.key.found().is_none() {
            let text = "is missing: say which entry this descriptor is about";
            self.reader.fault(&at.field("key"), text);
        }
        let value = self.reader.text(at, ("value", &raw.value));
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

    /// Warns of the fields by which envoyproxy/ratelimit puts values into metrics. Here a value is never a label.
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
        let reader = &mut *self.reader;
        let consistency = reader.choice(at, ("consistency", &raw.consistency), &CONSISTENCIES);
        let fallback = ("on_store_error", &raw.on_store_error);
        let on_store_error = reader.choice(at, fallback, &ON_STORE_ERRORS);
        let report = reader.choice(at, ("report", &raw.report), &REPORTS);
        if raw.rate_limit.found().is_none() {
            self.idle_fields(at, raw);
        }
        let (spot, rate) = self.reader.given(at, ("rate_limit", &raw.rate_limit))?;
        self.count_rule(&spot);
        let RateLimit {
            limit,
            algorithm,
            name,
            replaces,
        } = read_rate_limit(self.reader, &spot, rate, self.defaults.algorithm)?;
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
            self.reader.fault(at, text);
        }
    }

    /// Warns of fields that have an effect on a rule only.
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

    fn flag(&mut self, at: &Spot, field: NamedField<'_, TextField>) -> bool {
        self.reader.flag(at, field).unwrap_or(false)
    }

    fn fault_at(&mut self, at: &Spot, (name, field): NamedField<'_, TextField>, text: &str) {
        if let Some((place, _)) = field.found() {
            self.reader.fault(&at.field(name).at(place), text);
        }
    }

    fn warn_at(&mut self, at: &Spot, (name, field): NamedField<'_, TextField>, text: &str) {
        if let Some((place, _)) = field.found() {
            self.reader.warn(&at.field(name).at(place), text);
        }
    }
}
