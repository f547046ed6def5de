//! Checks over HTTP/1.1: `POST /v1/check` with a JSON body, `GET /v1/check` with a query.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::service::Service;
use hyper::{Method, Request, StatusCode};

use super::encode::{self, HeaderStyles, Telling};
use crate::clock::Clock;
use crate::config::{Bounds, HeaderStyle};
use crate::engine::Engine;
use crate::telemetry::Telemetry;
use crate::wire::decode::{self, Asked, Malformed};
use crate::wire::{Reply, method_refusal, refusal};

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// The HTTP door's service.
#[derive(Clone, Debug)]
pub struct Http(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    styles: HeaderStyles,
    bounds: Bounds,
}

impl Http {
    /// A door to `engine`.
    pub fn new(
        engine: Arc<Engine>,
        telemetry: Arc<Telemetry>,
        styles: &[HeaderStyle],
        bounds: Bounds,
    ) -> Self {
        Self(Arc::new(Inner {
            engine,
            telemetry,
            clock: Clock::get(),
            styles: HeaderStyles::new(styles),
            bounds,
        }))
    }
}

impl Service<Request<Incoming>> for Http {
    type Response = Reply;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Reply, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let inner = Arc::clone(&self.0);
        Box::pin(async move { Ok(inner.answer(request).await) })
    }
}

impl Inner {
    async fn answer(&self, request: Request<Incoming>) -> Reply {
        match (request.uri().path(), request.method()) {
            ("/v1/check", &Method::POST) => match self.body(request.into_body()).await {
                Ok(body) => self.check(decode::from_json(&body)),
                Err(refused) => refused,
            },
            ("/v1/check", &Method::GET) => self.check(decode::from_query(
                request.uri().query().unwrap_or_default(),
            )),
            ("/v1/check", _) => method_refusal("GET, POST"),
            _ => refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "checks are at /v1/check",
            ),
        }
    }

    fn check(&self, asked: Result<Asked<'_>, Malformed>) -> Reply {
        let moment = self.clock.moment();
        let decided = asked.and_then(|asked| {
            let deny_status = asked
                .deny_status
                .and_then(|status| StatusCode::from_u16(status).ok());
            let deny_status = deny_status.unwrap_or(StatusCode::TOO_MANY_REQUESTS);
            asked.check(self.bounds.key_bytes_max, |check| {
                let answer = self.engine.check(check, moment);
                self.telemetry
                    .check_duration
                    .record(self.clock.since(moment.now));
                self.telemetry.decided(&answer);
                encode::response(
                    check,
                    &answer,
                    Telling {
                        styles: self.styles,
                        deny_status,
                        moment,
                    },
                )
            })
        });
        decided.unwrap_or_else(|Malformed(what)| {
            self.telemetry.requests_malformed.increment(1);
            refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", &what)
        })
    }

    /// The whole body, or why not.
    async fn body(&self, body: Incoming) -> Result<Bytes, Reply> {
        let bytes_max = self.bounds.body_bytes_max;
        let too_large = || {
            let what = format!("the body must be at most {bytes_max} bytes");
            refusal(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", &what)
        };
        if body.size_hint().lower() > bytes_max as u64 {
            return Err(too_large());
        }
        let mut collected = std::pin::pin!(Limited::new(body, bytes_max).collect());
        // A body that has come with its head needs no timer.
        let collected =
            match std::future::poll_fn(|context| Poll::Ready(collected.as_mut().poll(context)))
                .await
            {
                Poll::Ready(collected) => Ok(collected),
                Poll::Pending => tokio::time::timeout(BODY_TIMEOUT, collected).await,
            };
        match collected {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => Err(refusal(
                StatusCode::BAD_REQUEST,
                "INVALID_REQUEST",
                "the body is broken",
            )),
            Err(_) => Err(refusal(
                StatusCode::REQUEST_TIMEOUT,
                "TIMEOUT",
                "the body did not come in time",
            )),
        }
    }
}
