//! After every kind of failure, each admitted cell is in the books exactly once.

use tidegate_testing::fleet::books::{AllowedLoss, balance};
use tidegate_testing::fleet::conservation::{Scene, ask, conserve, fleet};
use tidegate_testing::stores::{
    FaultPlan, Proxy, ProxyFault, RedisCluster, RedisSentinel, RedisServer, StoreUnderTest,
};

use tidegate_testing::{SOON, until};

use super::shared;

/// A load, and in the middle of it a fault.
const SECONDS: f64 = 8.0;
const MIDDLE: f64 = 3.0;

#[test]
fn balance_when_nothing_goes_wrong() {
    let _machine = shared();
    conserve(RedisServer::start(&[]), 4.0, AllowedLoss::None, |_| {});
}

/// A cluster of one server, which `topology: single` takes for a plain one: it refuses calls over several slots.
#[test]
fn balance_on_a_server_that_refuses_calls_over_several_slots() {
    let _machine = shared();
    let server = RedisServer::start(&["--cluster-enabled", "yes"]);
    assert_eq!(
        server.cli(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]),
        "OK"
    );
    until("a cluster that serves", SOON, || {
        let info = server.cli(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok").then_some(())
    });
    conserve(server, 4.0, AllowedLoss::None, |scene| {
        scene.load.reach(3.0);
        let errors = scene.store.cli(&["INFO", "errorstats"]);
        assert!(errors.contains("errorstat_CROSSSLOT"), "{errors}");
    });
}

#[test]
fn balance_after_a_thousand_lost_replies() {
    const LOST: u64 = 1_000;
    let _machine = shared();
    let store = RedisServer::start(&[]);
    let proxy = Proxy::start(store.port());
    let fleet = fleet(&format!("url: \"{}\"", proxy.url()));
    // One in five: the breaker opens now and then, and closes again.
    let plan = FaultPlan::every(&["EVALSHA"], ProxyFault::CutAfter);
    proxy.plan(FaultPlan {
        per_mille: 200,
        ..plan
    });
    let mut asked = Vec::new();
    for seed in 0..20 {
        asked.extend(ask(&fleet, 5.0, seed));
        if proxy.lost() >= LOST {
            break;
        }
    }
    assert!(proxy.lost() >= LOST, "only {} replies lost", proxy.lost());
    proxy.heal();
    balance(&fleet, &store, &asked, AllowedLoss::None);
}

#[test]
fn balance_after_a_restart_that_kept_everything() {
    let _machine = shared();
    let store = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    conserve(store, SECONDS, AllowedLoss::None, restart);
}

/// What was settled in the last half minute is played again, so nothing is lost that young.
#[test]
fn balance_after_a_restart_that_kept_nothing() {
    let _machine = shared();
    conserve(RedisServer::start(&[]), SECONDS, AllowedLoss::None, restart);
}

fn restart(scene: &mut Scene<'_, RedisServer>) {
    scene.load.reach(MIDDLE);
    scene.store.kill();
    scene.load.reach(MIDDLE + 2.0);
    scene.store.restart();
}

#[test]
fn balance_after_a_store_that_hung() {
    let _machine = shared();
    conserve(
        RedisServer::start(&[]),
        MIDDLE + 12.0,
        AllowedLoss::None,
        |scene| {
            scene.load.reach(MIDDLE);
            scene.store.signal("STOP");
            scene.load.reach(MIDDLE + 10.0);
            scene.store.signal("CONT");
        },
    );
}

#[test]
fn balance_after_a_sidecar_that_hung() {
    let _machine = shared();
    conserve(
        RedisServer::start(&[]),
        MIDDLE + 7.0,
        AllowedLoss::None,
        |scene| {
            let sidecar = &scene.fleet.pods[0].sidecar;
            scene.load.reach(MIDDLE);
            sidecar.signal("STOP");
            scene.load.reach(MIDDLE + 5.0);
            sidecar.signal("CONT");
        },
    );
}

#[test]
fn balance_after_a_sentinel_failover() {
    let _machine = shared();
    conserve(
        RedisSentinel::start(),
        SECONDS,
        AllowedLoss::Counted,
        fail_over,
    );
}

#[test]
fn balance_after_a_cluster_failover() {
    let _machine = shared();
    conserve(
        RedisCluster::start(),
        SECONDS,
        AllowedLoss::Counted,
        fail_over,
    );
}

fn fail_over<S: StoreUnderTest>(scene: &mut Scene<'_, S>) {
    scene.load.reach(MIDDLE);
    assert!(scene.store.fail_over());
}

#[test]
fn balance_after_a_reshard() {
    let _machine = shared();
    conserve(RedisCluster::start(), SECONDS, AllowedLoss::None, |scene| {
        scene.load.reach(MIDDLE);
        scene.store.reshard(1_000);
        scene.store.reshard(1_000);
    });
}
