//! A load that does not wait: every check is sent at its time, whether or not those before it were answered.
//!
//! Each pod has one connection, on its Unix socket. One thread writes what is due, another reads the answers, which come
//! in order.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::random::Random;
use crate::wait::{now, rest_until};

/// Checks that fall due within this time go out together: waking up for each would cost more than the check.
const COALESCE: Duration = Duration::from_micros(500);
/// Longer than any answer takes. A load that waits longer fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// One check and its answer.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AnsweredCheck {
    /// When it was sent, in nanoseconds since the load began.
    pub at: u64,
    /// How long the answer took.
    pub micros: u32,
    pub key: u32,
    pub cost: u32,
    pub status: u16,
    pub pod: u8,
}

impl AnsweredCheck {
    pub fn seconds(&self) -> f64 {
        Duration::from_nanos(self.at).as_secs_f64()
    }

    pub fn answered_seconds(&self) -> f64 {
        self.seconds() + Duration::from_micros(self.micros.into()).as_secs_f64()
    }

    pub fn allowed(&self) -> bool {
        self.status == 200
    }
}

/// A check and when it is due.
#[derive(Clone, Copy, Debug)]
pub struct ScheduledCheck {
    pub at: Duration,
    pub key: u32,
    pub cost: u32,
}

/// Checks that come by chance: how many a second, at which pods, from when to when.
#[derive(Clone, Copy, Debug)]
pub struct CheckStream<'a> {
    pub rate: f64,
    /// The part of it that each pod gets. Sums to one.
    pub shares: &'a [f64],
    pub from: f64,
    pub to: f64,
    pub seed: u64,
}

/// All checks to send.
#[derive(Clone, Debug)]
pub struct FleetLoad {
    /// By key: the entry that a check names, such as `client=a`.
    keys: Vec<String>,
    /// By pod.
    pub arrivals: Vec<Vec<ScheduledCheck>>,
}

impl FleetLoad {
    /// No checks yet, for so many pods and these keys.
    pub fn new(pods: usize, keys: Vec<String>) -> Self {
        let arrivals = vec![Vec::new(); pods];
        Self { keys, arrivals }
    }

    /// One key, `client=one`.
    pub fn one(pods: usize) -> Self {
        Self::new(pods, vec!["client=one".to_owned()])
    }

    /// Checks of the first key, of one cell each.
    pub fn stream(self, stream: CheckStream<'_>) -> Self {
        self.mixed(stream, |_| (0, 1))
    }

    /// Checks of the keys and costs that `pick` returns.
    pub fn mixed(
        mut self,
        stream: CheckStream<'_>,
        mut pick: impl FnMut(&mut Random) -> (u32, u32),
    ) -> Self {
        assert_eq!(
            stream.shares.len(),
            self.arrivals.len(),
            "a share for each pod"
        );
        let mut random = Random::new(stream.seed);
        for (share, arrivals) in stream.shares.iter().zip(&mut self.arrivals) {
            let mut at = stream.from;
            loop {
                at -= (1.0 - random.unit()).ln() / (stream.rate * share);
                if at >= stream.to {
                    break;
                }
                let (key, cost) = pick(&mut random);
                arrivals.push(ScheduledCheck {
                    at: Duration::from_secs_f64(at),
                    key,
                    cost,
                });
            }
            arrivals.sort_by_key(|arrival| arrival.at);
        }
        self
    }

    /// Begins to send to the pods behind these sockets.
    pub fn start(self, sockets: &[&Path]) -> RunningLoad {
        assert_eq!(sockets.len(), self.arrivals.len(), "a socket for each pod");
        let begun = now();
        let mut pods = Vec::new();
        for (nth, (arrivals, socket)) in self.arrivals.into_iter().zip(sockets).enumerate() {
            let stream = UnixStream::connect(socket).expect("a sidecar listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let reading = stream.try_clone().expect("a handle");
            let (sender, sent) = channel();
            let keys = self.keys.clone();
            thread::spawn(move || write(stream, &arrivals, &keys, (begun, sender)));
            let pod = u8::try_from(nth).expect("few pods");
            pods.push(thread::spawn(move || read(reading, &sent, begun, pod)));
        }
        RunningLoad { begun, pods }
    }
}

/// A load under way.
#[derive(Debug)]
pub struct RunningLoad {
    begun: Instant,
    pods: Vec<JoinHandle<Vec<AnsweredCheck>>>,
}

impl RunningLoad {
    /// Waits until so many seconds of it have passed.
    pub fn reach(&self, seconds: f64) {
        rest_until(self.begun + Duration::from_secs_f64(seconds));
    }

    /// Seconds of it so far.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Waits for its end. Returns all checks in the order of time; each was answered with 200 or 429.
    pub fn finish(self) -> Vec<AnsweredCheck> {
        let pods = self.pods.into_iter();
        let mut asked: Vec<AnsweredCheck> =
            pods.flat_map(|pod| pod.join().expect("answers")).collect();
        asked.sort_by_key(|check| check.at);
        for check in &asked {
            assert!(
                [200, 429].contains(&check.status),
                "neither yes nor no: {check:?}"
            );
        }
        asked
    }
}

/// A check and when it was sent.
type SentCheck = (Instant, ScheduledCheck);

fn write(
    mut stream: UnixStream,
    arrivals: &[ScheduledCheck],
    keys: &[String],
    (begun, sender): (Instant, Sender<SentCheck>),
) {
    let mut bytes = Vec::new();
    let mut left: VecDeque<ScheduledCheck> = arrivals.iter().copied().collect();
    let mut next = begun;
    while let Some(first) = left.front() {
        rest_until(next.max(begun + first.at));
        let time = now();
        bytes.clear();
        while let Some(arrival) = left.pop_front_if(|arrival| begun + arrival.at <= time) {
            let entry = &keys[arrival.key as usize];
            let cost = arrival.cost;
            let head = "HTTP/1.1\r\nHost: localhost\r\n\r\n";
            let line = format!("GET /v1/check?domain=fleet&{entry}&hits_addend={cost} {head}");
            bytes.extend_from_slice(line.as_bytes());
            // If the reader has ended, its thread says why.
            let _ = sender.send((time, arrival));
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
        next = time + COALESCE;
    }
}

fn read(
    mut stream: UnixStream,
    checks: &Receiver<SentCheck>,
    begun: Instant,
    pod: u8,
) -> Vec<AnsweredCheck> {
    let mut asked = Vec::new();
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    for (sent, arrival) in checks {
        let (status, length) = loop {
            if let Some(answer) = answer(&bytes) {
                break answer;
            }
            let read = stream.read(&mut buffer).expect("an answer in time");
            assert!(read > 0, "pod {pod} closed the connection");
            bytes.extend_from_slice(&buffer[..read]);
        };
        bytes.drain(..length);
        asked.push(AnsweredCheck {
            at: u64::try_from((sent - begun).as_nanos()).expect("few years"),
            micros: u32::try_from(sent.elapsed().as_micros()).expect("within patience"),
            key: arrival.key,
            cost: arrival.cost,
            status,
            pod,
        });
    }
    asked
}

/// The status and the length of the answer that begins `bytes`, once it is whole.
pub fn answer(bytes: &[u8]) -> Option<(u16, usize)> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let text = std::str::from_utf8(&bytes[..head]).expect("a head of text");
    let status = text.get(9..12).and_then(|status| status.parse().ok());
    let length = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length")
            .then(|| value.trim().parse::<usize>())
    });
    let length = head + length.map_or(0, |length| length.expect("a length"));
    (bytes.len() >= length).then(|| (status.expect(text), length))
}
