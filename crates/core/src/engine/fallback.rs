//! What this pod grants while a part of the store is unreachable.
//!
//! While a lane is cut off, the rules' `on_store_error` decides its keys. While it is only late, a pod that would grant its
//! share then does so already: it does not see what other pods admit, and all pods together would admit N times the limit
//! until they are sure. A pod that grants its share of a limit asks a higher price for a cell: a bucket is as long in time
//! as ever, and half full stays half full, so nothing has to be converted when a partition begins or ends.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;

use super::Engine;
use super::answer::Source;
use super::buckets::{Admission, KeyBucket, Stale, Subject, Trace};
use crate::pure::rule::{OnStoreError, RuleSpec};
use crate::pure::sync::{Lane, Share};
use crate::pure::{Cells, Limit, Span, Standing};

/// How soon to ask again when the store is needed and gone.
const STORE_RETRY: Span = Span::seconds(1);

/// This pod's shares of its keys' limits, learned while the store was reachable.
#[derive(Debug)]
pub struct Shares {
    /// The share of a key of which nothing was learned.
    pub unlearned: Share,
    /// The shares of the others, by name.
    pub learned: HashMap<u128, Share>,
}

/// Which lanes are cut off, and what to grant then.
#[derive(Debug)]
pub struct Fallback {
    /// One bit for each lane that is cut off or late.
    unreachable: AtomicU64,
    /// One bit for each lane that is cut off.
    cut_off: AtomicU64,
    shares: ArcSwap<Shares>,
}

impl Default for Fallback {
    fn default() -> Self {
        Self {
            unreachable: AtomicU64::new(0),
            cut_off: AtomicU64::new(0),
            shares: ArcSwap::from_pointee(Shares {
                unlearned: Share::WHOLE,
                learned: HashMap::new(),
            }),
        }
    }
}

impl Fallback {
    /// Whether this pod decides a key of a rule with this `spec` without the store: its lane is cut off, or the lane is late
    /// and the rule grants a share. A share is a matter of degree; the other fallbacks are not.
    #[inline]
    pub fn holds_for(&self, spec: &RuleSpec, name: u128) -> bool {
        has(&self.unreachable, name) && (spec.grants_share() || self.is_cut_off(name))
    }

    /// Whether the lane of the key `name` is cut off.
    #[inline]
    pub fn is_cut_off(&self, name: u128) -> bool {
        has(&self.cut_off, name)
    }

    /// This pod's share of the key `name`.
    pub fn share(&self, name: u128) -> Share {
        let shares = self.shares.load();
        shares
            .learned
            .get(&name)
            .copied()
            .unwrap_or(shares.unlearned)
    }

    /// Says which lanes are cut off from now on, and which are late, by a bit each.
    pub fn set_lanes(&self, cut_off: u64, late: u64) {
        // Ordering: Release, after the shares. `unreachable` is read first and so written last: a thread that finds a lane in
        // it also sees whether that lane is cut off.
        self.cut_off.store(cut_off, Ordering::Release);
        self.unreachable.store(cut_off | late, Ordering::Release);
    }

    /// Says what to grant meanwhile.
    pub fn set_shares(&self, shares: Shares) {
        self.shares.store(Arc::new(shares));
    }
}

#[inline]
fn has(lanes: &AtomicU64, name: u128) -> bool {
    // Ordering: Acquire, so that this thread sees the shares that were set before.
    let lanes = lanes.load(Ordering::Acquire);
    lanes != 0 && lanes >> Lane::of(name).number() & 1 == 1
}

impl Engine {
    /// The limit of a key as this pod grants it now: while the key is detached, that may be a share of it.
    pub(super) fn granted(&self, subject: &Subject<'_>) -> Limit {
        match subject.detached && subject.rule.spec.on_store_error == OnStoreError::LocalShare {
            true => subject.limit.shared(self.fallback.share(subject.name)),
            false => subject.limit,
        }
    }

    /// Takes `cost` cells of a detached key, as its rule's `on_store_error` says.
    #[cold]
    pub(super) fn admit_detached<'a>(
        &'a self,
        subject: &Subject<'_>,
        cost: Cells,
    ) -> Result<Admission<'a>, Stale> {
        let mut admission = match subject.rule.spec.on_store_error {
            OnStoreError::LocalShare => {
                let limit = subject.limit.shared(self.fallback.share(subject.name));
                self.buckets
                    .of(&Subject { limit, ..*subject })
                    .admit(cost)?
            }
            OnStoreError::LocalFull | OnStoreError::Allow => {
                self.buckets.of(subject).admit(cost)?
            }
            OnStoreError::Deny => Admission {
                standing: WITHOUT_STORE,
                source: Source::Fallback,
                trace: Trace::None,
            },
        };
        if subject.rule.spec.on_store_error == OnStoreError::Allow && !admission.standing.allowed {
            admission.standing.allowed = true;
            admission.standing.retry_after = None;
            admission.trace = Trace::Forgiven;
        }
        admission.source = Source::Fallback;
        Ok(admission)
    }

    /// How a check of `cost` of a detached key would stand. Changes nothing.
    pub(super) fn look_detached(&self, subject: &Subject<'_>, cost: Cells) -> (Standing, Source) {
        let standing = match subject.rule.spec.on_store_error {
            OnStoreError::LocalShare => {
                let limit = subject.limit.shared(self.fallback.share(subject.name));
                self.buckets.of(&Subject { limit, ..*subject }).look(cost).0
            }
            OnStoreError::LocalFull => self.buckets.of(subject).look(cost).0,
            OnStoreError::Allow => Standing {
                allowed: true,
                retry_after: None,
                ..self.buckets.of(subject).look(cost).0
            },
            OnStoreError::Deny => WITHOUT_STORE,
        };
        (standing, Source::Fallback)
    }
}

/// The standing of a check that is denied because the store is unreachable.
const WITHOUT_STORE: Standing = Standing {
    allowed: false,
    remaining: Cells::ZERO,
    retry_after: Some(STORE_RETRY),
    reset_after: STORE_RETRY,
    delay: Span::ZERO,
};
