//! How long a client may take over the head of a request, and idle between requests.
//!
//! hyper can time each head, but then makes, arms and drops a timer with every request. Here the heads of a connection
//! are counted, and one timer looks from time to time whether the count has moved.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Context;
use std::time::Duration;

use hyper::service::Service;
use tokio::time::{Instant, Sleep};

/// How long a client may go without the head of another request: whole, not begun.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a connection is looked at within that time: it is closed at most one look late.
const LOOKS_MAX: u32 = 4;

/// A service that counts the requests it is given.
#[derive(Debug)]
pub struct Counted<S> {
    service: S,
    heads: Arc<AtomicU64>,
}

impl<S, R> Service<R> for Counted<S>
where
    S: Service<R>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn call(&self, request: R) -> Self::Future {
        // Ordering: Relaxed. Written and read by the connection's own task.
        self.heads.fetch_add(1, Ordering::Relaxed);
        self.service.call(request)
    }
}

/// Looks at one connection.
#[derive(Debug)]
pub struct Heads {
    counted: Arc<AtomicU64>,
    looks: Looks,
    timer: Pin<Box<Sleep>>,
    /// Whether the timer wakes the task.
    armed: bool,
}

impl Heads {
    /// Looks at the requests that come to `service`.
    pub fn of<S>(service: S) -> (Counted<S>, Self) {
        let counted = Arc::new(AtomicU64::new(0));
        let heads = Self {
            counted: Arc::clone(&counted),
            looks: Looks::default(),
            timer: Box::pin(tokio::time::sleep(HEAD_TIMEOUT / LOOKS_MAX)),
            armed: false,
        };
        let service = Counted {
            service,
            heads: counted,
        };
        (service, heads)
    }

    /// Whether there was no request yet.
    pub fn none(&self) -> bool {
        self.counted.load(Ordering::Relaxed) == 0
    }

    /// Whether the client took too long; asked on, it says so once for each time it did. To be asked whenever the connection's task, always the same, is woken.
    pub fn overdue(&mut self, context: &mut Context<'_>) -> bool {
        // Once armed, the timer need not be polled to be heard, and a look at it costs a request nothing.
        while !self.armed || self.timer.is_elapsed() {
            self.armed = true;
            if self.timer.as_mut().poll(context).is_ready() {
                let next = Instant::now() + HEAD_TIMEOUT / LOOKS_MAX;
                self.timer.as_mut().reset(next);
                self.armed = false;
                if self.looks.at(self.counted.load(Ordering::Relaxed)) {
                    return true;
                }
            }
        }
        false
    }
}

/// What the looks have found.
#[derive(Debug, Default)]
struct Looks {
    seen: u64,
    /// Looks since the count last moved.
    unmoved: u32,
}

impl Looks {
    /// Whether this look at the count is one too many.
    fn at(&mut self, counted: u64) -> bool {
        self.unmoved = match counted == self.seen {
            true => self.unmoved.saturating_add(1),
            false => 0,
        };
        self.seen = counted;
        let late = self.unmoved >= LOOKS_MAX;
        if late {
            self.unmoved = 0;
        }
        late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Looks at these counts find the client late at the last one, and not before.
    fn check(counts: &[u64]) {
        let mut looks = Looks::default();
        let late: Vec<bool> = counts.iter().map(|counted| looks.at(*counted)).collect();
        let first = late.iter().position(|late| *late);
        assert_eq!(first, Some(counts.len() - 1), "{counts:?}");
    }

    #[test]
    fn who_never_sends_a_head_is_late_after_the_timeout() {
        check(&[0, 0, 0, 0]);
    }

    #[test]
    fn a_head_gives_the_whole_time_anew() {
        check(&[1, 1, 1, 1, 1]);
        check(&[0, 0, 0, 1, 1, 1, 1, 1]);
        check(&[9, 9, 9, 10, 10, 11, 11, 11, 11, 11]);
    }
}
