//! What happens to one key: it is noticed, kept back or told, falls due, is heard of, is reset.

use super::fleet::Reason;
use super::tracked::{Alone, Tracked, Use};
use super::{HOLD, Here, Rounds};
use crate::engine::admit::Asked;
use crate::engine::collect::{Hushed, Raised};
use crate::pure::rule::{Consistency, Report, RuleSpec};
use crate::pure::sync::{Allowance, Family, News, NewsKind, Share, StoreKey, Trigger};
use crate::pure::{Cells, Nanos, Span};

impl Rounds {
    /// A key has reached its trigger.
    pub(super) fn noticed(&mut self, here: &Here<'_>, key: StoreKey) {
        let Some(asked) = here.subject(key) else {
            return; // its rule is gone
        };
        if self.denied_by_news(here, key) {
            return;
        }
        let level = match self.make_room(here, key) {
            Some(level) => level,
            None => {
                self.grant_untracked(here, &asked);
                return;
            }
        };
        let is_new = !self.keys.contains_key(&key);
        let tracked = self.track(&asked, here.now());
        if is_new {
            tracked.even = here.now().after(level);
        }
        if tracked.place.is_some() {
            self.hurry(here, key);
            return;
        }
        if tracked.is_loud() {
            self.want(here, key, Reason::Trigger);
            return;
        }
        match self.allowance(&asked) {
            Some(allowance) => self.look_at(here, &asked, &allowance),
            None => {
                let until = here
                    .now()
                    .after(self.pace.interval.plus(self.pace.interval));
                self.track(&asked, here.now()).stay_loud(until);
                self.want(here, key, Reason::Trigger);
            }
        }
    }

    /// Looks whether a silent key may stay so.
    fn look_at(&mut self, here: &Here<'_>, asked: &Asked<'_>, allowance: &Allowance) {
        let (key, now) = (asked.store_key(), here.now());
        let Hushed { cells, worth } = here.engine.hush(asked);
        let tracked = self.track(asked, now);
        match tracked.used(allowance, worth, now) {
            Use::Within => {
                let ends = tracked.even_ends();
                tracked.charged = Cells::ZERO;
                self.fleet.silent = self.fleet.silent.plus(cells);
                self.look_again(key, ends.max(now.after(self.pace.interval)));
                self.land_silent(here, asked, allowance.trigger());
            }
            Use::Beyond => {
                tracked.announce = true;
                self.speak_up(asked, allowance, cells, now.after(HOLD));
                self.want(here, key, Reason::Share);
            }
        }
    }

    /// Sets the trigger of a key that is not told. One that has reached it meanwhile is noticed again.
    pub(super) fn land_silent(&self, here: &Here<'_>, asked: &Asked<'_>, trigger: Trigger) {
        if here.engine.land(asked, trigger) {
            here.engine.wanting.push(asked.store_key());
        }
    }

    /// Begins to tell a key: first what is in use of the even share. What has drained of it is only counted.
    fn speak_up(&mut self, asked: &Asked<'_>, allowance: &Allowance, cells: Cells, until: Nanos) {
        let now = asked.moment.now;
        let tracked = self.track(asked, now);
        tracked.stay_loud(until);
        tracked.carry.gross = tracked.carry.gross.plus(cells);
        let in_use = tracked.in_use(allowance, now);
        tracked.carry.price = tracked
            .carry
            .price
            .plus(asked.limit.interval().times(in_use));
    }

