//! Checks over HTTP/1.1: `POST /v1/check` with a JSON body, `GET /v1/check` with a query, `GET /v1/forward` with a
//! query that takes values from the headers (`forward.rs`), and `POST /json` as envoyproxy/ratelimit has it.
//!
//! This file routes and reads bodies. A request that has to wait for the store is kept, because its answer is encoded
//! from it.

use std::convert::Infallible;
use std::future::{self, Future, Ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::HeaderMap;
use hyper::service::Service;
use hyper::{Method, Request, StatusCode, Uri};

use super::body::{BodyFault, BodyReader};
use super::forward;
use super::limiter::{CheckProgress, CheckRequest, DecidedCheck, Limiter, PendingCheck};
use super::strict::LateReply;
use crate::net::{HttpReply, method_refusal, refusal};
use crate::protocol::envoy::encode_json;
use crate::protocol::headers::HeaderStyles;
use crate::protocol::native::decode;
use crate::protocol::native::encode::{self, ResponseStyle};
use crate::protocol::{RawCheck, Refusal, envoy};
use tidegate_config::{Bounds, HeaderStyle};
use tidegate_core::engine::Question;
use tidegate_core::pure::Check;

/// The HTTP door.
#[derive(Clone, Debug)]
pub struct HttpDoor(Arc<HttpChecks>);

#[derive(Debug)]
struct HttpChecks {
    limiter: Limiter,
    styles: HeaderStyles,
}

/// The protocol of a body, and so of its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// As `/v1/check` has it.
    Native,
    /// As envoyproxy/ratelimit's `/json` has it.
    Envoy,
}

/// A check as it came in.
#[derive(Debug)]
pub enum RawRequest {
    /// In JSON.
    Body(Bytes),
    /// In Envoy's JSON.
    Envoy(Bytes),
    /// In a query.
    Query(Uri),
    /// In a query that has values of headers in it.
    Forward(String),
}

impl RawRequest {
    const fn of(format: BodyFormat, body: Bytes) -> Self {
        match format {
            BodyFormat::Native => Self::Body(body),
            BodyFormat::Envoy => Self::Envoy(body),
        }
    }

    fn decode(&self) -> Result<RawCheck<'_>, Refusal> {
        match self {
            Self::Body(body) => decode::from_json(body),
            Self::Envoy(body) => envoy::decode::from_json(body),
            Self::Query(uri) => decode::from_query(uri.query().unwrap_or_default()),
            Self::Forward(query) => decode::from_forward_query(query),
        }
    }

    const fn format(&self) -> BodyFormat {
        match self {
            Self::Body(_) | Self::Query(_) | Self::Forward(_) => BodyFormat::Native,
            Self::Envoy(_) => BodyFormat::Envoy,
        }
    }
}

/// What the encoder needs of a request.
#[derive(Debug)]
pub struct HttpContext<'a> {
    check: &'a Check<'a>,
    deny_status: Option<StatusCode>,
}

impl CheckRequest for RawRequest {
    type Context<'a> = HttpContext<'a>;

    #[inline]
    fn with_question<R>(
        &self,
        bounds: Bounds,
        then: impl for<'a> FnOnce(Question<'a>, HttpContext<'a>) -> R,
    ) -> Result<R, Refusal> {
        let raw = self.decode()?;
        raw.with_check(bounds.key_bytes_max, |check| {
            let deny_status = raw
                .deny_status
                .and_then(|status| StatusCode::from_u16(status).ok());
            then(Question::Check(check), HttpContext { check, deny_status })
        })
    }
}

impl HttpDoor {
    /// A door that decides with `limiter`, and adds headers of these styles.
    pub fn new(limiter: Limiter, styles: &[HeaderStyle]) -> Self {
        let styles = HeaderStyles::new(styles);
        Self(Arc::new(HttpChecks { limiter, styles }))
    }

    fn read(&self, body: Incoming, headers: HeaderMap, format: BodyFormat) -> HttpResponseFuture {
        HttpResponseFuture::Reading {
            door: self.clone(),
            headers,
            body: BodyReader::new(body, self.0.limiter.bounds().body_bytes_max),
            format,
        }
    }

    /// Answers `request`, at once unless the store has to be asked. The response's headers go where the request's were.
    fn answer(
        &self,
        request: RawRequest,
        mut headers: HeaderMap,
    ) -> Result<HttpReply, LateReply<HttpReply>> {
        let Self(checks) = self;
        let format = request.format();
        let progress = checks.limiter.decide(&request, |decided| {
            checks.encode(format, std::mem::take(&mut headers), decided)
        });
        match progress {
            CheckProgress::Decided(reply) => Ok(reply),
            CheckProgress::Refused(refusal) => Ok(checks.refuse(&refusal, format)),
            CheckProgress::NeedsStore(pending) => {
                let reply = self.clone().answer_late(request, headers, pending);
                Err(LateReply::new(reply))
            }
        }
    }

    /// Answers `request` once the store has answered.
    async fn answer_late(
        self,
        request: RawRequest,
        headers: HeaderMap,
        pending: PendingCheck,
    ) -> HttpReply {
        let Self(checks) = self;
        let format = request.format();
        let encode =
            |decided: DecidedCheck<'_, HttpContext<'_>>| checks.encode(format, headers, decided);
        let limiter = &checks.limiter;
        let reply = limiter.decide_with_store(&request, pending, encode).await;
        reply.unwrap_or_else(|refusal| checks.refuse(&refusal, format))
    }
}

