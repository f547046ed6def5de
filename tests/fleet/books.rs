//! After whatever went wrong, every admitted cell is in the books once.

use super::harness::books::{Loss, balance};
use super::harness::conservation::{ask, conserve, fleet};
use super::redis::Store;
use super::redis::cluster::Cluster;
use super::redis::proxy::{Fault, Plan, Proxy};
use super::redis::sentinel::Sentinel;
use super::redis::server::Server;
use super::shared;

/// A load, and in the middle of it a fault.
const SECONDS: f64 = 8.0;
const MIDDLE: f64 = 3.0;

#[test]
fn balance_when_nothing_goes_wrong() {
    let _machine = shared();
    conserve(&mut Server::start(&[]), 4.0, Loss::None, |_, _| {});
}

#[test]
fn balance_after_a_thousand_lost_replies() {
    const LOST: u64 = 1_000;
    let _machine = shared();
    let store = Server::start(&[]);
    let proxy = Proxy::start(store.port());
    let fleet = fleet(&format!("url: \"{}\"", proxy.url()));
    // One in five: the breaker opens now and then, and closes again.
    let plan = Plan::every(&["EVALSHA"], Fault::CutAfter);
    proxy.plan(Plan {
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
    balance(&fleet, &store, &asked, Loss::None);
}

#[test]
fn balance_after_a_restart_that_kept_everything() {
    let _machine = shared();
    let mut store = Server::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    conserve(&mut store, SECONDS, Loss::None, restart);
}

/// What was settled in the last half minute is played again, so nothing is lost that young.
#[test]
fn balance_after_a_restart_that_kept_nothing() {
    let _machine = shared();
    conserve(&mut Server::start(&[]), SECONDS, Loss::Counted, restart);
}

fn restart(store: &mut Server, running: &super::harness::load::Running) {
    running.reach(MIDDLE);
    store.kill();
    running.reach(MIDDLE + 2.0);
    store.restart();
}

#[test]
fn balance_after_a_store_that_hung() {
    let _machine = shared();
    conserve(
        &mut Server::start(&[]),
        MIDDLE + 12.0,
        Loss::None,
        |store, running| {
            running.reach(MIDDLE);
            store.signal("STOP");
            running.reach(MIDDLE + 10.0);
            store.signal("CONT");
        },
    );
}

#[test]
fn balance_after_a_sentinel_failover() {
    let _machine = shared();
    conserve(
        &mut Sentinel::start(),
        SECONDS,
        Loss::Counted,
        |store, running| {
            running.reach(MIDDLE);
            assert!(store.fail_over());
        },
    );
}

#[test]
fn balance_after_a_cluster_failover() {
    let _machine = shared();
    conserve(
        &mut Cluster::start(),
        SECONDS,
        Loss::Counted,
        |store, running| {
            running.reach(MIDDLE);
            assert!(store.fail_over());
        },
    );
}

#[test]
fn balance_after_a_reshard() {
    let _machine = shared();
    conserve(
        &mut Cluster::start(),
        SECONDS,
        Loss::None,
        |store, running| {
            running.reach(MIDDLE);
            store.reshard(1_000);
            store.reshard(1_000);
        },
    );
}
