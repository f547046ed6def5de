//! The stores are what the other tests take them for.

use tidegate_testing::stores::{
    RedisCluster, RedisSentinel, RedisServer, RedisTls, RedisUnixSocket, StoreUnderTest, valkey,
};

use super::shared;

/// A sidecar takes its `store:` section, and it holds keys.
fn check(store: &dyn StoreUnderTest) {
    let section = store.section();
    let text = format!("store: {{ {section} }}\nrules: []\n");
    let checked = tidegate_config::check_text("sidecar.yaml", &text, &|_| None);
    assert!(checked.is_ok(), "{:?}", checked.err());
    for (nth, master) in store.masters().iter().enumerate() {
        // On a cluster a key has its place: ask each master until one takes it.
        let names = (0..100).map(|name| format!("tidegate:{nth}:{name}"));
        let mut taken = names.map(|name| master.cli(&["SET", &name, "a\r\n"]));
        assert!(taken.any(|reply| reply == "OK"));
    }
    let values = store.values("tidegate:*");
    assert_eq!(values.len(), store.masters().len());
    assert!(
        values.iter().all(|(_, value)| value == b"a\r\n"),
        "{values:?}"
    );
}

#[test]
fn one_server_is_killed_restarted_and_stopped() {
    let _machine = shared();
    let mut server = RedisServer::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    check(&server);
    let section = server.section();
    server.restart();
    assert_eq!(
        (server.section(), server.cli(&["DBSIZE"])),
        (section, "1".to_owned())
    );
    server.signal("STOP");
    server.signal("CONT");
    assert_eq!(server.cli(&["PING"]), "PONG");
    assert!(server.calls("ping") >= 1 && server.calls("evalsha") == 0);
    assert!(server.info("cpu", "used_cpu_user") >= 0.0);
    assert!(!server.fail_over());
}

#[test]
fn sentinels_find_a_new_master() {
    let _machine = shared();
    let mut store = RedisSentinel::start();
    check(&store);
    let old = store.masters()[0].port();
    assert!(store.fail_over());
    assert_ne!(store.masters()[0].port(), old);
    store.recover();
    assert!(store.fail_over());
    assert_eq!(store.masters()[0].port(), old);
    assert_eq!(store.cli(&["SET", "tidegate:b", "1"]), ["OK"]);
}

#[test]
fn a_cluster_moves_slots_and_finds_a_new_master() {
    let _machine = shared();
    let mut store = RedisCluster::start();
    check(&store);
    store.reshard(1_000);
    for _ in 0..2 {
        assert!(store.fail_over());
        assert_eq!(store.masters().len(), 3);
        store.recover();
    }
}

#[test]
fn tls_wants_a_certificate_and_a_user() {
    let _machine = shared();
    let store = RedisTls::start();
    check(&store);
    store.assert_least_privilege();
}

#[test]
fn valkey_is_valkey() {
    let _machine = shared();
    let store = valkey::start();
    check(&store);
    assert!(
        store
            .cli(&["INFO", "server"])
            .contains("server_name:valkey")
    );
}

#[test]
fn a_socket_takes_commands() {
    let _machine = shared();
    let store = RedisUnixSocket::start();
    check(&store);
    let section = store.section();
    let path = section
        .trim_start_matches("url: \"unix://")
        .trim_end_matches('"');
    assert!(
        std::os::unix::net::UnixStream::connect(path).is_ok(),
        "{section}"
    );
}
