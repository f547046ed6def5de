//! The floor of gRPC: tonic, and nothing else.
//!
//! It reads a request and answers with a constant, through what tonic would generate for the service.

use std::convert::Infallible;
use std::fs;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::{Request, Response};
use prost::Message;
use tidegate::protocol::envoy::proto::{RateLimitRequest, RateLimitResponse};
use tokio::net::UnixListener;
use tonic::body::Body;
use tonic::codegen::tokio_stream::wrappers::UnixListenerStream;
use tonic::server::{Grpc, NamedService, UnaryService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic_prost::ProstCodec;

/// Answers on both addresses with the message in that file.
pub fn serve(tcp: SocketAddr, unix: &Path, answer: &Path) {
    let answer = fs::read(answer).expect("the answer is there");
    let answer = RateLimitResponse::decode(answer.as_slice()).expect("a message");
    let constant = Constant(Arc::new(answer));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async move {
        let tcp = TcpIncoming::bind(tcp)
            .expect("the address is free")
            .with_nodelay(Some(true));
        let unix = UnixListener::bind(unix).expect("the path is free");
        let server = |constant| Server::builder().add_service(constant);
        let tcp = server(constant.clone()).serve_with_incoming(tcp);
        let unix = server(constant).serve_with_incoming(UnixListenerStream::new(unix));
        let _ = tokio::join!(tcp, unix);
    });
}

#[derive(Clone)]
struct Constant(Arc<RateLimitResponse>);

impl NamedService for Constant {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl UnaryService<RateLimitRequest> for Constant {
    type Response = RateLimitResponse;
    type Future = Ready<Result<tonic::Response<RateLimitResponse>, tonic::Status>>;

    fn call(&mut self, _: tonic::Request<RateLimitRequest>) -> Self::Future {
        ready(Ok(tonic::Response::new(RateLimitResponse::clone(&self.0))))
    }
}

impl tower::Service<Request<Body>> for Constant {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let constant = self.clone();
        Box::pin(async move {
            let codec = ProstCodec::<RateLimitResponse, RateLimitRequest>::default();
            Ok(Grpc::new(codec).unary(constant, request).await)
        })
    }
}
