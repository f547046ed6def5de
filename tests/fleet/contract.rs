//! The contract on every kind of store. `make test-long` runs it longer.

use super::harness::contract::run;
use super::redis::cluster::Cluster;
use super::redis::sentinel::Sentinel;
use super::redis::tls::Tls;
use super::redis::unix::Unix;
use super::redis::valkey;
use super::shared;

const SECONDS: f64 = 5.0;

#[test]
fn sentinel() {
    let _machine = shared();
    run(&mut Sentinel::start(), SECONDS);
}

#[test]
fn cluster() {
    let _machine = shared();
    run(&mut Cluster::start(), SECONDS);
}

#[test]
fn tls_with_acl() {
    let _machine = shared();
    run(&mut Tls::start(), SECONDS);
}

#[test]
fn valkey() {
    let _machine = shared();
    run(&mut valkey::start(), SECONDS);
}

#[test]
fn unix_socket() {
    let _machine = shared();
    run(&mut Unix::start(), SECONDS);
}
