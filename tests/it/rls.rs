//! A gRPC client for the tests: tonic's, over TCP or a Unix socket, called as if it were not asynchronous.

use std::time::Duration;

use hyper_util::rt::TokioIo;
use prost::Message;
use tidegate::protocol::envoy::proto::rate_limit_descriptor::Entry;
use tidegate::protocol::envoy::proto::rate_limit_response::Code;
use tidegate::protocol::envoy::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitResponse};
use tidegate_testing::Endpoint;
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tonic::codec::CompressionEncoding;
use tonic::transport::{self, Channel};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

pub const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
/// Longer than anything here takes: a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client on a connection of its own.
pub struct Rls {
    runtime: Runtime,
    grpc: tonic::client::Grpc<Channel>,
}

impl Rls {
    pub fn connect(door: &Endpoint) -> Self {
        Self::try_connect(door).unwrap_or_else(|error| panic!("connect to {door:?}: {error}"))
    }

    pub fn try_connect(door: &Endpoint) -> Result<Self, transport::Error> {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        let channel = runtime.block_on(async {
            match door {
                Endpoint::Tcp(address) => {
                    let endpoint =
                        transport::Endpoint::try_from(format!("http://{address}")).unwrap();
                    endpoint.timeout(PATIENCE).connect().await
                }
                Endpoint::Unix(path) => {
                    let path = path.clone();
                    let connector = tower::service_fn(move |_| {
                        let path = path.clone();
                        async move { UnixStream::connect(path).await.map(TokioIo::new) }
                    });
                    let endpoint = transport::Endpoint::from_static("http://localhost");
                    let endpoint = endpoint.timeout(PATIENCE);
                    endpoint.connect_with_connector(connector).await
                }
            }
        })?;
        Ok(Self {
            runtime,
            grpc: tonic::client::Grpc::new(channel),
        })
    }

    /// The same client, which compresses what it sends and takes what is compressed.
    pub fn gzip(self) -> Self {
        let grpc = self.grpc.send_compressed(CompressionEncoding::Gzip);
        Self {
            grpc: grpc.accept_compressed(CompressionEncoding::Gzip),
            ..self
        }
    }

    /// Calls `method` with one message, for one.
    pub fn call<Q, A>(&mut self, method: &'static str, request: Q) -> Result<A, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        self.answer(method, request).map(Response::into_inner)
    }

    /// The same, with the headers of the answer.
    pub fn answer<Q, A>(&mut self, method: &'static str, request: Q) -> Result<Response<A>, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let (runtime, grpc) = (&self.runtime, &mut self.grpc);
        runtime.block_on(async {
            grpc.ready()
                .await
                .map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(Request::new(request), method.parse().unwrap(), codec)
                .await
        })
    }

    /// Calls `method` with these messages, for a stream.
    pub fn stream<Q, A>(
        &mut self,
        method: &'static str,
        requests: Vec<Q>,
    ) -> Result<Streaming<A>, Status>
    where
        Q: Message + Send + Sync + 'static,
        A: Message + Default + Send + Sync + 'static,
    {
        let (runtime, grpc) = (&self.runtime, &mut self.grpc);
        runtime.block_on(async {
            grpc.ready()
                .await
                .map_err(|error| Status::unavailable(error.to_string()))?;
            let requests = Request::new(tonic::codegen::tokio_stream::iter(requests));
            let codec = ProstCodec::<Q, A>::default();
            let answered = grpc.streaming(requests, method.parse().unwrap(), codec);
            Ok(answered.await?.into_inner())
        })
    }

    /// The next message of a stream.
    pub fn next<A>(&self, stream: &mut Streaming<A>) -> Result<Option<A>, Status> {
        self.runtime.block_on(stream.message())
    }

    pub fn ask(&mut self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        self.call(SHOULD_RATE_LIMIT, request)
    }

    /// Asks about one descriptor of one entry: `a` if it may pass, `d` if not, `?` for anything else.
    pub fn letter(&mut self, key: &str, value: &str) -> char {
        match self.ask(request([descriptor(&[(key, value)])])) {
            Ok(answer) => letter(&answer),
            Err(_) => '?',
        }
    }

    /// The same again and again.
    pub fn letters(&mut self, key: &str, value: &str, times: usize) -> String {
        (0..times).map(|_| self.letter(key, value)).collect()
    }
}

pub fn letter(answer: &RateLimitResponse) -> char {
    match answer.overall_code() {
        Code::Ok => 'a',
        Code::OverLimit => 'd',
        Code::Unknown => '?',
    }
}

pub fn request<const N: usize>(descriptors: [RateLimitDescriptor; N]) -> RateLimitRequest {
    RateLimitRequest {
        domain: "api".to_owned(),
        descriptors: descriptors.into(),
        hits_addend: 0,
    }
}

pub fn descriptor<V: AsRef<[u8]>>(entries: &[(&str, V)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, V)| Entry {
        key: (*key).into(),
        value: value.as_ref().into(),
    };
    RateLimitDescriptor {
        entries: entries.iter().map(entry).collect(),
        ..RateLimitDescriptor::default()
    }
}
