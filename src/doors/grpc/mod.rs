//! Checks over gRPC, as Envoy asks them: `envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit`.
//!
//! This file routes calls and reads their messages; `checks` answers checks. On the same listeners, `health` says
//! whether checks are answered, and `reflection` says what can be called. Their streams end with the drain
//! (`drained_stream`).

mod checks;
mod drained_stream;
mod health;
mod reflection;

use std::convert::Infallible;
use std::future;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::service::Service;
use hyper::{Method, Request, Response, StatusCode, Uri};
use prost::Message;
use tonic::body::Body;
use tonic::codec::{CompressionEncoding, HEADER_SIZE};
use tonic::codegen::{BoxFuture, Service as _};
use tonic::{Code, Status};
use tonic_health::pb::health_server::HealthServer;
use tonic_reflection::pb::v1::server_reflection_server::ServerReflectionServer;

use super::body::{BodyFault, BodyReader};
use super::limiter::Limiter;
use crate::net::drain::Drain;
use crate::protocol::envoy::encode;
use crate::protocol::envoy::proto::rate_limit_service_server::{
    RateLimitServiceServer, SERVICE_NAME,
};
use crate::protocol::headers::HeaderStyles;
use checks::CheckService;
use tidegate_config::HeaderStyle;

/// Where tools ask what can be called. The older version differs in its name only.
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";
const REFLECTION_OLD: &str = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";

/// The gRPC door.
#[derive(Clone, Debug)]
pub struct GrpcDoor(Arc<GrpcServices>);

#[derive(Debug)]
struct GrpcServices {
    checks: RateLimitServiceServer<CheckService>,
    health: HealthServer<health::HealthUntilDrain>,
    reflection: ServerReflectionServer<reflection::Reflection>,
    limiter: Limiter,
    bytes_max: usize,
}

impl GrpcDoor {
    /// A door that decides with `limiter`, adds headers of these styles, and reports itself healthy until `drain`
    /// begins.
    pub async fn new(limiter: Limiter, styles: &[HeaderStyle], drain: Drain) -> Self {
        let bytes_max = limiter.bounds().body_bytes_max;
        let checks = RateLimitServiceServer::new(CheckService {
            limiter: limiter.clone(),
            styles: HeaderStyles::new(styles),
        });
        Self(Arc::new(GrpcServices {
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

impl Service<Request<Incoming>> for GrpcDoor {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Response<Body>, Infallible>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        let Self(services) = self;
        if request.method() != Method::POST {
            return services.answer_unserved(request, refusal(StatusCode::METHOD_NOT_ALLOWED));
        }
        if !is_call(request.headers()) {
            return services.answer_unserved(request, refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE));
        }
        match request.uri().path() {
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit" => {
                let services = Arc::clone(services);
                Box::pin(async move {
                    let request = match services.read(request).await {
                        Ok(request) => request,
                        Err(fault) => return Ok(services.refuse_check(fault)),
                    };
                    let request = with_matching_compression(request);
                    let response = services.checks.clone().call(request).await;
                    response.map(|response| services.with_our_codes(response))
                })
            }
            "/grpc.health.v1.Health/Check" | "/grpc.health.v1.Health/Watch" => {
                let services = Arc::clone(services);
                Box::pin(async move {
                    match services.read(request).await {
                        Ok(request) => services.health.clone().call(request).await,
                        Err(fault) => Ok(services.status_of(fault).into_http()),
                    }
                })
            }
            REFLECTION | REFLECTION_OLD => {
                *request.uri_mut() = Uri::from_static(REFLECTION);
                services.reflection.clone().call(request)
            }
            _ => {
                let what = format!("no such method: checks are asked of {SERVICE_NAME}");
                services.answer_unserved(request, Status::unimplemented(what).into_http())
            }
        }
    }
}

impl GrpcServices {
    /// Reads all of a call that has one message before tonic does. A message grows when it is decoded: tonic would keep
    /// the decoded one while a slow client ends its call.
    async fn read(&self, request: Request<Incoming>) -> Result<Request<Full<Bytes>>, BodyFault> {
        let (head, body) = request.into_parts();
        let body = BodyReader::new(body, self.bytes_max + HEADER_SIZE).draining();
        Ok(Request::from_parts(head, Full::new(body.await?)))
    }

    /// The status of a call whose message could not be read.
    fn status_of(&self, fault: BodyFault) -> Status {
        match fault {
            BodyFault::TooLarge => Status::invalid_argument(self.too_large()),
            BodyFault::Broken => Status::invalid_argument("the message is broken"),
            BodyFault::TimedOut => Status::unavailable("the message did not come in time"),
        }
    }

    /// The response to a check whose message could not be read. One that is too large is denied.
    fn refuse_check(&self, fault: BodyFault) -> Response<Body> {
        match fault {
            BodyFault::TooLarge => self.deny(&self.too_large()),
            BodyFault::Broken | BodyFault::TimedOut => {
                self.limiter.count_malformed();
                self.status_of(fault).into_http()
            }
        }
    }

    /// Answers a call that no service takes, once it is read: a client that is still sending would see a reset and not
    /// the response.
    fn answer_unserved(
        self: &Arc<Self>,
        request: Request<Incoming>,
        response: Response<Body>,
    ) -> BoxFuture<Response<Body>, Infallible> {
        let services = Arc::clone(self);
        Box::pin(async move {
            let _ = services.read(request).await;
            Ok(response)
        })
    }

    /// A check fails as INVALID_ARGUMENT or UNAVAILABLE, so that a client can tell its own faults from ours. tonic has
    /// other codes: INTERNAL for a message that it cannot decode, OUT_OF_RANGE and RESOURCE_EXHAUSTED for one that is
    /// too long, or would be once it is decompressed. The latter two are denied.
    fn with_our_codes(&self, response: Response<Body>) -> Response<Body> {
        let Some(status) = response.extensions().get::<Status>() else {
            return response;
        };
        if matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted) {
            return self.deny(&self.too_large());
        }
        if status.code() != Code::Internal {
            return response;
        }
        self.limiter.count_malformed();
        Status::invalid_argument(status.message()).into_http()
    }

    fn too_large(&self) -> String {
        let bytes_max = self.bytes_max;
        format!("the message must be at most {bytes_max} bytes")
    }

    /// The response to a check that is over a bound: the call succeeds, and its message says OVER_LIMIT.
    fn deny(&self, why: &str) -> Response<Body> {
        self.limiter.count_malformed();
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

/// Makes tonic compress the response only if the request is compressed: compressing takes longer than deciding, and
/// some clients accept it with every call.
fn with_matching_compression(mut request: Request<Full<Bytes>>) -> Request<Full<Bytes>> {
    let headers = request.headers_mut();
    let is_gzip = |value: &HeaderValue| value.as_bytes() == b"gzip";
    if !headers.get("grpc-encoding").is_some_and(is_gzip) {
        headers.remove("grpc-accept-encoding");
    }
    request
}

/// Whether these are the headers of a gRPC call.
fn is_call(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// The response to a request that is no gRPC call.
fn refusal(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = status;
    response
}
