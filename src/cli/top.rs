//! `tidegate top`: what a running sidecar does, anew every second. Into a pipe it writes one view, as plain text.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use hyper::StatusCode;
use serde_json::Value;
use terminal_size::{Height, Width, terminal_size_of};
use tokio::time::MissedTickBehavior;

use super::client::{Fault, Question};
use super::view::{Line, Reading, Size, Tone, view};
use super::{complain, printable, with_causes};
use tidegate_config::Address;

const COULD_NOT_ASK: u8 = 2;
/// Less would measure the asking.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// What a pipe is given.
const PIPE: Size = Size {
    columns: 120,
    lines: 60,
};
/// More than fit on a screen. Whatever clients call themselves, it is far below what [`Question`] takes for an answer.
const TOP: &str = "/admin/v1/top?rules=100&keys=12";

#[derive(Debug, Args)]
pub struct Top {
    /// Where the sidecar listens for the admin API: host:port or unix:path
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_ADMIN_TO",
        default_value = "127.0.0.1:7601"
    )]
    to: Address,
    /// The file that holds the admin token, where there is one
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// How often to look
    #[arg(long, value_name = "LENGTH", default_value = "1s", value_parser = every)]
    every: Duration,
    /// How many views to show; without end in a terminal, one into a pipe
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<u64>::new().range(1..))]
    count: Option<u64>,
}

fn every(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(every) if every >= EVERY_MIN => Ok(every),
        Ok(_) | Err(_) => Err("must be a length such as 2s, at least 100ms".to_owned()),
    }
}

impl Top {
    /// Looks until it is stopped, or has shown as many views as it should.
    pub fn run(&self) -> ExitCode {
        let looked = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Fault::from)
            .and_then(|runtime| {
                runtime.block_on(async {
                    tokio::select! {
                        looked = self.look() => looked,
                        _ = tokio::signal::ctrl_c() => Ok(()),
                    }
                })
            });
        match looked {
            Ok(()) => ExitCode::SUCCESS,
            Err(fault) => {
                complain(format_args!(
                    "tidegate: ask {}: {}",
                    self.to,
                    with_causes(&*fault)
                ));
                ExitCode::from(COULD_NOT_ASK)
            }
        }
    }

    async fn look(&self) -> Result<(), Fault> {
        let live = io::stdout().is_terminal();
        let mut left = self.count.or((!live).then_some(1));
        let mut turn = tokio::time::interval(self.every);
        // Rates are of the time between two readings: one that came late is not made up for.
        turn.set_missed_tick_behavior(MissedTickBehavior::Delay);
        turn.tick().await;
        let mut before = self.read().await?;
        while left != Some(0) {
            turn.tick().await;
            let lines = match self.read().await {
                Ok(now) => {
                    let lines = view(&now, &before, size(live));
                    before = now;
                    lines
                }
                // In a terminal somebody may be waiting for it to come back.
                Err(fault) if live => {
                    let why = printable(&with_causes(&*fault));
                    vec![Line {
                        text: format!("{} does not answer: {why}", self.to),
                        tone: Tone::Waker,
                    }]
                }
                Err(fault) => return Err(fault),
            };
            match show(&lines, live) {
                // Whoever read it has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                shown => shown?,
            }
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    async fn read(&self) -> Result<Reading, Fault> {
        Ok(Reading {
            status: self.page("/admin/v1/status").await?,
            top: self.page(TOP).await?,
        })
    }

    async fn page(&self, path: &str) -> Result<Value, Fault> {
        let token = match &self.token_file {
            Some(file) => {
                let read = std::fs::read_to_string(file);
                let text = read.map_err(|error| format!("read {}: {error}", file.display()))?;
                Some(text.trim().to_owned())
            }
            None => None,
        };
        let question = Question {
            token: token.as_deref(),
            ..Question::get(path)
        };
        let answer = question.send(&self.to).await?;
        match answer.status {
            StatusCode::OK => Ok(serde_json::from_slice(&answer.body)?),
            StatusCode::UNAUTHORIZED => Err("it wants a token: give --token-file".into()),
            status => Err(format!("{path} answered {status}").into()),
        }
    }
}

fn size(live: bool) -> Size {
    match terminal_size_of(io::stdout()) {
        Some((Width(columns), Height(lines))) if live => Size {
            columns: columns.into(),
            // The cursor stands on the last one.
            lines: usize::from(lines).saturating_sub(1),
        },
        Some(_) | None => PIPE,
    }
}

fn show(lines: &[Line], live: bool) -> io::Result<()> {
    let mut text = String::new();
    if live {
        // From the first corner on, over what was there: clearing first would flicker. A line that is wider than it
        // seems, by letters of two columns, is cut and not wrapped.
        text.push_str("\x1b[?7l\x1b[H");
    }
    for line in lines {
        match (live, line.tone) {
            (false, _) => text.push_str(&line.text),
            (true, Tone::Plain) => text.push_str(&format!("{}\x1b[K", line.text)),
            (true, Tone::Head) => text.push_str(&format!("\x1b[1m{}\x1b[0m\x1b[K", line.text)),
            (true, Tone::Waker) => text.push_str(&format!("\x1b[31m{}\x1b[0m\x1b[K", line.text)),
        }
        text.push('\n');
    }
    if live {
        text.push_str("\x1b[J\x1b[?7h");
    }
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
