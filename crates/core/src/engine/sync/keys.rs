//! The events of one key: it reaches its trigger, stays silent or becomes loud, is due for a look, has news, is reset.

use super::figures::Reason;
use super::key_sync::{Detached, KeySync, ShareUse};
use super::phase::PhaseEvent;
use super::{HOLD, PodSync, SyncContext};
use crate::engine::LimitedKey;
use crate::engine::buckets::{KeyBucket, Subject};
use crate::engine::buckets::{NewsEffect, SilentCells};
use crate::pure::sync::{Allowance, News, NewsKind, Share, StoreKey, Trigger};
use crate::pure::{Cells, Nanos, Span};

impl PodSync {
    /// A key has reached its trigger.
    pub(super) fn trigger_reached(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let Some(subject) = context.subject_of_key(key) else {
            return; // its rule is gone
        };
        if self.denied_by_news(context, key) {
            return;
        }
        let level = match self.make_room(context, key) {
            Some(level) => level,
            None => {
                self.grant_untracked(context, &subject);
                return;
            }
        };
        let is_new = !self.keys.contains_key(&key);
        let key_sync = self.track(&subject, context.now());
        if is_new {
            key_sync.even.tat = context.now().after(level);
        }
        if key_sync.phase.place().is_some() {
            self.hurry(context, key);
            return;
        }
        if key_sync.is_loud() {
            self.want(context, key, Reason::Trigger);
            return;
        }
        match self.allowance(&subject) {
            Some(allowance) => self.look_at(context, &subject, &allowance),
            None => {
                let until = context
                    .now()
                    .after(self.pace.interval.plus(self.pace.interval));
                self.track(&subject, context.now()).stay_loud(until);
                self.want(context, key, Reason::Trigger);
            }
        }
    }

    /// Decides whether a silent key may stay silent.
    fn look_at(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>, allowance: &Allowance) {
        let (key, now) = (subject.store_key(), context.now());
        let SilentCells { cells, worth } = context.engine.bucket(subject).take_silent();
        let key_sync = self.track(subject, now);
        match key_sync.use_share(allowance, worth, now) {
            ShareUse::Within => {
                let ends = key_sync.even_ends();
                if let Some(history) = key_sync.known_history_mut() {
                    history.charged = Cells::ZERO;
                }
                self.totals.silent = self.totals.silent.plus(cells);
                self.look_again(key, ends.max(now.after(self.pace.interval)));
                self.land_silent(context, subject, allowance.trigger());
            }
            ShareUse::Beyond => {
                key_sync.announce = true;
                self.become_loud(subject, allowance, cells, now.after(HOLD));
                self.want(context, key, Reason::Share);
            }
        }
    }

    /// Sets the trigger of a silent key. If the key has reached it meanwhile, it is queued again.
    pub(super) fn land_silent(
        &self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        trigger: Trigger,
    ) {
        if context.engine.bucket(subject).land(trigger) {
            context.engine.queue(subject.store_key());
        }
    }

    /// Makes a key loud. The first report bills the usage of the even share; cells that have drained are only counted.
    fn become_loud(
        &mut self,
        subject: &Subject<'_>,
        allowance: &Allowance,
        cells: Cells,
        until: Nanos,
    ) {
        let now = subject.moment.now;
        let key_sync = self.track(subject, now);
        key_sync.stay_loud(until);
        key_sync.unsent.gross = key_sync.unsent.gross.plus(cells);
        let in_use = key_sync.in_use(allowance, now);
        key_sync.unsent.price = key_sync
            .unsent
            .price
            .plus(subject.limit.interval().times(in_use));
    }

