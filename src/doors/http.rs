//! Checks over HTTP/1.1: `POST /v1/check` with a JSON body, `GET /v1/check` with a query, `GET /v1/forward` with a
//! query that takes values from the headers (`forward.rs`), and `POST /json` as envoyproxy/ratelimit has it.
//!
//! A check that has to wait for the store (`strict.rs`) keeps its request: it is read again to be answered.

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

use super::body::{Reading, Unread};
use super::forward;
use super::limiter::Limiter;
use super::strict::Late;
use crate::net::{HttpReply, method_refusal, refusal};
use crate::protocol::headers::HeaderStyles;
use crate::protocol::native::decode;
use crate::protocol::native::encode::{self, ResponseStyle};
use crate::protocol::{RawCheck, Refusal, envoy};
use tidegate_config::HeaderStyle;
use tidegate_core::engine::{Answer, CheckStep, Question, StorePlan};
use tidegate_core::pure::{Check, Moment};

/// The HTTP door's service.
#[derive(Clone, Debug)]
pub struct Http(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limiter: Limiter,
    styles: HeaderStyles,
}

impl Http {
    /// A door that decides with `limiter`, and adds headers of these styles.
    pub fn new(limiter: Limiter, styles: &[HeaderStyle]) -> Self {
        let styles = HeaderStyles::new(styles);
        Self(Arc::new(Inner { limiter, styles }))
    }

    fn read(&self, body: Incoming, headers: HeaderMap, form: BodyFormat) -> HttpAnswer {
        HttpAnswer::Reading {
            door: self.clone(),
            headers,
            body: Reading::new(body, self.0.limiter.bounds.body_bytes_max),
            form,
        }
    }

    /// Decides what was asked, at once if that can be.
    fn answer(&self, sent: Sent, headers: HeaderMap) -> Result<HttpReply, Late<HttpReply>> {
        let begun = self.0.begin(&sent, headers);
        begun.map_err(|asking| Late::new(self.clone().ask(sent, asking)))
    }

    /// Asks the store, and then decides.
    async fn ask(self, sent: Sent, asking: Asking) -> HttpReply {
        let Self(inner) = self;
        let Asking {
            plan,
            headers,
            began,
        } = asking;
        let again = |moment| {
            let bytes_max = inner.limiter.bounds.key_bytes_max;
            let begin =
                |check: &Check<'_>| inner.limiter.engine.begin(Question::Check(check), moment);
            sent.asked()?.with_check(bytes_max, begin)
        };
        let told = match inner
            .limiter
            .strict
            .decide(&inner.limiter.engine, plan, again)
            .await
        {
            Ok((answer, moment)) => sent.asked().and_then(|asked| {
                asked.with_check(inner.limiter.bounds.key_bytes_max, |check| {
                    let telling = inner.telling(&asked, moment);
                    inner.tell(check, &answer, (headers, telling, sent.form()), began)
                })
            }),
            Err(refused) => Err(refused),
        };
        told.unwrap_or_else(|refused| inner.refuse(&refused, sent.form()))
    }
}

/// What a body looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// As `/v1/check` has it.
    Native,
    /// As envoyproxy/ratelimit's `/json` has it.
    Envoy,
}

/// A check as it came in.
#[derive(Debug)]
pub enum Sent {
    /// In JSON.
    Body(Bytes),
    /// In Envoy's JSON.
    Envoy(Bytes),
    /// In a query.
    Query(Uri),
    /// A query with values of headers in it.
    Forwarded(String),
}

impl Sent {
    const fn of(form: BodyFormat, body: Bytes) -> Self {
        match form {
            BodyFormat::Native => Self::Body(body),
            BodyFormat::Envoy => Self::Envoy(body),
        }
    }

    fn asked(&self) -> Result<RawCheck<'_>, Refusal> {
        match self {
            Self::Body(body) => decode::from_json(body),
            Self::Envoy(body) => envoy::decode::from_json(body),
            Self::Query(uri) => decode::from_query(uri.query().unwrap_or_default()),
            Self::Forwarded(query) => decode::from_forward_query(query),
        }
    }

    /// How its answer is to look.
    const fn form(&self) -> BodyFormat {
        match self {
            Self::Body(_) | Self::Query(_) | Self::Forwarded(_) => BodyFormat::Native,
            Self::Envoy(_) => BodyFormat::Envoy,
        }
    }
}

/// A check that the store has to be asked for.
struct Asking {
    plan: Box<StorePlan>,
    headers: HeaderMap,
    began: Moment,
}

