//! `grpc.health.v1.Health`: serving from the first connection until the drain begins.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use prost::Message;

use super::RATE_LIMIT_SERVICE;
use crate::wire::grpc::{self, Code, Failure, Source};
use crate::wire::listen::Drain;
use crate::wire::proto::health::v1::health_check_response::ServingStatus;
use crate::wire::proto::health::v1::{HealthCheckRequest, HealthCheckResponse};

/// The whole server, the rate limit service, and what envoyproxy/ratelimit calls it.
const SERVICES: [&str; 3] = ["", RATE_LIMIT_SERVICE, "ratelimit"];

/// Whether that service is well now.
pub fn check(message: &[u8], drain: &Drain) -> grpc::Answer {
    grpc::answer(known(message).and_then(|known| match known {
        true => Ok(framed(status(drain))),
        false => Err(Failure::new(Code::NotFound, "no such service")),
    }))
}

/// Whether that service is well, now and when it changes.
pub fn watch(message: &[u8], drain: &Drain) -> grpc::Answer {
    match known(message) {
        Ok(known) => grpc::answer_many(Watching {
            told: None,
            known,
            drain: drain.clone(),
            begins: Box::pin({
                let mut drain = drain.clone();
                async move { drain.begins().await }
            }),
        }),
        Err(failure) => grpc::answer(Err(failure)),
    }
}

fn known(message: &[u8]) -> Result<bool, Failure> {
    let request = HealthCheckRequest::decode(message)
        .map_err(|error| Failure::new(Code::InvalidArgument, error.to_string()))?;
    Ok(SERVICES.contains(&request.service.as_str()))
}

fn status(drain: &Drain) -> ServingStatus {
    match drain.has_begun() {
        true => ServingStatus::NotServing,
        false => ServingStatus::Serving,
    }
}

fn framed(status: ServingStatus) -> Bytes {
    grpc::frame(&HealthCheckResponse {
        status: status.into(),
    })
}

/// Tells how it is, waits for the drain, tells that, and ends.
struct Watching {
    told: Option<ServingStatus>,
    known: bool,
    drain: Drain,
    begins: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watching")
            .field("told", &self.told)
            .finish_non_exhaustive()
    }
}

impl Source for Watching {
    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Bytes, Option<Failure>>> {
        // Once it has begun there is nothing to wait for.
        if self.told.is_some() && !self.drain.has_begun() {
            ready!(self.begins.as_mut().poll(context));
        }
        let status = match self.known {
            true => status(&self.drain),
            false => ServingStatus::ServiceUnknown,
        };
        if self.told == Some(status) {
            let what = "the server is about to end";
            return Poll::Ready(Err(Some(Failure::new(Code::Unavailable, what))));
        }
        self.told = Some(status);
        Poll::Ready(Ok(framed(status)))
    }
}
