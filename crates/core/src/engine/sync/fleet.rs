//! What a pod knows of the fleet and of its own rounds: pods alive, totals for people, what was lost.

use std::collections::HashMap;

use super::PodSync;
use super::books::{Books, Loss};
use crate::engine::Engine;
use crate::pure::sync::{
    Call, Circuit, Delta, Heartbeat, HeartbeatReply, Lane, NEWS_STEP, StoreState,
};
use crate::pure::time::SECOND;
use crate::pure::{Cells, Nanos, Span};

/// How often a pod gives a sign of life, in a fleet of up to [`PODS_PER_SECOND`]; in a larger one more rarely.
const HEARTBEAT: Span = Span::seconds(1);
const PODS_PER_SECOND: u64 = 200;
/// A pod that has missed three is gone.
const HEARTBEATS_MISSED_MAX: u64 = 3;
/// News of a reset asks for a sign of life before its time, at most once in this time; in a large fleet more rarely.
const PROMPTED_EVERY: Span = Span::nanos(100_000_000);
const PROMPTED_EVERY_PER_POD: Span = Span::nanos(1_000_000);
/// Answers with the same number of pods before that number is believed.
const HEARTBEATS_STEADY: u32 = 2;
/// How often the figures are shown, and how often those are taken for which all keys are looked through.
const SHOWN_EVERY: Span = Span::nanos(50_000_000);
const KEYS_COUNTED_EVERY: Span = Span::seconds(1);

/// Pieces of news that the store delivers per second, to all pods together: each costs it several microseconds.
const DELIVERIES_PER_SECOND: u64 = 50_000;
/// How often the step of news is set, and how soon again while there is too much.
const NEWS_EVERY: Span = Span::seconds(1);
const NEWS_SOONEST: Span = Span::nanos(125_000_000);
/// The shortest step, beside [`NEWS_STEP`]: a key at its limit is told to a thousand pods ten times a second.
const NEWS_STEP_PER_POD: Span = Span::nanos(100_000);
/// The longest step.
const NEWS_STEP_MAX: Span = Span::seconds(10);

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

/// What the rounds know of the fleet.
#[derive(Debug, Default)]
pub(super) struct Fleet {
    pods: u64,
    steady_heartbeats: u32,
    next_heartbeat: Nanos,
    heartbeat_in_flight: bool,
    /// Whether news asks for a sign of life, from when on there may be one, and whether the last one was of that kind.
    heartbeat_wanted: bool,
    prompted_at: Nanos,
    is_prompted: bool,
    resets_seen: u64,
    leaving: bool,
    left: bool,
    /// One bit for each lane that is cut off.
    pub(super) cut_off: u64,
    /// One bit for each lane that is cut off or late.
    pub(super) unreachable: u64,
    /// When it was last said what this pod grants of each key.
    pub(super) shared_at: Nanos,
    pub(super) silent: Cells,
    pub(super) lost: Loss,
    pub(super) found: Cells,
    pub(super) rounds: RoundEnds,
    reasons: [u64; Reason::ALL.len()],
    keys_reported: u64,
    pub(super) repaired: u64,
    overshoot: HashMap<u64, (Cells, u64)>,
    shown: Nanos,
    /// Of all keys, which are looked through now and then.
    books: Books,
    mitigations: u64,
    overdue: u64,
    keys_counted_at: Nanos,
    turn: usize,
    /// Pieces of news heard since the step was last set, and when that was.
    pub(super) news_received: u64,
    news_set: Nanos,
    /// By how much a level must have grown to be news.
    pub(super) news_step: Span,
}

impl Fleet {
    /// By how much a level must have grown to be told to other pods: so much that the store, which delivers each piece
    /// to every pod, is not drowned in it. Every pod hears all of it, and so comes to about the same.
    pub(super) fn news_step(&mut self, now: Nanos) -> Span {
        let elapsed = now.since(self.news_set);
        let deliveries = self.news_received.saturating_mul(self.pods.max(1));
        let too_many = deliveries > DELIVERIES_PER_SECOND && elapsed >= NEWS_SOONEST;
        if elapsed >= NEWS_EVERY || too_many {
            let step = u128::from(self.news_step.get());
            let a_second = u128::from(deliveries) * u128::from(SECOND) / u128::from(elapsed.get());
            let fitting = step * a_second / u128::from(DELIVERIES_PER_SECOND);
            // At most doubled, because what comes now was told under the step of before; at most halved, because what
            // there is too much of is not seen while it is held back.
            let fitting = u64::try_from(fitting.clamp(step / 2, step * 2)).unwrap_or(u64::MAX);
            let least = NEWS_STEP.max(NEWS_STEP_PER_POD.times(Cells::new(self.pods)));
            self.news_step = Span::nanos(fitting).max(least).min(NEWS_STEP_MAX);
            self.news_set = now;
            self.news_received = 0;
        }
        self.news_step.max(NEWS_STEP)
    }

