//! `tidegate health`: asks a running sidecar whether it is ready. For probes of images that have no shell and no curl.

use std::process::ExitCode;

use clap::Args;
use hyper::StatusCode;

use super::client::{Answer, Question};
use super::{complain, printable, say, with_causes};
use tidegate_config::Address;

const NOT_READY: u8 = 1;
const COULD_NOT_ASK: u8 = 2;

#[derive(Debug, Args)]
pub struct Health {
    /// Where the sidecar listens for metrics and health: host:port or unix:path
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_HEALTH_TO",
        default_value = "127.0.0.1:9464"
    )]
    to: Address,
    /// Ask only whether the process is alive
    #[arg(long)]
    live: bool,
}

impl Health {
    /// Asks, and prints the answer in a line.
    pub fn run(&self) -> ExitCode {
        let path = if self.live {
            "/livez"
        } else {
            "/readyz?verbose"
        };
        match Question::get(path).ask(&self.to) {
            Ok(answer) => self.tell(&answer),
            Err(error) => {
                complain(format_args!(
                    "tidegate: ask {}: {}",
                    self.to,
                    with_causes(&*error)
                ));
                ExitCode::from(COULD_NOT_ASK)
            }
        }
    }

    fn tell(&self, answer: &Answer) -> ExitCode {
        let exit = match answer.status {
            StatusCode::OK => ExitCode::SUCCESS,
            StatusCode::SERVICE_UNAVAILABLE => ExitCode::from(NOT_READY),
            status => {
                complain(format_args!("tidegate: {} answered {status}", self.to));
                return ExitCode::from(COULD_NOT_ASK);
            }
        };
        say(format_args!("{}", in_a_line(&answer.body)));
        exit
    }
}

/// The lines of a page as one.
fn in_a_line(page: &[u8]) -> String {
    let page = String::from_utf8_lossy(page);
    printable(&page.lines().collect::<Vec<_>>().join("; "))
}
