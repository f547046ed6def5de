//! `tidegate check`: sends one check to the HTTP door of a running sidecar, and prints the decision.

use std::process::ExitCode;

use clap::Args;
use hyper::{Method, StatusCode};
use serde_json::{Value, json};

use super::client::{SidecarAnswer, SidecarRequest};
use super::{EntryArgument, complain, say, with_causes};
use tidegate_config::Address;

const DENIED: u8 = 1;
const COULD_NOT_ASK: u8 = 2;

#[derive(Debug, Args)]
pub struct CheckCommand {
    /// The domain of the check
    domain: String,
    /// The entries of its descriptor, in order
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<EntryArgument>,
    /// The cells that the check costs
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
    /// Only look: use no cells
    #[arg(long)]
    peek: bool,
    /// Where the sidecar listens: host:port or unix:path
    #[arg(
        long,
        value_name = "ADDR",
        env = "TIDEGATE_TO",
        default_value = "127.0.0.1:7600"
    )]
    to: Address,
    /// Print the whole answer, as JSON
    #[arg(long)]
    json: bool,
}

impl CheckCommand {
    /// Sends the check, and prints the answer.
    pub fn run(&self) -> ExitCode {
        match self.request().send(&self.to) {
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

    fn request(&self) -> SidecarRequest<'static> {
        let entries: Vec<Value> = self
            .entries
            .iter()
            .map(|pair| json!({ "key": pair.key, "value": pair.value }))
            .collect();
        let body = json!({
            "domain": self.domain,
            "peek": self.peek,
            // On a descriptor a cost of 0 only looks; on the whole check it would mean 1.
            "descriptors": [{ "entries": entries, "hits_addend": self.cost }],
        });
        SidecarRequest {
            method: Method::POST,
            path: "/v1/check",
            body: Some(body.to_string()),
            token: None,
        }
    }

    fn print(&self, SidecarAnswer { status, body }: &SidecarAnswer) -> ExitCode {
        if self.json {
            say(format_args!("{}", String::from_utf8_lossy(body).trim_end()));
        }
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let exit = match *status {
            StatusCode::OK => ExitCode::SUCCESS,
            StatusCode::TOO_MANY_REQUESTS => ExitCode::from(DENIED),
            _ => {
                let message = answer["error"]["message"].as_str().unwrap_or("no message");
                complain(format_args!(
                    "tidegate: {} answered {status}: {message}",
                    self.to
                ));
                return ExitCode::from(COULD_NOT_ASK);
            }
        };
        if !self.json {
            say(format_args!(
                "{}",
                describe(*status == StatusCode::OK, &answer["statuses"][0])
            ));
        }
        exit
    }
}

/// The answer as one line.
fn describe(allowed: bool, status: &Value) -> String {
    let word = if allowed { "allowed" } else { "denied" };
    let Some(rule) = status["rule"].as_str() else {
        return format!("{word}: no rule matches");
    };
    let mut line = format!("{word} by {rule}");
    if let Some(limit) = status["current_limit"]["requests_per_unit"].as_u64() {
        let unit = status["current_limit"]["unit"]
            .as_str()
            .unwrap_or_default()
            .to_ascii_lowercase();
        let multiplier = status["current_limit"]["unit_multiplier"]
            .as_u64()
            .map(|times| format!("{times} "));
        line += &format!(
            ": limit {limit} per {}{unit}, {} left",
            multiplier.unwrap_or_default(),
            status["limit_remaining"]
        );
        for (field, words) in [
            ("retry_after", "retry after"),
            ("duration_until_reset", "full again in"),
        ] {
            if let Some(wait) = status[field].as_str() {
                line += &format!(", {words} {wait}");
            }
        }
    }
    line
}
