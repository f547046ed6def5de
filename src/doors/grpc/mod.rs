//! Checks over gRPC, as Envoy asks them: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
//!
//! Beside it, on the same listeners, whether checks are answered (`health`) and what can be asked (`reflection`).

mod health;
mod reflection;

use std::convert::Infallible;
use std::future::{self, Future, Ready};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::service::Service;
use hyper::{Method, Request, StatusCode};
use metrics::Counter;

use super::body::{Reading, Unread};
use super::envoy;
use super::headers::HeaderStyles;
use super::strict::{Late, Strict};
use crate::clock::Clock;
use crate::config::{Bounds, HeaderStyle};
use crate::engine::{Answer, Begun, Engine, Plan};
use crate::pure::{Check, Moment};
use crate::telemetry::{REQUESTS_MALFORMED, Telemetry};
use crate::wire::decode::Malformed;
use crate::wire::envoy::from_protobuf;
use crate::wire::grpc::{self, Code, Failure, PREFIX_BYTES};
use crate::wire::listen::Drain;

/// The service that checks are asked of.
const RATE_LIMIT_SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// The gRPC door's service.
#[derive(Clone, Debug)]
pub struct Grpc(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    malformed: Counter,
    clock: Clock,
    styles: HeaderStyles,
    bounds: Bounds,
    strict: Strict,
    drain: Drain,
}

impl Grpc {
    /// A door to `engine` that asks the store as `strict` says, and is well until `drain` begins.
    pub fn new(
        (engine, telemetry): (Arc<Engine>, Arc<Telemetry>),
        styles: &[HeaderStyle],
        bounds: Bounds,
        strict: Strict,
        drain: Drain,
    ) -> Self {
        Self(Arc::new(Inner {
            malformed: telemetry.counter(REQUESTS_MALFORMED, &["grpc"]),
            engine,
            telemetry,
            clock: Clock::get(),
            styles: HeaderStyles::new(styles),
            bounds,
            strict,
            drain,
        }))
    }

    fn read(&self, body: Incoming, method: Unary) -> Answering {
        Answering::Reading {
            door: self.clone(),
            body: Reading::new(body, self.0.bounds.body_bytes_max + PREFIX_BYTES),
            method,
        }
    }

    /// Answers the one message of a call, at once if that can be.
    fn answer(&self, body: Bytes, method: Unary) -> Result<grpc::Answer, Late<grpc::Answer>> {
        let message = match grpc::only_message(body, self.0.bounds.body_bytes_max) {
            Ok(message) => message,
            Err(failure) => {
                self.0.malformed.increment(1);
                return Ok(grpc::answer(Err(failure)));
            }
        };
        match method {
            Unary::ShouldRateLimit => match self.0.begin(&message) {
                Ok(answered) => Ok(grpc::answer(answered)),
                Err(asking) => Err(Late::new(self.clone().ask(message, asking))),
            },
            Unary::Check => Ok(health::check(&message, &self.0.drain)),
            Unary::Watch => Ok(health::watch(&message, &self.0.drain)),
        }
    }

    /// Asks the store, and then decides.
    async fn ask(self, message: Bytes, Asking { plan, began }: Asking) -> grpc::Answer {
        let Self(inner) = self;
        let bytes_max = inner.bounds.key_bytes_max;
        let again = |moment| {
            let begin = |check: &Check<'_>| inner.engine.begin(check, moment);
            from_protobuf(&message)?.check(bytes_max, begin)
        };
        let told = match inner.strict.decide(&inner.engine, plan, again).await {
            Ok((answer, moment)) => from_protobuf(&message).and_then(|asked| {
                asked.check(bytes_max, |check| {
                    inner.tell(check, &answer, (began, moment))
                })
            }),
            Err(malformed) => Err(malformed),
        };
        grpc::answer(told.map_err(|malformed| inner.refuse(malformed)))
    }
}

/// A method that is asked with one message.
#[derive(Clone, Copy, Debug)]
pub enum Unary {
    /// A check.
    ShouldRateLimit,
    /// Whether checks are answered.
    Check,
    /// Whether they are, from now on.
    Watch,
}

/// A check that the store has to be asked for.
struct Asking {
    plan: Box<Plan>,
    began: Moment,
}

