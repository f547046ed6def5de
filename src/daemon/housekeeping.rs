//! Housekeeping: corrects the clock and tidies the metrics, every two seconds, on a thread of its own.
//!
//! It uses no timer of the runtime. Such a timer wakes a worker several times, and the worker wakes the main thread: at
//! rest, each turn made five wake-ups. A thread that waits by itself wakes up once.

use std::convert::Infallible;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use crate::clock::Clock;
use crate::telemetry::Telemetry;

/// The time between two turns.
const HOUSEKEEPING_EVERY: Duration = Duration::from_secs(2);
/// Recent figures start their next half minute after so many turns.
const TURNS_PER_HALF_MINUTE: u64 = 15;

/// The running thread. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Housekeeping {
    _stop: Sender<Infallible>,
}

impl Housekeeping {
    /// Starts the thread.
    pub(super) fn start(telemetry: Arc<Telemetry>) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        std::thread::Builder::new()
            .name("housekeeping".to_owned())
            .spawn(move || run(&telemetry, &stopped))?;
        Ok(Self { _stop: stop })
    }
}

/// Runs until the other end of `stopped` is dropped.
fn run(telemetry: &Telemetry, stopped: &Receiver<Infallible>) {
    let mut turn = 0_u64;
    while stopped.recv_timeout(HOUSEKEEPING_EVERY) == Err(RecvTimeoutError::Timeout) {
        turn += 1;
        take_turn(telemetry, turn);
    }
}

/// One turn. A panic ends this turn, not the thread.
fn take_turn(telemetry: &Telemetry, turn: u64) {
    let done = panic::catch_unwind(AssertUnwindSafe(|| {
        Clock::get().align();
        telemetry.upkeep();
        if turn.is_multiple_of(TURNS_PER_HALF_MINUTE) {
            telemetry.half_minute(Clock::get().moment().now);
        }
    }));
    if done.is_err() {
        telemetry.restarted("housekeeping");
    }
}
