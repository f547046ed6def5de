//! What a check over the Redis protocol costs, against a bare loop that answers PONG, and against Redis' own PING.
//!
//! The servers are processes of their own on the first core, the load comes from this one on the second. The floor is
//! this binary run again (`--floor`): the same runtime and socket options, and for every fourteen bytes, which is a
//! PING, a PONG. Rounds alternate, so that a noisy machine hits all alike; a figure is the median of its rounds, a
//! ratio the median of the rounds' ratios.
//!
//! `c1` is one connection, closed loop: commands a second, and the 99th percentile in microseconds. `c32` is thirty-two
//! connections, which keep the server's core busy: commands a second of one core, and `cpu` the server's time on the
//! processor per command, in microseconds. `p100` is one connection that sends a hundred commands at once.
//!
//! Budgets: 80 % of the floor's and of Redis' commands a second at c1 and c32; pipelined five times the commands of c1.
//! `cargo bench --bench resp -- unix` runs one transport.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark prints, times, and fails loudly"
)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_testing::Folder;
use tidegate_testing::benchmark::{
    MeasuredServer, free_address, median, pin_load, pinned_command, processor_time, verdict,
};
use tidegate_testing::stores::frame;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(700);
const WARM_UP: Duration = Duration::from_millis(200);
const KEYS: usize = 1_000;
const CONNECTIONS: usize = 32;
const DEPTH: usize = 100;
const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
const PONG: &[u8] = b"+PONG\r\n";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, tcp, unix] = arguments.as_slice()
        && first == "--floor"
    {
        return serve_floor(tcp.parse().expect("an address"), Path::new(unix));
    }
    let only = arguments.iter().find(|argument| *argument != "--bench");
    let pinned = pin_load();
    let folder = Folder::new();
    let floor = Server::floor(&folder, pinned);
    let redis = Server::redis(&folder, pinned);
    let tidegate = Server::tidegate(&folder, pinned);
    println!(
        "{:<5} {:<12} {:>9} {:>8} {:>10} {:>7} {:>10} {:>9}",
        "", "", "c1 /s", "c1 p99", "c32 /s", "cpu", "p100 /s", "p100/c1"
    );
    for name in ["tcp", "unix"] {
        if only.is_none_or(|only| only == name) {
            compare(name, [&floor, &redis, &tidegate]);
        }
    }
}

/// All of them in turn, and what came of it.
fn compare(transport: &str, [floor, redis, tidegate]: [&Server; 3]) {
    let ping = Batches::new(1, |_| PING.to_vec());
    let throttle = |key: usize| {
        frame::request(&[
            "CL.THROTTLE",
            &format!("client-{key:017}"),
            "999999",
            "1000000000",
            "1",
        ])
    };
    let check =
        |key: usize| frame::request(&["TG.CHECK", "bench", "client", &format!("client-{key:017}")]);
    let runs = [
        ("floor PING", floor, ping.clone()),
        ("redis PING", redis, ping),
        ("CL.THROTTLE", tidegate, Batches::new(6, throttle)),
        ("TG.CHECK", tidegate, Batches::new(8, check)),
    ];
    let measure = |length| {
        runs.each_ref()
            .map(|(_, server, batches)| Round::measure(server, transport, batches, length))
    };
    let _ = measure(WARM_UP);
    let rounds: Vec<[Round; 4]> = (0..ROUNDS).map(|_| measure(ROUND)).collect();
    for (nth, (name, _, _)) in runs.iter().enumerate() {
        let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(|round| figure(&round[nth])));
        println!(
            "{transport:<5} {name:<12} {:>9.0} {:>8.1} {:>10.0} {:>7.2} {:>10.0} {:>9.1}",
            of(|round| round.one.rate),
            of(|round| round.one.p99),
            of(|round| round.many.rate),
            of(|round| round.many.server),
            of(|round| round.piped.rate),
            of(|round| round.piped.rate / round.one.rate),
        );
    }
    for (nth, (name, _, _)) in runs.iter().enumerate().skip(2) {
        let ratio = |base: usize, figure: fn(&Round) -> f64| {
            median(
                rounds
                    .iter()
                    .map(|round| figure(&round[nth]) / figure(&round[base])),
            )
        };
        for (base, other) in [(0, "the floor"), (1, "Redis' PING")] {
            let [one, many] = [
                ratio(base, |round| round.one.rate),
                ratio(base, |round| round.many.rate),
            ];
            println!(
                "{transport:<5} {name}: {:.0} % of {other} at c1, {:.0} % at c32 (80 %): {}",
                one * 100.0,
                many * 100.0,
                verdict(one >= 0.8 && many >= 0.8)
            );
        }
        let piped = median(
            rounds
                .iter()
                .map(|round| round[nth].piped.rate / round[nth].one.rate),
        );
        println!(
            "{transport:<5} {name}: pipelined {piped:.1} times c1 (5): {}",
            verdict(piped >= 5.0)
        );
    }
}

/// Commands of a thousand keys, and how many lines the answer to each has.
#[derive(Clone)]
struct Batches {
    single: Arc<[Vec<u8>]>,
    piped: Arc<[Vec<u8>]>,
    lines: usize,
}

impl Batches {
    fn new(lines: usize, command: impl Fn(usize) -> Vec<u8>) -> Self {
        let single: Vec<Vec<u8>> = (0..KEYS).map(command).collect();
        let piped = single.chunks(DEPTH).map(<[Vec<u8>]>::concat).collect();
        Self {
            single: single.into(),
            piped,
            lines,
        }
    }
}

