//! The command: `cli` says what it does, `daemon` what it runs.

use std::process::ExitCode;

const _: () = assert!(
    !tidegate_core::IS_MODEL,
    "the feature `loom` of tidegate-core is for tests/loom alone: build without --workspace"
);

fn main() -> ExitCode {
    tidegate::cli::main()
}
