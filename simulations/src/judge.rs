//! Measures the error of a policy against one limiter that sees every check at once, and against the limit itself.
//!
//! The exact limiter is the sidecar's engine without a store. The overshoot needs no limiter: the admitted cells fill a
//! bucket, and the overshoot is the most by which that bucket was ever above its capacity.

use std::collections::{HashMap, VecDeque};

use tidegate_core::engine::{Engine, FleetKey, Hit, Setup};
use tidegate_core::pure::{Cells, Check, Descriptor, Limit, Moment, Nanos, Rules, Span};

use crate::scenario::{FaultKind, Scenario};
use crate::world::EPOCH;

/// Points of a plot.
pub const BINS: usize = 200;
/// The most that collecting a batch and the store itself add to the round trip, and the gap between two rounds of a key:
/// see `docs/sync.md`.
const COLLECTING: u64 = 2_000_000;
const GAP: u64 = 5_000_000;
const GAP_PER_POD: u64 = 20_000;
/// The keys of the exact limiter.
const KEYS_MAX: usize = 1 << 16;
/// The ratio of a key counts only if the exact limiter admits at least so many of its cells.
const KEY_CELLS_MIN: u64 = 10;

/// What the policy and the exact limiter decided for one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckDecisions {
    pub allowed: bool,
    pub exact: bool,
}

/// The decisions between two points in time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Cells.
    pub asked: u64,
    pub admitted: u64,
    pub exact: u64,
    /// Checks.
    pub checks: u64,
    pub denied_wrongly: u64,
    /// The overshoot of the worst key.
    pub overshoot_cells: f64,
    pub overshoot_percent: f64,
    /// Admitted against exact, of the key with the largest error; only if an expectation needs it.
    pub worst_key_ratio: f64,
}

/// How far a check put its keys above their limits: the worst key.
#[derive(Clone, Copy, Debug, Default)]
struct Excess {
    cells: f64,
    percent: f64,
}

/// The decisions of one point of a plot, in cells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    pub asked: u64,
    pub admitted: u64,
    pub exact: u64,
}

/// The history of one key.
#[derive(Debug, Default)]
struct KeyHistory {
    /// The TAT of the admitted cells, and the capacity that it is scaled to.
    tat: u64,
    capacity: u64,
    /// For a windowed rule: the window, and the cells in it.
    window: (u64, u64),
    /// The cells requested within the time of a report, their sum, and the largest sum so far.
    recent: VecDeque<(u64, u64)>,
    in_recent: u64,
    most_recent: u64,
}

/// Judges one run.
#[derive(Debug)]
pub struct Judge<'a> {
    scenario: &'a Scenario,
    exact: Engine,
    reloads: Vec<(u64, &'a Rules)>,
    history: HashMap<u128, KeyHistory>,
    /// The whole run, then each expectation.
    pub tallies: Vec<Tally>,
    /// For each expectation and key: the admitted cells, and those that the exact limiter would have admitted.
    by_key: Vec<HashMap<u128, (u64, u64)>>,
    pub bins: Vec<Bin>,
    /// The longest time of a report, in nanoseconds.
    report_time: u64,
    violation: Option<String>,
}

impl<'a> Judge<'a> {
    pub fn new(scenario: &'a Scenario) -> Self {
        let setup = Setup {
            keys_max: scenario.keys_max.max(KEYS_MAX),
            fleet: FleetKey::derived(b"fleet"),
            seeds: [1, 2],
            reporting: false,
        };
        let mut reloads: Vec<(u64, &Rules)> = Vec::new();
        for fault in scenario.faults.iter().rev() {
            if let FaultKind::Reload(rules) = &fault.what {
                reloads.push((fault.at, rules));
            }
        }
        let network = &scenario.network;
        let trip = network.rtt.nanos() as f64 * (1.0 + 4.0 * network.jitter);
        Self {
            scenario,
            exact: Engine::new(setup, scenario.rules.clone()),
            reloads,
            history: HashMap::new(),
            tallies: vec![Tally::default(); scenario.expect.len() + 1],
            by_key: vec![HashMap::new(); scenario.expect.len()],
            bins: vec![Bin::default(); BINS],
            report_time: COLLECTING + trip as u64 + GAP.max(GAP_PER_POD * scenario.pods as u64),
            violation: None,
        }
    }

