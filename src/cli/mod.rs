//! The command line: `run` (the default), `validate`, `check`, `explain`, `health`, `top`.
//!
//! Exit status: 0 stopped on request, allowed, valid or ready; 1 denied, not ready or failed; 2 could not ask; 64 bad
//! command line; 78 bad configuration.

mod check;
mod client;
mod explain;
mod health;
mod top;
mod view;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::ffi::OsString;
use std::fmt;
use std::io::{self, Write};
use std::panic::PanicHookInfo;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use tracing::error;
use tracing::level_filters::LevelFilter;

use crate::daemon;
use crate::reload::Variables;
use crate::telemetry::{self, LogQueue};
use tidegate_config::{self, Config, Environment, LogFormat, LogLevel};

/// The longest wait for the last lines of the log at the end.
const LOG_FLUSH_MAX: Duration = Duration::from_secs(1);

const FAILED: u8 = 1;
const BAD_COMMAND_LINE: u8 = 64;
const BAD_CONFIGURATION: u8 = 78;

/// A rate-limit sidecar: answers "may this pass?" from its own memory
#[derive(Debug, Parser)]
#[command(
    version,
    after_help = "Example: tidegate --config sidecar.yaml\n\n\
    Exit status: 0 stopped on request, 64 bad command line, 78 bad configuration, 1 otherwise."
)]
struct CommandLine {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    run: RunOptions,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run the sidecar (the default)
    #[command(
        after_help = "Example: tidegate run --config sidecar.yaml --log-level debug\n\n\
        SIGTERM drains and ends it, SIGHUP reads the configuration again."
    )]
    Run(RunOptions),
    /// Check configuration files, print every fault, and exit
    #[command(after_help = "Example: tidegate validate sidecar.yaml\n\n\
        Exit status: 0 all are valid (warnings are printed), 78 a fault was found.")]
    Validate {
        /// The files: sidecar.yaml, or a rules file of envoyproxy/ratelimit
        #[arg(value_name = "FILE", required = true)]
        files: Vec<PathBuf>,
    },
    /// Ask a running sidecar whether something may pass
    #[command(
        after_help = "Example: tidegate check api_platform api_key=abc123 --cost 2\n\n\
        Exit status: 0 allowed, 1 denied, 2 could not ask."
    )]
    Check(check::CheckCommand),
    /// Print which rule a check meets, with its key and limit, and why
    #[command(
        after_help = "Example: tidegate explain api_platform api_key=abc123 --config sidecar.yaml"
    )]
    Explain(explain::ExplainCommand),
    /// Ask a running sidecar whether it is ready
    #[command(after_help = "Example: tidegate health --to 127.0.0.1:9464\n\n\
        Exit status: 0 ready (with --live: alive), 1 not ready, 2 could not ask.")]
    Health(health::HealthCommand),
    /// Show what a running sidecar does: rules, rates, denied keys, the store's link, latency
    #[command(after_help = "Example: tidegate top --every 2s\n\n\
        In a terminal it goes on until Ctrl-C. Into a pipe it writes one view, as plain text.\n\
        Exit status: 0 stopped on request, 2 could not ask.")]
    Top(top::TopCommand),
}

#[derive(Clone, Debug, Args)]
struct RunOptions {
    /// The configuration file
    #[arg(
        long,
        env = "TIDEGATE_CONFIG",
        value_name = "FILE",
        default_value = "sidecar.yaml"
    )]
    config: PathBuf,
    /// What to log: trace, debug, info, warn, error or off
    #[arg(long, value_name = "LEVEL", help_heading = "Override the file")]
    log_level: Option<String>,
    /// How to log: text or json
    #[arg(long, value_name = "FORMAT", help_heading = "Override the file")]
    log_format: Option<String>,
    /// What this pod calls itself
    #[arg(long, value_name = "ID", help_heading = "Override the file")]
    pod_id: Option<String>,
    /// Where to listen for checks: host:port or unix:path, comma separated
    #[arg(long, value_name = "ADDRESSES", help_heading = "Override the file")]
    listen_http: Option<String>,
    /// Where to listen for metrics and health
    #[arg(long, value_name = "ADDRESSES", help_heading = "Override the file")]
    listen_metrics: Option<String>,
    /// Where to listen for the admin API
    #[arg(long, value_name = "ADDRESSES", help_heading = "Override the file")]
    listen_admin: Option<String>,
}

impl RunOptions {
    /// Variables for the configuration: a flag beats the environment.
    fn variables(&self) -> Variables {
        let flags = [
            ("TIDEGATE_LOG_LEVEL", self.log_level.clone()),
            ("TIDEGATE_LOG_FORMAT", self.log_format.clone()),
            ("TIDEGATE_POD_ID", self.pod_id.clone()),
            ("TIDEGATE_LISTEN_HTTP", self.listen_http.clone()),
            ("TIDEGATE_LISTEN_METRICS", self.listen_metrics.clone()),
            ("TIDEGATE_LISTEN_ADMIN", self.listen_admin.clone()),
        ];
        Box::new(move |name| {
            let flag = flags
                .iter()
                .find(|(variable, _)| *variable == name)
                .and_then(|(_, value)| value.clone());
            flag.or_else(|| variable(name))
        })
    }
}

/// An environment variable of this process.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value: OsString| value.to_string_lossy().into_owned())
}

