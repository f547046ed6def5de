//! Every error that Redis can answer, at every step of the protocol: the fleet survives it, counts it by kind, and loses no cell.

use std::thread;
use std::time::Duration;

use tidegate_testing::fleet::books::{AllowedLoss, balance};
use tidegate_testing::fleet::load::{AnsweredCheck, CheckStream, FleetLoad};
use tidegate_testing::fleet::pods::{FleetPod, SidecarFleet, rules};
use tidegate_testing::stores::{FaultPlan, Proxy, ProxyFault, RedisServer};
use tidegate_testing::until;

use super::shared;

const ERRORS: [(&str, &[&str]); 18] = [
    (
        "-NOSCRIPT No matching script. Please use EVAL.\r\n",
        &["noscript"],
    ),
    (
        "-LOADING Redis is loading the dataset in memory\r\n",
        &["loading"],
    ),
    (
        "-OOM command not allowed when used memory > 'maxmemory'.\r\n",
        &["oom"],
    ),
    (
        "-READONLY You can't write against a read only replica.\r\n",
        &["readonly"],
    ),
    ("-MOVED 1 127.0.0.1:1\r\n", &["moved"]),
    ("-ASK 1 127.0.0.1:1\r\n", &["ask"]),
    (
        "-TRYAGAIN Multiple keys request during rehashing of slot\r\n",
        &["tryagain"],
    ),
    ("-CLUSTERDOWN The cluster is down\r\n", &["clusterdown"]),
    ("-BUSY Redis is busy running a script.\r\n", &["busy"]),
    ("-NOAUTH Authentication required.\r\n", &["noauth"]),
    (
        "-NOPERM this user has no permissions to run the command\r\n",
        &["noperm"],
    ),
    (
        "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
        &["wrongtype"],
    ),
    ("-ERR whatever else\r\n", &["other"]),
    // Of a wrong type, or no frame at all: a client may see an error in it, or only that the connection is useless, or,
    // when it loads a script, that the script is still not there.
    (":1\r\n", &["protocol", "noscript"]),
    ("$5\r\nhello\r\n", &["protocol", "noscript"]),
    ("$-1\r\n", &["protocol", "noscript"]),
    ("*3\r\n$1\r\na\r\n*0\r\n:-7\r\n", &["protocol", "noscript"]),
    ("\u{1}garbage\r\n", &["protocol", "cut"]),
];
/// A fault that answers nothing whole.
const CUTS: [(ProxyFault, &[&str]); 3] = [
    (ProxyFault::Truncate, &["cut", "protocol"]),
    (ProxyFault::CutBefore, &["cut", "connect"]),
    (ProxyFault::CutAfter, &["cut", "connect"]),
];
const AT_A_TIME: usize = 4;
/// For a fault to happen once sidecars have a reason to call.
const HAPPENS_WITHIN: Duration = Duration::from_secs(15);

/// When the faults are planned: a step of the start is over when the sidecar is ready.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Start,
    Load,
}

#[test]
fn errors_of_rounds_are_survived() {
    survive_all(&["EVALSHA"], Step::Load);
}

#[test]
fn errors_of_loading_a_script_are_survived() {
    survive_all(&["SCRIPT LOAD", "EVAL"], Step::Start);
}

#[test]
fn errors_of_subscribing_are_survived() {
    survive_all(&["SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE"], Step::Start);
}

/// Every fault of these commands, with a store and a sidecar of its own; a few at a time, since most of it is waiting.
fn survive_all(commands: &'static [&'static str], step: Step) {
    let _machine = shared();
    let mut cases = CUTS.to_vec();
    for (line, kinds) in ERRORS {
        let bytes = line.as_bytes().to_vec();
        let answer = |applied| ProxyFault::Answer {
            bytes: bytes.clone(),
            applied,
        };
        cases.push((answer(false), kinds));
        // Only a round changes something that an answer could be wrong about.
        if step == Step::Load {
            cases.push((answer(true), kinds));
        }
    }
    let some = cases.len().div_ceil(AT_A_TIME);
    thread::scope(|scope| {
        for cases in cases.chunks(some) {
            scope.spawn(move || {
                let store = RedisServer::start(&[]);
                for (fault, kinds) in cases {
                    let plan = FaultPlan::next(2, commands, fault.clone());
                    survive(&store, step, plan, kinds);
                }
            });
        }
    });
}

/// A sidecar meets the fault, is healed, and has lost nothing.
fn survive(store: &RedisServer, step: Step, plan: FaultPlan, kinds: &[&str]) {
    let proxy = Proxy::start(store.port());
    let what = format!("{plan:?}");
    store.cli(&["SCRIPT", "FLUSH"]);
    if step == Step::Start {
        proxy.plan(plan.clone());
    }
    let fleet = SidecarFleet::sharing(
        1,
        &format!("url: \"{}\"", proxy.url()),
        &rules("50/second burst 50"),
    );
    if step == Step::Load {
        proxy.plan(plan);
    }
    let mut asked = ask(&fleet);
    until(&format!("met: {what}"), HAPPENS_WITHIN, || {
        (proxy.injected() > 0).then_some(())
    });
    until(
        &format!("{kinds:?} counted for {what}"),
        HAPPENS_WITHIN,
        || {
            kinds
                .iter()
                .any(|kind| counted(&fleet.pods[0], kind) > 0.0)
                .then_some(())
        },
    );
    proxy.heal();
    asked.extend(ask(&fleet));
    balance(&fleet, store, &asked, AllowedLoss::None);
}

/// Half a second of checks.
fn ask(fleet: &SidecarFleet) -> Vec<AnsweredCheck> {
    let stream = CheckStream {
        rate: 200.0,
        shares: &[1.0],
        from: 0.0,
        to: 0.5,
        seed: 1,
    };
    fleet.ask(FleetLoad::one(1).stream(stream)).finish()
}

fn counted(pod: &FleetPod, kind: &str) -> f64 {
    let labels = [("kind", kind)];
    pod.metrics()
        .get("ratelimit_redis_errors_total", &labels)
        .unwrap_or(0.0)
}
