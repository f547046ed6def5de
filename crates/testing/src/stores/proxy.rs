//! A proxy before a Redis that fails as a test plans it: for the next requests of some commands, or by chance.
//!
//! The proxy knows where frames end, in both directions, and so which reply belongs to which request, however many
//! requests a connection has under way. Published messages belong to no request; the proxy passes them on.

use std::collections::{BTreeMap, VecDeque};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use super::frame;
use crate::random::Random;
use crate::wait::{now, rest_until};

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum ProxyFault {
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
    /// The proxy neither passes it on nor answers it, nor anything behind it on its connection.
    Swallow,
}

impl ProxyFault {
    /// An error, such as `READONLY You can't write against a read only replica.`.
    pub fn error(line: &str, applied: bool) -> Self {
        let bytes = format!("-{line}\r\n").into_bytes();
        Self::Answer { bytes, applied }
    }
}

/// Which requests a fault happens to.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// Commands in capitals, `EVALSHA` or `SCRIPT LOAD`. None: every request.
    pub commands: &'static [&'static str],
    pub fault: ProxyFault,
    /// How many more times it happens.
    pub times: u64,
    /// Of a thousand requests that it could happen to, how many it does happen to.
    pub per_mille: u64,
}

impl FaultPlan {
    /// The next `times` requests of these commands.
    pub fn next(times: u64, commands: &'static [&'static str], fault: ProxyFault) -> Self {
        Self {
            commands,
            fault,
            times,
            per_mille: 1_000,
        }
    }

    /// Every request of these commands.
    pub fn every(commands: &'static [&'static str], fault: ProxyFault) -> Self {
        Self::next(u64::MAX, commands, fault)
    }
}

/// What connections share.
#[derive(Debug)]
struct ProxyState {
    plans: Vec<FaultPlan>,
    requests: BTreeMap<String, u64>,
    injected: u64,
    lost: u64,
    random: Random,
    /// Every connection so far, both ends.
    streams: Vec<TcpStream>,
}

impl ProxyState {
    const fn new() -> Self {
        Self {
            plans: Vec::new(),
            requests: BTreeMap::new(),
            injected: 0,
            lost: 0,
            random: Random::new(0),
            streams: Vec::new(),
        }
    }

    /// Counts a request and returns the fault that is to happen to it.
    fn meet(&mut self, command: &str) -> Option<ProxyFault> {
        *self.requests.entry(command.to_owned()).or_default() += 1;
        let first = command.split(' ').next().unwrap_or_default();
        for plan in &mut self.plans {
            let commands = plan.commands;
            let meant =
                commands.is_empty() || commands.contains(&command) || commands.contains(&first);
            if !meant || plan.times == 0 {
                continue;
            }
            if self.random.below(1_000) < plan.per_mille {
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
    state: Arc<Mutex<ProxyState>>,
    ended: Arc<AtomicBool>,
}

impl Proxy {
    /// A proxy before the Redis on this port of the loopback.
    pub fn start(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let proxy = Self {
            address: listener.local_addr().expect("an address"),
            state: Arc::new(Mutex::new(ProxyState::new())),
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

    /// Adds a fault, besides those planned before.
    pub fn plan(&self, plan: FaultPlan) {
        lock(&self.state).plans.push(plan);
    }

    /// Forgets all plans, and ends connections that hang.
    pub fn heal(&self) {
        let hung = {
            let mut state = lock(&self.state);
            let plans = std::mem::take(&mut state.plans);
            plans.iter().any(|plan| plan.fault == ProxyFault::Swallow)
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

    /// Requests so far that reached Redis, but whose connection ended before the reply was passed on.
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

/// What the proxy still owes a client for one request.
#[derive(Debug)]
enum OwedReply {
    /// What Redis replies, in so many frames: a subscription to two channels is answered twice.
    Reply {
        fault: Option<ProxyFault>,
        frames: usize,
    },
    /// These bytes.
    Bytes(Vec<u8>),
}

/// A connection of a client, and the connection to Redis behind it.
#[derive(Debug)]
struct ProxiedConnection {
    client: TcpStream,
    redis: TcpStream,
    /// Owed to the client, oldest first. Whoever holds it may write to the client.
    owed: Mutex<VecDeque<OwedReply>>,
}

fn pass(client: TcpStream, redis: TcpStream, state: &Arc<Mutex<ProxyState>>) {
    let _ = client.set_nodelay(true);
    let _ = redis.set_nodelay(true);
    let both = [&client, &redis].map(|stream| stream.try_clone().expect("a handle"));
    lock(state).streams.extend(both);
    let line = Arc::new(ProxiedConnection {
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
            .filter(|owed| matches!(owed, OwedReply::Reply { .. }))
            .count();
        lock(&state).lost += lost as u64;
    });
    thread::spawn(move || {
        frames(&back.redis, |frame| back.reply(frame));
        back.end();
    });
}

impl ProxiedConnection {
    /// Passes a request on, or not. False ends the connection.
    fn request(&self, frame: &[u8], state: &Mutex<ProxyState>) -> bool {
        let words = frame::words(frame);
        let command = command(&words);
        let fault = lock(state).meet(&command);
        let frames = if command.ends_with("SUBSCRIBE") {
            words.len().max(2) - 1
        } else {
            1
        };
        let owed = match fault {
            Some(ProxyFault::CutBefore) => return false,
            Some(ProxyFault::Swallow) => {
                // The client sees an open connection, until it is cut.
                let mut rest = [0; 4096];
                while (&self.client).read(&mut rest).is_ok_and(|read| read > 0) {}
                return false;
            }
            Some(ProxyFault::Answer {
                bytes,
                applied: false,
            }) => {
                let mut owed = lock(&self.owed);
                owed.push_back(OwedReply::Bytes(bytes));
                return self.settle(&mut owed);
            }
            fault => OwedReply::Reply { fault, frames },
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
            Some(OwedReply::Reply { frames, .. }) if *frames > 1 && !frame.starts_with(b"-") => {
                *frames -= 1;
                None
            }
            // It stays owed.
            Some(OwedReply::Reply {
                fault: Some(ProxyFault::CutAfter),
                ..
            }) => return false,
            Some(OwedReply::Reply { fault, .. }) => {
                let fault = fault.take();
                owed.pop_front();
                fault
            }
            // Nobody asked: a push of RESP3.
            Some(OwedReply::Bytes(_)) | None => None,
        };
        let written = match fault {
            None | Some(ProxyFault::CutBefore | ProxyFault::CutAfter | ProxyFault::Swallow) => {
                self.write(frame)
            }
            Some(ProxyFault::Delay(time)) => {
                rest_until(now() + time);
                self.write(frame)
            }
            Some(ProxyFault::Slice) => frame.chunks(1).all(|byte| self.write(byte)),
            Some(ProxyFault::Truncate) => {
                self.write(&frame[..frame.len() / 2]);
                false
            }
            Some(ProxyFault::Answer { bytes, .. }) => self.write(&bytes),
        };
        written && self.settle(&mut owed)
    }

    /// Writes what is owed and known already.
    fn settle(&self, owed: &mut VecDeque<OwedReply>) -> bool {
        while let Some(OwedReply::Bytes(bytes)) = owed.front() {
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread of the proxy panics")
}
