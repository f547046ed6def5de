//! Checks over HTTP/1.1: `POST /v1/check` with a JSON body, `GET /v1/check` with a query.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::Service;
use hyper::{Method, Request, StatusCode};

use super::body::{Reading, Unread};
use super::encode::{self, HeaderStyles, Telling};
use crate::clock::Clock;
use crate::config::{Bounds, HeaderStyle};
use crate::engine::Engine;
use crate::telemetry::Telemetry;
use crate::wire::decode::{self, Asked, Malformed};
use crate::wire::{Reply, method_refusal, refusal};

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
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (head, body) = request.into_parts();
        match (head.uri.path(), &head.method) {
            ("/v1/check", &Method::POST) => Answering::Reading {
                door: self.clone(),
                headers: head.headers,
                body: Reading::new(body, self.0.bounds.body_bytes_max),
            },
            ("/v1/check", &Method::GET) => {
                let asked = decode::from_query(head.uri.query().unwrap_or_default());
                Answering::at_once(self.0.check(asked, head.headers))
            }
            ("/v1/check", _) => Answering::at_once(method_refusal("GET, POST")),
            _ => Answering::at_once(refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "checks are at /v1/check",
            )),
        }
    }
}

/// An answer on its way.
#[derive(Debug)]
pub enum Answering {
    /// It is there.
    AtOnce(Ready<Result<Reply, Infallible>>),
    /// The body it answers is still being read.
    Reading {
        /// Who answers.
        door: Http,
        /// The request's headers, whose memory the answer's will use.
        headers: HeaderMap,
        /// What is read.
        body: Reading,
    },
}

impl Answering {
    fn at_once(reply: Reply) -> Self {
        Self::AtOnce(ready(Ok(reply)))
    }
}

impl Future for Answering {
    type Output = Result<Reply, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut *self {
            Self::AtOnce(reply) => Pin::new(reply).poll(context),
            Self::Reading {
                door: Http(inner),
                headers,
                body,
            } => Pin::new(body).poll(context).map(|body| {
                Ok(match body {
                    Ok(body) => inner.check(decode::from_json(&body), std::mem::take(headers)),
                    Err(why) => unread(why, inner.bounds.body_bytes_max),
                })
            }),
        }
    }
}

impl Inner {
    /// Decides what was asked. The answer's headers go where the request's were.
    fn check(&self, asked: Result<Asked<'_>, Malformed>, headers: HeaderMap) -> Reply {
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
                let telling = Telling {
                    styles: self.styles,
                    deny_status,
                    moment,
                };
                encode::response(headers, check, &answer, telling)
            })
        });
        decided.unwrap_or_else(|Malformed(what)| {
            self.telemetry.requests_malformed.increment(1);
            refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", &what)
        })
    }
}

fn unread(why: Unread, bytes_max: usize) -> Reply {
    match why {
        Unread::TooLarge => {
            let what = format!("the body must be at most {bytes_max} bytes");
            refusal(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", &what)
        }
        Unread::Broken => refusal(
            StatusCode::BAD_REQUEST,
            "INVALID_REQUEST",
            "the body is broken",
        ),
        Unread::Late => refusal(
            StatusCode::REQUEST_TIMEOUT,
            "TIMEOUT",
            "the body did not come in time",
        ),
    }
}
