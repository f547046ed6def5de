//! The load: requests made beforehand, over connections that stay open, each sent when the last is answered.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const KEYS: usize = 1_000;
/// Bytes of an answer.
const ANSWER_MAX: usize = 4_096;

/// Checks of a thousand keys, as they go over the wire.
#[derive(Clone)]
pub struct Requests(Arc<[Vec<u8>]>);

impl Requests {
    pub fn new() -> Self {
        let request = |key| {
            let body = format!(
                r#"{{"domain":"bench","descriptors":[{{"entries":[{{"key":"client","value":"client-{key:017}"}}]}}]}}"#
            );
            let head = format!(
                "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            (head + &body).into_bytes()
        };
        Self((0..KEYS).map(request).collect())
    }
}

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

    /// Whether somebody listens.
    pub fn answers(&self) -> bool {
        match &self.address {
            Address::Tcp(address) => TcpStream::connect(address).is_ok(),
            Address::Unix(path) => UnixStream::connect(path).is_ok(),
        }
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

    /// Time on the processor so far, all threads.
    fn processor_time(&self) -> Duration {
        let threads = fs::read_dir(format!("/proc/{}/task", self.process));
        let nanos = threads
            .expect("the server runs")
            .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
            .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
            .sum();
        Duration::from_nanos(nanos)
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
    let mut answer = vec![0; ANSWER_MAX];
    let mut got = 0;
    stream.write_all(&requests.0[0]).expect("a request is sent");
    loop {
        got += stream.read(&mut answer[got..]).expect("an answer comes");
        if let Some(length) = answer_bytes(&answer[..got]) {
            answer.truncate(length);
            return answer;
        }
    }
}

/// Asks for `length` over so many connections.
pub fn run(target: &Target, requests: &Requests, connections: usize, length: Duration) -> Measured {
    let before = target.processor_time();
    let begun = Instant::now();
    let mut times = match connections {
        1 => ask(target, requests, begun + length),
        _ => ask_all(target, requests, connections, begun + length),
    };
    let elapsed = begun.elapsed();
    let server = target.processor_time() - before;
    times.sort_unstable();
    let percentile = |of_100: usize| f64::from(times[times.len() * of_100 / 100]) / 1e3;
    Measured {
        rate: times.len() as f64 / elapsed.as_secs_f64(),
        p50: percentile(50),
        p99: percentile(99),
        server: server.as_secs_f64() * 1e6 / times.len() as f64,
    }
}

/// One connection, no runtime: the nanoseconds each request took.
fn ask(target: &Target, requests: &Requests, end: Instant) -> Vec<u32> {
    let mut stream = target.connect();
    let mut answer = [0; ANSWER_MAX];
    let mut times = Vec::new();
    let mut sent = Instant::now();
    for request in requests.0.iter().cycle() {
        stream.write_all(request).expect("a request is sent");
        let mut got = 0;
        while answer_bytes(&answer[..got]) != Some(got) {
            let more = stream.read(&mut answer[got..]).expect("an answer comes");
            assert!(more > 0, "the server closed the connection");
            got += more;
        }
        let now = Instant::now();
        times.push(nanos(now - sent));
        if now > end {
            break;
        }
        sent = now;
    }
    times
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
    let mut answer = [0; ANSWER_MAX];
    let mut times = Vec::new();
    let mut sent = Instant::now();
    for request in requests.0.iter().cycle().skip(first) {
        stream.write_all(request).await.expect("a request is sent");
        let mut got = 0;
        while answer_bytes(&answer[..got]) != Some(got) {
            let more = stream.read(&mut answer[got..]).await;
            let more = more.expect("an answer comes");
            assert!(more > 0, "the server closed the connection");
            got += more;
        }
        let now = Instant::now();
        times.push(nanos(now - sent));
        if now > end {
            break;
        }
        sent = now;
    }
    times
}

fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}

/// How long the answer is that begins these bytes, once its head is there.
fn answer_bytes(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let name = b"content-length: ";
    let at = bytes.windows(name.len()).position(|part| part == name)? + name.len();
    let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    Some(head + length)
}
