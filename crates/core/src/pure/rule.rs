//! A rule: which limit holds for which keys. `rules.rs` finds the rules that a descriptor matches.
//!
//! The configuration provides a tree of [`NodeSpec`]s per domain. `rules.rs` compiles it, and then each [`Rule`] knows
//! the path of nodes that leads to it.

use super::algorithm::Algorithm;
use super::check::Entry;
use super::key;
use super::limit::Limit;

/// Which rules of a domain a descriptor matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// Only the rule that the last entry reaches.
    #[default]
    Specific,
    /// Every rule on the path.
    Path,
}

/// Who decides a check of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// This pod, without the fleet.
    Local,
    /// This pod, which syncs with the fleet.
    #[default]
    Hybrid,
    /// The store decides each check.
    Strict,
}

/// What a rule does while the store is unreachable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnStoreError {
    /// Grant this pod's share of the limit, which it has learned from the demand.
    #[default]
    LocalShare,
    /// Grant the whole limit.
    LocalFull,
    /// Allow everything.
    Allow,
    /// Deny everything.
    Deny,
}

/// What a pod reports of a rule's keys to the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Report {
    /// What the fleet needs to hold the limit.
    #[default]
    Contested,
    /// Every cell.
    Always,
}

/// A rule as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleSpec {
    /// `None` is unlimited.
    pub limit: Option<Limit>,
    /// How the rule counts.
    pub algorithm: Algorithm,
    /// Its name, for `replaces` and for headers.
    pub name: Option<String>,
    /// The names of rules that do not count in a check that matches this one.
    pub replaces: Vec<String>,
    /// Whether the rule only counts and never denies.
    pub shadow: bool,
    /// Whether the rule denies only together with every other quota rule of the check.
    pub quota: bool,
    /// Whether denied checks are charged too: in their window, or as debt.
    pub count_rejected: bool,
    /// Who decides.
    pub consistency: Consistency,
    /// What to do while the store is unreachable.
    pub on_store_error: OnStoreError,
    /// What to report to the store.
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

    /// Whether a pod need not report a key that it uses within its even share.
    pub fn may_be_silent(&self) -> bool {
        self.report == Report::Contested
            && self.consistency == Consistency::Hybrid
            && !self.algorithm.is_windowed()
    }

    /// Whether a pod grants its share when its reports do not reach the store in time. Only a bucket can grant by share
    /// gradually, so this is false for windows.
    pub fn grants_share(&self) -> bool {
        self.on_store_error == OnStoreError::LocalShare
            && self.consistency == Consistency::Hybrid
            && !self.algorithm.is_windowed()
    }

    /// A rule that always allows.
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
    /// The value that the entry must have. A `*` in it stands for anything. `None` or empty: any value.
    pub value: Option<String>,
    /// Whether all values that a pattern matches share one key.
    pub share_threshold: bool,
    /// The rule of this node.
    pub rule: Option<RuleSpec>,
    /// The nodes for the next entry.
    pub children: Vec<NodeSpec>,
}

/// A domain, as configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DomainSpec {
    /// Its name.
    pub name: String,
    /// Which of its rules a descriptor matches.
    pub matching: Matching,
    /// The top level of its tree.
    pub nodes: Vec<NodeSpec>,
}

/// A rule at its place in the tree.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The rule as configured.
    pub spec: RuleSpec,
    /// Its name in answers, metrics and logs: the domain and the keys of its path, and the values too where two rules
    /// would otherwise have the same label.
    pub label: String,
    /// Its name in headers: the configured name, or else the label.
    pub policy: String,
    domain: String,
    place: Vec<u8>,
    steps: Vec<PathStep>,
}

/// One node on the path to a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathStep {
    /// The entry's key.
    pub key: String,
    /// The value or pattern that the entry must match; `None` matches any.
    pub value: Option<String>,
    /// Whether all values share one key.
    pub shared: bool,
}

impl Rule {
    /// A rule of `domain` at the end of `steps`.
    pub fn at(domain: &str, steps: &[PathStep], spec: RuleSpec) -> Self {
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

    /// The identity of the rule: its path and its name, in bytes that no other rule has. The limit is not a part of it:
    /// under another limit it is the same rule.
    pub fn place(&self) -> &[u8] {
        &self.place
    }

    /// The nodes on the path to the rule.
    pub fn steps(&self) -> &[PathStep] {
        &self.steps
    }

    /// The values that make the key, from the entries that matched the path.
    pub fn key_values<'a>(&self, entries: &'a [Entry<'a>]) -> impl Iterator<Item = &'a [u8]> {
        self.steps
            .iter()
            .zip(entries)
            .filter(|(step, _)| !step.shared)
            .map(|(_, entry)| entry.value)
    }

    /// The label with every value: `api/remote_address=192.0.2.7`.
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
