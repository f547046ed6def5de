//! A proxy before a Redis that fails as it is told to: for the next requests of some commands, or by chance.
//!
//! It knows where frames end, in both directions, and so which reply belongs to which request, however many are under
//! way on a connection. Published messages belong to none and pass.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::frame;

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// Its reply comes so much later, and so do those behind it.
    Delay(Duration),
    /// It never reaches Redis: the connection ends instead.
    CutBefore,
    /// Redis has answered, but the connection ends before the reply is passed on.
    CutAfter,
    /// The reply comes in writes of one byte.
    Slice,
    /// Half of the reply comes, then the connection ends.
    Truncate,
    /// These bytes come in place of the reply; Redis has or has not seen the request.
    Answer { bytes: Vec<u8>, applied: bool },
    /// Neither is it passed on, nor is it answered, nor is anything behind it on its connection.
    Swallow,
}

impl Fault {
    /// An error, such as `READONLY You can't write against a read only replica.`.
    pub fn error(line: &str, applied: bool) -> Self {
        let bytes = format!("-{line}\r\n").into_bytes();
        Self::Answer { bytes, applied }
    }
}

/// Which requests a fault meets.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Commands in capitals, `EVALSHA` or `SCRIPT LOAD`. None: every request.
    pub commands: &'static [&'static str],
    pub fault: Fault,
    /// How often it happens yet.
    pub times: u64,
    /// Of a thousand of the requests that it could meet.
    pub per_mille: u64,
}

impl Plan {
    /// The next `times` requests of these commands.
    pub fn next(times: u64, commands: &'static [&'static str], fault: Fault) -> Self {
        Self {
            commands,
            fault,
            times,
            per_mille: 1_000,
        }
    }

    /// Every request of these commands.
    pub fn every(commands: &'static [&'static str], fault: Fault) -> Self {
        Self::next(u64::MAX, commands, fault)
    }
}

/// What connections share.
#[derive(Debug, Default)]
struct State {
    plans: Vec<Plan>,
    requests: BTreeMap<String, u64>,
    injected: u64,
    lost: u64,
    /// Of the dice.
    seed: u64,
    /// Every connection so far, both ends.
    streams: Vec<TcpStream>,
}

impl State {
    /// Counts a request and says what is to happen to it.
    fn meet(&mut self, command: &str) -> Option<Fault> {
        *self.requests.entry(command.to_owned()).or_default() += 1;
        let first = command.split(' ').next().unwrap_or_default();
        for plan in &mut self.plans {
            let commands = plan.commands;
            let meant =
                commands.is_empty() || commands.contains(&command) || commands.contains(&first);
            if !meant || plan.times == 0 {
                continue;
            }
            self.seed = self
                .seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            if (self.seed >> 33) % 1_000 < plan.per_mille {
                plan.times -= 1;
                self.injected += 1;
                return Some(plan.fault.clone());
            }
        }
        None
    }
}

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy before the Redis on this port of the loopback.
    pub fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            state: Arc::default(),
            ended: Arc::default(),
        };
        let (state, ended) = (Arc::clone(&proxy.state), Arc::clone(&proxy.ended));
        thread::spawn(move || {
            for client in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                let client = client.expect("a connection");
                // Redis is gone: so is the connection.
                if let Ok(redis) = TcpStream::connect(("127.0.0.1", port)) {
                    pass(client, redis, &state);
                }
            }
        });
        proxy
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// What happens from now on, besides what was planned before.
    pub fn plan(&self, plan: Plan) {
        lock(&self.state).plans.push(plan);
    }

    /// Nothing happens from now on. Connections that hang are ended.
    pub fn heal(&self) {
        let hung = {
            let mut state = lock(&self.state);
            let plans = std::mem::take(&mut state.plans);
            plans.iter().any(|plan| plan.fault == Fault::Swallow)
        };
        if hung {
            self.cut();
        }
    }

    /// Ends every connection.
    pub fn cut(&self) {
        for stream in lock(&self.state).streams.drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Requests of a command so far.
    pub fn requests(&self, command: &str) -> u64 {
        lock(&self.state)
            .requests
            .get(command)
            .copied()
            .unwrap_or(0)
    }

    /// Faults so far.
    pub fn injected(&self) -> u64 {
        lock(&self.state).injected
    }

    /// Requests so far that reached Redis on connections that ended before their reply was passed on.
    pub fn lost(&self) -> u64 {
        lock(&self.state).lost
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        self.cut();
    }
}

