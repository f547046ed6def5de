//! What people are shown of the sync: totals, and figures that all keys are looked through for.

use std::collections::HashMap;

use super::PodSync;
use super::books::{Books, Loss};
use crate::engine::Engine;
use crate::pure::sync::{Call, Circuit, Delta, StoreState};
use crate::pure::{Cells, Nanos, Span};

/// How often the figures are shown, and how often those are taken for which all keys are looked through.
const SHOWN_EVERY: Span = Span::nanos(50_000_000);
const KEYS_COUNTED_EVERY: Span = Span::seconds(1);

/// Why a key was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Its pending cells had reached the trigger.
    Trigger,
    /// It had waited for as long as cells may.
    Interval,
    /// This pod used more than its even share.
    Share,
    /// Another pod did.
    Live,
    /// The fleet denies it: the last cells go.
    Mitigation,
    /// The pod stops.
    Drain,
    /// A check was denied because of news, which only the store can confirm.
    Confirm,
}

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 7] = [
        Self::Trigger,
        Self::Interval,
        Self::Share,
        Self::Live,
        Self::Mitigation,
        Self::Drain,
        Self::Confirm,
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
        }
    }
}

/// How rounds ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundEnds {
    /// The store has the batch.
    pub settled: u64,
    /// No answer, or not one.
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
    /// Whether rules go by their fallback.
    pub partitioned: bool,
    /// When it last answered.
    pub last_success: Option<Nanos>,
}

impl Figures {
    /// How long ago the shard that was silent longest last answered; `None` if one never did.
    pub fn staleness(&self, now: Nanos) -> Option<Span> {
        let since = |shard: &ShardState| shard.last_success.map(|at| now.since(at));
        let all: Option<Vec<Span>> = self.shards.iter().map(since).collect();
        all?.into_iter().max()
    }
}

/// What people are shown of the rounds.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Pods alive.
    pub pods: u64,
    /// The shards of the store that have lanes.
    pub shards: Vec<ShardState>,
    /// Where every cell is, as of one moment; not quite up to date.
    pub books: Books,
    /// Cells kept back by silence.
    pub silent: Cells,
    /// Cells lost.
    pub lost: Loss,
    /// Cells counted as lost that the store has after all.
    pub found: Cells,
    /// How rounds ended.
    pub rounds: RoundEnds,
    /// Keys told, by reason.
    pub reasons: [u64; Reason::ALL.len()],
    /// Keys told to the store.
    pub keys_reported: u64,
    /// Values in the store that were not ours and were replaced.
    pub repaired: u64,
    /// By rule, as the store calls it: cells above capacity, and merges that forgave debt.
    pub overshoot: Vec<(u64, Cells, u64)>,
    /// Keys that the fleet denies.
    pub mitigations: u64,
    /// Keys that cannot be reported in time.
    pub overdue: u64,
    /// Keys that the rounds know of.
    pub keys: u64,
}

/// Totals since start.
#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) silent: Cells,
    pub(super) lost: Loss,
    pub(super) found: Cells,
    pub(super) rounds: RoundEnds,
    pub(super) repaired: u64,
    reasons: [u64; Reason::ALL.len()],
    keys_reported: u64,
    overshoot: HashMap<u64, RuleOvershoot>,
}

#[derive(Clone, Copy, Debug, Default)]
struct RuleOvershoot {
    cells: Cells,
    /// Merges that forgave debt.
    forgiven: u64,
}

/// Figures that all keys are looked through for, and when that was last done.
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
            let of_rule = self.overshoot.entry(delta.key.rule).or_default();
            of_rule.cells = of_rule.cells.plus(over.cells);
            of_rule.forgiven += u64::from(over.capped);
        }
    }
}

impl PodSync {
    /// Shows people how the sync stands.
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

    /// How the sync stands at this moment. Looks through all buckets.
    pub fn figures_now(&self, engine: &Engine) -> Figures {
        Figures {
            books: self.books(engine),
            ..self.figures(engine)
        }
    }

    fn figures(&self, engine: &Engine) -> Figures {
        let (totals, counts) = (&self.totals, &self.counts);
        let overshoot = totals.overshoot.iter();
        let mut overshoot: Vec<_> = overshoot
            .map(|(rule, over)| (*rule, over.cells, over.forgiven))
            .collect();
        overshoot.sort_unstable_by_key(|(rule, ..)| *rule);
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