impl Service<Request<Incoming>> for HttpDoor {
    type Response = HttpReply;
    type Error = Infallible;
    type Future = HttpResponseFuture;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (head, body) = request.into_parts();
        match (head.uri.path(), &head.method) {
            ("/v1/check", &Method::POST) => self.read(body, head.headers, BodyFormat::Native),
            ("/v1/check", &Method::GET) => {
                HttpResponseFuture::of(self.answer(RawRequest::Query(head.uri), head.headers))
            }
            ("/v1/check", _) => HttpResponseFuture::at_once(method_refusal("GET, POST")),
            ("/v1/forward", &Method::GET) => {
                match forward::fill(head.uri.query().unwrap_or_default(), &head.headers) {
                    Ok(query) => {
                        let request = RawRequest::Forward(query);
                        HttpResponseFuture::of(self.answer(request, head.headers))
                    }
                    Err(refusal) => {
                        HttpResponseFuture::at_once(self.0.refuse(&refusal, BodyFormat::Native))
                    }
                }
            }
            ("/v1/forward", _) => HttpResponseFuture::at_once(method_refusal("GET")),
            ("/json", &Method::POST) => self.read(body, head.headers, BodyFormat::Envoy),
            ("/json", _) => HttpResponseFuture::at_once(method_refusal("POST")),
            _ => HttpResponseFuture::at_once(refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "checks are at /v1/check",
            )),
        }
    }
}

/// A response on its way. Written by hand, so that a check that needs no store allocates no future.
#[derive(Debug)]
pub enum HttpResponseFuture {
    /// It is there.
    AtOnce(Ready<Result<HttpReply, Infallible>>),
    /// The door still reads the request's body.
    Reading {
        /// Who answers.
        door: HttpDoor,
        /// The request's headers, whose memory the response's will use.
        headers: HeaderMap,
        /// The body.
        body: BodyReader,
        /// The body's protocol.
        format: BodyFormat,
    },
    /// The store has to answer first.
    Late(LateReply<HttpReply>),
}

impl HttpResponseFuture {
    fn at_once(reply: HttpReply) -> Self {
        Self::AtOnce(future::ready(Ok(reply)))
    }

    fn of(answer: Result<HttpReply, LateReply<HttpReply>>) -> Self {
        answer.map_or_else(Self::Late, Self::at_once)
    }
}

impl Future for HttpResponseFuture {
    type Output = Result<HttpReply, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let late = match &mut *self {
                Self::AtOnce(reply) => return Pin::new(reply).poll(context),
                Self::Late(reply) => return Pin::new(reply).poll(context).map(Ok),
                Self::Reading {
                    door,
                    headers,
                    body,
                    format,
                } => match ready!(Pin::new(body).poll(context)) {
                    Ok(body) => {
                        let request = RawRequest::of(*format, body);
                        match door.answer(request, std::mem::take(headers)) {
                            Ok(reply) => return Poll::Ready(Ok(reply)),
                            Err(late) => late,
                        }
                    }
                    Err(fault) => return Poll::Ready(Ok(door.0.refuse_body(fault, *format))),
                },
            };
            *self = Self::Late(late);
        }
    }
}

impl HttpChecks {
    /// The response to a decided check, in the memory of `headers`.
    fn encode(
        &self,
        format: BodyFormat,
        headers: HeaderMap,
        decided: DecidedCheck<'_, HttpContext<'_>>,
    ) -> HttpReply {
        let DecidedCheck {
            context: HttpContext { check, deny_status },
            answer,
            moment,
        } = decided;
        match format {
            BodyFormat::Native => {
                let style = ResponseStyle {
                    styles: self.styles,
                    deny_status,
                    moment,
                    shown_bytes_max: self.limiter.bounds().key_bytes_max,
                };
                encode::response(headers, check, answer, style)
            }
            BodyFormat::Envoy => {
                encode_json::http_response(headers, check, answer, self.styles, moment)
            }
        }
    }

    /// The response to a request that is no valid check. Envoy's protocol denies a check that is over a bound.
    fn refuse(&self, refused: &Refusal, format: BodyFormat) -> HttpReply {
        self.limiter.count_malformed();
        match (refused, format) {
            (Refusal::OverBound(why), BodyFormat::Envoy) => encode_json::over_bound(why),
            (Refusal::OverBound(what) | Refusal::Malformed(what), _) => {
                refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", what)
            }
        }
    }

    /// The response to a request whose body could not be read.
    fn refuse_body(&self, fault: BodyFault, format: BodyFormat) -> HttpReply {
        let bytes_max = self.limiter.bounds().body_bytes_max;
        match fault {
            BodyFault::TooLarge => {
                let what = format!("the body must be at most {bytes_max} bytes");
                match format {
                    BodyFormat::Native => {
                        refusal(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", &what)
                    }
                    BodyFormat::Envoy => self.refuse(&Refusal::OverBound(what), format),
                }
            }
            BodyFault::Broken => refusal(
                StatusCode::BAD_REQUEST,
                "INVALID_REQUEST",
                "the body is broken",
            ),
            BodyFault::TimedOut => refusal(
                StatusCode::REQUEST_TIMEOUT,
                "TIMEOUT",
                "the body did not come in time",
            ),
        }
    }
}