/// Executes the command line.
pub fn main() -> ExitCode {
    let command = match CommandLine::try_parse() {
        Ok(command) => command,
        Err(error) => {
            // If the stream is closed, there is nobody to read the text.
            let _ = error.print();
            return if error.use_stderr() {
                ExitCode::from(BAD_COMMAND_LINE)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    match command.action {
        None => run(&command.run),
        Some(Action::Run(options)) => run(&options),
        Some(Action::Validate { files }) => validate(&files),
        Some(Action::Check(check)) => check.run(),
        Some(Action::Explain(explain)) => explain.run(),
        Some(Action::Health(health)) => health.run(),
        Some(Action::Top(top)) => top.run(),
    }
}

fn run(options: &RunOptions) -> ExitCode {
    let variables = options.variables();
    let config = match load(&options.config, &*variables) {
        Some(config) if startable(&options.config, &config) => config,
        Some(_) | None => return ExitCode::from(BAD_CONFIGURATION),
    };
    let log = match start_logging(&config) {
        Ok(log) => log,
        Err(error) => {
            complain(format_args!("tidegate: {}", with_causes(&error)));
            return ExitCode::from(FAILED);
        }
    };
    let done = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(daemon::DaemonError::Process)
        .and_then(|runtime| {
            let done = runtime.block_on(daemon::run(options.config.clone(), config, variables));
            // A connection that is open after the drain does not delay the end.
            runtime.shutdown_background();
            done
        });
    log.flush(LOG_FLUSH_MAX);
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("tidegate: {}", with_causes(&error)));
            ExitCode::from(match error.is_of_configuration() {
                true => BAD_CONFIGURATION,
                false => FAILED,
            })
        }
    }
}

/// Loads the configuration, or prints its faults to standard error.
fn load(path: &Path, variables: &Environment<'_>) -> Option<Config> {
    tidegate_config::load(path, variables)
        .inspect_err(|faults| complain(format_args!("{faults}")))
        .ok()
}

/// Whether a sidecar can start with the files that a valid configuration names. Prints what is wrong to standard error.
fn startable(path: &Path, config: &Config) -> bool {
    let faults = daemon::faults(config);
    for fault in &faults {
        complain(format_args!("{}: {}", path.display(), with_causes(fault)));
    }
    faults.is_empty()
}

fn validate(files: &[PathBuf]) -> ExitCode {
    // Every file is checked, also after one with faults.
    let all_valid = files.iter().filter(|file| is_valid(file)).count() == files.len();
    if all_valid {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(BAD_CONFIGURATION)
    }
}

/// Whether a sidecar could start with this file. A file with a secret may only exist where the sidecar runs: if it is
/// missing here, that is a warning.
fn is_valid(file: &Path) -> bool {
    let Some(config) = load(file, &variable) else {
        return false;
    };
    let (absent, faults): (Vec<_>, Vec<_>) = daemon::faults(&config)
        .into_iter()
        .partition(daemon::DaemonError::is_of_absent_file);
    for fault in &faults {
        complain(format_args!("{}: {}", file.display(), with_causes(fault)));
    }
    if !faults.is_empty() {
        return false;
    }
    for absent in &absent {
        let (file, text) = (file.display(), with_causes(absent));
        complain(format_args!("warning: {file}: {text}: run would end here"));
    }
    for warning in &config.warnings {
        complain(format_args!("warning: {warning}"));
    }
    let rules = config.rules.all().len();
    say(format_args!("{}: ok, {rules} rules", file.display()));
    true
}

/// Starts the log that the configuration describes. Panics go to the log too.
fn start_logging(config: &Config) -> io::Result<LogQueue> {
    let level = match config.log.level {
        LogLevel::Trace => LevelFilter::TRACE,
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
        LogLevel::Off => LevelFilter::OFF,
    };
    let queue = LogQueue::to_stdout()?;
    let lines = queue.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || lines.clone())
        .with_max_level(level)
        .with_target(false);
    match config.log.format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stdout());
            subscriber.with_ansi(colours).init();
        }
        LogFormat::Json => subscriber.json().flatten_event(true).init(),
    }
    std::panic::set_hook(Box::new(log_panic));
    Ok(queue)
}

/// Counts and logs a panic. The hook of the standard library would wait for the reader of standard error.
fn log_panic(panic: &PanicHookInfo<'_>) {
    telemetry::panicked();
    let trace = Backtrace::capture();
    let trace = matches!(trace.status(), BacktraceStatus::Captured).then(|| trace.to_string());
    let (thread, fault) = (thread::current(), panic.to_string().replace('\n', " "));
    let thread = thread.name().unwrap_or_default();
    error!(fault, thread, trace, "a task panicked");
}

/// Prints a line to standard output. A failure is ignored: the result of a command is its exit status.
fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stdout(), "{text}");
}

/// Prints a line to standard error, as [`say`] does to standard output.
fn complain(text: fmt::Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// `text` with U+FFFD in place of every character that a terminal would execute, or that changes the direction of
/// the text after it.
fn printable(text: &str) -> String {
    let acts = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.replace(acts, "\u{fffd}")
}

/// An error and its causes, on one line.
fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

/// `key=value` on the command line.
#[derive(Clone, Debug)]
struct EntryArgument {
    key: String,
    value: String,
}

impl std::str::FromStr for EntryArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Self {
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            Some(_) | None => Err("must be key=value".to_owned()),
        }
    }
}
