//! The command: see `cli.rs` for what it does, `daemon.rs` for what it runs.

use std::process::ExitCode;

#[cfg(feature = "loom")]
compile_error!(
    "the feature `loom` is for the models alone: build without it, or without --workspace"
);

fn main() -> ExitCode {
    tidegate::cli::main()
}
