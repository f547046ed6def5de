//! HTTP/1.1 on a connection of any listener.

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

use super::Reply;
use super::heads::Heads;
use super::listen::{Drain, Speak};

/// Bytes of a request's head. Its headers are bounded by hyper, at 100: any other bound costs each request a copy.
const HEAD_BYTES_MAX: usize = 16 * 1024;

/// Answers requests with a service of its own for each connection.
#[derive(Clone, Debug)]
pub struct Http1<S>(pub S);

impl<S> Speak for Http1<S>
where
    S: Service<Request<Incoming>, Response = Reply> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    S::Error: std::error::Error + Send + Sync + 'static,
{
    const BUSY: &'static [u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 79\r\n\
    retry-after: 1\r\nconnection: close\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"connections_max are open\"}}\n";

    async fn speak<T>(self, stream: T, mut drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(service) = self;
        let (service, mut heads) = Heads::of(service);
        let mut served = pin!(
            http1::Builder::new()
                .max_buf_size(HEAD_BYTES_MAX)
                .half_close(true)
                .writev(false)
                .serve_connection(TokioIo::new(stream), service)
        );
        let asked = drain.clone();
        let mut begins = pin!(drain.begins());
        let (mut waiting, mut draining) = (false, false);
        std::future::poll_fn(|context| {
            // The drain is asked once, to be woken by it; after that a flag tells, which costs a request nothing.
            if !waiting || asked.has_begun() {
                waiting = true;
                if !draining && begins.as_mut().poll(context).is_ready() {
                    draining = true;
                    served.as_mut().graceful_shutdown();
                }
            }
            match served.as_mut().poll(context) {
                Poll::Ready(Ok(())) => Poll::Ready(()),
                Poll::Ready(Err(error)) => {
                    debug!(%error, "connection ended early");
                    Poll::Ready(())
                }
                Poll::Pending if heads.overdue(context) => {
                    debug!("connection closed: no request came in time");
                    Poll::Ready(())
                }
                Poll::Pending => Poll::Pending,
            }
        })
        .await;
    }
}