    /// It is time to look at a key again.
    pub(super) fn look_due(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        let now = context.now();
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        let (at_rest, loud_until) = (key_sync.is_at_rest(), key_sync.phase.loud_until());
        let (even_ends, postponed) = (key_sync.even_ends(), key_sync.phase.take_postponed());
        let is_queued = key_sync.phase.place().is_some();
        let Some(subject) = context.subject_of_key(key) else {
            self.let_go(context, key); // its rule is gone
            return;
        };
        match loud_until {
            // It is queued or in flight to ask the store.
            None if !at_rest => self.look_again(key, now.after(self.pace.interval)),
            None if even_ends <= now => {
                self.untrack(key);
                self.land_silent(context, &subject, self.opening(&subject));
            }
            None => self.look_again(key, even_ends),
            Some(_) if is_queued => self.watch(context, key),
            Some(_) if !at_rest => self.want(context, key, postponed.unwrap_or(Reason::Trigger)),
            Some(until) if until <= now => self.end_loud(context, &subject),
            Some(_) => match context.engine.bucket(&subject).pending() {
                Some(pending) if pending > Cells::ZERO => {
                    self.want(context, key, postponed.unwrap_or(Reason::Interval));
                }
                Some(_) | None => self.refresh(context, &subject),
            },
        }
    }

    /// Asks the store for a loud key that has nothing to report, if its last answer is too old to go by. No other key waits
    /// for that.
    fn refresh(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let (key, now) = (subject.store_key(), context.now());
        let age_max = context.engine.bucket(subject).answer_age_max();
        let is_idle = self.queue.is_empty();
        let key_sync = self.track(subject, now);
        match (key_sync.history().sent_at, age_max) {
            (Some(sent_at), Some(age_max)) if is_idle && sent_at.after(age_max) <= now => {
                key_sync.asks_store = true;
                self.want(context, key, Reason::Interval);
            }
            (_, _) => self.look_after(context, subject),
        }
    }

    /// Plans the next look at a loud key.
    pub(super) fn look_after(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let age_max = self.age_max(subject);
        let answer_age_max = context.engine.bucket(subject).answer_age_max();
        let after = answer_age_max.map_or(age_max, |age| age.max(self.gap()).min(age_max));
        self.look_again(subject.store_key(), context.now().after(after));
    }

    /// A key has been loud for long enough. If pods may be silent about it, it becomes silent, unless this pod uses more
    /// than its share right now. Otherwise the sync drops it once there is nothing to report.
    fn end_loud(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>) {
        let (key, now) = (subject.store_key(), context.now());
        if let Some(allowance) = self.allowance(subject) {
            let key_sync = self.track(subject, now);
            key_sync.happen(PhaseEvent::Calm);
            key_sync.overdue = None;
            key_sync.reset_share(now);
            self.look_at(context, subject, &allowance);
        } else if context.engine.bucket(subject).land(Trigger::EACH) {
            self.want(context, key, Reason::Interval);
        } else {
            self.untrack(key);
        }
    }

    /// Takes in news of a key.
    pub(super) fn receive_news(&mut self, context: &SyncContext<'_>, News { key, kind }: News) {
        let now = context.now();
        let subject = context.subject_of_key(key);
        match kind {
            // The store's log has the resets. News of a reset is only a reason to read that log.
            NewsKind::Reset => self.membership.prompt_heartbeat(),
            NewsKind::Live(hold) => {
                if let Some(subject) = subject {
                    self.receive_live(context, &subject, now.after(hold.min(HOLD)));
                }
            }
            NewsKind::Full(level) => match subject {
                Some(subject) => self.receive_full_of(context, &subject, level),
                None => {
                    self.receive_full(context, key, None, level);
                }
            },
        }
    }

    fn receive_full_of(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>, level: Span) {
        let (key, now) = (subject.store_key(), context.now());
        // Other keys are not published by the step.
        if subject.is_published_by_step() {
            self.news_pacing.count();
        }
        if !self.receive_full(context, key, Some(subject), level) {
            return;
        }
        let Some(key_sync) = self.keys.get_mut(&key) else {
            return;
        };
        let history = key_sync.history_mut();
        history.full_until = history.full_until.max(Some(now.after(level)));
        let pending = context
            .engine
            .bucket(subject)
            .pending()
            .unwrap_or(Cells::ZERO);
        if key_sync.is_loud() && pending > Cells::ZERO {
            self.want(context, key, Reason::Mitigation);
        }
    }

