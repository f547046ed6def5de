//! A stream of messages that ends with the drain: without it, a call that never ends would hold its connection open.

use std::pin::Pin;
use std::task::{Context, Poll};

use tonic::Status;
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::Stream;

use crate::net::drain::{Drain, DrainWatch};

/// Passes `messages` on until `drain` has begun and no message is ready.
pub fn until_drain<T: 'static>(messages: BoxStream<T>, drain: Drain) -> BoxStream<T> {
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
