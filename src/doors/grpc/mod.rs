//! Checks over gRPC, as Envoy asks them: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
//!
//! Beside it, on the same listeners, whether checks are answered (`health`) and what can be asked (`reflection`).

mod health;
mod reflection;

use std::convert::Infallible;
use std::future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode, Uri};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{CompressionEncoding, HEADER_SIZE};
use tonic::codegen::tokio_stream::Stream;
use tonic::codegen::{BoxFuture, BoxStream, Service as _};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::pb::v1::server_reflection_server::ServerReflectionServer;

use super::body::{Reading, Unread};
use super::limiter::Limiter;
use crate::net::drain::{Drain, DrainWatch};
use crate::protocol::Refusal;
use crate::protocol::envoy::decode::from_protobuf;
use crate::protocol::envoy::encode;
use crate::protocol::envoy::proto::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer, SERVICE_NAME,
};
use crate::protocol::envoy::proto::{RateLimitRequest, RateLimitResponse};
use crate::protocol::headers::HeaderStyles;
use tidegate_config::HeaderStyle;
use tidegate_core::engine::{Answer, CheckStep, Question, StorePlan};
use tidegate_core::pure::{Check, Moment};

/// Where tools ask what there is. The older one differs in its name only.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const REFLECTION_OLD: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// The gRPC door's services.
#[derive(Clone, Debug)]
pub struct Grpc(Arc<Services>);

#[derive(Debug)]
struct Services {
    checks: RateLimitServiceServer<Checks>,
    health: HealthServer<health::Told>,
    reflection: ServerReflectionServer<reflection::Reflection>,
    limiter: Limiter,
    bytes_max: usize,
}

impl Grpc {
    /// A door that decides with `limiter`, adds headers of these styles, and is well until `drain` begins.
    pub async fn new(limiter: Limiter, styles: &[HeaderStyle], drain: Drain) -> Self {
        let bytes_max = limiter.bounds.body_bytes_max;
        let checks = RateLimitServiceServer::new(Checks {
            limiter: limiter.clone(),
            styles: HeaderStyles::new(styles),
        });
        Self(Arc::new(Services {
            checks: checks
                .max_decoding_message_size(bytes_max)
                .accept_compressed(CompressionEncoding::Gzip)
                .send_compressed(CompressionEncoding::Gzip),
            health: health::server(drain.clone()).await,
            reflection: reflection::server(drain),
            limiter,
            bytes_max,
        }))
    }
}

impl Service<Request<Incoming>> for Grpc {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let Self(services) = self;
        if request.method() != Method::POST {
            return services.in_vain(request, refusal(StatusCode::METHOD_NOT_ALLOWED));
        }
        if !is_call(request.headers()) {
            return services.in_vain(request, refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                let services = Arc::clone(services);
                Box::pin(async move {
                    let request = match services.read(request).await {
                        Ok(request) => request,
                        Err(unread) => return Ok(services.check_unread(unread)),
                    };
                    let answer = services.checks.clone().call(answered_alike(request)).await;
                    answer.map(|answer| services.worded(answer))
                })
            }
            "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => {
                let services = Arc::clone(services);
                Box::pin(async move {
                    match services.read(request).await {
                        Ok(request) => services.health.clone().call(request).await,
                        Err(unread) => Ok(services.unread(unread).into_http()),
                    }
                })
            }
            REFLECTION | REFLECTION_OLD => {
                *request.uri_mut() = Uri::from_static(REFLECTION);
                services.reflection.clone().call(request)
            }
            _ => {
                let what = format!("no such method: checks are asked of {SERVICE_NAME}");
                services.in_vain(request, Status::unimplemented(what).into_http())
            }
        }
    }
}

impl Services {
    /// Reads all of a call that has one message before tonic does. Messages grow when they are decoded: whoever is slow
    /// to end a call would have them kept meanwhile.
    async fn read(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, Unread> {
        let (head, body) = request.into_parts();
        let body = Reading::new(body, self.bytes_max + HEADER_SIZE).draining();
        Ok(Request::from_parts(head, Full::new(body.await?)))
    }

    /// What is said of a message that could not be read.
    fn unread(&self, unread: Unread) -> Status {
        match unread {
            Unread::TooLarge => Status::invalid_argument(self.too_large()),
            Unread::Broken => Status::invalid_argument("the message is broken"),
            Unread::Late => Status::unavailable("the message did not come in time"),
        }
    }

    /// The same of one that should have been a check: one that is too large is denied.
    fn check_unread(&self, unread: Unread) -> Response<Body> {
        match unread {
            Unread::TooLarge => self.denied(&self.too_large()),
            Unread::Broken | Unread::Late => {
                self.limiter.malformed();
                self.unread(unread).into_http()
            }
        }
    }

    /// Answers what nobody serves once it is read: who is still sending would hear of a reset, and not of the answer.
    fn in_vain(
        self: &Arc<Self>,
        request: Request<Incoming>,
        answer: Response<Body>,
    ) -> BoxFuture<Response<Body>, Infallible> {
        let services = Arc::clone(self);
        Box::pin(async move {
            let _ = services.read(request).await;
            Ok(answer)
        })
    }

    /// A check fails as INVALID_ARGUMENT or UNAVAILABLE, so that whoever asks can tell its own faults from ours. tonic
    /// has other codes for messages that cannot be read: INTERNAL, and for those that are too long, or would be once
    /// they are decompressed, OUT_OF_RANGE and RESOURCE_EXHAUSTED. These are denied.
    fn worded(&self, answer: Response<Body>) -> Response<Body> {
        let Some(status) = answer.extensions().get::<Status>() else {
            return answer;
        };
        if matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted) {
            return self.denied(&self.too_large());
        }
        if status.code() != Code::Internal {
            return answer;
        }
        self.limiter.malformed();
        Status::invalid_argument(status.message()).into_http()
    }