/// What a run found.
struct Measured {
    /// Commands a second.
    rate: f64,
    /// Microseconds that 99 of 100 batches took at most.
    p99: f64,
    /// Microseconds of the server's time on the processor per command.
    server: f64,
}

/// One server's turn.
struct Round {
    one: Measured,
    many: Measured,
    piped: Measured,
}

impl Round {
    fn measure(server: &Server, transport: &str, batches: &Batches, length: Duration) -> Self {
        let run = |requests: &Arc<[Vec<u8>]>, depth: usize, connections: usize| {
            let load = Load {
                requests: Arc::clone(requests),
                lines: batches.lines * depth,
            };
            server.run(transport, load, depth, (connections, length))
        };
        Self {
            one: run(&batches.single, 1, 1),
            many: run(&batches.single, 1, CONNECTIONS),
            piped: run(&batches.piped, DEPTH, 1),
        }
    }
}

/// What a connection sends, and how many lines end the answer.
#[derive(Clone)]
struct Load {
    requests: Arc<[Vec<u8>]>,
    lines: usize,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Load {
    /// Each request is sent when the last is answered: the nanoseconds each took.
    async fn ask(self, mut stream: Box<dyn Stream>, first: usize, end: Instant) -> Vec<u32> {
        let mut answer = vec![0; 64 * 1024];
        let mut times = Vec::new();
        let mut sent = Instant::now();
        for request in self.requests.iter().cycle().skip(first) {
            stream.write_all(request).await.expect("a request is sent");
            let mut lines = 0;
            while lines < self.lines {
                let more = stream.read(&mut answer).await.expect("an answer comes");
                assert!(more > 0, "the server closed the connection");
                lines += answer[..more].iter().filter(|byte| **byte == b'\n').count();
            }
            let now = Instant::now();
            times.push(u32::try_from((now - sent).as_nanos()).unwrap_or(u32::MAX));
            if now > end {
                break;
            }
            sent = now;
        }
        times
    }
}

/// A running server.
struct Server(MeasuredServer);

impl Server {
    fn tidegate(folder: &Folder, pinned: bool) -> Self {
        Self(MeasuredServer::tidegate(folder, "resp", pinned))
    }

    fn floor(folder: &Folder, pinned: bool) -> Self {
        Self(MeasuredServer::floor(folder, "--floor", &[], pinned))
    }

    fn redis(folder: &Folder, pinned: bool) -> Self {
        let (tcp, unix) = (free_address(), folder.path("redis.sock"));
        let mut command = pinned_command("redis-server".as_ref(), pinned);
        command.args(["--port", &tcp.port().to_string(), "--bind", "127.0.0.1"]);
        command
            .args(["--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(&unix);
        Self(MeasuredServer::start(command, tcp, unix))
    }

    async fn connect(&self, transport: &str) -> Box<dyn Stream> {
        match transport {
            "tcp" => {
                let stream = tokio::net::TcpStream::connect(self.0.tcp).await;
                let stream = stream.expect("a connection");
                stream.set_nodelay(true).expect("TCP_NODELAY");
                Box::new(stream)
            }
            _ => {
                let stream = tokio::net::UnixStream::connect(&self.0.unix).await;
                Box::new(stream.expect("a connection"))
            }
        }
    }

    /// Asks for so long over so many connections, on one thread.
    fn run(
        &self,
        transport: &str,
        load: Load,
        depth: usize,
        (connections, length): (usize, Duration),
    ) -> Measured {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let before = processor_time(self.0.id());
        let begun = Instant::now();
        let mut times = runtime.block_on(async {
            let mut asking = tokio::task::JoinSet::new();
            for nth in 0..connections {
                let stream = self.connect(transport).await;
                let first = nth * load.requests.len() / connections;
                asking.spawn(load.clone().ask(stream, first, begun + length));
            }
            // The load never sleeps: a server that is slower than the load would else pay for waking it with every
            // answer, and one that is faster would not.
            let spinning = tokio::spawn(async {
                loop {
                    tokio::task::yield_now().await;
                }
            });
            let times = asking.join_all().await.concat();
            spinning.abort();
            times
        });
        let elapsed = begun.elapsed();
        let server = processor_time(self.0.id()) - before;
        times.sort_unstable();
        let commands = (times.len() * depth) as f64;
        Measured {
            rate: commands / elapsed.as_secs_f64(),
            p99: f64::from(times[times.len() * 99 / 100]) / 1e3,
            server: server.as_secs_f64() * 1e6 / commands,
        }
    }
}

/// A PONG for each PING, and nothing else: no parser, no bounds, no timers.
fn serve_floor(tcp: SocketAddr, unix: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(async move {
        let tcp = tokio::net::TcpListener::bind(tcp)
            .await
            .expect("the address is free");
        let unix = tokio::net::UnixListener::bind(unix).expect("the path is free");
        loop {
            tokio::select! {
                accepted = tcp.accept() => {
                    let (stream, _) = accepted.expect("a connection");
                    stream.set_nodelay(true).expect("TCP_NODELAY");
                    tokio::spawn(pong(stream));
                }
                accepted = unix.accept() => {
                    tokio::spawn(pong(accepted.expect("a connection").0));
                }
            }
        }
    });
}

async fn pong(mut stream: impl Stream) {
    let pongs = PONG.repeat(8 * 1024);
    let mut buffer = vec![0; 16 * 1024];
    let mut got = 0;
    while let Ok(more @ 1..) = stream.read(&mut buffer).await {
        let answered = (got + more) / PING.len() - got / PING.len();
        got += more;
        if stream
            .write_all(&pongs[..answered * PONG.len()])
            .await
            .is_err()
        {
            return;
        }
    }
}
