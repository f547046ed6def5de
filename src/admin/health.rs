//! `/metrics`, `/livez`, `/readyz`, `/healthcheck`: read-only, safe to expose to the pod network.
//!
//! Readiness never depends on the store: a pod that cannot reach it still limits.

use std::convert::Infallible;
use std::fmt::Write;
use std::future::{Ready, ready};
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Method, Request, StatusCode};

use super::status::Status;
use super::store;
use crate::clock::Clock;
use crate::net::{HttpReply, method_refusal, refusal, reply};
use crate::telemetry::Telemetry;
use tidegate_core::engine::Engine;

const TEXT: &str = "text/plain; charset=utf-8";
const PROMETHEUS: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The service of the metrics listener.
#[derive(Clone, Debug)]
pub struct MetricsService {
    /// The engine whose figures it shows.
    pub engine: Arc<Engine>,
    /// The metrics.
    pub telemetry: Arc<Telemetry>,
    /// The state of the daemon.
    pub status: Arc<Status>,
}

impl Service<Request<Incoming>> for MetricsService {
    type Response = HttpReply;
    type Error = Infallible;
    type Future = Ready<Result<HttpReply, Infallible>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        ready(Ok(self.answer(&request)))
    }
}

impl MetricsService {
    fn answer(&self, request: &Request<Incoming>) -> HttpReply {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return method_refusal("GET, HEAD");
        }
        match request.uri().path() {
            "/metrics" => reply(
                StatusCode::OK,
                PROMETHEUS,
                self.telemetry
                    .render(&self.engine, Clock::get().moment().now),
            ),
            "/livez" => reply(StatusCode::OK, TEXT, "ok\n".to_owned()),
            "/readyz" | "/healthcheck" => {
                self.readiness(request.uri().query().is_some_and(is_verbose))
            }
            _ => refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "there are /metrics, /livez, /readyz and /healthcheck",
            ),
        }
    }

    fn readiness(&self, verbose: bool) -> HttpReply {
        let (status, word) = match self.status.is_ready() {
            true => (StatusCode::OK, "ok"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not ready"),
        };
        let mut text = format!("{word}\n");
        if verbose {
            let configuration = self.status.configuration();
            let rules = self.engine.snapshot().rules().all().len();
            // Writing into a string does not fail.
            let _ = writeln!(
                text,
                "rules: {rules}, configuration version {}",
                configuration.version
            );
            let now = Clock::get().moment().now;
            let _ = writeln!(text, "{}", store::line(&self.engine.figures(), now));
            for fault in &configuration.faults {
                let _ = writeln!(text, "last reload refused: {fault}");
            }
        }
        reply(status, TEXT, text)
    }
}

fn is_verbose(query: &str) -> bool {
    query
        .split('&')
        .any(|pair| pair == "verbose" || pair.starts_with("verbose="))
}
