//! Checks that go on beside a test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidegate_testing::{Client, Endpoint};

/// How long a turn rests.
const REST: Duration = Duration::from_millis(10);

/// A client that sends checks until it is ended.
pub struct Load {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Load {
    /// Takes one turn after another on a connection to `door`.
    pub fn on(door: Endpoint, mut turn: impl FnMut(usize, &mut Client) + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::spawn(move || {
            let mut client = door.connect();
            for nth in 0.. {
                turn(nth, &mut client);
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                thread::park_timeout(REST);
            }
        });
        Self { stop, thread }
    }

    /// The turn that is under way is the last; fails if one failed.
    pub fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}
