//! The command line.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::run::{Job, Who, run_all};
use crate::scenario::{Figure, Scenario};
use crate::store::Without;
use crate::verdict::Verdict;

#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run {
        scenario: Vec<String>,
        #[arg(long)]
        seed: Option<u64>,
        #[arg(long)]
        seeds: Option<u64>,
        #[arg(long)]
        without: Option<String>,
    },
}

/// Runs the command.
pub fn main() -> ExitCode {
    let Command::Run { scenario, seed, seeds, without } = Cli::parse().command;
    let mut out = io::stdout().lock();
    let without = without.and_then(|name| Without::ALL.into_iter().find(|one| one.name() == name));
    for name in scenario {
        let scenario = match Scenario::load(&name) {
            Ok(scenario) => scenario,
            Err(error) => {
                let _ = writeln!(out, "{error}");
                return ExitCode::FAILURE;
            }
        };
        let seeds: Vec<u64> = match seed {
            Some(seed) => vec![seed],
            None => (1..=seeds.unwrap_or(scenario.seeds)).collect(),
        };
        let jobs: Vec<Job<'_>> = seeds
            .iter()
            .map(|seed| Job { scenario: &scenario, who: Who::Tidegate(without), seed: *seed })
            .collect();
        let verdict = Verdict::new(&scenario, run_all(&jobs, &|| {}));
        let f = |figure| verdict.overall(figure);
        let _ = writeln!(
            out,
            "{:24} over% {:7.2} cells {:7.1} ratio {:.4} false% {:.4} upd/s {:8.1} upd/adm {:.3} lost {} msgs {:.0} calls {:.0}",
            scenario.name,
            f(Figure::OvershootPercent),
            f(Figure::OvershootCells),
            f(Figure::AdmittedRatio),
            f(Figure::FalseDenialsPercent),
            f(Figure::UpdatesPerSecond),
            f(Figure::UpdatesPerAdmitted),
            f(Figure::LostCells),
            verdict.outcomes.iter().map(|o| o.phases[0].cost.messages).sum::<u64>() as f64 / verdict.outcomes.len() as f64 / verdict.outcomes[0].phases[0].seconds,
            verdict.outcomes.iter().map(|o| o.phases[0].cost.calls).sum::<u64>() as f64 / verdict.outcomes.len() as f64 / verdict.outcomes[0].phases[0].seconds,
        );
        for failure in verdict.failures.iter().take(6) {
            let _ = writeln!(out, "  FAIL seed={} {}", failure.seed, failure.text);
        }
    }
    ExitCode::SUCCESS
}
