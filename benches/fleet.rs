//! Three real sidecars and a Redis, in every situation that the sync is for, each figure beside its target.
//!
//! A table in Markdown; `SHORT` is a target missed, `UNKNOWN` a figure that the sidecars do not report. Ends
//! with a failure if there is any of either. Within six minutes. `cargo bench --bench fleet -- d:` runs one scenario.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::process::ExitCode;

use tidegate_testing::fleet::figure::FleetFigures;
use tidegate_testing::fleet::scenarios;

type Scenario = fn() -> FleetFigures;

const SCENARIOS: [(&str, Scenario); 8] = [
    ("a:", || scenarios::spread_evenly(30.0)),
    ("b:", || scenarios::spread_unevenly(30.0)),
    ("c:", || scenarios::below_the_limit(30.0)),
    ("d:", || scenarios::low_limit(30.0)),
    ("e:", || scenarios::outage(6.0, 10.0)),
    ("f1:", || scenarios::cost_of_overload(10.0)),
    ("f2:", || scenarios::cost_of_even_use(10.0)),
    ("f3:", || scenarios::cost_of_many_keys(12.0)),
];

fn main() -> ExitCode {
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    println!("| scenario | figure | measured | target | |\n|---|---|---|---|---|");
    let mut short = 0;
    for (name, scenario) in SCENARIOS {
        if only.is_empty() || only.iter().any(|only| only == name) {
            let figures = scenario();
            figures.all.iter().for_each(|figure| println!("{figure}"));
            short += figures
                .all
                .iter()
                .filter(|figure| !figure.is_within(1.0))
                .count();
        }
    }
    match short {
        0 => ExitCode::SUCCESS,
        short => {
            println!("\n{short} figures are short of their target or unknown");
            ExitCode::FAILURE
        }
    }
}
