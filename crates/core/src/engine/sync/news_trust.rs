//! News of keys, and how far this pod trusts it.
//!
//! Anyone who may publish on the channel can publish anything. So news that a key is full denies the key at first, and the
//! first check that it denies makes this pod ask the store once:
//!
//! | state | means | news of it |
//! |---|---|---|
//! | none | there was no news lately | is taken in |
//! | heard | news raised the bucket, and denied no check since | is taken in |
//! | asking | news denied a check; the pod asks the store | is taken in |
//! | confirmed | the store answered this pod that the key is full | is taken in |
//! | doubted | the store answered otherwise, or not within [`BELIEVED_FOR`] | is ignored for a while |
//!
//! The pod remembers what news changed in a bucket, so that it can undo the change.

use std::collections::{BTreeSet, HashMap};

use super::figures::Reason;
use super::{PodSync, SyncContext};
use crate::engine::Engine;
use crate::engine::buckets::Subject;
use crate::engine::buckets::{NewsChange, NewsEffect, StoreAnswer};
use crate::pure::sync::StoreKey;
use crate::pure::{Cells, Nanos, Span};

/// How long news alone denies a key, from the first check that it denies.
const BELIEVED_FOR: Span = Span::seconds(1);
/// How long an answer of the store confirms further news of a key, at most; and no longer than the key's level.
const CONFIRMED_FOR_MAX: Span = Span::seconds(60);
/// How long the pod ignores news of a key after the store has said otherwise. If that happens again before as much time has
/// passed once more, four times as long.
const DOUBTED_FOR: Span = Span::seconds(30);
const DOUBTED_AGAIN: u64 = 4;
const DOUBTED_FOR_MAX: Span = Span::seconds(3_600);
/// The pods that received the same news spread their questions to the store over so much time per pod.
const ASKED_WITHIN_PER_POD: Span = Span::nanos(1_000_000);
const ASKED_WITHIN_MIN: Span = Span::nanos(5_000_000);
const ASKED_WITHIN_MAX: Span = Span::nanos(400_000_000);
/// The pod keeps news of one key for so many that it holds.
const NEWS_KEYS_PART: usize = 16;
const NEWS_KEYS_MIN: usize = 1_000;

/// News of a key, and what it changed in this pod.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// When the last news came.
    heard_at: Nanos,
    change: NewsChange,
    /// How long the pod doubted news of the key before, if that is recent.
    doubted_for: Span,
}

#[derive(Clone, Copy, Debug)]
enum Belief {
    Heard(Claim),
    /// `is_sent`: whether the pod has queued the key to ask the store.
    Asking {
        claim: Claim,
        until: Nanos,
        is_sent: bool,
    },
    Confirmed,
    /// The pod ignores news until then, and remembers this for a while longer.
    Doubted {
        until: Nanos,
        length: Span,
    },
}

/// The trust in news, by key.
#[derive(Debug)]
pub(super) struct NewsTrust {
    /// With the time of the next look at it.
    beliefs: HashMap<StoreKey, (Nanos, Belief)>,
    next: BTreeSet<(Nanos, StoreKey)>,
    keys_max: usize,
}

impl NewsTrust {
    /// For a pod that holds `keys_max` keys.
    pub(super) fn new(keys_max: usize) -> Self {
        Self {
            beliefs: HashMap::new(),
            next: BTreeSet::new(),
            keys_max: (keys_max / NEWS_KEYS_PART).max(NEWS_KEYS_MIN),
        }
    }

    /// When the next look is due.
    pub(super) fn next_at(&self) -> Option<Nanos> {
        self.next.first().map(|(at, _)| *at)
    }

    fn get(&self, key: &StoreKey) -> Option<Belief> {
        self.beliefs.get(key).map(|(_, belief)| *belief)
    }

    fn remove(&mut self, key: &StoreKey) -> Option<Belief> {
        let (at, belief) = self.beliefs.remove(key)?;
        self.next.remove(&(at, *key));
        Some(belief)
    }

