//! Every rule, compiled so that a descriptor finds those it meets without allocating.
//!
//! At each level an exact value wins over a pattern, a pattern over the key alone; there is no way back up. By default
//! only the node reached with the last entry counts; under [`Matching::Path`] every rule on the way down does.

use std::collections::BTreeMap;

use super::address::Addresses;
use super::check::{Entry, ValueKind};
use super::path::{self, Paths};
use super::pattern::Pattern;
use super::rule::{DomainSpec, Matching, NodeSpec, Rule, RuleSpec, Step};

/// Where a rule stands in [`Rules::all`].
pub type RuleIndex = usize;

/// Every rule, compiled for look-up.
#[derive(Clone, Debug)]
pub struct Rules {
    rules: Vec<Rule>,
    domains: BTreeMap<String, Domain>,
    forms: Forms,
    caller_spec: RuleSpec,
}

/// Which entries are put in another form before they are looked at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forms {
    /// Those that hold addresses.
    pub addresses: Addresses,
    /// Those that hold paths.
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
struct Domain {
    matching: Matching,
    root: Level,
}

/// What may come next, by key.
#[derive(Clone, Debug, Default)]
struct Level {
    keys: BTreeMap<Vec<u8>, Values>,
}

#[derive(Clone, Debug, Default)]
struct Values {
    exact: BTreeMap<Vec<u8>, Node>,
    patterns: Vec<(Pattern, Node)>,
    any: Option<Box<Node>>,
}

#[derive(Clone, Debug, Default)]
struct Node {
    rule: Option<RuleIndex>,
    next: Level,
}

/// What a look-up found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The domain is not configured.
    NoDomain,
    /// It is; which rules matched was told on the way.
    Walked,
}

impl Rules {
    /// Compiles the domains. Two nodes of one level with the same key and value are the configuration's fault to
    /// report; here the later one replaces the earlier.
    pub fn compile(domains: Vec<DomainSpec>, addresses: Addresses) -> Self {
        let paths = Paths::default();
        Self::compile_with(domains, Forms { addresses, paths })
    }

    /// The same, with what else is put in another form.
    pub fn compile_with(domains: Vec<DomainSpec>, forms: Forms) -> Self {
        let mut rules = Self {
            forms,
            ..Self::default()
        };
        for domain in domains {
            let root = rules.level(&domain.name, domain.nodes, &mut Vec::new());
            rules.domains.insert(
                domain.name,
                Domain {
                    matching: domain.matching,
                    root,
                },
            );
        }
        rules.tell_apart();
        rules
    }

    /// The same rules, and what but the limit holds for callers that carry one: what `defaults` say.
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

    /// What holds for callers that carry their limit.
    pub const fn caller_spec(&self) -> &RuleSpec {
        &self.caller_spec
    }

    /// Every rule, in the order of the configuration.
    pub fn all(&self) -> &[Rule] {
        &self.rules
    }

    /// The rule at `index`.
    pub fn get(&self, index: RuleIndex) -> Option<&Rule> {
        self.rules.get(index)
    }

    /// Which entries are put in another form.
    pub const fn forms(&self) -> &Forms {
        &self.forms
    }

    /// How `domain` matches, if it is configured.
    pub fn matching(&self, domain: &str) -> Option<Matching> {
        self.domains.get(domain).map(|domain| domain.matching)
    }

    /// Tells `found` of each rule that `entries` meet in `domain`, outermost first.
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

    fn level(&mut self, domain: &str, nodes: Vec<NodeSpec>, path: &mut Vec<Step>) -> Level {
        let mut level = Level::default();
        for node in nodes {
            let value = node.value.filter(|value| !value.is_empty());
            let value = value.map(|value| self.forms.of_rule(&node.key, value));
            let pattern = value.as_deref().and_then(Pattern::parse);
            let shared = pattern.is_some() && node.share_threshold;
            path.push(Step {
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
            let compiled = Node { rule, next };
            let values = level.keys.entry(node.key.into_bytes()).or_default();
            match (value, pattern) {
                (Some(_), Some(pattern)) => values.patterns.push((pattern, compiled)),
                (Some(value), None) => drop(values.exact.insert(value.into_bytes(), compiled)),
                (None, _) => values.any = Some(Box::new(compiled)),
            }
        }
        level
    }

    /// Rules that would share a label get the values that tell them apart, or at last a number, as often as it takes.
    fn tell_apart(&mut self) {
        self.rename_alike(|rule, _| rule.label_with_values());
        while self.rename_alike(|rule, nth| format!("{}#{nth}", rule.label)) {}
    }

    /// Gives rules of the same label another one. Whether there were any.
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

impl Values {
    #[inline]
    fn find(&self, entry: &Entry<'_>) -> Option<&Node> {
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
    fn by_pattern(&self, entry: &Entry<'_>) -> Option<&Node> {
        // A path has lost the slash at its end, which `/admin/*` wants to see.
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
    /// Whether the entry's value may have to be put in another form.
    #[inline]
    pub fn change(&self, entry: &Entry<'_>) -> bool {
        self.addresses.are_under(entry.key) || self.paths.hold(entry)
    }

    /// A rule's value in the form that checks have. A pattern is written about values in that form, and stays as it is
    /// written.
    fn of_rule(&self, key: &str, value: String) -> String {
        if let Some(plain) = self.addresses.plain(key.as_bytes(), value.as_bytes()) {
            return plain.as_str().to_owned();
        }
        if !self.paths.are_everywhere(key) || value.contains('*') {
            return value;
        }
        // Only what is no UTF-8 once decoded stays as it is: no check could be told of it as text.
        String::from_utf8(path::normal(value.as_bytes()).into_owned()).unwrap_or(value)
    }
}
