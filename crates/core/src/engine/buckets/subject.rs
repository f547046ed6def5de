//! A key under one rule at one moment: all that a bucket needs to decide, report or fold.

use super::exchange::StoreAnswer;
use super::table::BucketState;
use super::window_entry::WindowKey;
use crate::engine::answer::Source;
use crate::engine::snapshot::RuleState;
use crate::pure::algorithm::{gcra, leaky_bucket, token_bucket};
use crate::pure::rule::Consistency;
use crate::pure::sync::{ShareCode, StoreKey, StoreReading, StoreState, Terms};
use crate::pure::{Algorithm, Cells, Limit, Moment, Nanos, Rule, Span, Standing};

/// A key of one rule, with the limit that holds for it.
#[derive(Clone, Copy)]
pub(in crate::engine) struct Subject<'a> {
    pub(in crate::engine) rule: &'a Rule,
    pub(in crate::engine) state: &'a RuleState,
    pub(in crate::engine) limit: Limit,
    pub(in crate::engine) name: u128,
    pub(in crate::engine) moment: Moment,
    /// The version of the rules it is decided by.
    pub(in crate::engine) version: u64,
    /// Whether this pod decides without the store, because the store is unreachable or late.
    pub(in crate::engine) detached: bool,
}

impl Subject<'_> {
    /// What the store calls it.
    pub(in crate::engine) const fn store_key(&self) -> StoreKey {
        StoreKey {
            kind: self.state.kind,
            rule: self.state.id,
            name: self.name,
        }
    }

    /// The terms under which the store counts the key.
    pub(in crate::engine) fn terms(&self) -> Terms {
        let charges = self.rule.spec.count_rejected;
        let windows = match self.rule.spec.algorithm {
            Algorithm::Gcra | Algorithm::TokenBucket | Algorithm::LeakyBucket => {
                return match charges {
                    true => Terms::charging(&self.limit),
                    false => Terms::level(&self.limit),
                };
            }
            Algorithm::FixedWindow => Terms::window(&self.limit),
            Algorithm::SlidingWindow | Algorithm::SlidingLog => Terms::sliding(&self.limit),
        };
        match charges {
            true => windows.without_carry_over(),
            false => windows,
        }
    }

    /// Whether cells that were counted under `terms` mean the same under the limit that holds now.
    pub(in crate::engine) fn is_on_scale(&self, terms: &Terms) -> bool {
        self.state.kind.has_limits_of_callers() || self.terms() == *terms
    }

    /// Whether a key at this level denies its next cell.
    pub(in crate::engine) fn is_full(&self, level: Span) -> bool {
        level.plus(self.limit.interval()) > self.limit.capacity()
    }

    /// Until when the store denies the key, by its answer; `None` if the key has room.
    pub(in crate::engine) fn full_until(&self, answer: &StoreAnswer) -> Option<Nanos> {
        match answer.state {
            StoreState::Level { level, .. } => {
                self.is_full(level).then(|| answer.anchor.after(level))
            }
            StoreState::Window { current, left, .. } => {
                let is_full = current >= Cells::new(self.limit.requests());
                is_full.then(|| self.moment.now.after(left))
            }
        }
    }

    /// Where the level of a key with room ends, by the store's answer; a window has none.
    pub(in crate::engine) fn level_ends(&self, answer: &StoreAnswer) -> Nanos {
        match answer.state {
            StoreState::Level { level, .. } => answer.anchor.after(level),
            StoreState::Window { .. } => self.moment.now,
        }
    }

    /// How full the key is, by what the store says of it.
    pub(in crate::engine) fn reading(&self, state: StoreState) -> StoreReading {
        StoreReading::new(&self.limit, state)
    }

    /// The longest that cells of a healthy key wait for a report: the store bills them in full, so they must be young.
    pub(in crate::engine) fn age_max(&self, interval: Span, gap: Span) -> Span {
        let quarter = Span::nanos(self.limit.capacity().get() / 4);
        match self.rule.spec.algorithm.is_windowed() {
            true => interval,
            false => interval.min(quarter.max(gap)),
        }
    }

    /// Whether other pods hear of this key's level by the step of news: windows and strict rules publish at once.
    pub(in crate::engine) fn is_published_by_step(&self) -> bool {
        let spec = &self.rule.spec;
        !spec.algorithm.is_windowed() && spec.consistency != Consistency::Strict
    }

    /// How a check of `cost` stands in a bucket like `state`.
    pub(super) fn standing(&self, state: &BucketState, cost: Cells) -> (Standing, Source) {
        let (_, standing) = self.granting(state.granted).decide(state.tat, cost);
        let source = self.source(state.tat, state.mitigated);
        (standing, source.granted(state.granted.is_some()))
    }

    /// How a check of `cost` stands by what the store said of a level.
    pub(super) fn standing_at(&self, state: StoreState, cost: Cells) -> Standing {
        let level = match state {
            StoreState::Level { level, .. } => level,
            StoreState::Window { .. } => Span::ZERO,
        };
        self.decide(self.moment.now.after(level), cost).1
    }

    /// Whether more than half of a bucket with this TAT is in use.
    pub(super) fn is_half_used_at(&self, tat: Option<Nanos>) -> bool {
        let level = tat.map_or(Span::ZERO, |tat| tat.since(self.moment.now));
        level.plus(level) > self.limit.capacity()
    }

    /// The TAT that a key which is not held starts with: that of its ghost, if it has one.
    pub(super) fn unheld_tat(&self, ghost: Option<Nanos>) -> Nanos {
        let now = self.moment.now;
        // The ghost may be that of another key with a longer limit.
        let most = now.after(self.terms().level_max());
        ghost.map_or(now, |tat| tat.min(most))
    }

    /// The part of a published level that this pod takes in.
    pub(super) fn news_level(&self, level: Span) -> Span {
        let rarest = Span::nanos(u64::MAX);
        level.min(self.terms().published_every(rarest).level_max())
    }

    pub(super) fn window(&self) -> WindowKey<'_> {
        WindowKey {
            name: self.name,
            rule: self.rule,
            limit: &self.limit,
            unix: self.moment.unix,
        }
    }

    /// The next TAT if there is room in what this pod grants of the key.
    #[inline(always)]
    pub(super) fn next(
        &self,
        tat: Nanos,
        granted: Option<ShareCode>,
        cost: Cells,
    ) -> Option<Nanos> {
        match granted {
            None => gcra::admit(&self.limit, tat, self.moment.now, cost),
            Some(_) => self.next_by_share(tat, granted, cost),
        }
    }

    #[cold]
    fn next_by_share(&self, tat: Nanos, granted: Option<ShareCode>, cost: Cells) -> Option<Nanos> {
        gcra::admit(&self.granting(granted).limit, tat, self.moment.now, cost)
    }

    /// The same subject under what this pod grants of the key. The limit of a detached key is its share already.
    pub(super) fn granting(&self, granted: Option<ShareCode>) -> Self {
        match granted {
            Some(code) if !self.detached => Self {
                limit: self.limit.shared(code.share()),
                ..*self
            },
            Some(_) | None => *self,
        }
    }

    #[inline(always)]
    pub(in crate::engine) fn decide(&self, tat: Nanos, cost: Cells) -> (Nanos, Standing) {
        decide_level(
            self.rule.spec.algorithm,
            &self.limit,
            tat,
            self.moment.now,
            cost,
        )
    }

    /// The source of a decision on a key at `tat`. A level above capacity came from the fleet, unless the rule charges debt.
    pub(super) fn source(&self, tat: Nanos, mitigated: bool) -> Source {
        let is_debt = gcra::level(tat, self.moment.now) > self.limit.capacity();
        match mitigated || (is_debt && !self.rule.spec.count_rejected) {
            true => Source::Mitigation,
            false => Source::Local,
        }
    }
}

/// The TAT after a check of a level algorithm, and the standing that the client sees.
#[inline(always)]
pub(super) fn decide_level(
    algorithm: Algorithm,
    limit: &Limit,
    tat: Nanos,
    now: Nanos,
    cost: Cells,
) -> (Nanos, Standing) {
    match algorithm {
        Algorithm::TokenBucket => token_bucket::decide(limit, tat, now, cost),
        Algorithm::LeakyBucket => leaky_bucket::decide(limit, tat, now, cost),
        Algorithm::Gcra
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => gcra::decide(limit, tat, now, cost),
    }
}
