//! `tidegate-sim`: see `cli.rs`.

use std::process::ExitCode;

fn main() -> ExitCode {
    simulations::cli::main()
}
