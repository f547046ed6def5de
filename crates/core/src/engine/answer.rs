//! The answer to a check: the decision, and how the check stands with each rule that it met.

use smallvec::SmallVec;

use super::admit::UNLIMITED;
use super::snapshot::LimitedKey;
use super::{InForce, Snapshot};
use crate::pure::rule::OnStoreError;
use crate::pure::rules::RuleIndex;
use crate::pure::{Cells, Check, Limit, Rule, Span, Standing};

/// Where a decision came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// This pod's own bucket.
    Local,
    /// The level known from the fleet: it denies until it has fallen.
    Mitigation,
    /// The store, which was asked.
    Strict,
    /// What this pod grants alone: the store is unreachable, or the pod cannot report this key in time.
    Fallback,
}

impl Source {
    /// The source of a decision on a key of which this pod grants only its share, if `by_share`.
    pub(super) const fn granted(self, by_share: bool) -> Self {
        match by_share {
            true => Self::Fallback,
            false => self,
        }
    }

    /// Every source.
    pub const ALL: [Self; 4] = [Self::Local, Self::Mitigation, Self::Strict, Self::Fallback];

    /// Its name in answers and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Mitigation => "mitigation",
            Self::Strict => "strict",
            Self::Fallback => "fallback",
        }
    }
}

/// What an answer means. Each protocol maps it once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may pass.
    Allow,
    /// It may pass after this wait: a shaping rule spreads its checks.
    AllowLate(Span),
    /// It is over a limit.
    Limited,
    /// A rule with `on_store_error: deny` needs the store, and the store is unreachable.
    StoreUnavailable,
}

/// One rule that one descriptor met.
#[derive(Clone, Debug)]
pub struct Hit {
    /// Which descriptor of the check.
    pub descriptor: usize,
    /// Which rule.
    pub rule: RuleIndex,
    /// The key's name.
    pub name: u128,
    /// Cells it asked for; zero is a look.
    pub cost: Cells,
    /// Whether it gives them back.
    pub refund: bool,
    /// The limit that the caller supplies. Boxed: few do, and every answer is moved about.
    pub caller_limit: Option<Box<Limit>>,
    /// How it stands.
    pub standing: Standing,
    /// Who says so.
    pub source: Source,
    /// Whether it had no room and was allowed all the same, because the store is unreachable.
    pub forgiven: bool,
    /// Cells that were denied and that this pod charged all the same.
    pub charged: Cells,
    /// Whether more was to be charged than a bucket takes.
    pub capped: bool,
}

impl Hit {
    /// A hit of the first descriptor on a rule, not looked into yet.
    pub(super) const fn new(rule: RuleIndex, name: u128, cost: Cells) -> Self {
        Self {
            descriptor: 0,
            rule,
            name,
            cost,
            refund: false,
            caller_limit: None,
            standing: UNLIMITED,
            source: Source::Local,
            forgiven: false,
            charged: Cells::ZERO,
            capped: false,
        }
    }

    /// What it is held to.
    pub(super) fn limit<'a>(&'a self, snapshot: &'a Snapshot) -> Option<&'a Limit> {
        snapshot.limit_for(snapshot.rule(self.rule).0, &self.key())
    }

    /// Its key.
    #[inline(always)]
    pub(super) fn key(&self) -> LimitedKey<'_> {
        LimitedKey {
            name: self.name,
            caller_limit: self.caller_limit.as_deref(),
        }
    }
}

/// The rules a check met.
pub type Hits = SmallVec<[Hit; 4]>;

/// The answer to one check, with the rules it was decided by.
#[derive(Debug)]
pub struct Answer {
    pub(super) snapshot: InForce,
    pub(super) hits: Hits,
    pub(super) allowed: bool,
    pub(super) domain_known: bool,
}

impl Answer {
    /// Whether the check may pass.
    pub const fn allowed(&self) -> bool {
        self.allowed
    }

    /// Whether its domain is configured. An unknown one is allowed everything.
    pub const fn domain_known(&self) -> bool {
        self.domain_known
    }

    /// Every rule met, by descriptor.
    pub fn hits(&self) -> &[Hit] {
        &self.hits
    }

    /// The rule of a hit of this answer.
    pub fn rule(&self, hit: &Hit) -> &Rule {
        self.snapshot.rule(hit.rule).0
    }

