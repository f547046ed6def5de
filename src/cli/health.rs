//! `tidegate health`: asks a running sidecar whether it is ready. It is for probes in images without a shell or curl.

use std::process::ExitCode;

use clap::Args;
use hyper::StatusCode;

use super::client::{SidecarAnswer, SidecarRequest};
use super::{complain, printable, say, with_causes};
use tidegate_config::Address;

const NOT_READY: u8 = 1;
const COULD_NOT_ASK: u8 = 2;

#[derive(Debug, Args)]
pub struct HealthCommand {
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

impl HealthCommand {
    /// Asks, and prints the answer as one line.
    pub fn run(&self) -> ExitCode {
        let path = if self.live {
            "/livez"
        } else {
            "/readyz?verbose"
        };
        match SidecarRequest::get(path).send(&self.to) {
            Ok(answer) => self.print(&answer),
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

    fn print(&self, answer: &SidecarAnswer) -> ExitCode {
        let exit = match answer.status {
            StatusCode::OK => ExitCode::SUCCESS,
            StatusCode::SERVICE_UNAVAILABLE => ExitCode::from(NOT_READY),
            status => {
                complain(format_args!("tidegate: {} answered {status}", self.to));
                return ExitCode::from(COULD_NOT_ASK);
            }
        };
        say(format_args!("{}", as_one_line(&answer.body)));
        exit
    }
}

/// The lines of a page, joined into one.
fn as_one_line(page: &[u8]) -> String {
    let page = String::from_utf8_lossy(page);
    printable(&page.lines().collect::<Vec<_>>().join("; "))
}
