//! HTTP/2 on a connection of any listener, every bound of it set.

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

use super::heads::Heads;
use super::listen::{Drain, Speak};

/// Requests of one connection that are under way at once. Envoy opens another connection for more.
const STREAMS_MAX: u32 = 256;
/// Bytes of a request's headers, decoded. Also what any number of CONTINUATION frames may amount to.
const HEADERS_BYTES_MAX: u32 = 8 * 1024;
/// Bytes of the headers that a connection keeps in mind to be referred to.
const HEADER_TABLE_BYTES_MAX: u32 = 4 * 1024;
/// Requests that were taken back before they were looked at. One more ends the connection.
const RESETS_PENDING_MAX: usize = 32;
/// Requests of one connection that had to be reset for its faults. One more ends the connection.
const RESETS_FAULTY_MAX: usize = 128;
/// Bytes of one frame. The least that HTTP/2 allows.
const FRAME_BYTES_MAX: u32 = 16 * 1024;
/// Bytes of one request that may be on their way.
const STREAM_WINDOW_BYTES_MAX: u32 = 64 * 1024;
/// Bytes of all requests of a connection that may be on their way.
const CONNECTION_WINDOW_BYTES_MAX: u32 = 256 * 1024;
/// Bytes of one answer that wait to be sent.
const SEND_BYTES_MAX: usize = 64 * 1024;
/// How long a client may read nothing of what it is sent.
const UNREAD_MAX: Duration = Duration::from_secs(10);
/// How long a silent client is left alone before it is asked for a sign of life.
const PING_AFTER: Duration = Duration::from_secs(30);
/// How long it may then take.
const PONG_WAIT_MAX: Duration = Duration::from_secs(10);

/// Answers requests with a service of its own for each connection.
#[derive(Clone, Debug)]
pub struct Http2<S>(pub S);

impl<S, B> Speak for Http2<S>
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    /// No settings, and GOAWAY with ENHANCE_YOUR_CALM.
    const BUSY: &'static [u8] = b"\0\0\0\x04\0\0\0\0\0\0\0\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\x0b";

    async fn speak<T>(self, stream: T, mut drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(service) = self;
        let (service, mut heads) = Heads::of(service);
        let mut stream = TimeoutWriter::new(stream);
        stream.set_timeout(Some(UNREAD_MAX));
        let stream = TokioIo::new(Box::pin(stream));
        let mut served = pin!(bounded().serve_connection(stream, service));
        let asked = drain.clone();
        let mut begins = pin!(drain.begins());
        let (mut waiting, mut leaving) = (false, false);
        std::future::poll_fn(|context| {
            // The drain is asked once, to be woken by it; after that a flag tells, which costs a request nothing.
            if !leaving && (!waiting || asked.has_begun()) {
                waiting = true;
                if begins.as_mut().poll(context).is_ready() {
                    // Who has not asked anything yet, nor even said hello, is as good as not accepted.
                    if heads.none() {
                        return Poll::Ready(());
                    }
                    leaving = true;
                    served.as_mut().graceful_shutdown();
                }
            }
            loop {
                match served.as_mut().poll(context) {
                    Poll::Ready(Ok(())) => return Poll::Ready(()),
                    Poll::Ready(Err(error)) => {
                        debug!(%error, "connection ended early");
                        return Poll::Ready(());
                    }
                    Poll::Pending if !heads.overdue(context) => return Poll::Pending,
                    Poll::Pending if leaving => {
                        debug!("connection closed: it was told to end, and did not");
                        return Poll::Ready(());
                    }
                    Poll::Pending => {
                        // Told first: a request that is on its way just now is still answered.
                        leaving = true;
                        served.as_mut().graceful_shutdown();
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
