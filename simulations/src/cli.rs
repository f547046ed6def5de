//! The command line: `tidegate-sim run`, `compare`, `sweep`, `all`, `list`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use crate::baselines::Baseline;
use crate::regressions;
use crate::report::{self, CostPoint, PolicyRow, ReportSection};
use crate::run::{Contender, RunJob, RunOutcome, run_all};
use crate::scenario::{Figure, Scenario, ScenarioError};
use crate::store::Ablation;
use crate::sweep::Parameter;
use crate::verdict::{ScenarioVerdict, summary};

/// The exit statuses for failed expectations and for commands that could not run.
const FAILED: u8 = 1;
const UNUSABLE: u8 = 2;

/// The seeds of a comparison or a sweep, unless an option says otherwise.
const SEEDS: u64 = 20;

/// The least that `--work-max` leaves of the seeds of a scenario.
const SEEDS_MIN: u64 = 2;

/// A fleet of tidegate pods in one thread: how far off is it, and what does it cost?
#[derive(Debug, Parser)]
#[command(
    name = "tidegate-sim",
    version,
    after_help = "A SCENARIO is a file, or the name of one in simulations/scenarios.\n\
                  Exit status: 0 all expectations hold, 1 some do not, 2 it could not be run.\n\n\
                  Example: tidegate-sim compare flash_crowd --html report.html"
)]
struct Cli {
    #[command(subcommand)]
    command: SimCommand,
}

#[derive(Debug, Subcommand)]
enum SimCommand {
    /// Run scenarios and hold them against their expectations
    #[command(after_help = "Example: tidegate-sim run flash_crowd --seed 7")]
    Run {
        #[arg(value_name = "SCENARIO", required = true)]
        scenarios: Vec<String>,
        /// Only this seed
        #[arg(long)]
        seed: Option<u64>,
        #[command(flatten)]
        options: Options,
        /// Leave a part of the algorithm out, to see what it is for
        #[arg(long = "without", value_name = "PART", value_parser = PossibleValuesParser::new(Ablation::ALL.map(Ablation::name)))]
        ablation: Option<String>,
    },
    /// Run a scenario with tidegate and with what others do, on the same checks
    #[command(
        after_help = "Example: tidegate-sim compare overload_20_pods --seeds 100 --html report.html"
    )]
    Compare {
        #[arg(value_name = "SCENARIO", required = true)]
        scenarios: Vec<String>,
        /// Only with these, by commas
        #[arg(long, value_name = "WHOM", value_delimiter = ',', value_parser = PossibleValuesParser::new(Baseline::ALL.map(Baseline::short)))]
        with: Vec<String>,
        #[command(flatten)]
        options: Options,
    },
    /// Run a scenario with several values of one parameter
    #[command(
        after_help = "Example: tidegate-sim sweep overload_20_pods --param accuracy=0.02..0.5"
    )]
    Sweep {
        scenario: String,
        /// accuracy, interval (seconds), rtt (milliseconds), pods or load (times as much): FROM..TO or a,b,c
        #[arg(long, value_name = "NAME=VALUES")]
        param: Parameter,
        #[command(flatten)]
        options: Options,
    },
    /// Run every scenario that comes with the project
    #[command(after_help = "Example: tidegate-sim all --html report.html")]
    All {
        #[command(flatten)]
        options: Options,
        /// Also those that take minutes
        #[arg(long)]
        long: bool,
        /// No more seeds of a scenario than take so many checks, and at least two; a second of a pod counts as a hundred
        #[arg(long, value_name = "CHECKS", value_parser = clap::value_parser!(u64).range(1..))]
        work_max: Option<u64>,
    },
    /// Name every scenario that comes with the project, and say why it is run
    List,
}

#[derive(Args, Debug)]
struct Options {
    /// How many seeds, from 1 on [default: what the scenario says; 20 for compare and sweep]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Write a page with tables and plots to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write each plot as an SVG into this folder
    #[arg(long, value_name = "FOLDER")]
    plots: Option<PathBuf>,
}

/// Why a command could not be carried out.
#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    #[error("cannot write {path}: {source}")]
    Write { path: String, source: io::Error },
    #[error("{0}")]
    Unfit(String),
}

/// Runs the command of this process.
pub fn main() -> ExitCode {
    let mut out = io::stdout().lock();
    match run(Cli::parse().command, &mut out) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FAILED),
        Err(error) => {
            let _ = writeln!(io::stderr(), "tidegate-sim: {error}");
            ExitCode::from(UNUSABLE)
        }
    }
}

