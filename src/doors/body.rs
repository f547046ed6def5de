//! A request's body, read whole: bounded in bytes and in time.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use tokio::time::Sleep;

/// How long a client may take to send a body that did not come with its head.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of a body that is too long that a draining reader reads and throws away.
const DISCARDED_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Why there is no body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFault {
    /// It is longer than it may be.
    TooLarge,
    /// The connection ended within it, or its framing is not HTTP's.
    Broken,
    /// It did not come in time.
    TimedOut,
}

/// Reads a body. Most come with their head and in one piece: the reader passes that piece on as it is and sets no
/// timer.
#[derive(Debug)]
pub struct BodyReader {
    incoming: Incoming,
    first: Bytes,
    /// The whole body so far, once there is a second piece.
    joined: BytesMut,
    bytes_max: usize,
    /// Bytes of a body that is too long that may still be thrown away.
    discarded_max: usize,
    is_too_large: bool,
    timeout: Option<Pin<Box<Sleep>>>,
}

impl BodyReader {
    /// Reads `incoming` if it is no longer than `bytes_max`.
    pub fn new(incoming: Incoming, bytes_max: usize) -> Self {
        Self {
            incoming,
            first: Bytes::new(),
            joined: BytesMut::new(),
            bytes_max,
            discarded_max: 0,
            is_too_large: false,
            timeout: None,
        }
    }

    /// Reads a body that turns out too long to its end and keeps nothing of it: a client that is still sending may miss
    /// the response.
    #[must_use]
    pub const fn draining(mut self) -> Self {
        self.discarded_max = DISCARDED_BYTES_MAX;
        self
    }

    fn add(&mut self, piece: Bytes) -> Result<(), BodyFault> {
        let length = self.joined.len().max(self.first.len());
        if self.is_too_large || length.saturating_add(piece.len()) > self.bytes_max {
            return self.discard(piece.len());
        }
        if length == 0 {
            self.first = piece;
        } else {
            if self.joined.is_empty() {
                self.joined.extend_from_slice(&self.first);
            }
            self.joined.extend_from_slice(&piece);
        }
        Ok(())
    }

    fn discard(&mut self, length: usize) -> Result<(), BodyFault> {
        self.is_too_large = true;
        (self.first, self.joined) = (Bytes::new(), BytesMut::new());
        let left = self.discarded_max.checked_sub(length);
        self.discarded_max = left.ok_or(BodyFault::TooLarge)?;
        Ok(())
    }

    fn take_body(&mut self) -> Bytes {
        match self.joined.is_empty() {
            true => std::mem::take(&mut self.first),
            false => std::mem::take(&mut self.joined).freeze(),
        }
    }
}

impl Future for BodyReader {
    type Output = Result<Bytes, BodyFault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // A body whose head says that it is too long need not be read to be refused.
        if self.incoming.size_hint().lower() > self.bytes_max as u64 && self.discarded_max == 0 {
            return Poll::Ready(Err(BodyFault::TooLarge));
        }
        while !self.incoming.is_end_stream() {
            match Pin::new(&mut self.incoming).poll_frame(context) {
                Poll::Ready(Some(Ok(frame))) => {
                    if let Ok(piece) = frame.into_data() {
                        self.add(piece)?;
                    }
                }
                Poll::Ready(Some(Err(_))) => return Poll::Ready(Err(BodyFault::Broken)),
                Poll::Ready(None) => break,
                Poll::Pending => {
                    let timeout = || Box::pin(tokio::time::sleep(BODY_TIMEOUT));
                    ready!(
                        self.timeout
                            .get_or_insert_with(timeout)
                            .as_mut()
                            .poll(context)
                    );
                    return Poll::Ready(Err(BodyFault::TimedOut));
                }
            }
        }
        Poll::Ready(match self.is_too_large {
            true => Err(BodyFault::TooLarge),
            false => Ok(self.take_body()),
        })
    }
}
