//! All rules, compiled so that a look-up finds the rules of a descriptor without allocating.
//!
//! At each level an exact value wins over a pattern, and a pattern over the key alone; a look-up never backtracks. By
//! default only the node that the last entry reaches counts; under [`Matching::Path`] every rule on the path does.

use std::collections::BTreeMap;

use super::address::Addresses;
use super::check::{Entry, ValueKind};
use super::path::{self, Paths};
use super::pattern::Pattern;
use super::rule::{DomainSpec, Matching, NodeSpec, PathStep, Rule, RuleSpec};

/// The index of a rule in [`Rules::all`].
pub type RuleIndex = usize;

/// All rules, compiled for look-up.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    domains: BTreeMap<String, DomainTree>,
    forms: Forms,
    caller_spec: RuleSpec,
}

/// Which entries are normalised before a look-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// The entries that hold addresses.
    pub addresses: Addresses,
    /// The entries that hold paths.
    pub paths: Paths,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            rules: Vec::new(),
            domains: BTreeMap::new(),
            forms: Forms::default(),
            caller_spec: RuleSpec::unlimited(),
        }
    }
}

#[derive(Clone, Debug)]
struct DomainTree {
    matching: Matching,
    root: RuleLevel,
}

/// The nodes for the next entry, by its key.
#[derive(Clone, Debug, Default)]
struct RuleLevel {
    keys: BTreeMap<Vec<u8>, LevelValues>,
}

#[derive(Clone, Debug, Default)]
struct LevelValues {
    exact: BTreeMap<Vec<u8>, RuleNode>,
    patterns: Vec<(Pattern, RuleNode)>,
    any: Option<Box<RuleNode>>,
}

#[derive(Clone, Debug, Default)]
struct RuleNode {
    rule: Option<RuleIndex>,
    next: RuleLevel,
}

/// Whether a look-up found the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The domain is not configured.
    NoDomain,
    /// The domain is configured. The look-up has already named the rules that matched.
    Walked,
}

impl Rules {
    /// Compiles the domains. The configuration reports two nodes of one level with the same key and value as a fault;
    /// here the later one replaces the earlier.
    pub fn compile(domains: Vec<DomainSpec>, addresses: Addresses) -> Self {
        let paths = Paths::default();
        Self::compile_with(domains, Forms { addresses, paths })
    }

    /// Compiles the domains with all entries that are to be normalised.
    pub fn compile_with(domains: Vec<DomainSpec>, forms: Forms) -> Self {
        let mut rules = Self {
            forms,
            ..Self::default()
        };
        for domain in domains {
            let root = rules.level(&domain.name, domain.nodes, &mut Vec::new());
            rules.domains.insert(
                domain.name,
                DomainTree {
                    matching: domain.matching,
                    root,
                },
            );
        }
        rules.make_labels_unique();
        rules
    }

    /// The same rules. Caller-supplied limits follow `defaults` in everything but the limit.
    #[must_use]
    pub fn with_defaults(self, defaults: &RuleSpec) -> Self {
        Self {
            caller_spec: RuleSpec {
                consistency: defaults.consistency,
                on_store_error: defaults.on_store_error,
                report: defaults.report,
                ..RuleSpec::unlimited()
            },
            ..self
        }
    }

    /// The spec of caller-supplied limits, without the limit.
    pub const fn caller_spec(&self) -> &RuleSpec {
        &self.caller_spec
    }

    /// All rules, in the order of the configuration.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule at `index`.
    pub fn get(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules.get(index)
    }

    /// Which entries are normalised.
    pub const fn forms(&self) -> &Forms {
        &self.forms
    }

    /// Which rules of `domain` a descriptor matches; `None` if the domain is not configured.
    pub fn matching(&self, domain: &str) -> Option<Matching> {
        self.domains.get(domain).map(|domain| domain.matching)
    }

