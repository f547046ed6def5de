//! A load of pipelined commands of the Redis protocol, which takes little of the processor itself.
//!
//! One thread wakes up every 5 ms, counts the answers that have come and sends the commands that are due, each on a
//! connection picked at random. It never waits for an answer, so a slow server does not slow the load.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::scenarios::Zipf;
use crate::random::Random;
use crate::stores::frame;
use crate::wait::{SOON, now, rest_until, until};

const TICK: Duration = Duration::from_millis(5);

/// The commands to send.
pub struct LoadPlan {
    /// By key.
    pub commands: Vec<Vec<u8>>,
    /// How to pick a key. `None` picks all alike.
    pub zipf: Option<Zipf>,
    /// Commands a second.
    pub rate: f64,
}

impl LoadPlan {
    fn pick(&self, random: &mut Random) -> &[u8] {
        let key = match &self.zipf {
            Some(zipf) => zipf.pick(random) as usize,
            None => random.index(self.commands.len()),
        };
        &self.commands[key]
    }

    /// Sends what is due until it is told to stop, then waits for the last answers.
    fn send(&self, mut pipelines: Vec<Pipeline>, counts: &CheckCounts) {
        let begun = now();
        let mut random = Random::new(1);
        let mut sent = 0;
        while !counts.stop.load(Ordering::Relaxed) {
            let due = (begun.elapsed().as_secs_f64() * self.rate) as u64;
            for _ in sent..due {
                let nth = random.index(pipelines.len());
                pipelines[nth].unsent.extend(self.pick(&mut random));
            }
            sent = due;
            for pipeline in &mut pipelines {
                pipeline.exchange(counts);
            }
            rest_until(now() + TICK);
        }
        until("an answer to every check", SOON, || {
            for pipeline in &mut pipelines {
                pipeline.exchange(counts);
            }
            (counts.answered() == sent).then_some(())
        });
    }
}

/// The answers so far, and whether the load has to end.
#[derive(Debug, Default)]
pub struct CheckCounts {
    allowed: AtomicU64,
    denied: AtomicU64,
    stop: AtomicBool,
}

impl CheckCounts {
    pub fn allowed(&self) -> u64 {
        self.allowed.load(Ordering::Relaxed)
    }

    pub fn denied(&self) -> u64 {
        self.denied.load(Ordering::Relaxed)
    }

    fn answered(&self) -> u64 {
        self.allowed() + self.denied()
    }

    /// Counts the answer to TG.CHECK, or a number: 1 allows, 0 denies.
    fn count(&self, answer: &[u8]) {
        let decision = answer.strip_prefix(b"*6\r\n").unwrap_or(answer);
        let allowed = decision.starts_with(b":1\r\n");
        let text = String::from_utf8_lossy(answer);
        assert!(allowed || decision.starts_with(b":0\r\n"), "{text}");
        let counter = if allowed { &self.allowed } else { &self.denied };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// A load in a thread of its own.
#[derive(Debug)]
pub struct RunningChecks {
    pub counts: Arc<CheckCounts>,
    sender: JoinHandle<()>,
}

impl RunningChecks {
    pub fn start(pipelines: Vec<Pipeline>, plan: LoadPlan) -> Self {
        let counts = Arc::new(CheckCounts::default());
        let shared = Arc::clone(&counts);
        let sender = thread::spawn(move || plan.send(pipelines, &shared));
        Self { counts, sender }
    }

    /// Ends the load and waits for the last answers.
    pub fn finish(self) {
        self.counts.stop.store(true, Ordering::Relaxed);
        self.sender.join().expect("every check is answered");
    }
}

trait Duplex: Read + Write + Send {}
impl<T: Read + Write + Send> Duplex for T {}

/// A connection that never waits for the other side.
pub struct Pipeline {
    stream: Box<dyn Duplex>,
    unsent: Vec<u8>,
    /// The beginning of an answer.
    unread: Vec<u8>,
}

impl Pipeline {
    pub fn unix(path: &Path) -> Self {
        let stream = UnixStream::connect(path).expect("a sidecar listens");
        stream.set_nonblocking(true).expect("O_NONBLOCK");
        Self::of(stream)
    }

    pub fn tcp(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a server listens");
        stream.set_nodelay(true).expect("TCP_NODELAY");
        stream.set_nonblocking(true).expect("O_NONBLOCK");
        Self::of(stream)
    }

    fn of(stream: impl Duplex + 'static) -> Self {
        Self {
            stream: Box::new(stream),
            unsent: Vec::new(),
            unread: Vec::new(),
        }
    }

    /// Counts the answers that have come, and sends what the connection takes.
    fn exchange(&mut self, counts: &CheckCounts) {
        let mut buffer = [0; 16 * 1024];
        while let Some(read) = ready(self.stream.read(&mut buffer)) {
            self.unread.extend_from_slice(&buffer[..read]);
        }
        let mut counted = 0;
        while let Some(length) = frame::length(&self.unread[counted..]) {
            counts.count(&self.unread[counted..counted + length]);
            counted += length;
        }
        self.unread.drain(..counted);
        while !self.unsent.is_empty()
            && let Some(written) = ready(self.stream.write(&self.unsent))
        {
            self.unsent.drain(..written);
        }
    }
}

/// How many bytes a read or a write moved. `None` if it would have to wait.
fn ready(moved: std::io::Result<usize>) -> Option<usize> {
    match moved {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        moved => {
            let bytes = moved.expect("a connection");
            assert!(bytes > 0, "the server closed the connection");
            Some(bytes)
        }
    }
}
