//! What all seeds of a scenario say together, and whether that is what was expected.

use crate::run::{Outcome, Phase};
use crate::scenario::{Figure, Scenario, Target};

/// A figure of every seed, and the one that counts.
#[derive(Clone, Debug)]
pub struct Held {
    pub figure: Figure,
    pub target: Target,
    /// Seconds; of the whole run if it is 0 to the end.
    pub span: (f64, f64),
    /// At the scenario's percentile.
    pub value: f64,
    /// Of all seeds, the one that is furthest off.
    pub worst: f64,
    pub worst_seed: u64,
}

impl Held {
    pub fn holds(&self) -> bool {
        match self.target {
            Target::AtMost(most) => self.value <= most,
            Target::AtLeast(least) => self.value >= least,
        }
    }
}

/// Something that must not be, and the seed that shows it.
#[derive(Clone, Debug)]
pub struct Failure {
    pub seed: u64,
    pub text: String,
}

/// The verdict on one scenario.
#[derive(Clone, Debug)]
pub struct Verdict<'a> {
    pub scenario: &'a Scenario,
    pub outcomes: Vec<Outcome>,
    pub held: Vec<Held>,
    pub failures: Vec<Failure>,
}

impl<'a> Verdict<'a> {
    pub fn new(scenario: &'a Scenario, outcomes: Vec<Outcome>) -> Self {
        let held: Vec<Held> = held(scenario, &outcomes);
        let broken = outcomes.iter().flat_map(|outcome| {
            let seed = outcome.seed;
            outcome.violations.iter().map(move |text| Failure {
                seed,
                text: text.clone(),
            })
        });
        let short = held.iter().filter(|held| !held.holds()).map(|held| {
            let (from, to) = held.span;
            let (name, value, worst) = (held.figure.name(), held.value, held.worst);
            let target = match held.target {
                Target::AtMost(most) => format!("at most {most}"),
                Target::AtLeast(least) => format!("at least {least}"),
            };
            let text = format!(
                "{name} from {from}s to {to}s: {value:.3}, expected {target}; this seed: {worst:.3}"
            );
            Failure {
                seed: held.worst_seed,
                text,
            }
        });
        Self {
            scenario,
            failures: broken.chain(short).collect(),
            held,
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
pub fn summary(scenario: &Scenario, outcomes: &[Outcome], figure: Figure) -> f64 {
    let values = outcomes
        .iter()
        .filter_map(|outcome| Some(value(outcome.phases.first()?, figure)));
    percentile(&mut values.collect::<Vec<f64>>(), scenario.percentile)
}

fn held(scenario: &Scenario, outcomes: &[Outcome]) -> Vec<Held> {
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
                Target::AtMost(_) => a.total_cmp(b),
                Target::AtLeast(_) => b.total_cmp(a),
            };
            let seeds = phases
                .iter()
                .map(|(seed, _)| *seed)
                .zip(values.iter().copied());
            let worst = seeds
                .max_by(|(_, a), (_, b)| further(a, b))
                .unwrap_or((0, f64::NAN));
            let percent = match target {
                Target::AtMost(_) => scenario.percentile,
                Target::AtLeast(_) => 100.0 - scenario.percentile,
            };
            all.push(Held {
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

/// What a figure is in one phase of one run.
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

/// The value that `percent` of all are not above.
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
