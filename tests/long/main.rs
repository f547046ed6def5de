//! The contract and the books on every kind of store, for longer, with several failovers; and the image as a release.
//! `make test-long` runs it.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod image;

use tidegate_testing::fleet::books::AllowedLoss;
use tidegate_testing::fleet::conservation::{Scene, conserve};
use tidegate_testing::fleet::contract;
use tidegate_testing::stores::{
    RedisCluster, RedisSentinel, RedisServer, RedisTls, StoreUnderTest, valkey,
};

/// Of each load of the contract.
const SECONDS: f64 = 30.0;

#[test]
fn contract_of_sentinel() {
    contract::run(&mut RedisSentinel::start(), SECONDS);
}

#[test]
fn contract_of_cluster() {
    contract::run(&mut RedisCluster::start(), SECONDS);
}

#[test]
fn contract_of_tls_with_acl() {
    contract::run(&mut RedisTls::start(), SECONDS);
}

#[test]
fn contract_of_valkey() {
    contract::run(&mut valkey::start(), SECONDS);
}

#[test]
fn books_after_many_restarts() {
    let store = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    conserve(store, 60.0, AllowedLoss::None, |scene| {
        every(10.0, scene, |scene| scene.store.restart());
    });
}

/// What the store had settled more than half a minute before is gone, and counted.
#[test]
fn books_after_a_late_restart_that_kept_nothing() {
    conserve(
        RedisServer::start(&[]),
        60.0,
        AllowedLoss::Counted,
        |scene| {
            scene.load.reach(45.0);
            scene.store.restart();
        },
    );
}

#[test]
fn books_after_many_hangs() {
    conserve(RedisServer::start(&[]), 60.0, AllowedLoss::None, |scene| {
        every(12.0, scene, |scene| {
            scene.store.signal("STOP");
            scene.load.reach(scene.load.seconds() + 5.0);
            scene.store.signal("CONT");
        });
    });
}

#[test]
fn books_after_many_reshards() {
    conserve(RedisCluster::start(), 60.0, AllowedLoss::None, |scene| {
        every(2.0, scene, |scene| scene.store.reshard(200));
    });
}

#[test]
fn books_after_sentinel_failovers() {
    conserve(
        RedisSentinel::start(),
        60.0,
        AllowedLoss::Counted,
        fail_over_twice,
    );
}

#[test]
fn books_after_cluster_failovers() {
    conserve(
        RedisCluster::start(),
        60.0,
        AllowedLoss::Counted,
        fail_over_twice,
    );
}

fn fail_over_twice<S: StoreUnderTest>(scene: &mut Scene<'_, S>) {
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
