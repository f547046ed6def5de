//! Combines the figures of all seeds of a scenario and compares them with the expectations.

use crate::run::{Phase, RunOutcome};
use crate::scenario::{Figure, FigureBound, Scenario};

/// A figure over all seeds, compared with its bound.
#[derive(Clone, Debug)]
pub struct FigureResult {
    pub figure: Figure,
    pub target: FigureBound,
    /// From when to when, in seconds.
    pub span: (f64, f64),
    /// The value at the scenario's percentile.
    pub value: f64,
    /// The value of the worst seed.
    pub worst: f64,
    pub worst_seed: u64,
}

impl FigureResult {
    pub fn holds(&self) -> bool {
        match self.target {
            FigureBound::AtMost(most) => self.value <= most,
            FigureBound::AtLeast(least) => self.value >= least,
        }
    }
}

/// A broken invariant or expectation, and the seed that shows it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub text: String,
}

/// The verdict on one scenario.
#[derive(Clone, Debug)]
pub struct ScenarioVerdict<'a> {
    pub scenario: &'a Scenario,
    pub outcomes: Vec<RunOutcome>,
    pub results: Vec<FigureResult>,
    pub failures: Vec<Failure>,
}

impl<'a> ScenarioVerdict<'a> {
    pub fn new(scenario: &'a Scenario, outcomes: Vec<RunOutcome>) -> Self {
        let results: Vec<FigureResult> = results(scenario, &outcomes);
        let broken = outcomes.iter().flat_map(|outcome| {
            let seed = outcome.seed;
            outcome.violations.iter().map(move |text| Failure {
                seed,
                text: text.clone(),
            })
        });
        let short = results.iter().filter(|results| !results.holds()).map(|results| {
            let (from, to) = results.span;
            let (name, value, worst) = (results.figure.name(), results.value, results.worst);
            let target = match results.target {
                FigureBound::AtMost(most) => format!("at most {most}"),
                FigureBound::AtLeast(least) => format!("at least {least}"),
            };
            let text = format!(
                "{name} from {from}s to {to}s: {value:.3}, expected {target}; this seed: {worst:.3}"
            );
            Failure {
                seed: results.worst_seed,
                text,
            }
        });
        Self {
            scenario,
            failures: broken.chain(short).collect(),
            results,
            outcomes,
        }
    }

    pub fn holds(&self) -> bool {
        self.failures.is_empty()
    }

    /// A figure of the whole run, at the scenario's percentile.
    pub fn overall(&self, figure: Figure) -> f64 {
        summary(self.scenario, &self.outcomes, figure)
    }
}

/// A figure of the whole run over all seeds, at the scenario's percentile.
pub fn summary(scenario: &Scenario, outcomes: &[RunOutcome], figure: Figure) -> f64 {
    let values = outcomes
        .iter()
        .filter_map(|outcome| Some(value(outcome.phases.first()?, figure)));
    percentile(&mut values.collect::<Vec<f64>>(), scenario.percentile)
}

fn results(scenario: &Scenario, outcomes: &[RunOutcome]) -> Vec<FigureResult> {
    let mut all = Vec::new();
    for (number, expect) in scenario.expect.iter().enumerate() {
        let phases: Vec<(u64, &Phase)> = outcomes
            .iter()
            .filter_map(|outcome| Some((outcome.seed, outcome.phases.get(number + 1)?)))
            .collect();
        for (figure, target) in &expect.figures {
            let mut values: Vec<f64> = phases
                .iter()
                .map(|(_, phase)| value(phase, *figure))
                .collect();
            let further = |a: &f64, b: &f64| match target {
                FigureBound::AtMost(_) => a.total_cmp(b),
                FigureBound::AtLeast(_) => b.total_cmp(a),
            };
            let seeds = phases
                .iter()
                .map(|(seed, _)| *seed)
                .zip(values.iter().copied());
            let worst = seeds
                .max_by(|(_, a), (_, b)| further(a, b))
                .unwrap_or((0, f64::NAN));
            let percent = match target {
                FigureBound::AtMost(_) => scenario.percentile,
                FigureBound::AtLeast(_) => 100.0 - scenario.percentile,
            };
            all.push(FigureResult {
                figure: *figure,
                target: *target,
                span: (expect.from as f64 / 1e9, expect.to as f64 / 1e9),
                value: percentile(&mut values, percent),
                worst: worst.1,
                worst_seed: worst.0,
            });
        }
    }
    all
}

/// The value of a figure in one phase of one run.
pub fn value(phase: &Phase, figure: Figure) -> f64 {
    let (tally, cost) = (&phase.tally, &phase.cost);
    let of = |part: u64, whole: u64| match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    };
    match figure {
        Figure::OvershootPercent => tally.overshoot_percent,
        Figure::OvershootCells => tally.overshoot_cells,
        Figure::AdmittedRatio if tally.exact == 0 && tally.admitted == 0 => 1.0,
        Figure::AdmittedRatio => tally.admitted as f64 / (tally.exact.max(1) as f64),
        Figure::WorstKeyRatio => tally.worst_key_ratio,
        Figure::AdmittedRate => tally.admitted as f64 / phase.seconds,
        Figure::FalseDenialsPercent => of(tally.denied_wrongly, tally.checks) * 100.0,
        Figure::UpdatesPerSecond => cost.updates as f64 / phase.seconds,
        Figure::UpdatesPerAdmitted => of(cost.updates, tally.admitted),
        Figure::LostCells => cost.lost as f64,
    }
}

/// The smallest value that at least `percent` of all values do not exceed.
fn percentile(values: &mut [f64], percent: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::percentile;

    #[test]
    fn a_percentile_is_one_of_the_values() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(percentile(&mut values, 95.0), 95.0);
        assert_eq!(percentile(&mut values, 5.0), 5.0);
        assert_eq!(percentile(&mut values, 0.0), 1.0);
        assert_eq!(percentile(&mut [7.0], 95.0), 7.0);
    }
}