    /// Refunds the cells of a check at `at`: in the history if the policy had allowed it, and in the exact limiter if that
    /// had allowed it.
    pub fn refunded(&mut self, at: u64, check: &Check<'_>, decisions: CheckDecisions) {
        let moment = Moment {
            now: Nanos::new(EPOCH + at),
            unix: Span::nanos(EPOCH + at),
        };
        if decisions.exact {
            drop(self.exact.check(check, moment));
        }
        if !decisions.allowed {
            return;
        }
        let refund = check.descriptors.iter().map(|one| Descriptor {
            refund: false,
            ..*one
        });
        let descriptors: Vec<Descriptor<'_>> = refund.collect();
        let look = Check {
            descriptors: &descriptors,
            cost: Cells::ZERO,
            peek: true,
            ..*check
        };
        let answer = self.exact.check(&look, moment);
        for hit in answer.hits() {
            if let (Some(limit), Some(history)) =
                (answer.limit(hit), self.history.get_mut(&hit.name))
            {
                history.refunded(at, check.cost.get(), limit);
            }
        }
    }

    /// Records a decision at `at`. Returns the decision of the exact limiter.
    pub fn decided(&mut self, at: u64, check: &Check<'_>, allowed: bool) -> bool {
        while let Some((_, rules)) = self.reloads.pop_if(|(from, _)| *from <= at) {
            self.exact.reload(rules.clone());
        }
        let moment = Moment {
            now: Nanos::new(EPOCH + at),
            unix: Span::nanos(EPOCH + at),
        };
        let answer = self.exact.check(check, moment);
        let exact = answer.allowed();
        let cost = check.cost.get();
        let mut over = Excess::default();
        let judged = |hit: &Hit| {
            let is_windowed = answer.rule(hit).spec.algorithm.is_windowed();
            Some((hit.name, *answer.limit(hit)?, is_windowed))
        };
        let hits: Vec<(u128, Limit, bool)> = answer.hits().iter().filter_map(judged).collect();
        drop(answer);
        for (by_key, expect) in self.by_key.iter_mut().zip(&self.scenario.expect) {
            if expect.is_by_key() && expect.is_about(at, check) {
                for (name, ..) in &hits {
                    let cells = by_key.entry(*name).or_default();
                    cells.0 += if allowed { cost } else { 0 };
                    cells.1 += if exact { cost } else { 0 };
                }
            }
        }
        for (name, limit, is_windowed) in hits {
            let history = self.history.entry(name).or_default();
            history.requested(at, cost, self.report_time);
            if allowed {
                let cells = match is_windowed {
                    true => history.admitted_in_window(at, cost, &limit),
                    false => history.admitted(at, cost, &limit),
                };
                let whole = limit.burst().get().max(1) as f64;
                over = Excess {
                    cells: over.cells.max(cells),
                    percent: over.percent.max(cells / whole * 100.0),
                };
                let bound = self
                    .scenario
                    .bounded
                    .then(|| bound(self.scenario, history, &limit));
                if let Some(bound) =
                    bound.filter(|bound| cells > *bound && self.violation.is_none())
                {
                    let at = at as f64 / 1e9;
                    let text = format!(
                        "t={at:.3}s bound: {cells:.1} cells above the limit, {bound:.1} are promised"
                    );
                    self.violation = Some(text);
                }
            }
        }
        self.count(at, check, CheckDecisions { allowed, exact }, over);
        exact
    }