    /// Calls `found` with each rule of `domain` that `entries` match, outermost first.
    ///
    /// ```
    /// use tidegate_core::pure::{Addresses, Entry, Limit, LimitFault, Rules, Unit};
    /// use tidegate_core::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
    /// let rule = Some(RuleSpec::new(Limit::new(100, Unit::Minute, 1, None)?));
    /// let node = NodeSpec { key: "api_key".into(), value: None, share_threshold: false, rule, children: vec![] };
    /// let domain = DomainSpec { name: "api".into(), matching: Matching::Specific, nodes: vec![node] };
    /// let rules = Rules::compile(vec![domain], Addresses::default());
    /// let mut found = Vec::new();
    /// rules.walk("api", &[Entry::new("api_key", "abc123")], |index| found.push(index));
    /// assert_eq!(found, [0]);
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn walk(
        &self,
        domain: &str,
        entries: &[Entry<'_>],
        mut found: impl FnMut(RuleIndex),
    ) -> Lookup {
        let Some(domain) = self.domains.get(domain) else {
            return Lookup::NoDomain;
        };
        let mut level = &domain.root;
        let mut left = entries.len();
        for entry in entries {
            left = left.saturating_sub(1);
            let Some(node) = level
                .keys
                .get(entry.key)
                .and_then(|values| values.find(entry))
            else {
                break;
            };
            if let Some(rule) = node.rule
                && (left == 0 || domain.matching == Matching::Path)
            {
                found(rule);
            }
            level = &node.next;
        }
        Lookup::Walked
    }

    fn level(&mut self, domain: &str, nodes: Vec<NodeSpec>, path: &mut Vec<PathStep>) -> RuleLevel {
        let mut level = RuleLevel::default();
        for node in nodes {
            let value = node.value.filter(|value| !value.is_empty());
            let value = value.map(|value| self.forms.of_rule(&node.key, value));
            let pattern = value.as_deref().and_then(Pattern::parse);
            let shared = pattern.is_some() && node.share_threshold;
            path.push(PathStep {
                key: node.key.clone(),
                value: value.clone(),
                shared,
            });
            let rule = node.rule.map(|spec| {
                self.rules.push(Rule::at(domain, path, spec));
                self.rules.len().saturating_sub(1)
            });
            let next = self.level(domain, node.children, path);
            path.pop();
            let compiled = RuleNode { rule, next };
            let values = level.keys.entry(node.key.into_bytes()).or_default();
            match (value, pattern) {
                (Some(_), Some(pattern)) => values.patterns.push((pattern, compiled)),
                (Some(value), None) => drop(values.exact.insert(value.into_bytes(), compiled)),
                (None, _) => values.any = Some(Box::new(compiled)),
            }
        }
        level
    }

    /// Makes labels unique: rules with the same label get their values in it, and if that is not enough, a number, as
    /// often as it takes.
    fn make_labels_unique(&mut self) {
        self.rename_alike(|rule, _| rule.label_with_values());
        while self.rename_alike(|rule, nth| format!("{}#{nth}", rule.label)) {}
    }

    /// Renames the rules that share a label. Returns whether there were any.
    fn rename_alike(&mut self, rename: impl Fn(&Rule, usize) -> String) -> bool {
        let mut by_label: BTreeMap<String, Vec<RuleIndex>> = BTreeMap::new();
        for (index, rule) in self.rules.iter().enumerate() {
            by_label.entry(rule.label.clone()).or_default().push(index);
        }
        by_label.retain(|_, indices| indices.len() > 1);
        for (nth, &index) in by_label
            .values()
            .flat_map(|indices| (1_usize..).zip(indices))
        {
            let Some(rule) = self.rules.get_mut(index) else {
                continue;
            };
            rule.label = rename(rule, nth);
            if rule.spec.name.is_none() {
                rule.policy.clone_from(&rule.label);
            }
        }
        !by_label.is_empty()
    }
}

impl LevelValues {
    #[inline]
    fn find(&self, entry: &Entry<'_>) -> Option<&RuleNode> {
        let exact = match self.exact.is_empty() {
            true => None,
            false => self.exact.get(entry.value),
        };
        let by_pattern = || match self.patterns.is_empty() {
            true => None,
            false => self.by_pattern(entry),
        };
        exact.or_else(by_pattern).or(self.any.as_deref())
    }

    #[inline(never)]
    fn by_pattern(&self, entry: &Entry<'_>) -> Option<&RuleNode> {
        // The normal form of a path has no slash at its end, but `/admin/*` has to match it.
        let is_path = entry.kind == ValueKind::Path && !entry.value.ends_with(b"/");
        let folder = is_path.then(|| [entry.value, b"/"].concat());
        let folder = folder.as_deref();
        let matches = |pattern: &Pattern| {
            pattern.matches(entry.value) || folder.is_some_and(|folder| pattern.matches(folder))
        };
        let found = self.patterns.iter().find(|(pattern, _)| matches(pattern));
        found.map(|(_, node)| node)
    }
}

impl Forms {
    /// Whether the entry's value may have to be normalised.
    #[inline]
    pub fn change(&self, entry: &Entry<'_>) -> bool {
        self.addresses.are_under(entry.key) || self.paths.hold(entry)
    }

    /// A rule's value in the form that the values of checks have. A pattern stays as it is: operators write it for
    /// values in that form.
    fn of_rule(&self, key: &str, value: String) -> String {
        if let Some(plain) = self.addresses.plain(key.as_bytes(), value.as_bytes()) {
            return plain.as_str().to_owned();
        }
        if !self.paths.are_everywhere(key) || value.contains('*') {
            return value;
        }
        // A value that is not UTF-8 after decoding stays as it is, because a rule's value is text.
        String::from_utf8(path::normal(value.as_bytes()).into_owned()).unwrap_or(value)
    }
}
