//! `tidegate check`: asks a running sidecar over its HTTP door.

use std::process::ExitCode;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http_body_util::{BodyExt, Full};
use hyper::header::{CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use super::{Pair, with_causes};
use crate::config::Address;

const DENIED: u8 = 1;
const COULD_NOT_ASK: u8 = 2;
/// How long to wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Args)]
pub struct Check {
    /// The domain of the check
    domain: String,
    /// Its entries, in order
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<Pair>,
    /// How many cells it uses
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,
    /// Look without using any
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
    /// Print the answer as it came
    #[arg(long)]
    json: bool,
}

type Fault = Box<dyn std::error::Error + Send + Sync>;

impl Check {
    /// Asks, and prints the answer.
    pub fn run(&self) -> ExitCode {
        let asked = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(Fault::from)
            .and_then(|runtime| {
                runtime.block_on(async { tokio::time::timeout(PATIENCE, self.ask()).await? })
            });
        match asked {
            Ok((status, body)) => self.tell(status, &body),
            Err(error) => {
                eprintln!("tidegate: ask {}: {}", self.to, with_causes(&*error));
                ExitCode::from(COULD_NOT_ASK)
            }
        }
    }

    async fn ask(&self) -> Result<(StatusCode, Bytes), Fault> {
        match &self.to {
            Address::Tcp(address) => self.ask_over(TcpStream::connect(address).await?).await,
            Address::Unix(path) => self.ask_over(UnixStream::connect(path).await?).await,
        }
    }

    async fn ask_over<T>(&self, stream: T) -> Result<(StatusCode, Bytes), Fault>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let entries: Vec<Value> = self
            .entries
            .iter()
            .map(|pair| json!({ "key": pair.key, "value": pair.value }))
            .collect();
        let body = json!({
            "domain": self.domain,
            "peek": self.peek,
            // On a descriptor a cost of 0 is a look; on the whole check it would mean 1.
            "descriptors": [{ "entries": entries, "hits_addend": self.cost }],
        });
        let request = Request::builder()
            .method(Method::POST)
            .uri("/v1/check")
            .header(HOST, "localhost")
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body.to_string())))?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        connection.abort();
        Ok((status, body))
    }

    fn tell(&self, status: StatusCode, body: &[u8]) -> ExitCode {
        if self.json {
            println!("{}", String::from_utf8_lossy(body).trim_end());
        }
        let answer: Value = serde_json::from_slice(body).unwrap_or_default();
        let exit = match status {
            StatusCode::OK => ExitCode::SUCCESS,
            StatusCode::TOO_MANY_REQUESTS => ExitCode::from(DENIED),
            _ => {
                let message = answer["error"]["message"].as_str().unwrap_or("no message");
                eprintln!("tidegate: {} answered {status}: {message}", self.to);
                return ExitCode::from(COULD_NOT_ASK);
            }
        };
        if !self.json {
            println!("{}", told(status == StatusCode::OK, &answer["statuses"][0]));
        }
        exit
    }
}

/// The answer in a line.
fn told(allowed: bool, status: &Value) -> String {
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
