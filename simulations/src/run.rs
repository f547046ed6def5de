//! Runs a scenario with a policy and a seed, and many such runs in parallel.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::baselines::{self, Baseline};
use crate::judge::{Bin, CheckDecisions, Judge, Tally};
use crate::policy::{Cost, Policy};
use crate::random::SeededRandom;
use crate::scenario::Scenario;
use crate::store::Ablation;
use crate::workload::{Arrival, Workload};
use crate::world::World;

/// The random stream for refunds.
const REFUNDS: u64 = 0x4ef0;

/// The limiter that decides in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contender {
    /// This project, possibly without a part of its algorithm.
    Tidegate(Option<Ablation>),
    Baseline(Baseline),
}

impl Contender {
    pub fn name(self) -> String {
        match self {
            Self::Tidegate(None) => "tidegate".to_owned(),
            Self::Tidegate(Some(ablation)) => format!("without {}", ablation.name()),
            Self::Baseline(baseline) => baseline.name().to_owned(),
        }
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct RunOutcome {
    pub seed: u64,
    /// The whole run, then each expectation's span: the decisions and their cost.
    pub phases: Vec<Phase>,
    pub bins: Vec<Bin>,
    /// The broken invariants.
    pub violations: Vec<String>,
}

/// The decisions and the cost of one span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub seconds: f64,
    pub tally: Tally,
    pub cost: Cost,
}

/// Runs `scenario` once.
pub fn run(scenario: &Scenario, who: Contender, seed: u64) -> RunOutcome {
    match who {
        Contender::Tidegate(ablation) => {
            drive(scenario, World::new(scenario, seed, ablation), seed)
        }
        Contender::Baseline(baseline) => match scenario.only_limit() {
            Some(limit) => drive(
                scenario,
                baselines::fleet(baseline, scenario, limit, seed),
                seed,
            ),
            None => not_for_baselines(scenario, baseline, seed),
        },
    }
}

/// Baselines support one limit that is not windowed. Any other scenario is a violation, without figures.
fn not_for_baselines(scenario: &Scenario, baseline: Baseline, seed: u64) -> RunOutcome {
    let (name, scenario) = (baseline.name(), &scenario.name);
    RunOutcome {
        seed,
        phases: Vec::new(),
        bins: Vec::new(),
        violations: vec![format!(
            "{name}: {scenario} has not one limit that it knows"
        )],
    }
}

fn drive<P: Policy>(scenario: &Scenario, mut policy: P, seed: u64) -> RunOutcome {
    let mut judge = Judge::new(scenario);
    let mut meter = CostMeter::new(scenario);
    let mut refunds = PlannedRefunds::new(scenario, seed);
    for arrival in Workload::new(scenario, seed) {
        refunds.apply_until(arrival.at, &mut policy, &mut judge, &mut meter);
        meter.read_until(arrival.at, &mut policy);
        policy.run_until(arrival.at);
        let load = &scenario.load[arrival.load];
        load.ask(arrival.key, arrival.cost, |check| {
            if let Some(allowed) = policy.check(&arrival, check) {
                let exact = judge.decided(arrival.at, check, allowed);
                refunds.draw(
                    &arrival,
                    policy.last_pod(),
                    CheckDecisions { allowed, exact },
                );
            }
        });
    }
    refunds.apply_until(scenario.lasts, &mut policy, &mut judge, &mut meter);
    meter.read_until(scenario.ends(), &mut policy);
    policy.run_until(scenario.ends());
    let costs = meter.end(&policy);
    let mut violations = policy.end();
    violations.extend(judge.end());
    let phases = judge.tallies.iter().zip(costs);
    RunOutcome {
        seed,
        phases: phases
            .map(|(tally, (seconds, cost))| Phase {
                seconds,
                tally: *tally,
                cost,
            })
            .collect(),
        bins: judge.bins,
        violations,
    }
}

/// The refunds that clients will make: the same for every policy, for the checks that it allowed.
struct PlannedRefunds<'a> {
    scenario: &'a Scenario,
    random: SeededRandom,
    /// By time, then in the order of the checks.
    planned: BTreeMap<(u64, u64), UsedCheck>,
    count: u64,
}

/// A check whose cells will be refunded.
struct UsedCheck {
    arrival: Arrival,
    /// The pod that decided it.
    pod: usize,
    decisions: CheckDecisions,
}

