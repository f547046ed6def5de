//! A rule: what holds for which keys. `rules.rs` says which rules a descriptor meets.
//!
//! A configuration hands over a tree of [`NodeSpec`]s per domain; compiled, each rule in it knows its place.

use super::algorithm::Algorithm;
use super::check::Entry;
use super::key;
use super::limit::Limit;

/// How a domain's descriptors meet its rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// The one rule reached with all entries.
    #[default]
    Specific,
    /// Every rule on the way down.
    Path,
}

/// Who decides a check of this rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// This pod alone.
    Local,
    /// This pod, kept in step with the fleet.
    #[default]
    Hybrid,
    /// The store, asked per check.
    Strict,
}

/// What a rule does while the store cannot be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Grant this pod's learned part of the limit.
    #[default]
    LocalShare,
    /// Grant the whole limit.
    LocalFull,
    /// Allow everything.
    Allow,
    /// Deny everything.
    Deny,
}

/// What of a rule's keys the store is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// What is needed to hold the limit.
    #[default]
    Contested,
    /// Every cell.
    Always,
}

/// What holds where a rule stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// `None` is unlimited.
    pub limit: Option<Limit>,
    /// How it counts.
    pub algorithm: Algorithm,
    /// Its name, for `replaces` and for headers.
    pub name: Option<String>,
    /// Names of rules that do not count in a check that meets this one.
    pub replaces: Vec<String>,
    /// Counts, never denies.
    pub shadow: bool,
    /// Denies only together with every other quota rule of the check.
    pub quota: bool,
    /// Charge what was denied all the same: in its window, or as debt.
    pub count_rejected: bool,
    /// Who decides.
    pub consistency: Consistency,
    /// What to do without the store.
    pub on_store_error: OnStoreError,
    /// What to tell the store.
    pub report: Report,
}

impl RuleSpec {
    /// A rule with this limit and every default.
    pub fn new(limit: Limit) -> Self {
        Self {
            limit: Some(limit),
            ..Self::unlimited()
        }
    }

    /// Whether pods may be silent about a key that they use within their even share.
    pub fn may_be_silent(&self) -> bool {
        self.report == Report::Contested
            && self.consistency == Consistency::Hybrid
            && !self.algorithm.is_windowed()
    }

    /// Whether a pod that cannot reach the store in time grants its share: of a bucket that is a matter of degree.
    pub fn grants_share(&self) -> bool {
        self.on_store_error == OnStoreError::LocalShare
            && self.consistency == Consistency::Hybrid
            && !self.algorithm.is_windowed()
    }

    /// A rule that matches and always allows.
    pub fn unlimited() -> Self {
        Self {
            limit: None,
            algorithm: Algorithm::default(),
            name: None,
            replaces: Vec::new(),
            shadow: false,
            quota: false,
            count_rejected: false,
            consistency: Consistency::default(),
            on_store_error: OnStoreError::default(),
            report: Report::default(),
        }
    }
}

/// A node of a domain's tree, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// The entry's key.
    pub key: String,
    /// The value it must have; `*` in it stands for anything. `None` or empty: any value.
    pub value: Option<String>,
    /// Whether all values that a pattern matches share one key.
    pub share_threshold: bool,
    /// The rule that stands here.
    pub rule: Option<RuleSpec>,
    /// What may follow.
    pub children: Vec<NodeSpec>,
}

/// A domain, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSpec {
    /// Its name.
    pub name: String,
    /// How its descriptors meet its rules.
    pub matching: Matching,
    /// The top level of its tree.
    pub nodes: Vec<NodeSpec>,
}

/// A rule where it stands.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What was configured.
    pub spec: RuleSpec,
    /// What it is called in answers, metrics and logs: the domain and the keys on the way, and the values too where
    /// those are needed to tell two rules apart.
    pub label: String,
    /// What it is called in headers: its name, or its label.
    pub policy: String,
    domain: String,
    place: Vec<u8>,
    steps: Vec<Step>,
}

/// One node on the way to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The entry's key.
    pub key: String,
    /// The value or pattern it must match; `None` takes any.
    pub value: Option<String>,
    /// Whether all values share one key.
    pub shared: bool,
}

impl Rule {
    /// A rule of `domain` at the end of `steps`.
    pub fn at(domain: &str, steps: &[Step], spec: RuleSpec) -> Self {
        let mut place = Vec::new();
        let mut label = domain.to_owned();
        let mut write = |text: &str| key::write_value(text, |bytes| place.extend_from_slice(bytes));
        write(domain);
        for step in steps {
            label.push('/');
            label.push_str(&step.key);
            write(&step.key);
            write(if step.value.is_some() { "=" } else { "" });
            write(step.value.as_deref().unwrap_or_default());
        }
        write(spec.name.as_deref().unwrap_or_default());
        let policy = spec.name.clone().unwrap_or_else(|| label.clone());
        Self {
            spec,
            label,
            policy,
            place,
            domain: domain.to_owned(),
            steps: steps.to_vec(),
        }
    }

    /// The domain it belongs to.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Where it stands and its name, in bytes that no other rule has. Its limit is no part of it: under another limit
    /// it is the same rule.
    pub fn place(&self) -> &[u8] {
        &self.place
    }

    /// The nodes that lead here.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// The values that make the key, out of the entries that led here.
    pub fn key_values<'a>(&self, entries: &'a [Entry<'a>]) -> impl Iterator<Item = &'a [u8]> {
        self.steps
            .iter()
            .zip(entries)
            .filter(|(step, _)| !step.shared)
            .map(|(_, entry)| entry.value)
    }

    /// The label with every value spelled out: `api/remote_address=192.0.2.7`.
    pub fn label_with_values(&self) -> String {
        self.steps
            .iter()
            .fold(self.domain.clone(), |mut label, step| {
                label.push('/');
                label.push_str(&step.key);
                if let Some(value) = &step.value {
                    label.push('=');
                    label.push_str(value);
                }
                label
            })
    }
}
