//! A load that does not wait: every check has its time, whatever became of those before it.
//!
//! Each pod has one connection of its own on its Unix socket; what is due is written at once, and answers, which come in
//! order, are read by another thread.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::redis::server::now;

/// Checks that fall due within this time go out together: waking up for each would cost more than the check.
const COALESCE: Duration = Duration::from_micros(500);
/// Longer than any answer takes. A load that waits longer fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// One check, as it went.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Asked {
    /// When it was sent, in nanoseconds since the load began.
    pub at: u64,
    /// How long the answer took.
    pub micros: u32,
    pub key: u32,
    pub cost: u32,
    pub status: u16,
    pub pod: u8,
}

impl Asked {
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

/// Numbers that look random and are the same every time.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Evenly from 0 up to 1, without 1.
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A check to come.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    pub at: Duration,
    pub key: u32,
    pub cost: u32,
}

/// Checks that come by chance: how many a second, at which pods, from when to when.
#[derive(Clone, Copy, Debug)]
pub struct Stream<'a> {
    pub rate: f64,
    /// The part of it that each pod gets. Sums to one.
    pub shares: &'a [f64],
    pub from: f64,
    pub to: f64,
    pub seed: u64,
}

/// Everything that will be asked.
#[derive(Clone, Debug)]
pub struct Load {
    /// By key: the entry that a check names, such as `client=a`.
    keys: Vec<String>,
    /// By pod.
    pub arrivals: Vec<Vec<Arrival>>,
}

impl Load {
    /// Nothing yet, for so many pods and these keys.
    pub fn new(pods: usize, keys: Vec<String>) -> Self {
        let arrivals = vec![Vec::new(); pods];
        Self { keys, arrivals }
    }

    /// One key, `client=one`.
    pub fn one(pods: usize) -> Self {
        Self::new(pods, vec!["client=one".to_owned()])
    }

    /// Checks of the first key, of one cell each.
    pub fn stream(self, stream: Stream<'_>) -> Self {
        self.mixed(stream, |_| (0, 1))
    }

    /// Checks of the keys and of the costs that `pick` finds.
    pub fn mixed(
        mut self,
        stream: Stream<'_>,
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
                arrivals.push(Arrival {
                    at: Duration::from_secs_f64(at),
                    key,
                    cost,
                });
            }
            arrivals.sort_by_key(|arrival| arrival.at);
        }
        self
    }

    /// Begins to ask the pods behind these sockets.
    pub fn start(self, sockets: &[&Path]) -> Running {
        assert_eq!(sockets.len(), self.arrivals.len(), "a socket for each pod");
        let begun = now();
        let mut pods = Vec::new();
        for (nth, (arrivals, socket)) in self.arrivals.into_iter().zip(sockets).enumerate() {
            let stream = UnixStream::connect(socket).expect("a sidecar listens");
            stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
            let reading = stream.try_clone().expect("a handle");
            let (tell, told) = channel();
            let keys = self.keys.clone();
            thread::spawn(move || write(stream, &arrivals, &keys, (begun, tell)));
            let pod = u8::try_from(nth).expect("few pods");
            pods.push(thread::spawn(move || read(reading, &told, begun, pod)));
        }
        Running { begun, pods }
    }
}

/// A load under way.
#[derive(Debug)]
pub struct Running {
    begun: Instant,
    pods: Vec<JoinHandle<Vec<Asked>>>,
}

impl Running {
    /// Waits until so many seconds of it have passed.
    pub fn reach(&self, seconds: f64) {
        rest_until(self.begun + Duration::from_secs_f64(seconds));
    }

    /// Seconds of it so far.
    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// Waits for its end: all that was asked, in the order of time. Every check was answered, with yes or no.
    pub fn finish(self) -> Vec<Asked> {
        let pods = self.pods.into_iter();
        let mut asked: Vec<Asked> = pods.flat_map(|pod| pod.join().expect("answers")).collect();
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

fn rest_until(time: Instant) {
    while let Some(left) = time
        .checked_duration_since(now())
        .filter(|left| !left.is_zero())
    {
        thread::park_timeout(left);
    }
}

/// A check and when it was sent.
type Sent = (Instant, Arrival);

fn write(
    mut stream: UnixStream,
    arrivals: &[Arrival],
    keys: &[String],
    (begun, tell): (Instant, Sender<Sent>),
) {
    let mut bytes = Vec::new();
    let mut left: VecDeque<Arrival> = arrivals.iter().copied().collect();
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
            // A reader that has gone says why itself.
            let _ = tell.send((time, arrival));
        }
        if stream.write_all(&bytes).is_err() {
            return;
        }
        next = time + COALESCE;
    }
}

fn read(mut stream: UnixStream, told: &Receiver<Sent>, begun: Instant, pod: u8) -> Vec<Asked> {
    let mut asked = Vec::new();
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 * 1024];
    for (sent, arrival) in told {
        let (status, length) = loop {
            if let Some(answer) = answer(&bytes) {
                break answer;
            }
            let read = stream.read(&mut buffer).expect("an answer in time");
            assert!(read > 0, "pod {pod} closed the connection");
            bytes.extend_from_slice(&buffer[..read]);
        };
        bytes.drain(..length);
        asked.push(Asked {
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
