//! The contract and the books on every kind of store, for longer, with several failovers; and the image as a release.
//! `make test-long` runs it.
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
mod image;
#[expect(dead_code, reason = "tests/ops uses the rest")]
#[path = "../ops/image/podman.rs"]
mod podman;
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
use harness::conservation::{Scene, conserve};
use harness::contract;
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
    let store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    conserve(store, 60.0, Loss::None, |scene| {
        every(10.0, scene, |scene| scene.store.restart());
    });
}

/// What the store had settled more than half a minute before is gone, and counted.
#[test]
fn books_after_a_late_restart_that_kept_nothing() {
    conserve(Server::start(&[]), 60.0, Loss::Counted, |scene| {
        scene.load.reach(45.0);
        scene.store.restart();
    });
}

#[test]
fn books_after_many_hangs() {
    conserve(Server::start(&[]), 60.0, Loss::None, |scene| {
        every(12.0, scene, |scene| {
            scene.store.signal("STOP");
            scene.load.reach(scene.load.seconds() + 5.0);
            scene.store.signal("CONT");
        });
    });
}

#[test]
fn books_after_many_reshards() {
    conserve(Cluster::start(), 60.0, Loss::None, |scene| {
        every(2.0, scene, |scene| scene.store.reshard(200));
    });
}

#[test]
fn books_after_sentinel_failovers() {
    conserve(Sentinel::start(), 60.0, Loss::Counted, fail_over_twice);
}

#[test]
fn books_after_cluster_failovers() {
    conserve(Cluster::start(), 60.0, Loss::Counted, fail_over_twice);
}

fn fail_over_twice<S: Store>(scene: &mut Scene<'_, S>) {
    every(20.0, scene, |scene| {
        assert!(scene.store.fail_over());
        scene.store.recover();
    });
}

/// Does something every so many seconds, but for the last ones of a minute.
fn every<S>(seconds: f64, scene: &mut Scene<'_, S>, mut what: impl FnMut(&mut Scene<'_, S>)) {
    while scene.load.seconds() + seconds < 50.0 {
        scene.load.reach(scene.load.seconds() + seconds);
        what(scene);
    }
}