/// What is owed to a client for one request.
#[derive(Debug)]
enum Owed {
    /// What Redis replies, in so many frames: a subscription to two channels is answered twice.
    Reply { fault: Option<Fault>, frames: usize },
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A connection, from both sides.
#[derive(Debug)]
struct Line {
    client: TcpStream,
    redis: TcpStream,
    /// Owed to the client, oldest first. Whoever holds it may write to the client.
    owed: Mutex<VecDeque<Owed>>,
}

fn pass(client: TcpStream, redis: TcpStream, state: &Arc<Mutex<State>>) {
    let _ = client.set_nodelay(true);
    let _ = redis.set_nodelay(true);
    let both = [&client, &redis].map(|stream| stream.try_clone().expect("a handle"));
    lock(state).streams.extend(both);
    let line = Arc::new(Line {
        client,
        redis,
        owed: Mutex::default(),
    });
    let state = Arc::clone(state);
    let back = Arc::clone(&line);
    thread::spawn(move || {
        frames(&line.client, |frame| line.request(frame, &state));
        line.end();
        let owed = std::mem::take(&mut *lock(&line.owed));
        let lost = owed
            .iter()
            .filter(|owed| matches!(owed, Owed::Reply { .. }))
            .count();
        lock(&state).lost += lost as u64;
    });
    thread::spawn(move || {
        frames(&back.redis, |frame| back.reply(frame));
        back.end();
    });
}

impl Line {
    /// Passes a request on, or not. False ends the connection.
    fn request(&self, frame: &[u8], state: &Mutex<State>) -> bool {
        let words = frame::words(frame);
        let command = command(&words);
        let fault = lock(state).meet(&command);
        let frames = if command.ends_with("SUBSCRIBE") {
            words.len().max(2) - 1
        } else {
            1
        };
        let owed = match fault {
            Some(Fault::CutBefore) => return false,
            Some(Fault::Swallow) => {
                // The client sees an open connection, until it is cut.
                let mut rest = [0; 4096];
                while (&self.client).read(&mut rest).is_ok_and(|read| read > 0) {}
                return false;
            }
            Some(Fault::Answer {
                bytes,
                applied: false,
            }) => {
                let mut owed = lock(&self.owed);
                owed.push_back(Owed::Bytes(bytes));
                return self.settle(&mut owed);
            }
            fault => Owed::Reply { fault, frames },
        };
        lock(&self.owed).push_back(owed);
        (&self.redis).write_all(frame).is_ok()
    }

    /// Passes a reply on, or not. False ends the connection.
    fn reply(&self, frame: &[u8]) -> bool {
        let mut owed = lock(&self.owed);
        if is_message(frame) {
            return self.write(frame);
        }
        let fault = match owed.front_mut() {
            Some(Owed::Reply { frames, .. }) if *frames > 1 && !frame.starts_with(b"-") => {
                *frames -= 1;
                None
            }
            // It stays owed.
            Some(Owed::Reply {
                fault: Some(Fault::CutAfter),
                ..
            }) => return false,
            Some(Owed::Reply { fault, .. }) => {
                let fault = fault.take();
                owed.pop_front();
                fault
            }
            // Nobody asked: a push of RESP3.
            Some(Owed::Bytes(_)) | None => None,
        };
        let written = match fault {
            None | Some(Fault::CutBefore | Fault::CutAfter | Fault::Swallow) => self.write(frame),
            Some(Fault::Delay(time)) => {
                rest(time);
                self.write(frame)
            }
            Some(Fault::Slice) => frame.chunks(1).all(|byte| self.write(byte)),
            Some(Fault::Truncate) => {
                self.write(&frame[..frame.len() / 2]);
                false
            }
            Some(Fault::Answer { bytes, .. }) => self.write(&bytes),
        };
        written && self.settle(&mut owed)
    }

    /// Writes what is owed and known already.
    fn settle(&self, owed: &mut VecDeque<Owed>) -> bool {
        while let Some(Owed::Bytes(bytes)) = owed.front() {
            if !self.write(bytes) {
                return false;
            }
            owed.pop_front();
        }
        true
    }

    fn write(&self, bytes: &[u8]) -> bool {
        (&self.client).write_all(bytes).is_ok()
    }

    fn end(&self) {
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.redis.shutdown(Shutdown::Both);
    }
}

/// Hands over every whole frame until the stream ends or `take` has had enough.
fn frames(mut stream: &TcpStream, mut take: impl FnMut(&[u8]) -> bool) {
    let mut bytes = Vec::new();
    let mut buffer = [0; 16 * 1024];
    while let Ok(read @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..read]);
        while let Some(length) = frame::length(&bytes) {
            if !take(&bytes[..length]) {
                return;
            }
            bytes.drain(..length);
        }
    }
}

/// The command in capitals, with its second word where that is part of it.
fn command(words: &[&[u8]]) -> String {
    let capitals = |word: &&[u8]| String::from_utf8_lossy(word).to_ascii_uppercase();
    let mut command = words.first().map(capitals).unwrap_or_default();
    let has_parts =
        ["SCRIPT", "CLIENT", "CLUSTER", "CONFIG", "FUNCTION"].contains(&command.as_str());
    if let Some(part) = words.get(1).filter(|_| has_parts) {
        command += " ";
        command += &capitals(part);
    }
    command
}

/// Whether a frame is a message to subscribers.
fn is_message(frame: &[u8]) -> bool {
    let list = frame.starts_with(b"*") || frame.starts_with(b">");
    let messages = [&b"message"[..], b"smessage", b"pmessage"];
    list && frame::words(frame)
        .first()
        .is_some_and(|word| messages.contains(word))
}

fn rest(time: Duration) {
    let end = super::server::now() + time;
    while let Some(left) = end.checked_duration_since(super::server::now()) {
        thread::park_timeout(left);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread of the proxy panics")
}
