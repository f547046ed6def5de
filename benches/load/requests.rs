//! The load: requests made beforehand, over connections that stay open, each sent when the last is answered.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::wire::{KEYS, Requests};
use tidegate_testing::benchmark::processor_time;

/// Bytes of an answer.
const ANSWER_MAX: usize = 4_096;

/// Where a server listens, and which process it is.
pub struct Target {
    process: u32,
    address: Address,
}

enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

impl Target {
    pub fn tcp(process: u32, address: SocketAddr) -> Self {
        let address = Address::Tcp(address);
        Self { process, address }
    }

    pub fn unix(process: u32, path: PathBuf) -> Self {
        let address = Address::Unix(path);
        Self { process, address }
    }

    fn connect(&self) -> Box<dyn Stream> {
        match &self.address {
            Address::Tcp(address) => {
                let stream = TcpStream::connect(address).expect("a connection");
                stream.set_nodelay(true).expect("TCP_NODELAY");
                Box::new(stream)
            }
            Address::Unix(path) => Box::new(UnixStream::connect(path).expect("a connection")),
        }
    }

    async fn connect_async(&self) -> Box<dyn AsyncStream> {
        match &self.address {
            Address::Tcp(address) => {
                let stream = tokio::net::TcpStream::connect(address).await;
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("TCP_NODELAY");
                Box::new(stream)
            }
            Address::Unix(path) => {
                let stream = tokio::net::UnixStream::connect(path).await;
                Box::new(stream.expect("a connection"))
            }
        }
    }
}

/// What a run found.
#[derive(Clone, Copy)]
pub struct Measured {
    /// Requests a second.
    pub rate: f64,
    /// Microseconds that half of the requests took at most.
    pub p50: f64,
    /// Microseconds that 99 of 100 requests took at most.
    pub p99: f64,
    /// Microseconds of the server's time on the processor per request.
    pub server: f64,
}

/// One answer, whole.
pub fn sample(target: &Target, requests: &Requests) -> Vec<u8> {
    let mut stream = target.connect();
    let mut asking = Asking::new(requests, 0);
    stream
        .write_all(asking.hello())
        .expect("a greeting is sent");
    stream.write_all(asking.next()).expect("a request is sent");
    loop {
        let more = stream.read(asking.room()).expect("an answer comes");
        if let Some(length) = asking.got(more) {
            return asking.answer[..length].to_vec();
        }
    }
}

/// Asks for `length` over so many connections.
pub fn run(target: &Target, requests: &Requests, connections: usize, length: Duration) -> Measured {
    let before = processor_time(target.process);
    let begun = Instant::now();
    let mut times = match connections {
        1 => ask(target, requests, begun + length),
        _ => ask_all(target, requests, connections, begun + length),
    };
    let elapsed = begun.elapsed();
    let server = processor_time(target.process) - before;
    times.sort_unstable();
    let percentile = |of_100: usize| f64::from(times[times.len() * of_100 / 100]) / 1e3;
    Measured {
        rate: times.len() as f64 / elapsed.as_secs_f64(),
        p50: percentile(50),
        p99: percentile(99),
        server: server.as_secs_f64() * 1e6 / times.len() as f64,
    }
}

/// One connection: its next request, and what came of the last.
struct Asking<'a> {
    requests: &'a Requests,
    key: usize,
    sequence: u32,
    request: Vec<u8>,
    answer: [u8; ANSWER_MAX],
    got: usize,
}

impl<'a> Asking<'a> {
    fn new(requests: &'a Requests, first: usize) -> Self {
        Self {
            requests,
            key: first,
            sequence: 0,
            request: Vec::new(),
            answer: [0; ANSWER_MAX],
            got: 0,
        }
    }

    /// What a connection begins with.
    fn hello(&self) -> &'a [u8] {
        self.requests.hello()
    }

    /// The next request.
    fn next(&mut self) -> &[u8] {
        self.request.clear();
        self.requests
            .write(self.key % KEYS, self.sequence, &mut self.request);
        self.key += 1;
        self.sequence += 1;
        &self.request
    }

    /// Where to read to.
    fn room(&mut self) -> &mut [u8] {
        &mut self.answer[self.got..]
    }

    /// Takes what was read. How long the answer was, once it is whole.
    fn got(&mut self, more: usize) -> Option<usize> {
        assert!(more > 0, "the server closed the connection");
        self.got += more;
        let length = self.requests.answer_bytes(&self.answer[..self.got])?;
        Some(length).filter(|length| *length <= self.got)
    }

    /// Forgets an answer of that length.
    fn done(&mut self, length: usize) {
        self.answer.copy_within(length..self.got, 0);
        self.got -= length;
    }
}

/// One connection, no runtime: the nanoseconds each request took.
fn ask(target: &Target, requests: &Requests, end: Instant) -> Vec<u32> {
    let mut stream = target.connect();
    let mut asking = Asking::new(requests, 0);
    stream
        .write_all(asking.hello())
        .expect("a greeting is sent");
    let mut times = Vec::new();
    let mut sent = Instant::now();
    loop {
        stream.write_all(asking.next()).expect("a request is sent");
        loop {
            let more = stream.read(asking.room()).expect("an answer comes");
            if let Some(length) = asking.got(more) {
                asking.done(length);
                break;
            }
        }
        let now = Instant::now();
        times.push(nanos(now - sent));
        if now > end {
            return times;
        }
        sent = now;
    }
}

/// Many connections on one thread.
fn ask_all(target: &Target, requests: &Requests, connections: usize, end: Instant) -> Vec<u32> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let mut asking = tokio::task::JoinSet::new();
        for nth in 0..connections {
            let stream = target.connect_async().await;
            let first = nth * KEYS / connections;
            asking.spawn(ask_async(stream, requests.clone(), first, end));
        }
        // The load never sleeps: a server that is slower than the load would else pay for waking it with every answer,
        // and one that is faster would not.
        let spinning = tokio::spawn(async {
            loop {
                tokio::task::yield_now().await;
            }
        });
        let times = asking.join_all().await.concat();
        spinning.abort();
        times
    })
}

async fn ask_async(
    mut stream: Box<dyn AsyncStream>,
    requests: Requests,
    first: usize,
    end: Instant,
) -> Vec<u32> {
    let mut asking = Asking::new(&requests, first);
    let greeted = stream.write_all(asking.hello()).await;
    greeted.expect("a greeting is sent");
    let mut times = Vec::new();
    let mut sent = Instant::now();
    loop {
        stream
            .write_all(asking.next())
            .await
            .expect("a request is sent");
        loop {
            let more = stream.read(asking.room()).await.expect("an answer comes");
            if let Some(length) = asking.got(more) {
                asking.done(length);
                break;
            }
        }
        let now = Instant::now();
        times.push(nanos(now - sent));
        if now > end {
            return times;
        }
        sent = now;
    }
}

fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
