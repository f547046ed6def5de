//! What the sync may do to the engine. It uses nothing else of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::buckets::{Bucket, BucketAddress, KeyBucket, NewsEffect, ReportedCells, Subject};
use super::sync::Figures;
use super::{Answer, Engine, Hit, Shares};
use crate::pure::sync::{StoreKey, Terms};
use crate::pure::{Cells, Moment, Nanos, Span};

impl Engine {
    /// The bucket of a key.
    pub(super) fn bucket<'t, 's>(&'t self, subject: &'s Subject<'s>) -> Bucket<'t, 's> {
        self.buckets.of(subject)
    }

    /// The keys that want a round.
    pub(super) fn take_queued(&self) -> impl Iterator<Item = StoreKey> {
        self.buckets.sync_queue.drain()
    }

    /// Puts a key among those that want a round.
    pub(super) fn queue(&self, key: StoreKey) {
        self.buckets.sync_queue.push(key);
    }

    /// Refunds of callers that the store may have to give back too.
    pub(super) fn take_refunds(&self) -> impl Iterator<Item = (StoreKey, ReportedCells)> {
        self.refunds.drain()
    }

    /// Cells that were charged although they were denied, by key.
    pub(super) fn take_charges(&self) -> BTreeMap<StoreKey, Cells> {
        self.buckets.charges.take()
    }

    /// Ends the flight of a bucket whose answer is of no use.
    pub(super) fn release(&self, address: BucketAddress) {
        self.buckets.release(address);
    }

    /// Takes in news that the fleet denies a key whose limit this pod does not know. `None` if its rule is gone.
    pub(super) fn raise_unheld(
        &self,
        key: StoreKey,
        level: Span,
        now: Nanos,
    ) -> Option<NewsEffect> {
        self.buckets.raise_unheld(key, level, now)
    }

    /// Forgets a key whose limit this pod does not know.
    pub(super) fn forget_unheld(&self, key: StoreKey) {
        self.buckets.forget_unheld(key);
    }

    /// Drops the mitigation of a key that has no bucket.
    pub(super) fn drop_mitigation(&self, name: u128) {
        self.buckets.drop_mitigation(name);
    }

    /// Drops mitigations that have ended.
    pub(super) fn drop_ended_mitigations(&self, now: Nanos) {
        self.buckets.drop_ended_mitigations(now);
    }

    /// Sets how many pods may each be silent about their even share of a caller-supplied limit; 0: none.
    pub(super) fn set_silent_pods(&self, pods: u64) {
        self.buckets.set_silent_pods(pods);
    }

    /// The next denied check of a key queues it, so that the sync asks the store.
    pub(super) fn expect_denial(&self, name: u128) {
        self.unconfirmed.put(name);
    }

    /// Whether no check of a key has been denied since [`Engine::expect_denial`].
    pub(super) fn expects_denial(&self, name: u128) -> bool {
        self.unconfirmed.holds(name)
    }

    /// Denied checks of a key queue it no longer.
    pub(super) fn expect_no_denial(&self, name: u128) {
        self.unconfirmed.take(name);
    }

    /// Sets what this pod grants of each key while the key is detached.
    pub(super) fn set_shares(&self, shares: Shares) {
        self.fallback.set_shares(shares);
    }

    /// Sets which lanes of the store are cut off and which are late, by a bit each.
    pub(super) fn set_lanes(&self, cut_off: u64, late: u64) {
        self.fallback.set_lanes(cut_off, late);
    }

    /// Shows the figures of the sync.
    pub(super) fn show(&self, figures: Figures) {
        self.figures.store(Arc::new(figures));
    }

    /// Forgets the key of a hit, on this pod alone.
    pub fn forget_hit(&self, answer: &Answer, hit: &Hit, moment: Moment) {
        if let Some(subject) = self.subject(&answer.snapshot, hit, moment) {
            self.bucket(&subject).forget();
        }
    }

    /// What the store calls the key of a hit and counts it under, if this pod reports it.
    pub fn store_key(
        &self,
        answer: &Answer,
        hit: &Hit,
        moment: Moment,
    ) -> Option<(StoreKey, Terms)> {
        let subject = self.subject(&answer.snapshot, hit, moment)?;
        subject
            .state
            .reported
            .then(|| (subject.store_key(), subject.terms()))
    }
}