    /// It is time to look at a key again.
    pub(super) fn came_due(&mut self, here: &Here<'_>, key: StoreKey) {
        let now = here.now();
        let Some(tracked) = self.keys.get_mut(&key) else {
            return;
        };
        tracked.due = Nanos::default();
        let (at_rest, loud_until) = (tracked.is_at_rest(), tracked.loud_until);
        let (even_ends, postponed) = (tracked.even_ends(), tracked.postponed.take());
        let is_queued = tracked.place.is_some();
        let Some(asked) = here.subject(key) else {
            self.let_go(here, key); // its rule is gone
            return;
        };
        match loud_until {
            // It waits to be asked for.
            None if !at_rest => self.look_again(key, now.after(self.pace.interval)),
            None if even_ends <= now => {
                self.untrack(key);
                self.land_silent(here, &asked, self.opening(&asked));
            }
            None => self.look_again(key, even_ends),
            Some(_) if is_queued => self.watch(here, key),
            Some(_) if !at_rest => self.want(here, key, postponed.unwrap_or(Reason::Trigger)),
            Some(until) if until <= now => self.calm_down(here, &asked),
            Some(_) => match here.engine.pending_of(&asked) {
                Some(pending) if pending > Cells::ZERO => {
                    self.want(here, key, postponed.unwrap_or(Reason::Interval));
                }
                Some(_) | None => self.look_again(key, now.after(self.age_max(&asked))),
            },
        }
    }

    /// A key has been loud for long enough. If it may be silent it is, unless this pod uses more than its share right now;
    /// if it may not, it is let go once there is nothing to tell.
    fn calm_down(&mut self, here: &Here<'_>, asked: &Asked<'_>) {
        let (key, now) = (asked.store_key(), here.now());
        if let Some(allowance) = self.allowance(asked) {
            let tracked = self.track(asked, now);
            tracked.loud_until = None;
            tracked.overdue = None;
            tracked.was_told(now);
            self.look_at(here, asked, &allowance);
        } else if here.engine.land(asked, Trigger::EACH) {
            self.want(here, key, Reason::Interval);
        } else {
            self.untrack(key);
        }
    }

    /// Other pods told something of a key.
    pub(super) fn hear(&mut self, here: &Here<'_>, News { key, kind }: News) {
        let now = here.now();
        let asked = here.subject(key);
        match kind {
            // Resets are in the store's log: whoever says there is a new one is only a reason to read it.
            NewsKind::Reset => self.fleet.prompt_beat(),
            NewsKind::Live(hold) => {
                if let Some(asked) = asked {
                    self.hear_live(here, &asked, now.after(hold.min(HOLD)));
                }
            }
            NewsKind::Full(level) => match asked {
                Some(asked) => self.hear_full_of(here, &asked, level),
                None if key.family == Family::Carried => {
                    self.hear_full(here, (key, None), level);
                }
                None => {}
            },
        }
    }

    fn hear_full_of(&mut self, here: &Here<'_>, asked: &Asked<'_>, level: Span) {
        let (key, now) = (asked.store_key(), here.now());
        // The others are not told by the step.
        let spec = &asked.rule.spec;
        let by_step = !spec.algorithm.is_windowed() && spec.consistency != Consistency::Strict;
        self.fleet.heard += u64::from(by_step);
        if !self.hear_full(here, (key, Some(asked)), level) {
            return;
        }
        let Some(tracked) = self.keys.get_mut(&key) else {
            return;
        };
        tracked.full_until = tracked.full_until.max(now.after(level));
        let pending = here.engine.pending_of(asked).unwrap_or(Cells::ZERO);
        if tracked.is_loud() && pending > Cells::ZERO {
            self.want(here, key, Reason::Mitigation);
        }
    }

    /// Takes in that the fleet denies a key. What this pod gives back of it may still be in that level.
    pub(super) fn raise(&mut self, here: &Here<'_>, asked: &Asked<'_>, level: Span) -> Raised {
        self.note_refunds(here);
        let (price, cells) = self.refunds.unsettled(asked.store_key(), here.now());
        match asked.state.family {
            Family::Level | Family::Carried => here.engine.raise(asked, level.less(price)),
            // The answer to the refund says how its window stands.
            Family::Window if cells > Cells::ZERO => Raised::Nothing,
            Family::Window => here.engine.raise(asked, level),
        }
    }