impl<'a> PlannedRefunds<'a> {
    fn new(scenario: &'a Scenario, seed: u64) -> Self {
        Self {
            scenario,
            random: SeededRandom::new(seed, REFUNDS),
            planned: BTreeMap::new(),
            count: 0,
        }
    }

    /// Draws whether a check's cells are refunded, and when.
    fn draw(&mut self, arrival: &Arrival, pod: usize, decisions: CheckDecisions) {
        let Some(refunds) = self.scenario.load[arrival.load].refunds else {
            return;
        };
        let (drawn, after) = (
            self.random.chance(refunds.part),
            self.random.around(refunds.after.nanos() as f64),
        );
        if drawn && (decisions.allowed || decisions.exact) {
            self.count += 1;
            let used = UsedCheck {
                arrival: *arrival,
                pod,
                decisions,
            };
            self.planned.insert((arrival.at + after, self.count), used);
        }
    }

    /// Applies every refund that is due until `end`.
    fn apply_until<P: Policy>(
        &mut self,
        end: u64,
        policy: &mut P,
        judge: &mut Judge<'_>,
        meter: &mut CostMeter,
    ) {
        while let Some(next) = self.planned.first_entry()
            && next.key().0 <= end
        {
            let ((at, _), used) = next.remove_entry();
            meter.read_until(at, policy);
            policy.run_until(at);
            let arrival = Arrival { at, ..used.arrival };
            let load = &self.scenario.load[arrival.load];
            load.refund(arrival.key, arrival.cost, |check| {
                if used.decisions.allowed {
                    policy.refund(used.pod, &arrival, check);
                }
                judge.refunded(at, check, used.decisions);
            });
        }
    }
}

/// Reads the cost of a policy at the start and at the end of each phase.
struct CostMeter {
    /// The times to read, the soonest last.
    marks: Vec<u64>,
    read: Vec<(u64, Cost)>,
    spans: Vec<(u64, u64)>,
}

impl CostMeter {
    fn new(scenario: &Scenario) -> Self {
        let ends = scenario.ends();
        let phases = scenario
            .expect
            .iter()
            .map(|one| (one.from.min(ends), one.to.min(ends)));
        let spans: Vec<(u64, u64)> = std::iter::once((0, ends)).chain(phases).collect();
        let mut marks: Vec<u64> = spans.iter().flat_map(|(from, to)| [*from, *to]).collect();
        marks.sort_unstable();
        marks.dedup();
        marks.reverse();
        Self {
            marks,
            read: Vec::new(),
            spans,
        }
    }

    fn read_until<P: Policy>(&mut self, at: u64, policy: &mut P) {
        while let Some(mark) = self.marks.pop_if(|mark| *mark <= at) {
            policy.run_until(mark);
            self.read.push((mark, policy.cost()));
        }
    }

    /// The seconds and the cost of each span.
    fn end<P: Policy>(&self, policy: &P) -> Vec<(f64, Cost)> {
        let last = policy.cost();
        let at = |mark: u64| {
            let read = self.read.iter().find(|(at, _)| *at == mark);
            read.map_or(last, |(_, cost)| *cost)
        };
        let spans = self.spans.iter();
        spans
            .map(|(from, to)| {
                let seconds = to.saturating_sub(*from) as f64 / 1e9;
                (seconds, at(*to).since(&at(*from)))
            })
            .collect()
    }
}

/// A job for [`run_all`].
#[derive(Clone, Copy, Debug)]
pub struct RunJob<'a> {
    pub scenario: &'a Scenario,
    pub who: Contender,
    pub seed: u64,
}

/// Runs all `jobs`, as many at a time as there are processors. The results are in the order of the jobs. It calls `done`
/// after each.
pub fn run_all(jobs: &[RunJob<'_>], done: &(dyn Fn() + Sync)) -> Vec<RunOutcome> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<RunOutcome>>> = Mutex::new(vec![None; jobs.len()]);
    thread::scope(|scope| {
        for _ in 0..threads.min(jobs.len()) {
            scope.spawn(|| {
                while let Some((index, job)) = next_job(jobs, &next) {
                    let outcome = run(job.scenario, job.who, job.seed);
                    if let Ok(mut outcomes) = outcomes.lock() {
                        outcomes[index] = Some(outcome);
                    }
                    done();
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.into_iter().flatten().collect()
}

fn next_job<'a, 'b>(jobs: &'b [RunJob<'a>], next: &AtomicUsize) -> Option<(usize, &'b RunJob<'a>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}
