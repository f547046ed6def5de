//! What a global limit costs the store, against a script that Redis runs for every check.
//!
//! Three sidecars share one Redis and limit each client to 100/second with a burst of 100. The load does not wait:
//! every 5 ms it sends the checks that are due, each to a sidecar picked at random, as pipelined TG.CHECK on a Unix
//! socket. Every load has new sidecars and an empty store, so that a part of the benchmark finds what the whole finds.
//!
//! - `mixed`: 5,000 keys, the chance of each is one to its rank. A few are far above the limit, most far below.
//! - `contested`: 20 keys, all far above the limit.
//! - `even`: 300 keys, each at half of the limit.
//! - `silent`: 5,000 keys, each at 3 % of the limit.
//! - `thin`: 3,000 keys under 100/minute with a burst of 100, each at 60 % of it. 3,000 checks/s, the others have
//!   15,000.
//! - `per-request` is the peer: the checks of `mixed` with GCRA in Lua, one EVALSHA for each check. It is pipelined on
//!   one connection, which saves Redis most of the system calls that callers would cause who send one check at a time.
//! - `idle`: sidecars and a store without a load.
//!
//! Columns: `checks/s`, sent and answered; `admitted`, the part of them that was allowed. `Redis µs` is the time of
//! Redis on the processor per check, with what an idle Redis uses. `calls` are script calls per 1,000 checks,
//! heartbeats included; `µs/call` is the time inside the script, `keys/call` how many keys the sidecars sent with
//! each. `sidecar µs` is the time of the sidecars on the processor per check. `wake-ups/s` are the voluntary context
//! switches of all threads of the three sidecars; the batches of the load alone are 600 a second.
//!
//! Budgets for `mixed`: 0.8 µs of Redis and 3 µs of the sidecars per check, 8 calls per 1,000 checks, and a twentieth
//! of the Redis time of `per-request`. For `idle`, per sidecar: 5 wake-ups/s and 0.1 % of a core.
//! `cargo bench --bench store -- mixed` runs one load and the peer.

#![expect(
    clippy::print_stdout,
    clippy::expect_used,
    reason = "a benchmark prints, and fails loudly"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidegate_testing::benchmark::{processor_time, verdict, voluntary_switches};
use tidegate_testing::fleet::pipeline::{CheckCounts, LoadPlan, Pipeline, RunningChecks};
use tidegate_testing::fleet::pods::{SidecarFleet, rules};
use tidegate_testing::fleet::scenarios::{UPDATES, Zipf};
use tidegate_testing::stores::{RedisServer, StoreUnderTest, frame};
use tidegate_testing::{now, rest_until};

const WARM_UP: Duration = Duration::from_secs(2);
const MEASURED: Duration = Duration::from_secs(8);
const PODS: usize = 3;
const MIXED: StoreLoad = StoreLoad {
    name: "mixed",
    entry: "client",
    keys: 5_000,
    choice: KeyChoice::Zipf,
    rate: 15_000.0,
};
const LOADS: [StoreLoad; 5] = [
    MIXED,
    StoreLoad {
        name: "contested",
        keys: 20,
        choice: KeyChoice::Uniform,
        ..MIXED
    },
    StoreLoad {
        name: "even",
        keys: 300,
        choice: KeyChoice::Uniform,
        ..MIXED
    },
    StoreLoad {
        name: "silent",
        choice: KeyChoice::Uniform,
        ..MIXED
    },
    StoreLoad {
        name: "thin",
        entry: "caller",
        keys: 3_000,
        choice: KeyChoice::Uniform,
        rate: 3_000.0,
    },
];
const PEER: &str = "per-request";
const IDLE: &str = "idle";
/// The interval of a cell in microseconds and the burst come as arguments.
const GCRA: &str = "\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local interval = tonumber(ARGV[1])
local capacity = interval * tonumber(ARGV[2])
local tat = tonumber(redis.call('GET', KEYS[1])) or now
if tat < now then
  tat = now
end
local level = tat + interval - now
if level > capacity then
  return 0
end
redis.call('SET', KEYS[1], string.format('%.0f', now + level), 'PX', math.ceil(level / 1000))
return 1";