impl Inner {
    /// Decides what was sent, unless the store has to be asked.
    fn begin(&self, message: &[u8]) -> Result<Result<Bytes, Failure>, Asking> {
        let began = self.clock.moment();
        let begun = from_protobuf(message).and_then(|asked| {
            asked.check(self.bounds.key_bytes_max, |check| {
                match self.engine.begin(check, began) {
                    Begun::Decided(answer) => Ok(self.tell(check, &answer, (began, began))),
                    Begun::Asking(plan) => Err(Asking { plan, began }),
                }
            })
        });
        match begun {
            Ok(Ok(answer)) => Ok(Ok(answer)),
            Ok(Err(asking)) => Err(asking),
            Err(malformed) => Ok(Err(self.refuse(malformed))),
        }
    }

    /// Counts and encodes what was decided, between when it began and when it was.
    fn tell(&self, check: &Check<'_>, answer: &Answer, (began, moment): (Moment, Moment)) -> Bytes {
        let taken = self.clock.since(began.now);
        self.telemetry.check_duration.record(taken);
        self.telemetry.decided(answer);
        grpc::frame(&envoy::response(check, answer, (self.styles, moment)))
    }

    fn refuse(&self, Malformed(what): Malformed) -> Failure {
        self.malformed.increment(1);
        Failure::new(Code::InvalidArgument, what)
    }
}

impl Service<Request<Incoming>> for Grpc {
    type Response = grpc::Answer;
    type Error = Infallible;
    type Future = Answering;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (head, body) = request.into_parts();
        if head.method != Method::POST {
            return Answering::at_once(grpc::refuse(StatusCode::METHOD_NOT_ALLOWED));
        }
        if !grpc::is_call(&head.headers) {
            return Answering::at_once(grpc::refuse(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        match head.uri.path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                self.read(body, Unary::ShouldRateLimit)
            }
            "/grpc.health.v1.Health/Check" => self.read(body, Unary::Check),
            "/grpc.health.v1.Health/Watch" => self.read(body, Unary::Watch),
            // The older one differs in its name only.
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"
            | "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo" => {
                Answering::at_once(reflection::answer(body, self.0.drain.clone()))
            }
            _ => {
                let what = "no such method: checks are asked of ";
                let failure =
                    Failure::new(Code::Unimplemented, format!("{what}{RATE_LIMIT_SERVICE}"));
                Answering::at_once(grpc::answer(Err(failure)))
            }
        }
    }
}

/// An answer on its way.
#[derive(Debug)]
pub enum Answering {
    /// It is there.
    AtOnce(Ready<Result<grpc::Answer, Infallible>>),
    /// The message it answers is still being read.
    Reading {
        /// Who answers.
        door: Grpc,
        /// What is read.
        body: Reading,
        /// What is asked with it.
        method: Unary,
    },
    /// The store has to be asked first.
    Late(Late<grpc::Answer>),
}

impl Answering {
    fn at_once(answer: grpc::Answer) -> Self {
        Self::AtOnce(future::ready(Ok(answer)))
    }
}

impl Future for Answering {
    type Output = Result<grpc::Answer, Infallible>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let late = match &mut *self {
                Self::AtOnce(answer) => return Pin::new(answer).poll(context),
                Self::Late(answer) => return Pin::new(answer).poll(context).map(Ok),
                Self::Reading { door, body, method } => {
                    let answered = match ready!(Pin::new(body).poll(context)) {
                        Ok(body) => door.answer(body, *method),
                        Err(why) => {
                            let failure = unread(why, door.0.bounds.body_bytes_max);
                            Ok(grpc::answer(Err(failure)))
                        }
                    };
                    match answered {
                        Ok(answer) => return Poll::Ready(Ok(answer)),
                        Err(late) => late,
                    }
                }
            };
            *self = Self::Late(late);
        }
    }
}

fn unread(why: Unread, bytes_max: usize) -> Failure {
    match why {
        Unread::TooLarge => grpc::too_large(bytes_max),
        Unread::Broken => Failure::new(Code::InvalidArgument, "the message is broken"),
        Unread::Late => Failure::new(Code::Unavailable, "the message did not come in time"),
    }
}
