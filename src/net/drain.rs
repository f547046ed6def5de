//! The drain: the orderly stop of every listener and connection.
//!
//! [`DrainSwitch`] begins it, [`Drain`] waits for it, and [`DrainWatch`] notices it inside a hand-written future.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Context;

use tokio::sync::watch;

/// Tells a listener or a connection that it is time to end.
#[derive(Clone, Debug)]
pub struct Drain {
    begun: Arc<AtomicBool>,
    changes: watch::Receiver<()>,
}

/// Begins a drain.
#[derive(Debug)]
pub struct DrainSwitch {
    begun: Arc<AtomicBool>,
    changes: watch::Sender<()>,
}

impl Drain {
    /// A drain and its switch.
    pub fn new() -> (DrainSwitch, Self) {
        let begun = Arc::new(AtomicBool::new(false));
        let (sender, receiver) = watch::channel(());
        let switch = DrainSwitch {
            begun: Arc::clone(&begun),
            changes: sender,
        };
        let changes = receiver;
        (switch, Self { begun, changes })
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        // Ordering: Acquire pairs with `DrainSwitch::begin`. The channel wakes whoever waits.
        self.begun.load(Ordering::Acquire)
    }

    /// Waits until it begins.
    pub async fn begins(&mut self) {
        while !self.has_begun() && self.changes.changed().await.is_ok() {}
    }
}

impl DrainSwitch {
    /// Begins the drain: listeners accept no further connection, and a connection ends after its current request.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.changes.send_replace(());
    }
}

/// Notices a drain from inside a future that is polled for other reasons, too.
///
/// The first look registers the task with the drain, which then wakes it. Every later look only reads a flag, so it
/// costs a request nothing. One task has to do all the looking.
pub struct DrainWatch {
    drain: Drain,
    begins: Pin<Box<dyn Future<Output = ()> + Send + Sync>>,
    is_registered: bool,
}

impl DrainWatch {
    /// Watches `drain`.
    pub fn new(drain: Drain) -> Self {
        let mut awaited = drain.clone();
        Self {
            drain,
            begins: Box::pin(async move { awaited.begins().await }),
            is_registered: false,
        }
    }

    /// Whether the drain has begun. If not, it will wake the task of `context`.
    pub fn has_begun(&mut self, context: &mut Context<'_>) -> bool {
        if !self.is_registered {
            self.is_registered = true;
            let _ = self.begins.as_mut().poll(context);
        }
        self.drain.has_begun()
    }
}

impl fmt::Debug for DrainWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DrainWatch")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct WakeCounter(AtomicUsize);

    impl Wake for WakeCounter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_drain_wakes_the_task_that_watches_it() {
        let (switch, drain) = Drain::new();
        let wakes = Arc::new(WakeCounter::default());
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut watch = DrainWatch::new(drain);
        assert!(!watch.has_begun(&mut context));
        assert!(!watch.has_begun(&mut context));
        switch.begin();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert!(watch.has_begun(&mut context));
    }

    #[test]
    fn a_drain_that_has_begun_is_noticed_at_the_first_look() {
        let (switch, drain) = Drain::new();
        switch.begin();
        let mut context = Context::from_waker(Waker::noop());
        assert!(DrainWatch::new(drain).has_begun(&mut context));
    }
}
