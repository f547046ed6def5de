//! The contract on every kind of store. `make test-long` runs it longer.

use tidegate_testing::fleet::contract::run;
use tidegate_testing::stores::{RedisCluster, RedisSentinel, RedisTls, RedisUnixSocket, valkey};

use super::shared;

const SECONDS: f64 = 5.0;

#[test]
fn sentinel() {
    let _machine = shared();
    run(&mut RedisSentinel::start(), SECONDS);
}

#[test]
fn cluster() {
    let _machine = shared();
    run(&mut RedisCluster::start(), SECONDS);
}

#[test]
fn tls_with_acl() {
    let _machine = shared();
    run(&mut RedisTls::start(), SECONDS);
}

#[test]
fn valkey() {
    let _machine = shared();
    run(&mut valkey::start(), SECONDS);
}

#[test]
fn unix_socket() {
    let _machine = shared();
    run(&mut RedisUnixSocket::start(), SECONDS);
}