impl Service<Request<Incoming>> for Http {
    type Response = HttpReply;
    type Error = Infallible;
    type Future = HttpAnswer;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (head, body) = request.into_parts();
        match (head.uri.path(), &head.method) {
            ("/v1/check", &Method::POST) => self.read(body, head.headers, BodyFormat::Native),
            ("/v1/check", &Method::GET) => {
                HttpAnswer::of(self.answer(Sent::Query(head.uri), head.headers))
            }
            ("/v1/check", _) => HttpAnswer::at_once(method_refusal("GET, POST")),
            ("/v1/forward", &Method::GET) => {
                match forward::filled(head.uri.query().unwrap_or_default(), &head.headers) {
                    Ok(query) => HttpAnswer::of(self.answer(Sent::Forwarded(query), head.headers)),
                    Err(refused) => {
                        HttpAnswer::at_once(self.0.refuse(&refused, BodyFormat::Native))
                    }
                }
            }
            ("/v1/forward", _) => HttpAnswer::at_once(method_refusal("GET")),
            ("/json", &Method::POST) => self.read(body, head.headers, BodyFormat::Envoy),
            ("/json", _) => HttpAnswer::at_once(method_refusal("POST")),
            _ => HttpAnswer::at_once(refusal(
                StatusCode::NOT_FOUND,
                "NOT_FOUND",
                "checks are at /v1/check",
            )),
        }
    }
}

/// An answer on its way.
#[derive(Debug)]
pub enum HttpAnswer {
    /// It is there.
    AtOnce(Ready<Result<HttpReply, Infallible>>),
    /// The body it answers is still being read.
    Reading {
        /// Who answers.
        door: Http,
        /// The request's headers, whose memory the answer's will use.
        headers: HeaderMap,
        /// What is read.
        body: Reading,
        /// What it is written in.
        form: BodyFormat,
    },
    /// The store has to be asked first.
    Late(Late<HttpReply>),
}

impl HttpAnswer {
    fn at_once(reply: HttpReply) -> Self {
        Self::AtOnce(future::ready(Ok(reply)))
    }

    fn of(answer: Result<HttpReply, Late<HttpReply>>) -> Self {
        answer.map_or_else(Self::Late, Self::at_once)
    }
}

impl Future for HttpAnswer {
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
                    form,
                } => match ready!(Pin::new(body).poll(context)) {
                    Ok(body) => match door.answer(Sent::of(*form, body), std::mem::take(headers)) {
                        Ok(reply) => return Poll::Ready(Ok(reply)),
                        Err(late) => late,
                    },
                    Err(why) => {
                        return Poll::Ready(Ok(door.0.unread(why, *form)));
                    }
                },
            };
            *self = Self::Late(late);
        }
    }
}

impl Inner {
    /// Decides what was sent, unless the store has to be asked. The answer's headers go where the request's were.
    fn begin(&self, sent: &Sent, headers: HeaderMap) -> Result<HttpReply, Asking> {
        let moment = self.limiter.clock.moment();
        let begun = sent.asked().and_then(|asked| {
            asked.with_check(self.limiter.bounds.key_bytes_max, |check| {
                match self.limiter.engine.begin(Question::Check(check), moment) {
                    CheckStep::Decided(answer) => {
                        let telling = self.telling(&asked, moment);
                        Ok(self.tell(check, &answer, (headers, telling, sent.form()), moment))
                    }
                    CheckStep::NeedsStore(plan) => Err(Asking {
                        plan,
                        headers,
                        began: moment,
                    }),
                }
            })
        });
        begun.unwrap_or_else(|refused| Ok(self.refuse(&refused, sent.form())))
    }

    /// How what was decided at `moment` is to be told.
    fn telling(&self, asked: &RawCheck<'_>, moment: Moment) -> ResponseStyle {
        ResponseStyle {
            styles: self.styles,
            deny_status: deny_status(asked),
            moment,
            shown_bytes_max: self.limiter.bounds.key_bytes_max,
        }
    }

    /// Counts and encodes what was decided.
    fn tell(
        &self,
        check: &Check<'_>,
        answer: &Answer,
        (headers, telling, form): (HeaderMap, ResponseStyle, BodyFormat),
        began: Moment,
    ) -> HttpReply {
        self.limiter.decided(answer, Question::Check(check), began);
        match form {
            BodyFormat::Native => encode::response(headers, check, answer, telling),
            BodyFormat::Envoy => envoy::encode_json::http_response(
                headers,
                check,
                answer,
                telling.styles,
                telling.moment,
            ),
        }
    }

    fn refuse(&self, refused: &Refusal, form: BodyFormat) -> HttpReply {
        self.limiter.malformed();
        match (refused, form) {
            (Refusal::OverBound(why), BodyFormat::Envoy) => envoy::encode_json::over_bound(why),
            (Refusal::OverBound(what) | Refusal::Malformed(what), _) => {
                refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", what)
            }
        }
    }

    fn unread(&self, why: Unread, form: BodyFormat) -> HttpReply {
        let bytes_max = self.limiter.bounds.body_bytes_max;
        match why {
            Unread::TooLarge => {
                let what = format!("the body must be at most {bytes_max} bytes");
                match form {
                    BodyFormat::Native => {
                        refusal(StatusCode::PAYLOAD_TOO_LARGE, "BODY_TOO_LARGE", &what)
                    }
                    BodyFormat::Envoy => self.refuse(&Refusal::OverBound(what), form),
                }
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
}

fn deny_status(asked: &RawCheck<'_>) -> Option<StatusCode> {
    let status = asked.deny_status?;
    StatusCode::from_u16(status).ok()
}