    /// Keeps `belief` until `at`. Without room, the belief that would end first leaves and is returned.
    fn put(&mut self, key: StoreKey, at: Nanos, belief: Belief) -> Option<(StoreKey, Belief)> {
        self.remove(&key);
        self.beliefs.insert(key, (at, belief));
        self.next.insert((at, key));
        if self.beliefs.len() <= self.keys_max {
            return None;
        }
        let (_, first) = self.next.first().copied()?;
        self.remove(&first).map(|belief| (first, belief))
    }
}

impl Claim {
    /// The claim before, if it has not ended, together with what news changed now.
    fn joined(known: Option<Self>, effect: NewsEffect, now: Nanos) -> Option<Self> {
        let known = known.filter(|claim| claim.change.ends > now);
        let change = known.map(|claim| claim.change);
        Some(Self {
            heard_at: now,
            change: NewsChange::joined(change, effect, now)?,
            doubted_for: known.map_or(Span::ZERO, |claim| claim.doubted_for),
        })
    }

    /// Whether it can deny for longer than news alone may.
    fn is_long(&self) -> bool {
        self.change.ends.since(self.change.before) > BELIEVED_FOR
    }
}

impl PodSync {
    /// Takes in news that a key is full. Returns whether this pod trusts it.
    pub(super) fn receive_full(
        &mut self,
        context: &SyncContext<'_>,
        key: StoreKey,
        subject: Option<&Subject<'_>>,
        level: Span,
    ) -> bool {
        let now = context.now();
        if self.refunds.outdates_news(key, now) {
            return false;
        }
        let known = self.news_trust.get(&key);
        let doubted_for = match known {
            Some(Belief::Doubted { until, .. }) if until > now => return false,
            Some(Belief::Doubted { length, .. }) => length,
            Some(Belief::Heard(_) | Belief::Asking { .. } | Belief::Confirmed) | None => Span::ZERO,
        };
        let effect = match subject {
            Some(subject) => Some(self.raise(context, subject, level)),
            None => context.engine.raise_unheld(key, level, now),
        };
        let Some(effect) = effect else {
            return false; // its rule is gone
        };
        let known_claim = match known {
            Some(Belief::Confirmed) => return true,
            Some(Belief::Heard(claim) | Belief::Asking { claim, .. }) => Some(claim),
            Some(Belief::Doubted { .. }) | None => None,
        };
        let Some(mut claim) = Claim::joined(known_claim, effect, now) else {
            return true; // this pod knew as much
        };
        claim.doubted_for = claim.doubted_for.max(doubted_for);
        if let Some((_, Belief::Asking { claim: known, .. })) =
            self.news_trust.beliefs.get_mut(&key)
        {
            *known = claim;
            return true;
        }
        self.believe(context, key, claim.change.ends, Belief::Heard(claim));
        if claim.is_long() {
            context.engine.expect_denial(key.name);
        }
        true
    }

    /// A check of a key was denied. Returns whether that was because of news: then the pod will ask the store.
    pub(super) fn denied_by_news(&mut self, context: &SyncContext<'_>, key: StoreKey) -> bool {
        let Some(Belief::Heard(claim)) = self.news_trust.get(&key) else {
            return false;
        };
        if !claim.is_long() || context.engine.expects_denial(key.name) {
            return false;
        }
        let within = ASKED_WITHIN_PER_POD.times(Cells::new(self.fleet_view.pods));
        let within = within.max(ASKED_WITHIN_MIN).min(ASKED_WITHIN_MAX);
        let at = context.now().after(jitter(key, context.now(), within));
        let belief = Belief::Asking {
            claim,
            until: context.now().after(BELIEVED_FOR),
            is_sent: false,
        };
        self.believe(context, key, at, belief);
        true
    }

    /// Asks the store where that is due, and undoes news that the store did not confirm in time.
    pub(super) fn review_news(&mut self, context: &SyncContext<'_>) {
        while let Some((at, key)) = self.news_trust.next.first().copied()
            && at <= context.now()
        {
            match self.news_trust.remove(&key) {
                Some(Belief::Asking {
                    claim,
                    until,
                    is_sent: false,
                }) => {
                    let belief = Belief::Asking {
                        claim,
                        until,
                        is_sent: true,
                    };
                    self.believe(context, key, until, belief);
                    self.ask(context, key);
                }
                Some(Belief::Asking { claim, .. }) => {
                    self.disbelieve(context, key, &claim);
                    self.doubt_news(context, key, &claim);
                }
                Some(Belief::Heard(_)) => {
                    context.engine.expect_no_denial(key.name);
                }
                Some(Belief::Confirmed | Belief::Doubted { .. }) | None => {}
            }
        }
    }

