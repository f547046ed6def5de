//! What a check costs over HTTP, against a bare hyper server that answers a constant of the same size, and over gRPC,
//! against a bare tonic server that answers the same message.
//!
//! All servers are processes of their own on the first core, the load comes from this one on the second. A floor is
//! this binary run again (`--floor`, `--floor-grpc`): the same runtime, socket options and hyper, the same status, header
//! names and body size, and nothing else. Rounds alternate, so that a noisy machine hits all alike; a figure is the median of
//! its rounds, a ratio the median of the rounds' ratios.
//!
//! `c1` is one connection, closed loop: the columns are microseconds. `c32` is thirty-two connections, which keep the
//! server's core busy: requests a second of one core. `cpu` is the server's time on the processor per request, in
//! microseconds at c32: the steadiest column.
//!
//! Budgets: 80 % of the floor's requests a second at c32 and 1.3 times its p99 at c1 over HTTP; 70 % over gRPC.
//! `cargo bench --bench doors -- unix` runs one transport, `-- grpc-tcp` and `-- grpc-unix` those of gRPC.

#![expect(
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark prints, times, and fails loudly"
)]

mod load;

use std::fs;
use std::path::Path;
use std::time::Duration;

use load::requests::{Measured, Target, run, sample};
use load::wire::{Requests, message};
use load::{floor, floor_grpc};
use tidegate_testing::Folder;
use tidegate_testing::benchmark::{MeasuredServer, median, pin_load, verdict};

const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(1_200);
const WARM_UP: Duration = Duration::from_millis(300);

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, tcp, unix, answer] = arguments.as_slice() {
        let tcp = tcp.parse().expect("an address");
        let (unix, answer) = (Path::new(unix), Path::new(answer));
        match first.as_str() {
            "--floor" => return floor::serve(tcp, unix, answer),
            "--floor-grpc" => return floor_grpc::serve(tcp, unix, answer),
            other => panic!("what is {other}?"),
        }
    }
    let only = arguments.iter().find(|argument| *argument != "--bench");
    let pinned = pin_load();
    let folder = Folder::new();
    println!(
        "{:<9} {:<9} {:>9} {:>9} {:>10} {:>9} {:>9} {:>8}",
        "", "", "c1 p50", "c1 p99", "c32 req/s", "c32 p50", "c32 p99", "cpu"
    );
    for (names, door, requests) in [
        (["tcp", "unix"], Door::Http, Requests::http()),
        (["grpc-tcp", "grpc-unix"], Door::Grpc, Requests::grpc()),
    ] {
        if only.is_some_and(|only| !names.contains(&only.as_str())) {
            continue;
        }
        let tidegate = Server::tidegate(&folder, door, pinned);
        let answer = folder.path("answer");
        let sample = sample(&tidegate.tcp, &requests);
        let sample = match door {
            Door::Http => sample.as_slice(),
            Door::Grpc => message(&sample),
        };
        fs::write(&answer, sample).expect("the answer is kept");
        let floor = Server::floor(&folder, door, &answer, pinned);
        let targets = [[&floor.tcp, &tidegate.tcp], [&floor.unix, &tidegate.unix]];
        for (name, targets) in names.into_iter().zip(targets) {
            if only.is_none_or(|only| only == name) {
                compare((name, door), targets, &requests);
            }
        }
    }
}

/// What is spoken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Door {
    Http,
    Grpc,
}

impl Door {
    /// Its name in the configuration, and what its floor is called.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Http => ("http", "--floor"),
            Self::Grpc => ("grpc", "--floor-grpc"),
        }
    }

    /// The share of the floor's requests a second that it has to reach.
    const fn budget(self) -> f64 {
        match self {
            Self::Http => 0.8,
            Self::Grpc => 0.7,
        }
    }
}

/// Both servers in turn, and what came of it.
fn compare((name, door): (&str, Door), [floor, tidegate]: [&Target; 2], requests: &Requests) {
    let mut floors = Vec::new();
    let mut ours = Vec::new();
    for target in [floor, tidegate] {
        let _ = Round::measure(target, requests, WARM_UP);
    }
    for _ in 0..ROUNDS {
        floors.push(Round::measure(floor, requests, ROUND));
        ours.push(Round::measure(tidegate, requests, ROUND));
    }
    print_rounds(name, "floor", &floors);
    print_rounds(name, "tidegate", &ours);
    let ratio = |figure: fn(&Round) -> f64| {
        let pairs = floors.iter().zip(&ours);
        median(pairs.map(|(floor, our)| figure(our) / figure(floor)))
    };
    let (throughput, p99) = (ratio(|round| round.many.rate), ratio(|round| round.one.p99));
    println!(
        "{name:<9} {:<9} {:>9.2} {p99:>9.2} {throughput:>10.2} {:>9.2} {:>9.2} {:>8.2}",
        "ratio",
        ratio(|round| round.one.p50),
        ratio(|round| round.many.p50),
        ratio(|round| round.many.p99),
        ratio(|round| round.many.server),
    );
    println!(
        "{name:<9} {:.0} % of the floor's throughput at c32 ({:.0} %): {}; p99 at c1 {p99:.2} times the floor's (1.3): {}",
        throughput * 100.0,
        door.budget() * 100.0,
        verdict(throughput >= door.budget()),
        verdict(p99 <= 1.3),
    );
}

fn print_rounds(name: &str, server: &str, rounds: &[Round]) {
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(figure));
    println!(
        "{name:<9} {server:<9} {:>9.1} {:>9.1} {:>10.0} {:>9.1} {:>9.1} {:>8.2}",
        of(|round| round.one.p50),
        of(|round| round.one.p99),
        of(|round| round.many.rate),
        of(|round| round.many.p50),
        of(|round| round.many.p99),
        of(|round| round.many.server),
    );
}

/// One server's turn.
struct Round {
    one: Measured,
    many: Measured,
}

impl Round {
    fn measure(target: &Target, requests: &Requests, length: Duration) -> Self {
        Self {
            one: run(target, requests, 1, length),
            many: run(target, requests, 32, length),
        }
    }
}

/// A running server.
struct Server {
    _running: MeasuredServer,
    tcp: Target,
    unix: Target,
}

impl Server {
    fn tidegate(folder: &Folder, door: Door, pinned: bool) -> Self {
        let (door, _) = door.names();
        Self::of(MeasuredServer::tidegate(folder, door, pinned))
    }

    fn floor(folder: &Folder, door: Door, answer: &Path, pinned: bool) -> Self {
        let (_, floor) = door.names();
        Self::of(MeasuredServer::floor(folder, floor, &[answer], pinned))
    }

    fn of(running: MeasuredServer) -> Self {
        Self {
            tcp: Target::tcp(running.id(), running.tcp),
            unix: Target::unix(running.id(), running.unix.clone()),
            _running: running,
        }
    }
}