    /// Takes in news that the fleet denies a key. That level may still include refunds of this pod.
    pub(super) fn raise(
        &mut self,
        context: &SyncContext<'_>,
        subject: &Subject<'_>,
        level: Span,
    ) -> NewsEffect {
        self.note_refunds(context);
        let unsettled = self.refunds.unsettled(subject.store_key(), context.now());
        context.engine.bucket(subject).raise(level, &unsettled)
    }

    fn receive_live(&mut self, context: &SyncContext<'_>, subject: &Subject<'_>, until: Nanos) {
        let (key, now) = (subject.store_key(), context.now());
        let is_new = !self.keys.contains_key(&key);
        // News of keys that no check asks this pod for takes no more than half of the room.
        let is_held = || context.engine.bucket(subject).pending().is_some();
        if is_new && self.keys.len() >= self.keys_max / 2 && !is_held() {
            return;
        }
        if self.make_room(context, key).is_none() {
            return;
        }
        let key_sync = self.track(subject, now);
        if is_new {
            // As far as this pod knows, the other pods have all of its demand.
            key_sync.weight = Share::NONE;
        }
        if key_sync.is_loud() {
            key_sync.stay_loud(until);
            return;
        }
        match self.allowance(subject) {
            Some(allowance) => {
                let SilentCells { cells, worth } = context.engine.bucket(subject).take_silent();
                let _ = self.track(subject, now).use_share(&allowance, worth, now);
                self.become_loud(subject, &allowance, cells, until);
            }
            None => self.track(subject, now).stay_loud(until),
        }
        context.engine.bucket(subject).land(Trigger::EACH);
        match self.keys.get(&key) {
            Some(key_sync) if key_sync.unsent.price > Span::ZERO => {
                self.want(context, key, Reason::Live)
            }
            Some(_) | None => self.look_again(key, now.after(self.age_max(subject))),
        }
    }

    /// An operator reset a key.
    pub(super) fn reset(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        self.forget_news(context.engine, key);
        match context.subject_of_key(key) {
            Some(subject) => {
                context.engine.bucket(&subject).forget();
            }
            None => context.engine.forget_unheld(key),
        }
        self.refunds.forget(key);
        if let Some(key_sync) = self.keys.get_mut(&key) {
            self.totals.lost.reset = self.totals.lost.reset.plus(key_sync.unsent.gross);
            key_sync.unsent = super::key_sync::Unsent::default();
            if let Some(history) = key_sync.known_history_mut() {
                history.full_until = None;
                history.detached = None;
            }
            key_sync.overdue = None;
            // An answer in flight is from before the reset.
            key_sync.phase.spoil_answer();
        }
    }

    /// A reload changed the rules: the sync drops keys of rules that are gone, and moves the rest to the new limits.
    pub(super) fn rules_changed(&mut self, context: &SyncContext<'_>) {
        self.version = context.snapshot.version();
        let fleet_view = self.fleet_view;
        self.terms.clear();
        let terms = &mut self.terms;
        let mut gone: Vec<StoreKey> = self
            .keys
            .iter_mut()
            .filter_map(|(key, key_sync)| match context.subject_of_key(key) {
                Some(subject) => {
                    if key_sync.terms.limit != subject.limit {
                        if let Some(history) = key_sync.known_history_mut()
                            && let Some(detached) = &mut history.detached
                        {
                            // What is known was counted under another limit.
                            detached.known_until = None;
                        }
                        key_sync.overdue = None;
                    }
                    key_sync.is_thin = fleet_view.is_thin(&subject.limit);
                    key_sync.terms = terms.of(&subject);
                    None
                }
                None => Some(key),
            })
            .collect();
        gone.sort_unstable();
        for key in gone {
            self.let_go(context, key);
        }
        self.set_openings(context);
    }