    pub(super) fn heartbeat_interval(&self) -> Span {
        HEARTBEAT.times(Cells::new(self.pods.div_ceil(PODS_PER_SECOND).max(1)))
    }

    /// When the next sign of life is due.
    pub(super) fn heartbeat_due(&self, now: Nanos) -> Nanos {
        match (self.heartbeat_in_flight || self.left, self.heartbeat_wanted) {
            (true, _) => now.after(HEARTBEAT),
            (false, true) => self.next_heartbeat.min(self.prompted_at).max(now),
            (false, false) => self.next_heartbeat.max(now),
        }
    }

    /// Somebody says that a key was reset: the next sign of life, which is answered what was reset, comes early.
    pub(super) const fn prompt_heartbeat(&mut self) {
        self.heartbeat_wanted = true;
    }

    /// Whether the last sign of life was one that news asked for.
    pub(super) const fn is_prompted(&self) -> bool {
        self.is_prompted
    }

    /// The next sign of life, if it is time.
    fn heartbeat(&mut self, now: Nanos) -> Option<Heartbeat> {
        let is_time = now >= self.next_heartbeat;
        let is_prompted = self.heartbeat_wanted && now >= self.prompted_at;
        if self.heartbeat_in_flight || self.left || !(is_time || is_prompted) {
            return None;
        }
        self.heartbeat_in_flight = true;
        self.heartbeat_wanted = false;
        self.is_prompted = !is_time;
        match is_time {
            true => self.next_heartbeat = now.after(self.heartbeat_interval()),
            false => {
                let per_pod = PROMPTED_EVERY_PER_POD.times(Cells::new(self.pods));
                self.prompted_at = now.after(PROMPTED_EVERY.max(per_pod));
            }
        }
        self.left = self.leaving;
        Some(Heartbeat {
            expiry: self
                .heartbeat_interval()
                .times(Cells::new(HEARTBEATS_MISSED_MAX))
                .plus(HEARTBEAT),
            resets_seen: self.resets_seen,
            leaving: self.leaving,
        })
    }

    /// The next sign of life is the last, and is given now.
    pub(super) fn leave(&mut self) {
        self.leaving = true;
        self.next_heartbeat = Nanos::default();
    }

    /// A sign of life was answered.
    pub(super) fn heartbeat_answered(&mut self, heartbeat_answered: &HeartbeatReply) {
        self.heartbeat_in_flight = false;
        self.resets_seen = heartbeat_answered.resets;
        let changed = self.pods != heartbeat_answered.pods;
        self.pods = heartbeat_answered.pods;
        // Those that news asks for may follow each other closely, and say nothing of how long the number has stood.
        self.steady_heartbeats = match (changed, self.is_prompted) {
            (true, _) => 0,
            (false, true) => self.steady_heartbeats,
            (false, false) => self.steady_heartbeats.saturating_add(1),
        };
    }

    /// A sign of life was not answered. What is known of the fleet stays the best guess.
    pub(super) fn heartbeat_failed(&mut self) {
        self.heartbeat_in_flight = false;
        self.steady_heartbeats = 0;
    }

    /// Whether this pod is counted and the number of pods is to be believed.
    pub(super) const fn is_steady(&self) -> bool {
        self.steady_heartbeats >= HEARTBEATS_STEADY && !self.leaving
    }

    /// Counts the signs of life.
    pub(super) const fn next_turn(&mut self) -> usize {
        self.turn = self.turn.wrapping_add(1);
        self.turn
    }

    pub(super) const fn is_leaving(&self) -> bool {
        self.leaving
    }

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
            let (cells, forgiven) = self.overshoot.entry(delta.key.rule).or_default();
            *cells = cells.plus(over.cells);
            *forgiven += u64::from(over.capped);
        }
    }
}