fn main() {
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench")
        .collect();
    let chosen = |name: &str| only.is_empty() || only.iter().any(|only| only == name);
    let store = RedisServer::start(&[]);
    let loads = LOADS.iter().filter(|load| chosen(load.name));
    if chosen(PEER) || LOADS.iter().any(|load| chosen(load.name)) {
        println!(
            "{:<12} {:>8} {:>9} {:>9} {:>8} {:>8} {:>9} {:>11} {:>11}",
            "",
            "checks/s",
            "admitted",
            "Redis µs",
            "calls",
            "µs/call",
            "keys/call",
            "sidecar µs",
            "wake-ups/s"
        );
        let peer = measure_peer(&store);
        println!("{}", peer.row(PEER));
        let measured: Vec<(&StoreLoad, StoreUsage)> = loads
            .map(|load| {
                let usage = measure_fleet(&store, load);
                println!("{}", usage.row(load.name));
                (load, usage)
            })
            .collect();
        for (load, usage) in measured {
            compare(load, &usage, &peer);
        }
    }
    if chosen(IDLE) {
        measure_idle(&store);
    }
}

/// The figures of a load beside their budgets.
fn compare(load: &StoreLoad, usage: &StoreUsage, peer: &StoreUsage) {
    let name = load.name;
    let ratio = usage.redis_per_check() / peer.redis_per_check();
    let of_peer = format!("Redis µs are {ratio:.3} of {PEER} (1/{:.1})", 1.0 / ratio);
    if name != MIXED.name {
        println!("{name}: {of_peer}");
        return;
    }
    println!(
        "{name}: {of_peer}, at most 1/20: {}",
        verdict(ratio <= 0.05)
    );
    for (figure, value, most) in [
        ("Redis µs", usage.redis_per_check(), 0.8),
        ("calls", usage.calls_per_thousand(), 8.0),
        ("sidecar µs", usage.sidecars_per_check(), 3.0),
    ] {
        let met = verdict(value <= most);
        println!("{name}: {figure} {value:.2}, at most {most}: {met}");
    }
}

/// Three sidecars on an empty store.
fn start_fleet(store: &RedisServer) -> SidecarFleet {
    store.cli(&["FLUSHALL"]);
    let a_second = rules("100/second burst 100");
    let rules =
        format!("{a_second}\n      - key: caller\n        rate_limit: 100/minute burst 100");
    SidecarFleet::sharing(PODS, &store.section(), &rules)
}

fn measure_fleet(store: &RedisServer, load: &StoreLoad) -> StoreUsage {
    let fleet = start_fleet(store);
    let sockets = fleet.pods.iter().map(|pod| Pipeline::unix(&pod.resp));
    let command = |key: &str| frame::request(&["TG.CHECK", "fleet", load.entry, key]);
    let running = RunningChecks::start(sockets.collect(), load.plan(command));
    rest_until(now() + WARM_UP);
    // A scrape takes time of the sidecars, so both are outside of what is measured.
    let keys = || fleet.sum(UPDATES).expect("the sidecars count keys");
    let keys_before = keys();
    let meter = Meter {
        store,
        sidecars: fleet.pods.iter().map(|pod| pod.sidecar.pid()).collect(),
        counts: Arc::clone(&running.counts),
    };
    let usage = meter.measure();
    let keys = keys() - keys_before;
    running.finish();
    StoreUsage {
        keys: Some(keys),
        ..usage
    }
}

/// The checks of `mixed`, each decided by a script in Redis.
fn measure_peer(store: &RedisServer) -> StoreUsage {
    store.cli(&["FLUSHALL"]);
    let hash = store.cli(&["SCRIPT", "LOAD", GCRA]);
    let command = |key: &str| frame::request(&["EVALSHA", &hash, "1", key, "10000", "100"]);
    let pipelines = vec![Pipeline::tcp(&store.address())];
    let running = RunningChecks::start(pipelines, MIXED.plan(command));
    rest_until(now() + WARM_UP);
    let meter = Meter {
        store,
        sidecars: Vec::new(),
        counts: Arc::clone(&running.counts),
    };
    let usage = meter.measure();
    running.finish();
    usage
}

fn measure_idle(store: &RedisServer) {
    let fleet = start_fleet(store);
    rest_until(now() + WARM_UP);
    let meter = Meter {
        store,
        sidecars: fleet.pods.iter().map(|pod| pod.sidecar.pid()).collect(),
        counts: Arc::default(),
    };
    let usage = meter.measure();
    let percent = |micros: f64| micros / 1e4 / usage.seconds;
    let wakeups = usage.switches / usage.seconds / PODS as f64;
    let sidecar = percent(usage.sidecar_micros) / PODS as f64;
    let redis = percent(usage.redis_micros);
    println!(
        "{IDLE}: {wakeups:.1} wake-ups/s a sidecar, at most 5: {}",
        verdict(wakeups <= 5.0)
    );
    println!(
        "{IDLE}: {sidecar:.3} % of a core a sidecar, at most 0.1: {}",
        verdict(sidecar <= 0.1)
    );
    println!("{IDLE}: {redis:.3} % of a core for Redis");
}