    /// Sets the trigger of new keys, for each rule.
    pub(super) fn set_openings(&self, context: &SyncContext<'_>) {
        let silent =
            self.membership.is_steady() && context.snapshot.rules().caller_spec().may_be_silent();
        let pods = if silent { self.fleet_view.pods } else { 0 };
        context.engine.set_silent_pods(pods);
        // Any key will do: the trigger depends on the rule's own limit.
        let any = LimitedKey {
            name: 0,
            caller_limit: None,
        };
        for rule in 0..context.snapshot.rules().all().len() {
            let subject = context.snapshot.subject(rule, &any, context.moment);
            if let Some(subject) = subject.filter(|subject| subject.state.reported) {
                subject.state.set_opening(self.opening(&subject));
            }
        }
    }

    /// The trigger of a key that is neither loud nor tracked.
    pub(super) fn opening(&self, subject: &Subject<'_>) -> Trigger {
        self.allowance(subject)
            .map_or(Trigger::EACH, |allowance| allowance.trigger())
    }

    /// What this pod may use of a key without a report, if anything.
    fn allowance(&self, subject: &Subject<'_>) -> Option<Allowance> {
        self.even_share(subject)
            .filter(|_| self.membership.is_steady())
    }

    /// This pod's even share of a key, if pods may be silent about it.
    pub(super) fn even_share(&self, subject: &Subject<'_>) -> Option<Allowance> {
        let spec = &subject.rule.spec;
        spec.may_be_silent()
            .then(|| self.fleet_view.allowance(&subject.limit))
            .flatten()
    }

    /// The longest that cells of a healthy key wait for a report: the store bills them in full, so they must be young.
    pub(super) fn age_max(&self, subject: &Subject<'_>) -> Span {
        subject.age_max(self.pace.interval, self.gap())
    }

    /// The state of the key. Starts to track it, if the sync does not yet.
    pub(super) fn track(&mut self, subject: &Subject<'_>, now: Nanos) -> &mut KeySync {
        let key = subject.store_key();
        let weight = Share::even(self.fleet_view.pods);
        let is_reachable = self.is_reachable(key.lane());
        let is_thin = self.fleet_view.is_thin(&subject.limit);
        let terms = &mut self.terms;
        self.keys.get_or_insert(key, || {
            let mut key_sync = KeySync::new(terms.of(subject), weight, now);
            key_sync.is_thin = is_thin;
            if !is_reachable {
                key_sync.history_mut().detached = Some(Detached {
                    known_until: Some(now),
                    cut_off: true,
                });
            }
            key_sync
        })
    }

    /// Whether there is no room to track `key` as well.
    pub(super) fn is_full(&self, key: StoreKey) -> bool {
        self.keys.len() >= self.keys_max && !self.keys.contains_key(&key)
    }

    /// Drops a key whose rule is gone. The pod still reports what is in a batch.
    fn let_go(&mut self, context: &SyncContext<'_>, key: StoreKey) {
        if let Some(flight) = self
            .keys
            .get(&key)
            .and_then(|key_sync| key_sync.phase.flight())
        {
            context.engine.release(flight.address);
        }
        self.untrack(key);
    }

    pub(super) fn untrack(&mut self, key: StoreKey) {
        let place = self.keys.get(&key).and_then(|it| it.phase.place());
        if let Some(place) = place {
            self.queue.remove(&mut self.keys, key, place);
        }
        if let Some(key_sync) = self.keys.remove(&key) {
            self.totals.lost.rule = self.totals.lost.rule.plus(key_sync.unsent.gross);
        }
    }

    /// Plans a look at a key at `at`, unless an earlier one is planned.
    pub(super) fn look_again(&mut self, key: StoreKey, at: Nanos) {
        self.keys.look_again(&key, at);
    }
}
