//! The figures of the sync for people: totals, and counts over all keys.

use std::collections::HashMap;

use super::PodSync;
use super::books::{Books, Loss};
use crate::engine::Engine;
use crate::pure::sync::{Call, Circuit, Delta, StoreState};
use crate::pure::{Cells, Nanos, Span};

/// How often the sync shows its figures, and how often it looks through all keys for some of them.
const SHOWN_EVERY: Span = Span::nanos(50_000_000);
const KEYS_COUNTED_EVERY: Span = Span::seconds(1);

/// Why the pod reported a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its pending cells had reached the trigger.
    Trigger,
    /// Its cells had waited as long as cells may.
    Interval,
    /// This pod used more than its even share.
    Share,
    /// Another pod used more than its even share.
    Live,
    /// The fleet denies it: the pod reports its last cells.
    Mitigation,
    /// The pod stops.
    Drain,
    /// News denied a check, and the pod asks the store to confirm it.
    Confirm,
    /// A call left for another key, and its pending cells had reached half of the trigger.
    RideAlong,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 8] = [
        Self::Trigger,
        Self::Interval,
        Self::Share,
        Self::Live,
        Self::Mitigation,
        Self::Drain,
        Self::Confirm,
        Self::RideAlong,
    ];

    /// Its name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trigger => "trigger",
            Self::Interval => "interval",
            Self::Share => "share",
            Self::Live => "live",
            Self::Mitigation => "mitigation",
            Self::Drain => "drain",
            Self::Confirm => "confirm",
            Self::RideAlong => "ride_along",
        }
    }
}

/// How rounds ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundEnds {
    /// The store has the batch.
    pub settled: u64,
    /// The store gave no valid answer.
    pub returned: u64,
    /// The store had lost something, or has it again.
    pub replayed: u64,
}

/// How one shard of the store can be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardState {
    /// Its number.
    pub number: usize,
    /// Its circuit breaker.
    pub circuit: Circuit,
    /// Whether the rules use their fallback.
    pub partitioned: bool,
    /// When it last answered.
    pub last_success: Option<Nanos>,
}

impl Figures {
    /// How long ago the shard that has not answered for longest last did; `None` if one never did.
    pub fn staleness(&self, now: Nanos) -> Option<Span> {
        let since = |shard: &ShardState| shard.last_success.map(|at| now.since(at));
        let all: Option<Vec<Span>> = self.shards.iter().map(since).collect();
        all?.into_iter().max()
    }
}

/// The figures of the sync.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Pods alive.
    pub pods: u64,
    /// The shards of the store that have lanes.
    pub shards: Vec<ShardState>,
    /// Where every cell is, at one moment; up to a second old.
    pub books: Books,
    /// Cells that the pod did not report, because it was silent about their key.
    pub silent: Cells,
    /// Cells lost.
    pub lost: Loss,
    /// Cells counted as lost that the store has after all.
    pub found: Cells,
    /// How rounds ended.
    pub rounds: RoundEnds,
    /// Reports of keys, by reason.
    pub reasons: [u64; Reason::ALL.len()],
    /// Keys in all calls that the pod sent.
    pub keys_reported: u64,
    /// Foreign values in the store that the scripts replaced.
    pub repaired: u64,
    /// By rule, sorted by the rule's id.
    pub overshoot: Vec<RuleOvershoot>,
    /// Keys that the fleet denies.
    pub mitigations: u64,
    /// Keys that the pod cannot report in time.
    pub overdue: u64,
    /// Keys that the sync tracks.
    pub keys: u64,
}

/// Totals since start.
#[derive(Debug, Default)]
pub(super) struct Totals {
    /// Settled in groups that were split since.
    pub(super) settled_before: Cells,
    pub(super) silent: Cells,
    pub(super) lost: Loss,
    pub(super) found: Cells,
    pub(super) rounds: RoundEnds,
    pub(super) repaired: u64,
    reasons: [u64; Reason::ALL.len()],
    keys_reported: u64,
    overshoot: HashMap<u64, RuleOvershoot>,
}

/// What merges put above the capacity of one rule's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RuleOvershoot {
    /// What the store calls the rule.
    pub rule: u64,
    /// Cells above capacity.
    pub cells: Cells,
    /// Merges that forgave debt.
    pub forgiven: u64,
}

/// Counts over all keys, and when they were last taken.
#[derive(Debug, Default)]
pub(super) struct KeyCounts {
    shown_at: Option<Nanos>,
    counted_at: Option<Nanos>,
    books: Books,
    mitigations: u64,
    overdue: u64,
}

impl Totals {
    pub(super) fn count(&mut self, reason: Reason) {
        self.reasons[reason as usize] += 1;
    }

    pub(super) fn sent(&mut self, call: &Call) {
        self.keys_reported += call.deltas.len() as u64;
    }

    /// Notes what a merge put above capacity.
    pub(super) fn note_overshoot(&mut self, delta: &Delta, charged: Cells, state: StoreState) {
        let over = delta.overshoot(state, charged);
        if over.cells > Cells::ZERO || over.capped {
            let rule = delta.key.rule;
            let of_rule = self.overshoot.entry(rule).or_insert(RuleOvershoot {
                rule,
                cells: Cells::ZERO,
                forgiven: 0,
            });
            of_rule.cells = of_rule.cells.plus(over.cells);
            of_rule.forgiven += u64::from(over.capped);
        }
    }
}

impl PodSync {
    /// Shows the figures, if it is time.
    pub(super) fn show(&mut self, engine: &Engine, now: Nanos) {
        let is_due = |last: Option<Nanos>, every| last.is_none_or(|at| now.since(at) >= every);
        if !is_due(self.counts.shown_at, SHOWN_EVERY) {
            return;
        }
        self.counts.shown_at = Some(now);
        if is_due(self.counts.counted_at, KEYS_COUNTED_EVERY) {
            engine.drop_ended_mitigations(now);
            let full = self.keys.values().filter(|key| key.is_full_at(now));
            let full = full.count() as u64;
            self.counts = KeyCounts {
                counted_at: Some(now),
                books: self.books(engine),
                mitigations: full,
                overdue: self.overdue(),
                ..self.counts
            };
        }
        engine.show(self.figures(engine));
    }

    /// The figures of this moment. Looks through all buckets.
    pub fn figures_now(&self, engine: &Engine) -> Figures {
        Figures {
            books: self.books(engine),
            ..self.figures(engine)
        }
    }

    fn figures(&self, engine: &Engine) -> Figures {
        let (totals, counts) = (&self.totals, &self.counts);
        let mut overshoot: Vec<_> = totals.overshoot.values().copied().collect();
        overshoot.sort_unstable_by_key(|over| over.rule);
        Figures {
            pods: self.membership.pods().max(1),
            shards: self.shard_states(),
            books: counts.books,
            silent: totals.silent,
            lost: totals.lost,
            found: totals.found,
            rounds: totals.rounds,
            reasons: totals.reasons,
            keys_reported: totals.keys_reported,
            repaired: totals.repaired,
            overshoot,
            mitigations: counts.mitigations + engine.mitigations_unseen() as u64,
            overdue: counts.overdue,
            keys: self.keys.len() as u64,
        }
    }

    fn shard_states(&self) -> Vec<ShardState> {
        let links = self.links.iter().enumerate();
        let in_use = links.filter(|(number, _)| self.shard_of.contains(number));
        let state = |(number, link): (usize, &crate::pure::sync::Link)| ShardState {
            number,
            circuit: link.state(),
            partitioned: link.is_partitioned(),
            last_success: link.last_success(),
        };
        in_use.map(state).collect()
    }
}