/// Reads what Redis, the sidecars and the load have counted.
struct Meter<'a> {
    store: &'a RedisServer,
    /// The ids of their processes.
    sidecars: Vec<u32>,
    counts: Arc<CheckCounts>,
}

impl Meter<'_> {
    fn measure(&self) -> StoreUsage {
        let begun = now();
        let before = self.read(begun);
        rest_until(begun + MEASURED);
        self.read(begun).since(&before)
    }

    fn read(&self, begun: Instant) -> StoreUsage {
        let script = self.store.command_stats("evalsha");
        let processors = self.sidecars.iter().map(|pid| processor_time(*pid));
        let switches: u64 = self.sidecars.iter().copied().map(voluntary_switches).sum();
        StoreUsage {
            seconds: begun.elapsed().as_secs_f64(),
            allowed: self.counts.allowed() as f64,
            denied: self.counts.denied() as f64,
            redis_micros: self.store.processor_seconds() * 1e6,
            calls: script.calls as f64,
            script_micros: script.micros as f64,
            keys: None,
            sidecar_micros: processors.sum::<Duration>().as_secs_f64() * 1e6,
            switches: switches as f64,
        }
    }
}

/// What a load used.
struct StoreUsage {
    seconds: f64,
    allowed: f64,
    denied: f64,
    redis_micros: f64,
    calls: f64,
    script_micros: f64,
    /// Keys that the sidecars sent. `None` without sidecars.
    keys: Option<f64>,
    sidecar_micros: f64,
    switches: f64,
}

impl StoreUsage {
    fn since(&self, before: &Self) -> Self {
        Self {
            seconds: self.seconds - before.seconds,
            allowed: self.allowed - before.allowed,
            denied: self.denied - before.denied,
            redis_micros: self.redis_micros - before.redis_micros,
            calls: self.calls - before.calls,
            script_micros: self.script_micros - before.script_micros,
            keys: None,
            sidecar_micros: self.sidecar_micros - before.sidecar_micros,
            switches: self.switches - before.switches,
        }
    }

    fn checks(&self) -> f64 {
        self.allowed + self.denied
    }

    fn redis_per_check(&self) -> f64 {
        self.redis_micros / self.checks()
    }

    fn sidecars_per_check(&self) -> f64 {
        self.sidecar_micros / self.checks()
    }

    fn calls_per_thousand(&self) -> f64 {
        self.calls / self.checks() * 1e3
    }

    /// A line of the table.
    fn row(&self, name: &str) -> String {
        let of_store = format!(
            "{name:<12} {:>8.0} {:>7.1} % {:>9.2} {:>8.2} {:>8.1}",
            self.checks() / self.seconds,
            self.allowed / self.checks() * 100.0,
            self.redis_per_check(),
            self.calls_per_thousand(),
            self.script_micros / self.calls,
        );
        let Some(keys) = self.keys else {
            return of_store;
        };
        format!(
            "{of_store} {:>9.1} {:>11.2} {:>11.0}",
            keys / self.calls,
            self.sidecars_per_check(),
            self.switches / self.seconds,
        )
    }
}

/// Which keys are checked, and how often.
struct StoreLoad {
    name: &'static str,
    /// The entry that a check names.
    entry: &'static str,
    keys: u32,
    choice: KeyChoice,
    /// Checks a second.
    rate: f64,
}

enum KeyChoice {
    Uniform,
    Zipf,
}

impl StoreLoad {
    /// The checks to send, each as the bytes that `command` makes of its key.
    fn plan(&self, command: impl Fn(&str) -> Vec<u8>) -> LoadPlan {
        LoadPlan {
            commands: (0..self.keys)
                .map(|key| command(&format!("client-{key}")))
                .collect(),
            zipf: match self.choice {
                KeyChoice::Uniform => None,
                KeyChoice::Zipf => Some(Zipf::new(self.keys)),
            },
            rate: self.rate,
        }
    }
}