    fn hear_live(&mut self, here: &Here<'_>, asked: &Asked<'_>, until: Nanos) {
        let (key, now) = (asked.store_key(), here.now());
        let is_new = !self.keys.contains_key(&key);
        // Of keys that nobody asks this pod for, news alone takes no more than half of the room.
        let is_held = || here.engine.pending_of(asked).is_some();
        if is_new && self.keys.len() >= self.keys_max / 2 && !is_held() {
            return;
        }
        if self.make_room(here, key).is_none() {
            return;
        }
        let tracked = self.track(asked, now);
        if is_new {
            // Others have all of its demand, as far as is known.
            tracked.weight = Share::NONE;
        }
        if tracked.is_loud() {
            tracked.stay_loud(until);
            return;
        }
        match self.allowance(asked) {
            Some(allowance) => {
                let Hushed { cells, worth } = here.engine.hush(asked);
                let _ = self.track(asked, now).used(&allowance, worth, now);
                self.speak_up(asked, &allowance, cells, until);
            }
            None => self.track(asked, now).stay_loud(until),
        }
        here.engine.land(asked, Trigger::EACH);
        match self.keys.get(&key) {
            Some(tracked) if tracked.carry.price > Span::ZERO => self.want(here, key, Reason::Live),
            Some(_) | None => self.look_again(key, now.after(self.age_max(asked))),
        }
    }

    /// Somebody reset a key.
    pub(super) fn reset(&mut self, here: &Here<'_>, key: StoreKey) {
        self.forget_hearsay(here.engine, key);
        match here.subject(key) {
            Some(asked) => here.engine.forget(&asked),
            None if key.family == Family::Carried => here.engine.forget_unheld(key.name),
            None => {}
        }
        self.refunds.forget(key);
        if let Some(tracked) = self.keys.get_mut(&key) {
            self.fleet.lost.reset = self.fleet.lost.reset.plus(tracked.carry.gross);
            tracked.carry = super::tracked::Carry::default();
            tracked.full_until = Nanos::default();
            tracked.alone = None;
            tracked.overdue = None;
            // An answer that is on its way is from before the reset.
            if let Some(flight) = &mut tracked.flight {
                flight.stale = true;
            }
        }
    }

    /// The rules are others: keys of rules that are gone are let go, the rest is counted under the new limits.
    pub(super) fn rules_changed(&mut self, here: &Here<'_>) {
        self.version = here.snapshot.version();
        let terrain = self.terrain;
        let mut gone: Vec<StoreKey> = self
            .keys
            .iter_mut()
            .filter_map(|(key, tracked)| match here.subject(*key) {
                Some(asked) => {
                    if let Some(alone) = tracked
                        .alone
                        .as_mut()
                        .filter(|_| tracked.limit != asked.limit)
                    {
                        // On another scale nothing is known of it.
                        alone.told = Nanos::default();
                    }
                    if tracked.limit != asked.limit {
                        tracked.overdue = None;
                    }
                    tracked.limit = asked.limit;
                    tracked.is_thin = terrain.is_thin(&asked.limit);
                    tracked.terms = asked.terms();
                    None
                }
                None => Some(*key),
            })
            .collect();
        gone.sort_unstable();
        for key in gone {
            self.let_go(here, key);
        }
        self.set_openings(here);
    }

    /// Sets at how many cells new keys of each rule are noticed.
    pub(super) fn set_openings(&self, here: &Here<'_>) {
        let silent = self.fleet.is_steady() && may_be_silent(here.snapshot.rules().carried());
        let pods = if silent { self.terrain.pods } else { 0 };
        here.engine.carried.set_silent_pods(pods);
        for (rule, state) in here.snapshot.all() {
            if let Some(limit) = rule.spec.limit.filter(|_| state.reported) {
                let asked = Asked {
                    rule,
                    state,
                    limit,
                    name: 0,
                    moment: here.moment,
                    version: here.snapshot.version(),
                    alone: false,
                };
                state.set_opening(self.opening(&asked));
            }
        }
    }

