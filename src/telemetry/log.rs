//! The output of the log: logging puts a line into a queue, and a thread writes it.
//!
//! Logging never waits and never fails. A full disk, a closed pipe or a stalled reader costs lines, which are counted, and
//! nothing else.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::mem;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// The most bytes of unwritten lines. A line that does not fit is lost.
const QUEUE_BYTES_MAX: usize = 1024 * 1024;

/// The lost lines of the process, which has one log.
static LOST: LostLines = LostLines {
    queue: AtomicU64::new(0),
    write: AtomicU64::new(0),
};

struct LostLines {
    queue: AtomicU64,
    write: AtomicU64,
}

/// Panics that ended a task, a thread or a connection.
static PANICS: AtomicU64 = AtomicU64::new(0);

/// Counts a panic.
pub fn panicked() {
    PANICS.fetch_add(1, Ordering::Relaxed);
}

/// The number of panics so far.
pub(super) fn panics() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// The number of lost lines so far, by reason.
pub(super) fn lost() -> [(&'static str, u64); 2] {
    // Ordering: Relaxed, here and where they are counted. Only figures for people.
    [
        ("queue", LOST.queue.load(Ordering::Relaxed)),
        ("write", LOST.write.load(Ordering::Relaxed)),
    ]
}

/// A queue of log lines. Copies share one queue.
#[derive(Clone, Debug, Default)]
pub struct LogQueue(Arc<SharedQueue>);

#[derive(Debug, Default)]
struct SharedQueue {
    queue: Mutex<PendingLines>,
    /// Signals that there is a line to write.
    filled: Condvar,
    /// Signals that all lines are written.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct PendingLines {
    lines: VecDeque<Vec<u8>>,
    /// Bytes of `lines`.
    bytes: usize,
    /// Bytes of the lines that the thread is writing.
    writing: usize,
}

impl LogQueue {
    /// A queue whose lines go to standard output.
    pub fn to_stdout() -> io::Result<Self> {
        // A separate descriptor: `std::io::Stdout` holds a lock while it writes, and the process would wait for it at exit.
        let stdout = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        let queue = Self::default();
        let shared = Arc::clone(&queue.0);
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || shared.write_to(stdout))?;
        Ok(queue)
    }

    /// Waits until every line is written, at most `within`: a stalled reader must not keep the process from ending.
    pub fn flush(&self, within: Duration) {
        let unwritten = |queue: &mut PendingLines| queue.bytes > 0 || queue.writing > 0;
        // Written or not, there is nothing more to do.
        let _ = self
            .0
            .emptied
            .wait_timeout_while(self.0.lock(), within, unwritten);
    }
}

impl Write for LogQueue {
    /// Takes a whole line. It reports success even if the line is lost, because the caller could do nothing about it.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut queue = self.0.lock();
        let bytes = queue.bytes.saturating_add(line.len());
        if bytes.saturating_add(queue.writing) > QUEUE_BYTES_MAX {
            LOST.queue.fetch_add(1, Ordering::Relaxed);
        } else {
            queue.bytes = bytes;
            queue.lines.push_back(line.to_vec());
            self.0.filled.notify_one();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl SharedQueue {
    fn lock(&self) -> MutexGuard<'_, PendingLines> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes lines until the process ends. It holds no lock while it writes.
    fn write_to(&self, mut to: impl Write) {
        loop {
            for line in self.next_lines() {
                if to.write_all(&line).is_err() {
                    LOST.write.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// Waits for lines and takes all of them.
    fn next_lines(&self) -> VecDeque<Vec<u8>> {
        let mut queue = self.lock();
        queue.writing = 0;
        if queue.lines.is_empty() {
            self.emptied.notify_all();
        }
        let mut queue = self
            .filled
            .wait_while(queue, |queue| queue.lines.is_empty())
            .unwrap_or_else(PoisonError::into_inner);
        queue.writing = mem::take(&mut queue.bytes);
        mem::take(&mut queue.lines)
    }
}