fn run(command: SimCommand, out: &mut impl Write) -> Result<bool, CliError> {
    match command {
        SimCommand::Run {
            scenarios,
            seed,
            options,
            ablation,
        } => {
            let scenarios = load(&scenarios)?;
            let ablation =
                ablation.and_then(|name| Ablation::ALL.into_iter().find(|one| one.name() == name));
            let seeds = |scenario: &Scenario| match seed {
                Some(seed) => vec![seed],
                None => (1..=options.seeds.unwrap_or(scenario.seeds)).collect(),
            };
            hold(
                &scenarios,
                Contender::Tidegate(ablation),
                &seeds,
                Output {
                    options: &options,
                    out,
                },
            )
        }
        SimCommand::Compare {
            scenarios,
            with,
            options,
        } => compare(
            &load(&scenarios)?,
            &contenders(&with),
            Output {
                options: &options,
                out,
            },
        ),
        SimCommand::Sweep {
            scenario,
            param,
            options,
        } => sweep(
            &Scenario::load(&scenario)?,
            &param,
            Output {
                options: &options,
                out,
            },
        ),
        SimCommand::All {
            options,
            long,
            work_max,
        } => run_shipped(
            long,
            work_max,
            Output {
                options: &options,
                out,
            },
        ),
        SimCommand::List => {
            for scenario in Scenario::shipped()? {
                say(out, &format!("{:28} {}\n", scenario.name, scenario.why))?;
            }
            Ok(true)
        }
    }
}

/// Tidegate, and the baselines of these names; all of them if there are none.
fn contenders(names: &[String]) -> Vec<Contender> {
    let is_named =
        |one: &Baseline| names.is_empty() || names.iter().any(|name| name == one.short());
    let baselines = Baseline::ALL.into_iter().filter(is_named);
    let baselines = baselines.map(Contender::Baseline);
    [Contender::Tidegate(None)]
        .into_iter()
        .chain(baselines)
        .collect()
}

/// Runs the shipped scenarios over their seeds and the seeds that once failed.
fn run_shipped<W: Write>(
    long: bool,
    work_max: Option<u64>,
    output: Output<'_, W>,
) -> Result<bool, CliError> {
    let mut scenarios = Scenario::shipped()?;
    scenarios.retain(|scenario| long || !scenario.long);
    let options = output.options;
    let seeds = |scenario: &Scenario| {
        let seeds_max = work_max.map_or(u64::MAX, |most| (most / scenario.work()).max(SEEDS_MIN));
        let first = 1..=options.seeds.unwrap_or(scenario.seeds).min(seeds_max);
        first.chain(regressions::of(&scenario.name)).collect()
    };
    hold(&scenarios, Contender::Tidegate(None), &seeds, output)
}

fn load(names: &[String]) -> Result<Vec<Scenario>, CliError> {
    let scenarios = names.iter().map(|name| Scenario::load(name));
    Ok(scenarios.collect::<Result<_, _>>()?)
}

/// The options of a command, and where its text goes.
struct Output<'a, W> {
    options: &'a Options,
    out: &'a mut W,
}

/// Runs every scenario over its seeds and prints whether its expectations hold.
fn hold<W: Write>(
    scenarios: &[Scenario],
    who: Contender,
    seeds: &dyn Fn(&Scenario) -> Vec<u64>,
    output: Output<'_, W>,
) -> Result<bool, CliError> {
    let Output { options, out } = output;
    let jobs: Vec<RunJob<'_>> = scenarios
        .iter()
        .flat_map(|scenario| {
            let seeds = seeds(scenario).into_iter();
            seeds.map(move |seed| RunJob {
                scenario,
                who,
                seed,
            })
        })
        .collect();
    let mut outcomes = with_progress(&jobs).into_iter();
    let verdicts: Vec<ScenarioVerdict<'_>> = scenarios
        .iter()
        .map(|scenario| {
            let count = jobs
                .iter()
                .filter(|job| std::ptr::eq(job.scenario, scenario))
                .count();
            ScenarioVerdict::new(scenario, outcomes.by_ref().take(count).collect())
        })
        .collect();
    say(out, &report::verdicts(&verdicts))?;
    say(out, &report::failures(&verdicts))?;
    let sections = verdicts.iter().map(|verdict| {
        let row = PolicyRow {
            name: who.name(),
            outcomes: verdict.outcomes.clone(),
        };
        ReportSection {
            title: verdict.scenario.name.clone(),
            why: verdict.scenario.why.clone(),
            table: report::verdicts(std::slice::from_ref(verdict)),
            plots: over_time(verdict.scenario, &[row]),
        }
    });
    write_page("tidegate, simulated", sections.collect(), options)?;
    Ok(verdicts.iter().all(ScenarioVerdict::holds))
}