impl PodSync {
    pub(super) fn heartbeat(&mut self, now: Nanos) -> Option<Heartbeat> {
        let lane = Lane::new(0);
        self.is_reachable(lane)
            .then(|| self.fleet.heartbeat(now))
            .flatten()
    }

    /// Shows people how the rounds stand.
    pub(super) fn show(&mut self, engine: &Engine, now: Nanos) {
        if now.since(self.fleet.shown) < SHOWN_EVERY && self.fleet.shown > Nanos::default() {
            return;
        }
        self.fleet.shown = now;
        if now.since(self.fleet.keys_counted_at) >= KEYS_COUNTED_EVERY {
            self.fleet.keys_counted_at = now;
            engine.drop_ended_mitigations(now);
            self.fleet.books = self.books(engine);
            let full = self
                .keys
                .values()
                .filter(|key_sync| key_sync.full_until > now);
            self.fleet.mitigations = full.count() as u64;
            self.fleet.overdue = self.overdue();
        }
        engine.show(self.figures(engine));
    }

    /// How the rounds stand at this moment. Looks through all buckets.
    pub fn figures_now(&self, engine: &Engine) -> Figures {
        Figures {
            books: self.books(engine),
            ..self.figures(engine)
        }
    }

    fn figures(&self, engine: &Engine) -> Figures {
        let fleet = &self.fleet;
        let mut overshoot: Vec<_> = fleet
            .overshoot
            .iter()
            .map(|(rule, (cells, forgiven))| (*rule, *cells, *forgiven))
            .collect();
        overshoot.sort_unstable_by_key(|(rule, ..)| *rule);
        Figures {
            pods: fleet.pods.max(1),
            shards: self
                .links
                .iter()
                .enumerate()
                .filter(|(number, _)| self.shard_of.contains(number))
                .map(|(number, link)| ShardState {
                    number,
                    circuit: link.state(),
                    partitioned: link.is_partitioned(),
                    last_success: link.last_success(),
                })
                .collect(),
            books: fleet.books,
            silent: fleet.silent,
            lost: fleet.lost,
            found: fleet.found,
            rounds: fleet.rounds,
            reasons: fleet.reasons,
            keys_reported: fleet.keys_reported,
            repaired: fleet.repaired,
            overshoot,
            mitigations: fleet.mitigations + engine.mitigations_unseen() as u64,
            overdue: fleet.overdue,
            keys: self.keys.len() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(pods: u64) -> Fleet {
        Fleet {
            pods,
            ..Fleet::default()
        }
    }

    /// The step in milliseconds after each of `seconds` in which so many pieces were heard.
    fn steps(fleet: &mut Fleet, news_received: &[u64]) -> Vec<u64> {
        let step = |(second, news_received): (u64, &u64)| {
            fleet.news_received = *news_received;
            fleet.news_step(Nanos::new(second * SECOND)).get() / 1_000_000
        };
        (1..).zip(news_received).map(step).collect()
    }

    #[test]
    fn the_step_is_short_while_there_is_little_news() {
        assert_eq!(steps(&mut fleet(100), &[0, 500, 400]), [20, 20, 20]);
        assert_eq!(steps(&mut fleet(1_000), &[0, 50]), [100, 100]);
        assert_eq!(
            fleet(3).news_step(Nanos::new(1)),
            NEWS_STEP,
            "from the start"
        );
    }

    #[test]
    fn it_grows_with_what_is_too_much_and_shrinks_slowly() {
        let steps = steps(&mut fleet(100), &[0, 750, 5_000, 5_000, 500, 0, 0, 0]);
        assert_eq!(steps, [20, 30, 60, 120, 120, 60, 30, 20]);
        let mut fleet = fleet(100);
        let most = (0..40).map(|_| 1_000_000).collect::<Vec<u64>>();
        assert_eq!(self::steps(&mut fleet, &most).last(), Some(&10_000));
    }

    #[test]
    fn much_too_much_is_answered_soon_but_not_at_once() {
        let mut fleet = fleet(100);
        let _ = fleet.news_step(Nanos::new(SECOND));
        let mut after_ms = |ms: u64| {
            fleet.news_received = 600;
            fleet.news_step(Nanos::new(SECOND + ms * 1_000_000)).get() / 1_000_000
        };
        assert_eq!(
            [after_ms(10), after_ms(124), after_ms(125), after_ms(200)],
            [20, 20, 40, 40]
        );
    }
}