    fn too_large(&self) -> String {
        let bytes_max = self.bytes_max;
        format!("the message must be at most {bytes_max} bytes")
    }

    /// The answer to a check that is over a bound: a call that succeeds, and says OVER_LIMIT.
    fn denied(&self, why: &str) -> Response<Body> {
        self.limiter.malformed();
        let message = encode::over_bound(why, 0).encode_to_vec();
        let length = u32::try_from(message.len()).unwrap_or_default();
        let mut frame = Vec::with_capacity(HEADER_SIZE + message.len());
        frame.push(0); // not compressed
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&message);
        let mut trailers = HeaderMap::new();
        trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
        let body = Full::new(Bytes::from(frame)).with_trailers(future::ready(Some(Ok(trailers))));
        let mut response = Response::new(Body::new(body));
        let kind = HeaderValue::from_static("application/grpc");
        response.headers_mut().insert(CONTENT_TYPE, kind);
        response
    }
}

/// The request, which is answered compressed only if it came so: compressing takes longer than deciding, and some
/// clients accept it with every call.
fn answered_alike(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let headers = request.headers_mut();
    let is_gzip = |value: &HeaderValue| value.as_bytes() == b"gzip";
    if !headers.get("grpc-encoding").is_some_and(is_gzip) {
        headers.remove("grpc-accept-encoding");
    }
    request
}

/// Whether these are the headers of a call.
fn is_call(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// The answer to what is no call.
fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}

/// Answers checks.
#[derive(Debug)]
struct Checks {
    limiter: Limiter,
    styles: HeaderStyles,
}

#[tonic::async_trait]
impl RateLimitService for Checks {
    async fn should_rate_limit(
        &self,
        request: tonic::Request<RateLimitRequest>,
    ) -> Result<tonic::Response<RateLimitResponse>, Status> {
        let request = request.get_ref();
        let began = self.limiter.clock.moment();
        let begun = self.check(request, |check| {
            match self.limiter.engine.begin(Question::Check(check), began) {
                CheckStep::Decided(answer) => Ok(self.tell(check, &answer, (began, began))),
                CheckStep::NeedsStore(plan) => Err(plan),
            }
        });
        let told = match begun {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(plan)) => self.ask(request, plan, began).await,
            Err(refused) => Err(refused),
        };
        match told {
            Ok(response) => Ok(tonic::Response::new(response)),
            Err(refused) => self.refuse(request, refused).map(tonic::Response::new),
        }
    }
}

impl Checks {
    /// Hands what was asked to `then`, once it is within the bounds.
    fn check<R>(
        &self,
        request: &RateLimitRequest,
        then: impl FnOnce(&Check<'_>) -> R,
    ) -> Result<R, Refusal> {
        let asked = from_protobuf(request);
        asked.and_then(|asked| asked.with_check(self.limiter.bounds.key_bytes_max, then))
    }

    /// Asks the store, and then decides.
    async fn ask(
        &self,
        request: &RateLimitRequest,
        plan: Box<StorePlan>,
        began: Moment,
    ) -> Result<RateLimitResponse, Refusal> {
        let begin = |moment| {
            self.check(request, |check| {
                self.limiter.engine.begin(Question::Check(check), moment)
            })
        };
        let strict = &self.limiter.strict;
        let (answer, moment) = strict.decide(&self.limiter.engine, plan, begin).await?;
        self.check(request, |check| self.tell(check, &answer, (began, moment)))
    }

    /// What is over a bound is denied, what is no check is an error.
    fn refuse(
        &self,
        request: &RateLimitRequest,
        refused: Refusal,
    ) -> Result<RateLimitResponse, Status> {
        self.limiter.malformed();
        match refused {
            Refusal::OverBound(why) => Ok(encode::over_bound(&why, request.descriptors.len())),
            Refusal::Malformed(what) => Err(Status::invalid_argument(what)),
        }
    }

    /// Counts what was decided, between when it began and when it was, and puts it in Envoy's words.
    fn tell(
        &self,
        check: &Check<'_>,
        answer: &Answer,
        (began, moment): (Moment, Moment),
    ) -> RateLimitResponse {
        self.limiter.decided(answer, Question::Check(check), began);
        encode::response(check, answer, self.styles, moment)
    }
}

/// These messages, until `drain` begins and there are no more for now.
fn until_drain<T: 'static>(messages: BoxStream<T>, drain: Drain) -> BoxStream<T> {
    let drain = DrainWatch::new(drain);
    Box::pin(DrainedStream { messages, drain })
}

struct DrainedStream<T> {
    messages: BoxStream<T>,
    drain: DrainWatch,
}

impl<T> Stream for DrainedStream<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.messages.as_mut().poll_next(context) {
            Poll::Ready(next) => Poll::Ready(next),
            Poll::Pending if self.drain.has_begun(context) => {
                let ended = Status::unavailable("the server is about to end");
                Poll::Ready(Some(Err(ended)))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