/// Runs scenarios with every contender.
fn compare<W: Write>(
    scenarios: &[Scenario],
    contenders: &[Contender],
    output: Output<'_, W>,
) -> Result<bool, CliError> {
    let Output { options, out } = output;
    let mut sections = Vec::new();
    for scenario in scenarios {
        if scenario.only_limit().is_none() {
            let text =
                "has several rules, or a windowed one: the others are only known for one bucket";
            return Err(CliError::Unfit(format!("{} {text}", scenario.name)));
        }
        let seeds = options.seeds.unwrap_or(SEEDS);
        let jobs: Vec<RunJob<'_>> = contenders
            .iter()
            .flat_map(|who| {
                (1..=seeds).map(|seed| RunJob {
                    scenario,
                    who: *who,
                    seed,
                })
            })
            .collect();
        let mut outcomes = with_progress(&jobs).into_iter();
        let rows: Vec<PolicyRow> = contenders
            .iter()
            .map(|who| PolicyRow {
                name: who.name(),
                outcomes: outcomes
                    .by_ref()
                    .take(usize::try_from(seeds).unwrap_or(usize::MAX))
                    .collect(),
            })
            .collect();
        let table = report::comparison(scenario, &rows);
        say(
            out,
            &format!("## {}\n{}\n\n{table}\n", scenario.name, scenario.why),
        )?;
        let mut plots = over_time(scenario, &rows);
        let points: Vec<CostPoint> = rows
            .iter()
            .map(|row| point(scenario, &row.name, &row.name, &row.outcomes))
            .collect();
        plots.push(report::overshoot_against_cost(
            "Overshoot against what it costs the store",
            &points,
        ));
        sections.push(ReportSection {
            title: scenario.name.clone(),
            why: scenario.why.clone(),
            table,
            plots,
        });
    }
    write_page("tidegate and what others do", sections, options)?;
    Ok(true)
}

/// Runs a scenario with several values of a parameter.
fn sweep<W: Write>(
    scenario: &Scenario,
    parameter: &Parameter,
    output: Output<'_, W>,
) -> Result<bool, CliError> {
    let Output { options, out } = output;
    let variants: Vec<(f64, Scenario)> = parameter
        .values()
        .map(|value| (value, parameter.set(scenario, value)))
        .collect();
    let seeds = options.seeds.unwrap_or(SEEDS);
    let who = Contender::Tidegate(None);
    let jobs: Vec<RunJob<'_>> = variants
        .iter()
        .flat_map(|(_, scenario)| {
            (1..=seeds).map(move |seed| RunJob {
                scenario,
                who,
                seed,
            })
        })
        .collect();
    let mut outcomes = with_progress(&jobs).into_iter();
    let points: Vec<(f64, Vec<RunOutcome>)> = variants
        .iter()
        .map(|(value, _)| {
            let seeds = usize::try_from(seeds).unwrap_or(usize::MAX);
            (*value, outcomes.by_ref().take(seeds).collect())
        })
        .collect();
    let table = report::sweep(scenario, parameter.name(), &points);
    say(out, &table)?;
    let name = parameter.name();
    let dots: Vec<CostPoint> = points
        .iter()
        .map(|(value, outcomes)| point(scenario, "tidegate", &format!("{name} {value}"), outcomes))
        .collect();
    let title = format!(
        "{}: overshoot against what it costs the store",
        scenario.name
    );
    let section = ReportSection {
        title: scenario.name.clone(),
        why: scenario.why.clone(),
        table,
        plots: vec![report::overshoot_against_cost(&title, &dots)],
    };
    write_page(&format!("A sweep of {name}"), vec![section], options)?;
    Ok(true)
}

fn point(scenario: &Scenario, series: &str, label: &str, outcomes: &[RunOutcome]) -> CostPoint {
    let of = |figure| summary(scenario, outcomes, figure);
    CostPoint {
        label: label.to_owned(),
        series: series.to_owned(),
        cost: of(Figure::UpdatesPerSecond),
        overshoot: of(Figure::OvershootPercent),
    }
}

/// The plot of rates, where there is one limit to hold them against.
fn over_time(scenario: &Scenario, rows: &[PolicyRow]) -> Vec<String> {
    let limit = scenario
        .only_limit()
        .filter(|_| scenario.load.iter().all(|load| load.keys == 1));
    let plot = limit.map(|limit| {
        let per_second = limit.requests() as f64 * 1e9 / limit.window().get() as f64;
        report::admitted_over_time(scenario, rows, per_second)
    });
    plot.into_iter().collect()
}

/// Runs all jobs and shows the progress on the terminal.
fn with_progress(jobs: &[RunJob<'_>]) -> Vec<RunOutcome> {
    let bar = ProgressBar::new(jobs.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} runs, {eta} left") {
        bar.set_style(style);
    }
    let outcomes = run_all(jobs, &|| bar.inc(1));
    bar.finish_and_clear();
    outcomes
}

fn write_page(
    title: &str,
    sections: Vec<ReportSection>,
    options: &Options,
) -> Result<(), CliError> {
    if let Some(path) = &options.html {
        write(path, &report::page(title, &sections))?;
    }
    if let Some(folder) = &options.plots {
        for section in &sections {
            for (number, plot) in section.plots.iter().enumerate() {
                let name = match number {
                    0 => format!("{}.svg", section.title),
                    _ => format!("{}_{number}.svg", section.title),
                };
                write(&folder.join(name), plot)?;
            }
        }
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), CliError> {
    std::fs::write(path, text).map_err(|source| CliError::Write {
        path: path.display().to_string(),
        source,
    })
}

fn say(out: &mut impl Write, text: &str) -> Result<(), CliError> {
    out.write_all(text.as_bytes())
        .map_err(|source| CliError::Write {
            path: "to standard output".to_owned(),
            source,
        })
}
