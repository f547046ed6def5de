//! HTTP/2 on a connection of any listener: every bound of the protocol is set, with an idle timeout and a drain.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Incoming};
use hyper::server::conn::http2;
use hyper::service::Service;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_io_timeout::TimeoutWriter;
use tracing::debug;

use super::accept::ConnectionHandler;
use super::drain::{Drain, DrainWatch};
use super::idle_timeout::IdleTimeout;

/// Concurrent requests of one connection. Envoy opens another connection for more.
const STREAMS_MAX: u32 = 256;
/// Bytes of a request's headers, decoded. All CONTINUATION frames together stay within it.
const HEADERS_BYTES_MAX: u32 = 8 * 1024;
/// Bytes of a connection's HPACK table.
const HEADER_TABLE_BYTES_MAX: u32 = 4 * 1024;
/// Requests that the client reset before we accepted them. One more ends the connection.
const RESETS_PENDING_MAX: usize = 32;
/// Requests of one connection that we reset for the client's faults. One more ends the connection.
const RESETS_FAULTY_MAX: usize = 128;
/// Bytes of one frame: the least that HTTP/2 allows.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of one request that the client may send ahead.
const STREAM_WINDOW_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of all requests of a connection that the client may send ahead.
const CONNECTION_WINDOW_BYTES_MAX: u32 = 256 * 1024;
/// Bytes of one response that wait to be sent.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// How long a client may read nothing of what it is sent.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may be silent before it gets a PING.
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long it may take to answer that.
const PONG_WAIT_MAX: Duration = Duration::from_secs(10);

/// Serves HTTP/2 with this service.
#[derive(Clone, Debug)]
pub struct Http2<S>(pub S);

impl<S, B> ConnectionHandler for Http2<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    /// No settings, and GOAWAY with ENHANCE_YOUR_CALM.
    const BUSY: &'static [u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0b";

    async fn handle<T>(self, stream: T, drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(service) = self;
        let (service, mut idle_timeout) = IdleTimeout::of(service);
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(SEND_TIMEOUT));
        let stream = TokioIo::new(Box::pin(stream));
        let mut connection = pin!(bounded().serve_connection(stream, service));
        let mut drain = DrainWatch::new(drain);
        let mut is_ending = false;
        std::future::poll_fn(|context| {
            if !is_ending && drain.has_begun(context) {
                // A client that has sent no request, perhaps not even its preface, is as good as not accepted.
                if idle_timeout.saw_no_request() {
                    return Poll::Ready(());
                }
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            loop {
                match connection.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => return Poll::Ready(()),
                    Poll::Ready(Err(error)) => {
                        debug!(%error, "connection ended early");
                        return Poll::Ready(());
                    }
                    Poll::Pending if !idle_timeout.has_passed(context) => return Poll::Pending,
                    Poll::Pending if is_ending => {
                        debug!("connection closed: the client did not end it when asked to");
                        return Poll::Ready(());
                    }
                    Poll::Pending => {
                        // The client is asked first: a request that is on its way just now is still answered.
                        is_ending = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        })
        .await;
    }
}

fn bounded() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEADERS_BYTES_MAX)
        .header_table_size(HEADER_TABLE_BYTES_MAX)
        .max_pending_accept_reset_streams(RESETS_PENDING_MAX)
        .max_local_error_reset_streams(RESETS_FAULTY_MAX)
        .max_frame_size(FRAME_BYTES_MAX)
        .adaptive_window(false)
        .initial_stream_window_size(STREAM_WINDOW_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES_MAX)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PONG_WAIT_MAX)
        .auto_date_header(false);
    builder
}
