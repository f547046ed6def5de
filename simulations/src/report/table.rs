//! Tables of figures, and the lines that report failures.
//!
//! A figure is of the whole run, at the scenario's percentile of all seeds, unless a table says otherwise.

use crate::run::{Phase, RunOutcome};
use crate::scenario::{Figure, FigureBound, Scenario};
use crate::verdict::{FigureResult, ScenarioVerdict, summary};

use super::markdown::{MarkdownTable, Side};

/// The most failures that are shown of one scenario.
const FAILURES_MAX: usize = 3;
/// If the exact limiter denies less than this part of the checks, a denial of the fleet can be called false. If it
/// denies more, the fleet and the exact limiter deny different checks, but as many.
const EXACT_DENIALS_MAX: f64 = 0.01;
/// The note below the verdicts.
const NOTE: &str = "Overshoot in % of the burst. Figures are of the whole run, at the scenario's percentile of its \
                    seeds. Where the exact limiter denies 1 % or more, no denial is called false.";
/// The cell of a figure that has no meaning.
const NOTHING: &str = "–";

/// The outcomes of one policy.
#[derive(Clone, Debug)]
pub struct PolicyRow {
    pub name: String,
    pub outcomes: Vec<RunOutcome>,
}

/// The figures of every scenario, and below that the result of each expectation.
pub fn verdicts(verdicts: &[ScenarioVerdict<'_>]) -> String {
    let mut table = MarkdownTable::new(&[
        ("scenario", Side::Left),
        ("pods", Side::Right),
        ("overshoot %", Side::Right),
        ("cells over", Side::Right),
        ("admitted/exact", Side::Right),
        ("false denials %", Side::Right),
        ("updates/s", Side::Right),
        ("seeds", Side::Right),
        ("verdict", Side::Left),
    ]);
    for verdict in verdicts {
        let (scenario, outcomes) = (verdict.scenario, &verdict.outcomes);
        let figure = |figure| shown(figure, verdict.overall(figure));
        table.rows.push(vec![
            scenario.name.clone(),
            scenario.pods.to_string(),
            figure(Figure::OvershootPercent),
            figure(Figure::OvershootCells),
            figure(Figure::AdmittedRatio),
            false_denials(scenario, outcomes),
            figure(Figure::UpdatesPerSecond),
            outcomes.len().to_string(),
            judged(verdict.holds()),
        ]);
    }
    let expectations = expectations(verdicts);
    let mut text = format!("{}\n{NOTE}\n", table.markdown());
    if !expectations.rows.is_empty() {
        text.push_str(&format!("\n{}", expectations.markdown()));
    }
    text
}

fn expectations(verdicts: &[ScenarioVerdict<'_>]) -> MarkdownTable {
    let mut table = MarkdownTable::new(&[
        ("scenario", Side::Left),
        ("figure", Side::Left),
        ("from – to", Side::Right),
        ("of seeds", Side::Right),
        ("measured", Side::Right),
        ("worst", Side::Right),
        ("its seed", Side::Right),
        ("target", Side::Right),
        ("verdict", Side::Left),
    ]);
    for verdict in verdicts {
        let rows = verdict
            .results
            .iter()
            .map(|result| expectation(verdict.scenario, result));
        table.rows.extend(rows);
    }
    table
}

fn expectation(scenario: &Scenario, result: &FigureResult) -> Vec<String> {
    let (percent, target) = match result.target {
        FigureBound::AtMost(most) => (scenario.percentile, format!("≤ {most}")),
        FigureBound::AtLeast(least) => (100.0 - scenario.percentile, format!("≥ {least}")),
    };
    let (from, to) = result.span;
    vec![
        scenario.name.clone(),
        result.figure.name().to_owned(),
        format!("{from} – {to} s"),
        format!("p{percent}"),
        shown(result.figure, result.value),
        shown(result.figure, result.worst),
        result.worst_seed.to_string(),
        target,
        judged(result.holds()),
    ]
}

/// A line for each failure: what is wrong, and the command that repeats it.
pub fn failures(verdicts: &[ScenarioVerdict<'_>]) -> String {
    let mut text = String::new();
    for verdict in verdicts {
        let name = &verdict.scenario.name;
        for failure in verdict.failures.iter().take(FAILURES_MAX) {
            let (seed, what) = (failure.seed, &failure.text);
            let again = format!("cargo run --release -p simulations -- run {name} --seed {seed}");
            text.push_str(&format!("FAIL {name} seed={seed} {what}; again: {again}\n"));
        }
        let more = verdict.failures.len().saturating_sub(FAILURES_MAX);
        if more > 0 {
            text.push_str(&format!("... and {more} more\n"));
        }
    }
    text
}

/// The figures of all policies for the same checks.
pub fn comparison(scenario: &Scenario, rows: &[PolicyRow]) -> String {
    let rows = rows
        .iter()
        .map(|row| (row.name.clone(), row.outcomes.as_slice()));
    costs(scenario, ("policy", Side::Left), rows)
}

/// The figures for each value of `parameter`.
pub fn sweep(scenario: &Scenario, parameter: &str, points: &[(f64, Vec<RunOutcome>)]) -> String {
    let rows = points
        .iter()
        .map(|(value, outcomes)| (value.to_string(), outcomes.as_slice()));
    costs(scenario, (parameter, Side::Right), rows)
}

fn costs<'a>(
    scenario: &Scenario,
    first: (&str, Side),
    rows: impl Iterator<Item = (String, &'a [RunOutcome])>,
) -> String {
    let mut table = MarkdownTable::new(&[
        first,
        ("overshoot %", Side::Right),
        ("admitted/exact", Side::Right),
        ("false denials %", Side::Right),
        ("updates/s", Side::Right),
        ("messages/s", Side::Right),
        ("checks that wait %", Side::Right),
    ]);
    let mut seeds = 0;
    for (name, outcomes) in rows {
        seeds = seeds.max(outcomes.len());
        let figure = |figure| shown(figure, summary(scenario, outcomes, figure));
        let messages = mean(outcomes, |phase| phase.cost.messages as f64 / phase.seconds);
        let waits = mean(outcomes, |phase| {
            part(phase.cost.waits, phase.tally.checks) * 100.0
        });
        table.rows.push(vec![
            name,
            figure(Figure::OvershootPercent),
            figure(Figure::AdmittedRatio),
            false_denials(scenario, outcomes),
            figure(Figure::UpdatesPerSecond),
            fixed(messages, 1),
            fixed(waits, 2),
        ]);
    }
    let (name, pods, percent) = (&scenario.name, scenario.pods, scenario.percentile);
    let seeds = match seeds {
        1 => "1 seed".to_owned(),
        _ => format!("p{percent} of {seeds} seeds, of messages and waits their average"),
    };
    let note = format!("{name}, {pods} pods: {seeds}. Overshoot in % of the burst.");
    format!("{}\n{note}\n", table.markdown())
}

/// How many checks the fleet denied that the exact limiter allows, if that has a meaning.
fn false_denials(scenario: &Scenario, outcomes: &[RunOutcome]) -> String {
    let phases = outcomes.iter().filter_map(|outcome| outcome.phases.first());
    let (mut asked, mut denied) = (0, 0);
    for Phase { tally, .. } in phases {
        asked += tally.asked;
        denied += tally.asked.saturating_sub(tally.exact);
    }
    match part(denied, asked) < EXACT_DENIALS_MAX {
        true => shown(
            Figure::FalseDenialsPercent,
            summary(scenario, outcomes, Figure::FalseDenialsPercent),
        ),
        false => NOTHING.to_owned(),
    }
}

fn part(part: u64, whole: u64) -> f64 {
    match whole {
        0 => 0.0,
        _ => part as f64 / whole as f64,
    }
}

/// The mean of the whole runs of all seeds.
fn mean(outcomes: &[RunOutcome], of: impl Fn(&Phase) -> f64) -> f64 {
    let phases = outcomes.iter().filter_map(|outcome| outcome.phases.first());
    phases.map(of).sum::<f64>() / outcomes.len() as f64
}

fn judged(holds: bool) -> String {
    if holds { "holds" } else { "FAILS" }.to_owned()
}

/// A figure with the number of decimals that it needs.
fn shown(figure: Figure, value: f64) -> String {
    let decimals = match figure {
        Figure::LostCells => 0,
        Figure::OvershootCells | Figure::AdmittedRate | Figure::UpdatesPerSecond => 1,
        Figure::OvershootPercent => 2,
        Figure::FalseDenialsPercent | Figure::UpdatesPerAdmitted => 3,
        Figure::AdmittedRatio | Figure::WorstKeyRatio => 4,
    };
    fixed(value, decimals)
}

fn fixed(value: f64, decimals: usize) -> String {
    match value.is_finite() {
        true => format!("{value:.decimals$}"),
        false => NOTHING.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{comparison, failures, sweep, verdicts};
    use crate::report::samples::{outcome, row, scenario};
    use crate::verdict::{Failure, ScenarioVerdict};

    /// All lines of a table are as wide as its head.
    fn check_aligned(text: &str) {
        for table in text.split("\n\n").filter(|part| part.starts_with('|')) {
            let mut widths = table.lines().map(|line| line.chars().count());
            let first = widths.next();
            assert!(widths.all(|width| Some(width) == first), "{table}");
        }
    }

    #[test]
    fn verdicts_tell_every_figure() {
        let scenario = scenario();
        let both = [
            ScenarioVerdict::new(&scenario, vec![outcome(1, 100), outcome(2, 104)]),
            ScenarioVerdict::new(&scenario, vec![outcome(1, 1_500)]),
        ];
        let text = verdicts(&both);
        check_aligned(&text);
        let rows: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("| sample"))
            .collect();
        assert_eq!(
            rows,
            [
                "| sample   |   20 |        4.00 |       40.0 |         1.0400 |               – |     250.0 |     2 | holds   |",
                "| sample   |   20 |     1400.00 |    14000.0 |        15.0000 |               – |     250.0 |     1 | FAILS   |",
                "| sample   | overshoot_percent |  0 – 25 s |      p95 |     4.00 |    4.00 |        2 |   ≤ 10 | holds   |",
                "| sample   | overshoot_percent |  0 – 25 s |      p95 |  1400.00 | 1400.00 |        1 |   ≤ 10 | FAILS   |",
            ]
        );
    }

    #[test]
    fn a_denial_is_false_only_where_there_are_few() {
        let scenario = scenario();
        let calm = |exact: u64| {
            let mut one = outcome(1, 100);
            let tally = &mut one.phases[0].tally;
            (tally.asked, tally.exact) = (1_000, exact);
            (tally.checks, tally.denied_wrongly) = (1_000, 3);
            verdicts(&[ScenarioVerdict::new(&scenario, vec![one])])
        };
        assert!(calm(991).contains(" 0.300 "));
        assert!(!calm(990).contains(" 0.300 "));
    }

    #[test]
    fn a_failure_says_what_to_type() {
        let scenario = scenario();
        let mut verdict = ScenarioVerdict::new(&scenario, vec![outcome(7, 100)]);
        let failure = |seed| Failure {
            seed,
            text: "t=0.1s bound: too many".to_owned(),
        };
        verdict.failures = vec![failure(7)];
        let expected = "FAIL sample seed=7 t=0.1s bound: too many; \
                        again: cargo run --release -p simulations -- run sample --seed 7\n";
        assert_eq!(failures(&[verdict.clone()]), expected);
        verdict.failures = (1..=5).map(failure).collect();
        let text = failures(&[verdict.clone()]);
        assert_eq!(text.matches("FAIL ").count(), 3);
        assert!(text.ends_with("\n... and 2 more\n"));
        verdict.failures.clear();
        assert_eq!(failures(&[verdict]), "");
    }

    #[test]
    fn policies_are_compared_in_their_order() {
        let text = comparison(&scenario(), &[row("tidegate", 100), row("per-pod", 1_500)]);
        check_aligned(&text);
        let rows: Vec<&str> = text.lines().skip(2).take(2).collect();
        assert_eq!(
            rows,
            [
                "| tidegate |        0.00 |         1.0000 |               – |     250.0 |      700.0 |               5.00 |",
                "| per-pod  |     1400.00 |        15.0000 |               – |     250.0 |      700.0 |               5.00 |",
            ]
        );
        assert!(text.ends_with("\n\nsample, 20 pods: 1 seed. Overshoot in % of the burst.\n"));
    }

    #[test]
    fn a_sweep_has_a_row_for_each_value() {
        let points = [
            (0.05, vec![outcome(1, 100)]),
            (1.0, vec![outcome(1, 104), outcome(2, 100)]),
        ];
        let text = sweep(&scenario(), "accuracy", &points);
        check_aligned(&text);
        assert!(text.starts_with("| accuracy |"));
        assert!(text.contains("\n|     0.05 |        0.00 |"));
        assert!(text.contains("\n|        1 |        4.00 |"));
        assert!(text.contains("p95 of 2 seeds"));
    }

    #[test]
    fn without_a_seed_there_is_nothing_to_say() {
        let text = sweep(&scenario(), "accuracy", &[(1.0, Vec::new())]);
        check_aligned(&text);
        assert!(!text.contains("NaN"));
    }
}
