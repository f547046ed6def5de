//! The command: see `cli.rs` for what it does, `daemon.rs` for what it runs.

use std::process::ExitCode;

fn main() -> ExitCode {
    tidegate::cli::main()
}
