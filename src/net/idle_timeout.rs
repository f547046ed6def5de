//! The idle timeout: how long a client may take over the head of a request, and idle between requests.
//!
//! hyper can time each head, but then makes, arms and drops a timer with every request. Here a connection counts its
//! requests, and one timer looks from time to time whether the count has moved.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use hyper::service::Service;
use tokio::time::{Instant, Sleep};

/// How long a client may go without the whole head of another request.
const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Looks at a connection within that time: it is closed at most one look late.
const LOOKS_MAX: u32 = 4;

/// A service that counts its requests.
#[derive(Debug)]
pub struct RequestCounter<S> {
    service: S,
    requests: Arc<AtomicU64>,
}

impl<S, R> Service<R> for RequestCounter<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: R) -> Self::Future {
        // Ordering: Relaxed. The connection's own task writes and reads it.
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.service.call(request)
    }
}

/// The idle timeout of one connection.
#[derive(Debug)]
pub struct IdleTimeout {
    requests: Arc<AtomicU64>,
    progress: RequestProgress,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer wakes the task.
    is_armed: bool,
}

impl IdleTimeout {
    /// The timeout of a connection, and the service to serve it with.
    pub fn of<S>(service: S) -> (RequestCounter<S>, Self) {
        let requests = Arc::new(AtomicU64::new(0));
        let timeout = Self {
            requests: Arc::clone(&requests),
            progress: RequestProgress::default(),
            timer: Box::pin(tokio::time::sleep(IDLE_TIMEOUT / LOOKS_MAX)),
            is_armed: false,
        };
        (RequestCounter { service, requests }, timeout)
    }

    /// Whether the connection has had no request yet.
    pub fn saw_no_request(&self) -> bool {
        self.requests.load(Ordering::Relaxed) == 0
    }

    /// Whether the timeout has passed; it says so once each time it passes. The connection's task, always the same, has
    /// to ask whenever it is woken.
    pub fn has_passed(&mut self, context: &mut Context<'_>) -> bool {
        // An armed timer wakes the task without another poll, and reading its state costs a request nothing.
        while !self.is_armed || self.timer.is_elapsed() {
            self.is_armed = true;
            if self.timer.as_mut().poll(context).is_ready() {
                let next = Instant::now() + IDLE_TIMEOUT / LOOKS_MAX;
                self.timer.as_mut().reset(next);
                self.is_armed = false;
                if self
                    .progress
                    .has_stopped(self.requests.load(Ordering::Relaxed))
                {
                    return true;
                }
            }
        }
        false
    }
}

/// What the looks at the count have found.
#[derive(Debug, Default)]
struct RequestProgress {
    requests: u64,
    /// Looks since the count last moved.
    unmoved: u32,
}

impl RequestProgress {
    /// Whether this is the last of [`LOOKS_MAX`] looks in a row that found the same count.
    fn has_stopped(&mut self, requests: u64) -> bool {
        self.unmoved = match requests == self.requests {
            true => self.unmoved.saturating_add(1),
            false => 0,
        };
        self.requests = requests;
        let stopped = self.unmoved >= LOOKS_MAX;
        if stopped {
            self.unmoved = 0;
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at these counts find the client idle at the last one, and not before.
    fn check(counts: &[u64]) {
        let mut progress = RequestProgress::default();
        let stopped = |count: &u64| progress.has_stopped(*count);
        let stopped: Vec<bool> = counts.iter().map(stopped).collect();
        let first = stopped.iter().position(|stopped| *stopped);
        assert_eq!(first, Some(counts.len() - 1), "{counts:?}");
    }

    #[test]
    fn a_client_that_never_sends_a_request_is_idle_after_the_timeout() {
        check(&[0, 0, 0, 0]);
    }

    #[test]
    fn a_request_gives_the_whole_time_anew() {
        check(&[1, 1, 1, 1, 1]);
        check(&[0, 0, 0, 1, 1, 1, 1, 1]);
        check(&[9, 9, 9, 10, 10, 11, 11, 11, 11, 11]);
    }
}
