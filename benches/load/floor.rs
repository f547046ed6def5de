//! The floor: hyper, and nothing else.
//!
//! It reads the body of a request and answers with a constant: no timers, no bounds, no routes.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// Answers on both addresses with the answer in that file.
pub fn serve(tcp: SocketAddr, unix: &Path, answer: &Path) {
    let answer = Answer::parse(fs::read(answer).expect("the answer is there").leak());
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
        .block_on(async move {
            let tcp = TcpListener::bind(tcp).await.expect("the address is free");
            let unix = UnixListener::bind(unix).expect("the path is free");
            loop {
                tokio::select! {
                    accepted = tcp.accept() => {
                        let (stream, _) = accepted.expect("a connection");
                        stream.set_nodelay(true).expect("TCP_NODELAY");
                        tokio::spawn(connection(stream, answer));
                    }
                    accepted = unix.accept() => {
                        let (stream, _) = accepted.expect("a connection");
                        tokio::spawn(connection(stream, answer));
                    }
                }
            }
        });
}

async fn connection<T>(stream: T, answer: &'static Answer)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(async |request: Request<Incoming>| {
        let _ = request.into_body().collect().await;
        Ok::<_, Infallible>(answer.response())
    });
    let _ = http1::Builder::new()
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// The constant.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: &'static [u8],
}

impl Answer {
    /// The answer in these bytes, but for the headers that hyper writes itself.
    fn parse(bytes: &'static [u8]) -> &'static Self {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
        let (head, body) = bytes.split_at(end.expect("a head") + 4);
        let mut lines = str::from_utf8(head).expect("a head of text").lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1));
        let headers = lines
            .filter_map(|line| line.split_once(": "))
            .filter(|(name, _)| !["content-length", "date"].contains(name))
            .map(|(name, value)| {
                (
                    HeaderName::from_static(name),
                    HeaderValue::from_static(value),
                )
            })
            .collect();
        Box::leak(Box::new(Self {
            status: status
                .and_then(|status| status.parse().ok())
                .expect("a status"),
            headers,
            body,
        }))
    }

    fn response(&self) -> Response<Full<Bytes>> {
        let mut response = Response::new(Full::new(Bytes::from_static(self.body)));
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers.clone();
        response
    }
}
