//! HTTP/1.1 on a connection of any listener: bounded heads, an idle timeout, a drain.

use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::debug;

use super::accept::ConnectionHandler;
use super::drain::{Drain, DrainWatch};
use super::idle_timeout::IdleTimeout;
use super::response::HttpReply;

/// Bytes of a request's head. hyper bounds its headers at 100: any other bound costs each request a copy.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Serves HTTP/1.1 with this service.
#[derive(Clone, Debug)]
pub struct Http1<S>(pub S);

impl<S> ConnectionHandler for Http1<S>
where
    S: Service<Request<Incoming>, Response = HttpReply> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: std::error::Error + Send + Sync + 'static,
{
    const BUSY: &'static [u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 79\r\n\
    retry-after: 1\r\nconnection: close\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"connections_max are open\"}}\n";

    async fn handle<T>(self, stream: T, drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(service) = self;
        let (service, mut idle_timeout) = IdleTimeout::of(service);
        let mut connection = pin!(
            http1::Builder::new()
                .max_buf_size(HEAD_BYTES_MAX)
                .half_close(true)
                .writev(false)
                .serve_connection(TokioIo::new(stream), service)
        );
        let mut drain = DrainWatch::new(drain);
        let mut is_ending = false;
        std::future::poll_fn(|context| {
            if !is_ending && drain.has_begun(context) {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            match connection.as_mut().poll(context) {
                Poll::Ready(Ok(())) => Poll::Ready(()),
                Poll::Ready(Err(error)) => {
                    debug!(%error, "connection ended early");
                    Poll::Ready(())
                }
                Poll::Pending if idle_timeout.has_passed(context) => {
                    debug!("connection closed: no request came in time");
                    Poll::Ready(())
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }
}
