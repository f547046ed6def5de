//! `tidegate top`: shows what a running sidecar does, updated every second. Into a pipe it writes one view, as plain
//! text. Why this is not a library: `docs/decisions/0021`.

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

use super::client::{ClientError, SidecarRequest};
use super::view::{AdminReading, Tone, ViewLine, ViewSize, view};
use super::{complain, printable, with_causes};
use tidegate_config::Address;

const COULD_NOT_ASK: u8 = 2;
/// The shortest time between two views. With less, the requests themselves would be measured.
const EVERY_MIN: Duration = Duration::from_millis(100);
/// The size of a view that goes into a pipe.
const PIPE: ViewSize = ViewSize {
    columns: 120,
    lines: 60,
};
/// More rules and keys than fit on a screen. However long the names of clients are, the answer is far shorter than
/// [`SidecarRequest`] permits.
const TOP: &str = "/admin/v1/top?rules=100&keys=12";

#[derive(Debug, Args)]
pub struct TopCommand {
    /// Where the sidecar listens for the admin API: host:port or unix:path
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_ADMIN_TO",
        default_value = "127.0.0.1:7601"
    )]
    to: Address,
    /// The file with the admin token, if the sidecar requires one
    #[arg(long, value_name = "FILE", env = "TIDEGATE_TOKEN_FILE")]
    token_file: Option<PathBuf>,
    /// The time between two views
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

impl TopCommand {
    /// Shows views until it is stopped, or has shown as many as it should.
    pub fn run(&self) -> ExitCode {
        let result = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(ClientError::from)
            .and_then(|runtime| {
                runtime.block_on(async {
                    tokio::select! {
                        ended = self.show_views() => ended,
                        _ = tokio::signal::ctrl_c() => Ok(()),
                    }
                })
            });
        match result {
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

    async fn show_views(&self) -> Result<(), ClientError> {
        let live = io::stdout().is_terminal();
        let mut left = self.count.or((!live).then_some(1));
        let mut ticks = tokio::time::interval(self.every);
        // A rate is of the time between two readings. After a late one, the next comes a full interval later.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut before = self.read().await?;
        while left != Some(0) {
            ticks.tick().await;
            let lines = match self.read().await {
                Ok(now) => {
                    let lines = view(&now, &before, size(live));
                    before = now;
                    lines
                }
                // In a terminal somebody may wait for the sidecar to come back.
                Err(fault) if live => {
                    let why = printable(&with_causes(&*fault));
                    vec![ViewLine {
                        text: format!("{} does not answer: {why}", self.to),
                        tone: Tone::Alarm,
                    }]
                }
                Err(fault) => return Err(fault),
            };
            match show(&lines, live) {
                // The reader has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(()),
                shown => shown?,
            }
            left = left.map(|left| left - 1);
        }
        Ok(())
    }

    async fn read(&self) -> Result<AdminReading, ClientError> {
        Ok(AdminReading {
            status: self.page("/admin/v1/status").await?,
            top: self.page(TOP).await?,
        })
    }

    async fn page(&self, path: &str) -> Result<Value, ClientError> {
        let token = match &self.token_file {
            Some(file) => {
                let read = std::fs::read_to_string(file);
                let text = read.map_err(|error| format!("read {}: {error}", file.display()))?;
                Some(text.trim().to_owned())
            }
            None => None,
        };
        let request = SidecarRequest {
            token: token.as_deref(),
            ..SidecarRequest::get(path)
        };
        let answer = request.send_async(&self.to).await?;
        match answer.status {
            StatusCode::OK => Ok(serde_json::from_slice(&answer.body)?),
            StatusCode::UNAUTHORIZED => {
                Err("the sidecar requires a token: use --token-file".into())
            }
            status => Err(format!("{path} answered {status}").into()),
        }
    }
}

fn size(live: bool) -> ViewSize {
    match terminal_size_of(io::stdout()) {
        Some((Width(columns), Height(lines))) if live => ViewSize {
            columns: columns.into(),
            // The cursor is on the last line.
            lines: usize::from(lines).saturating_sub(1),
        },
        Some(_) | None => PIPE,
    }
}

fn show(lines: &[ViewLine], live: bool) -> io::Result<()> {
    let mut text = String::new();
    if live {
        // Writes from the upper left corner, over the last view: to clear the screen first would flicker. Wrapping is
        // off: letters of two columns can make a line wider than it seems, and then it is cut.
        text.push_str("\x1b[?7l\x1b[H");
    }
    for line in lines {
        match (live, line.tone) {
            (false, _) => text.push_str(&line.text),
            (true, Tone::Plain) => text.push_str(&format!("{}\x1b[K", line.text)),
            (true, Tone::Head) => text.push_str(&format!("\x1b[1m{}\x1b[0m\x1b[K", line.text)),
            (true, Tone::Alarm) => text.push_str(&format!("\x1b[31m{}\x1b[0m\x1b[K", line.text)),
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
