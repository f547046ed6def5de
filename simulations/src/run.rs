//! One run: a scenario, a policy and a seed. And many of them, side by side.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::baselines::{self, Baseline};
use crate::dice::Dice;
use crate::judge::{Bin, Judge, Tally};
use crate::policy::{Cost, Policy};
use crate::scenario::Scenario;
use crate::store::Without;
use crate::workload::{Arrival, Workload};
use crate::world::World;

/// The stream of random numbers that says what is given back.
const REFUNDS: u64 = 0x4ef0;

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// This project, maybe without a part of it.
    Tidegate(Option<Without>),
    Baseline(Baseline),
}

impl Who {
    pub fn name(self) -> String {
        match self {
            Self::Tidegate(None) => "tidegate".to_owned(),
            Self::Tidegate(Some(without)) => format!("without {}", without.name()),
            Self::Baseline(baseline) => baseline.name().to_owned(),
        }
    }
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub seed: u64,
    /// Of the whole run, then of each expectation: what came of the checks, and what it cost.
    pub phases: Vec<Phase>,
    pub bins: Vec<Bin>,
    /// Invariants that were broken.
    pub violations: Vec<String>,
}

/// Of one span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Phase {
    pub seconds: f64,
    pub tally: Tally,
    pub cost: Cost,
}

/// Runs `scenario` once.
pub fn run(scenario: &Scenario, who: Who, seed: u64) -> Outcome {
    match who {
        Who::Tidegate(without) => drive(scenario, World::new(scenario, seed, without), seed),
        Who::Baseline(baseline) => match scenario.only_limit() {
            Some(limit) => drive(
                scenario,
                baselines::fleet(baseline, scenario, limit, seed),
                seed,
            ),
            None => not_for_baselines(scenario, baseline, seed),
        },
    }
}

/// Baselines know one limit that is not windowed. Who asks for more is told so, and gets no figures.
fn not_for_baselines(scenario: &Scenario, baseline: Baseline, seed: u64) -> Outcome {
    let (name, scenario) = (baseline.name(), &scenario.name);
    Outcome {
        seed,
        phases: Vec::new(),
        bins: Vec::new(),
        violations: vec![format!(
            "{name}: {scenario} has not one limit that it knows"
        )],
    }
}

fn drive<P: Policy>(scenario: &Scenario, mut policy: P, seed: u64) -> Outcome {
    let mut judge = Judge::new(scenario);
    let mut meter = Meter::new(scenario);
    let mut refunds = Refunds::new(scenario, seed);
    for arrival in Workload::new(scenario, seed) {
        refunds.give_back_until(arrival.at, &mut policy, (&mut judge, &mut meter));
        meter.read_until(arrival.at, &mut policy);
        policy.run_until(arrival.at);
        let load = &scenario.load[arrival.load];
        load.ask(arrival.key, arrival.cost, |check| {
            if let Some(allowed) = policy.check(&arrival, check) {
                let exact = judge.decided(arrival.at, check, allowed);
                refunds.draw(&arrival, policy.asked(), (allowed, exact));
            }
        });
    }
    refunds.give_back_until(scenario.lasts, &mut policy, (&mut judge, &mut meter));
    meter.read_until(scenario.ends(), &mut policy);
    policy.run_until(scenario.ends());
    let costs = meter.end(&policy);
    let mut violations = policy.end();
    violations.extend(judge.end());
    let phases = judge.tallies.iter().zip(costs);
    Outcome {
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

/// Cells that clients will give back, the same for every policy as far as it let them pass.
struct Refunds<'a> {
    scenario: &'a Scenario,
    dice: Dice,
    /// By when, and in the order in which they were used.
    planned: BTreeMap<(u64, u64), Used>,
    count: u64,
}

/// A check whose cells are to be given back.
struct Used {
    arrival: Arrival,
    /// Of whom it was asked.
    asked: usize,
    /// Whether the policy and the exact limiter let it pass.
    passed: (bool, bool),
}

impl<'a> Refunds<'a> {
    fn new(scenario: &'a Scenario, seed: u64) -> Self {
        Self {
            scenario,
            dice: Dice::new(seed, REFUNDS),
            planned: BTreeMap::new(),
            count: 0,
        }
    }

    /// Draws whether a check's cells are given back, and when.
    fn draw(&mut self, arrival: &Arrival, asked: usize, passed: (bool, bool)) {
        let Some(refunds) = self.scenario.load[arrival.load].refunds else {
            return;
        };
        let (drawn, after) = (
            self.dice.chance(refunds.part),
            self.dice.around(refunds.after.nanos() as f64),
        );
        if drawn && passed != (false, false) {
            self.count += 1;
            let used = Used {
                arrival: *arrival,
                asked,
                passed,
            };
            self.planned.insert((arrival.at + after, self.count), used);
        }
    }

    fn give_back_until<P: Policy>(
        &mut self,
        end: u64,
        policy: &mut P,
        (judge, meter): (&mut Judge<'_>, &mut Meter),
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
                if used.passed.0 {
                    policy.refund(used.asked, &arrival, check);
                }
                judge.refunded(at, check, used.passed);
            });
        }
    }
}

/// Reads what a policy costs at the start and at the end of each phase.
struct Meter {
    /// When to read next, the soonest last.
    marks: Vec<u64>,
    read: Vec<(u64, Cost)>,
    spans: Vec<(u64, u64)>,
}

impl Meter {
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

    /// Seconds and cost of each span.
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
pub struct Job<'a> {
    pub scenario: &'a Scenario,
    pub who: Who,
    pub seed: u64,
}

/// Runs all `jobs`, as many at a time as there are processors, and answers in their order. `done` is called after each.
pub fn run_all(jobs: &[Job<'_>], done: &(dyn Fn() + Sync)) -> Vec<Outcome> {
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get());
    let next = AtomicUsize::new(0);
    let outcomes: Mutex<Vec<Option<Outcome>>> = Mutex::new(vec![None; jobs.len()]);
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

fn next_job<'a, 'b>(jobs: &'b [Job<'a>], next: &AtomicUsize) -> Option<(usize, &'b Job<'a>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    jobs.get(index).map(|job| (index, job))
}
