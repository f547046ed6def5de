//! The contract and the books on every kind of store, for longer, with several failovers. `make test-long` runs it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "a test that cannot go on fails"
)]

#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/client.rs"]
mod client;
#[expect(dead_code, reason = "tests/fleet uses the rest")]
#[path = "../fleet/harness/mod.rs"]
mod harness;
#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/prometheus.rs"]
mod prometheus;
#[expect(dead_code, reason = "tests/fleet uses the rest")]
#[path = "../redis/mod.rs"]
mod redis;
#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/sidecar.rs"]
mod sidecar;

use harness::books::Loss;
use harness::conservation::conserve;
use harness::contract;
use harness::load::Running;
use redis::Store;
use redis::cluster::Cluster;
use redis::sentinel::Sentinel;
use redis::server::Server;
use redis::tls::Tls;
use redis::valkey;

/// Of each load of the contract.
const SECONDS: f64 = 30.0;

#[test]
fn contract_of_sentinel() {
    contract::run(&mut Sentinel::start(), SECONDS);
}

#[test]
fn contract_of_cluster() {
    contract::run(&mut Cluster::start(), SECONDS);
}

#[test]
fn contract_of_tls_with_acl() {
    contract::run(&mut Tls::start(), SECONDS);
}

#[test]
fn contract_of_valkey() {
    contract::run(&mut valkey::start(), SECONDS);
}

#[test]
fn books_after_many_restarts() {
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    conserve(&mut store, 60.0, Loss::None, |store, running| {
        every(running, 10.0, 50.0, || store.restart());
    });
}

#[test]
fn books_after_many_hangs() {
    conserve(
        &mut Server::start(&[]),
        60.0,
        Loss::None,
        |store, running| {
            every(running, 12.0, 50.0, || {
                store.signal("STOP");
                running.reach(running.seconds() + 5.0);
                store.signal("CONT");
            });
        },
    );
}

#[test]
fn books_after_many_reshards() {
    conserve(&mut Cluster::start(), 60.0, Loss::None, |store, running| {
        every(running, 2.0, 55.0, || store.reshard(200));
    });
}

#[test]
fn books_after_two_cluster_failovers() {
    conserve(
        &mut Cluster::start(),
        60.0,
        Loss::Counted,
        |store, running| {
            every(running, 20.0, 45.0, || assert!(store.fail_over()));
        },
    );
}

/// Does something every so many seconds of the load, up to its `end`.
fn every(running: &Running, seconds: f64, end: f64, mut what: impl FnMut()) {
    while running.seconds() + seconds < end {
        running.reach(running.seconds() + seconds);
        what();
    }
}