    fn count(&mut self, at: u64, check: &Check<'_>, decisions: CheckDecisions, over: Excess) {
        let CheckDecisions { allowed, exact } = decisions;
        let cost = check.cost.get();
        let expects = self.scenario.expect.iter();
        let counted = std::iter::once(true).chain(expects.map(|one| one.is_about(at, check)));
        for (tally, counted) in self.tallies.iter_mut().zip(counted) {
            if counted {
                tally.checks += 1;
                tally.asked += cost;
                tally.admitted += if allowed { cost } else { 0 };
                tally.exact += if exact { cost } else { 0 };
                tally.denied_wrongly += u64::from(exact && !allowed);
                tally.overshoot_cells = tally.overshoot_cells.max(over.cells);
                tally.overshoot_percent = tally.overshoot_percent.max(over.percent);
            }
        }
        let bin = at.saturating_mul(BINS as u64) / self.scenario.lasts.max(1);
        if let Some(bin) = self.bins.get_mut(usize::try_from(bin).unwrap_or(BINS)) {
            bin.asked += cost;
            bin.admitted += if allowed { cost } else { 0 };
            bin.exact += if exact { cost } else { 0 };
        }
    }

    /// The violation that was found, if any.
    pub fn end(&mut self) -> Option<String> {
        for (tally, by_key) in self.tallies[1..].iter_mut().zip(&self.by_key) {
            let known = by_key.values().filter(|(_, exact)| *exact >= KEY_CELLS_MIN);
            let ratios = known.map(|(admitted, exact)| *admitted as f64 / *exact as f64);
            tally.worst_key_ratio = ratios.fold(0.0, f64::max);
        }
        self.violation.take()
    }
}

impl KeyHistory {
    fn requested(&mut self, at: u64, cost: u64, report_time: u64) {
        self.recent.push_back((at, cost));
        self.in_recent += cost;
        while let Some((then, cost)) = self.recent.front().copied()
            && then + report_time < at
        {
            self.recent.pop_front();
            self.in_recent -= cost;
        }
        self.most_recent = self.most_recent.max(self.in_recent);
    }

    /// The cells by which the admitted cells are above `limit`.
    fn admitted(&mut self, at: u64, cost: u64, limit: &Limit) -> f64 {
        let (interval, capacity) = (limit.interval().get(), limit.capacity().get());
        if self.capacity != capacity && self.capacity > 0 {
            // Another limit: half full stays half full.
            let level = self.tat.saturating_sub(at);
            let scaled = u128::from(level) * u128::from(capacity) / u128::from(self.capacity);
            self.tat = at + u64::try_from(scaled).unwrap_or(u64::MAX / 2);
        }
        self.capacity = capacity;
        self.tat = self.tat.max(at) + interval.saturating_mul(cost);
        let over = (self.tat - at).saturating_sub(capacity);
        over as f64 / interval.max(1) as f64
    }

    /// Refunds as many cells as are still in use.
    fn refunded(&mut self, at: u64, cost: u64, limit: &Limit) {
        let price = limit.interval().get().saturating_mul(cost);
        self.tat = self.tat.saturating_sub(price).max(at);
        if self.window.0 == (EPOCH + at) / limit.window().get().max(1) {
            self.window.1 = self.window.1.saturating_sub(cost);
        }
    }

    /// The cells by which this window is above `limit`.
    fn admitted_in_window(&mut self, at: u64, cost: u64, limit: &Limit) -> f64 {
        let index = (EPOCH + at) / limit.window().get().max(1);
        if self.window.0 != index {
            self.window = (index, 0);
        }
        self.window.1 += cost;
        self.window.1.saturating_sub(limit.requests()) as f64
    }
}

/// The cells by which a key may be above its limit: what pods may hold back, what they may use silently, and what is
/// requested during a report.
fn bound(scenario: &Scenario, history: &KeyHistory, limit: &Limit) -> f64 {
    let burst = Span::nanos(limit.burst().get());
    let held_back = scenario.pace.accuracy.of_span(burst).get() as f64;
    let silent = limit.burst().get() as f64 / 4.0;
    2.0 * held_back + silent + history.most_recent as f64 + 1.0
}