    /// At how many cells a key that is not told is noticed.
    pub(super) fn opening(&self, asked: &Asked<'_>) -> Trigger {
        self.allowance(asked)
            .map_or(Trigger::EACH, |allowance| allowance.trigger())
    }

    /// What this pod may use of a key in silence, if anything.
    fn allowance(&self, asked: &Asked<'_>) -> Option<Allowance> {
        self.even_share(asked).filter(|_| self.fleet.is_steady())
    }

    /// This pod's even share of a key that pods may be silent of.
    pub(super) fn even_share(&self, asked: &Asked<'_>) -> Option<Allowance> {
        may_be_silent(&asked.rule.spec)
            .then(|| self.terrain.allowance(&asked.limit))
            .flatten()
    }

    /// The longest that cells of a healthy key wait: they are billed in full, so they must be young.
    pub(super) fn age_max(&self, asked: &Asked<'_>) -> Span {
        let quarter = Span::nanos(asked.limit.capacity().get() / 4);
        match asked.rule.spec.algorithm.is_windowed() {
            true => self.pace.interval,
            false => self.pace.interval.min(quarter.max(self.gap())),
        }
    }

    /// The key's state, made if there is none.
    pub(super) fn track(&mut self, asked: &Asked<'_>, now: Nanos) -> &mut Tracked {
        let key = asked.store_key();
        let weight = Share::even(self.terrain.pods);
        let alone = (!self.is_reachable(key.lane())).then_some(Alone {
            told: now,
            cut_off: true,
        });
        let is_thin = self.terrain.is_thin(&asked.limit);
        self.keys.entry(key).or_insert_with(|| {
            Box::new(Tracked {
                alone,
                is_thin,
                ..Tracked::new(asked.limit, asked.terms(), weight, now)
            })
        })
    }

    /// Whether there is no room to track `key` as well.
    pub(super) fn is_full(&self, key: StoreKey) -> bool {
        self.keys.len() >= self.keys_max && !self.keys.contains_key(&key)
    }

    /// Lets go of a key whose rule is gone. What of it is in a batch is told all the same.
    fn let_go(&mut self, here: &Here<'_>, key: StoreKey) {
        if let Some(flight) = self.keys.get(&key).and_then(|tracked| tracked.flight) {
            here.engine.release(flight.seat);
        }
        self.untrack(key);
    }

    pub(super) fn untrack(&mut self, key: StoreKey) {
        if let Some(tracked) = self.keys.remove(&key) {
            self.due.remove(&(tracked.due, key));
            if let Some(place) = tracked.place {
                self.queue.remove(key, place);
            }
            self.fleet.lost.rule = self.fleet.lost.rule.plus(tracked.carry.gross);
        }
    }

    /// Does not look at a key again, whatever was planned.
    pub(super) fn cancel_look(&mut self, key: StoreKey) {
        if let Some(tracked) = self.keys.get_mut(&key) {
            let planned = std::mem::take(&mut tracked.due);
            self.due.remove(&(planned, key));
        }
    }

    /// Looks at a key again at `at`, or earlier if that is planned already.
    pub(super) fn look_again(&mut self, key: StoreKey, at: Nanos) {
        let Some(tracked) = self.keys.get_mut(&key) else {
            return;
        };
        let planned = tracked.due;
        if planned != Nanos::default() {
            if planned <= at {
                return;
            }
            self.due.remove(&(planned, key));
        }
        tracked.due = at;
        self.due.insert((at, key));
    }
}

/// Whether pods may be silent of keys of a rule like `spec` that they use within their even share.
fn may_be_silent(spec: &RuleSpec) -> bool {
    spec.report == Report::Contested
        && spec.consistency == Consistency::Hybrid
        && !spec.algorithm.is_windowed()
}