    /// The limit of a hit of this answer, if it has one.
    pub fn limit<'a>(&'a self, hit: &'a Hit) -> Option<&'a Limit> {
        hit.limit(&self.snapshot)
    }

    /// Calls `tell` with each entry that makes the key of a hit on `check`, as the engine counts it: addresses in their
    /// plain form, paths in their normal one, a pattern where all values that it matches share the key, and the domain where
    /// the rule does not say it.
    pub fn key_entries(&self, hit: &Hit, check: &Check<'_>, mut tell: impl FnMut(&[u8], &[u8])) {
        let descriptor = check.descriptors.get(hit.descriptor);
        let entries = descriptor.map_or(&[][..], |descriptor| descriptor.entries);
        let steps = self.rule(hit).steps();
        // The rule of a caller-supplied limit has no place in the tree: the domain and every entry are part of its key.
        let part = match hit.caller_limit {
            Some(_) => {
                tell(b"domain", check.domain.as_bytes());
                entries.len()
            }
            None => steps.len(),
        };
        let forms = self.snapshot.rules().forms();
        for (index, entry) in entries.iter().enumerate().take(part) {
            if let Some(step) = steps.get(index).filter(|step| step.shared) {
                let pattern = step.value.as_deref().unwrap_or_default();
                tell(entry.key, pattern.as_bytes());
            } else if let Some(plain) = forms.addresses.plain(entry.key, entry.value) {
                tell(entry.key, plain.as_str().as_bytes());
            } else {
                let path = forms.paths.normal(entry);
                tell(entry.key, path.as_deref().unwrap_or(entry.value));
            }
        }
    }

    /// How long until the key of a hit is as good as new. For a denial that no wait ends, at least the limit's whole window:
    /// a client without a time to wait would come back at once.
    pub fn reset_after(&self, hit: &Hit) -> Span {
        let standing = &hit.standing;
        match self.limit(hit) {
            Some(limit) if !standing.allowed && standing.retry_after.is_none() => {
                standing.reset_after.max(limit.window())
            }
            Some(_) | None => standing.reset_after,
        }
    }

    /// Which rules it was decided by: counts up with every reload.
    pub fn version(&self) -> u64 {
        self.snapshot.version()
    }

    /// The most restrictive rule that one descriptor met.
    pub fn hit_of(&self, descriptor: usize) -> Option<&Hit> {
        self.hits
            .iter()
            .filter(|hit| hit.descriptor == descriptor)
            .max_by_key(|hit| self.severity(hit))
    }

    /// The rule that decides: of a denial the one that denies longest, else the one with the least left.
    pub fn decisive(&self) -> Option<&Hit> {
        self.hits.iter().max_by_key(|hit| self.severity(hit))
    }

    /// Whether this hit speaks against the check: over its limit, and not only in shadow.
    pub fn denies(&self, hit: &Hit) -> bool {
        !hit.standing.allowed && !self.rule(hit).spec.shadow
    }

    /// What the answer means.
    pub fn verdict(&self) -> Verdict {
        if self.allowed {
            let delays = self.hits.iter().map(|hit| hit.standing.delay);
            return match delays.fold(Span::ZERO, Span::max) {
                Span::ZERO => Verdict::Allow,
                delay => Verdict::AllowLate(delay),
            };
        }
        let needs_store = |hit: &Hit| {
            self.denies(hit)
                && hit.source == Source::Fallback
                && self.rule(hit).spec.on_store_error == OnStoreError::Deny
        };
        match self.decisive().is_some_and(needs_store) {
            true => Verdict::StoreUnavailable,
            false => Verdict::Limited,
        }
    }

    /// Greater is more restrictive. A denial that no wait ends is the longest; a rule without a limit is none.
    fn severity(&self, hit: &Hit) -> (bool, bool, u64, bool, u64) {
        let denies = self.denies(hit);
        let forever = denies && hit.standing.retry_after.is_none();
        let wait = hit
            .standing
            .retry_after
            .filter(|_| denies)
            .map_or(0, |wait| wait.get());
        (
            denies,
            forever,
            wait,
            self.limit(hit).is_some(),
            u64::MAX - hit.standing.remaining.get(),
        )
    }
}