    /// Queues a key for the answer alone, even if there is nothing to report.
    fn ask(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let Some(subject) = context.subject_of_key(key).filter(|_| !self.is_full(key)) else {
            return;
        };
        self.track(&subject, context.now()).asks_store = true;
        self.want(context, key, Reason::Confirm);
        self.look_again(key, context.now().after(BELIEVED_FOR));
    }

    /// Before the pod folds an answer, it undoes what news changed, where the answer does not replace it.
    pub(super) fn before_answer(&self, context: &SyncContext<'_>, key: StoreKey) {
        if let Some(Belief::Heard(claim) | Belief::Asking { claim, .. }) = self.news_trust.get(&key)
            && claim.change.is_undone_before_answer()
        {
            self.disbelieve(context, key, &claim);
        }
    }

    /// After an answer of the store, news of the key is confirmed, or was wrong.
    pub(super) fn after_answer(
        &mut self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        answer: &StoreAnswer,
    ) {
        let (key, now) = (subject.store_key(), context.now());
        context.engine.expect_no_denial(key.name);
        if let Some(ends) = subject.full_until(answer) {
            let until = ends.min(now.after(CONFIRMED_FOR_MAX));
            self.believe(context, key, until, Belief::Confirmed);
            return;
        }
        match self.news_trust.get(&key) {
            Some(Belief::Heard(claim) | Belief::Asking { claim, .. }) => {
                self.news_trust.remove(&key);
                // An answer from before the news says nothing of it.
                let is_newer = answer.frozen.at >= claim.heard_at;
                let ends = subject.level_ends(answer);
                if is_newer && ends.after(BELIEVED_FOR) < claim.change.ends {
                    self.doubt_news(context, key, &claim);
                }
            }
            Some(Belief::Confirmed) => {
                self.news_trust.remove(&key);
            }
            Some(Belief::Doubted { .. }) | None => {}
        }
    }

    /// Drops news of a key that was reset.
    pub(super) fn forget_news(&mut self, engine: &Engine, key: StoreKey) {
        engine.expect_no_denial(key.name);
        if !matches!(self.news_trust.get(&key), Some(Belief::Doubted { .. })) {
            self.news_trust.remove(&key);
        }
    }

    fn doubt_news(&mut self, context: &SyncContext<'_>, key: StoreKey, claim: &Claim) {
        let longer = claim.doubted_for.times(Cells::new(DOUBTED_AGAIN));
        let length = longer.max(DOUBTED_FOR).min(DOUBTED_FOR_MAX);
        let until = context.now().after(length);
        let belief = Belief::Doubted { until, length };
        self.believe(context, key, until.after(length), belief);
    }

    fn believe(&mut self, context: &SyncContext<'_>, key: StoreKey, at: Nanos, belief: Belief) {
        let crowded_out = self.news_trust.put(key, at, belief);
        if let Some((key, Belief::Heard(claim) | Belief::Asking { claim, .. })) = crowded_out {
            // Without its belief, the pod would never ask whether the news is true.
            self.disbelieve(context, key, &claim);
        }
    }

    /// Undoes what news changed in a bucket.
    fn disbelieve(&self, context: &SyncContext<'_>, key: StoreKey, claim: &Claim) {
        context.engine.expect_no_denial(key.name);
        context.engine.drop_mitigation(key.name);
        let Some(subject) = context.subject_of_key(key) else {
            return;
        };
        context.engine.bucket(&subject).undo_news(&claim.change);
    }
}

/// A length below `within` that differs between pods and keys: each pod's clock began at its own start.
fn jitter(key: StoreKey, now: Nanos, within: Span) -> Span {
    let low = (key.name & u128::from(u64::MAX)) as u64;
    let mixed = (now.get() ^ low).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    Span::nanos((mixed ^ mixed >> 32) % within.get().max(1))
}
