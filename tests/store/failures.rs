//! What becomes of every failure: its kind, and that it comes in time.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::sync::{ErrorKind, StoreError};
use tidegate_core::pure::sync::{Lane, StoreKey};
use tidegate_testing::stores::RedisServer;
use tidegate_testing::stores::field;
use tidegate_testing::{free_port, now, until};

use crate::scripted::{Says, start};
use crate::world::{RULE, call, delta, per_second, run, store, store_at};

/// What a call ends with when the server says this.
fn failure(says: Says) -> StoreError {
    let store = store_at(&start(says), 1);
    let alice = StoreKey::level(RULE, 0x10);
    let batch = call(alice.lane(), 0, vec![delta(alice, per_second(1, 10), 1)]);
    run(store.apply(&batch)).expect_err("a failure")
}

#[test]
fn an_error_of_the_server_has_a_kind() {
    for (said, kind) in [
        (
            "NOSCRIPT No matching script. Please use EVAL.",
            ErrorKind::NoScript,
        ),
        (
            "LOADING Redis is loading the dataset in memory",
            ErrorKind::Loading,
        ),
        (
            "OOM command not allowed when used memory > 'maxmemory'.",
            ErrorKind::OutOfMemory,
        ),
        (
            "READONLY You can't write against a read only replica.",
            ErrorKind::ReadOnly,
        ),
        ("MASTERDOWN Link with MASTER is down", ErrorKind::ReadOnly),
        ("MOVED 3999 127.0.0.1:6381", ErrorKind::Moved),
        ("ASK 3999 127.0.0.1:6381", ErrorKind::Ask),
        (
            "TRYAGAIN Multiple keys request during rehashing of slot",
            ErrorKind::TryAgain,
        ),
        ("CLUSTERDOWN The cluster is down", ErrorKind::ClusterDown),
        ("BUSY Redis is busy running a script.", ErrorKind::Busy),
        ("NOAUTH Authentication required.", ErrorKind::NoAuth),
        (
            "WRONGPASS invalid username-password pair",
            ErrorKind::NoAuth,
        ),
        (
            "NOPERM this user has no permissions to run 'evalsha'",
            ErrorKind::NoPermission,
        ),
        (
            "WRONGTYPE Operation against a key holding the wrong kind",
            ErrorKind::WrongType,
        ),
        ("ERR unknown command", ErrorKind::Other),
        (
            "MISCONF Redis is configured to save RDB snapshots",
            ErrorKind::Other,
        ),
        ("whatever", ErrorKind::Other),
    ] {
        let error = failure(Says::This(format!("-{said}\r\n").into_bytes()));
        assert_eq!(error.kind, kind, "{said}");
        assert!(error.source().is_some(), "{said}");
    }
}

#[test]
fn an_answer_that_is_none_is_a_fault_of_the_protocol() {
    for said in [
        "+OK\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*0\r\n",
        "*1\r\n:1\r\n",
        "*5\r\n:1\r\n:1\r\n:1\r\n:0\r\n$3\r\nabc\r\n",
        "*5\r\n:1\r\n:1\r\n:1\r\n:0\r\n:7\r\n",
        "*5\r\n:1\r\n:-1\r\n:1\r\n:0\r\n$25\r\n0123456789012345678901234\r\n",
        "*5\r\n$1\r\n1\r\n:1\r\n:1\r\n:0\r\n$25\r\n0123456789012345678901234\r\n",
        "*6\r\n:1\r\n:1\r\n:1\r\n:0\r\n$0\r\n\r\n:1\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n",
        "$x\r\n",
        "*99999999999999999999\r\n",
    ] {
        let error = failure(Says::This(said.into()));
        assert_eq!(error.kind, ErrorKind::Protocol, "{said:?}: {error:?}");
    }
}

#[test]
fn an_answer_that_breaks_off_is_cut() {
    for said in ["", "*5\r\n:1\r\n", "$25\r\n0123", ":", "-MOV"] {
        let error = failure(Says::Last(said.into()));
        assert_eq!(error.kind, ErrorKind::Cut, "{said:?}: {error:?}");
    }
}

/// A server that announces gigabytes is not waited for, and nothing of them is kept: with the library alone this is a
/// time-out, after as much was gathered as came until then.
#[test]
fn an_answer_that_is_announced_too_long_is_a_fault_of_the_protocol() {
    for said in [
        "$5000000000\r\nx",
        "*5\r\n:1\r\n:1\r\n:1\r\n:0\r\n$5000000000\r\n",
        "*600000\r\n:1\r\n",
        "+",
    ] {
        let more = "x".repeat(if said == "+" { 5 << 20 } else { 0 });
        let error = failure(Says::This(format!("{said}{more}").into()));
        assert_eq!(error.kind, ErrorKind::Protocol, "{said:?}: {error:?}");
    }
}

/// Fails unless the call ends within its time, and some for a busy machine.
fn in_time(url: &str, kind: ErrorKind) {
    let lines = [format!("url: {url}"), "timeout: 100ms".to_owned()];
    let store = store(&lines, 1);
    run(async {
        for _ in 0..3 {
            let begun = now();
            let error = store.apply(&call(Lane::new(3), 0, vec![])).await;
            let error = error.expect_err("a failure");
            assert_eq!(error.kind, kind, "{error:?}");
            assert!(
                begun.elapsed() < Duration::from_secs(2),
                "{:?}",
                begun.elapsed()
            );
        }
    });
}

#[test]
fn a_server_that_hangs_is_a_server_that_is_gone() {
    in_time(&start(Says::Nothing), ErrorKind::Timeout);
    // With a password it hangs while we connect.
    let url = start(Says::Nothing).replace("//", "//ada:secret@");
    in_time(&url, ErrorKind::Timeout);
}

#[test]
fn a_server_that_is_not_there_is_not_reached() {
    in_time(
        &format!("redis://127.0.0.1:{}", free_port()),
        ErrorKind::Connect,
    );
    in_time("unix:///nowhere/redis.sock", ErrorKind::Connect);
}

#[test]
fn a_server_that_comes_back_is_used_again() {
    let mut server = RedisServer::start(&[]);
    let lines = [
        format!("url: {}", server.url()),
        "timeout: 300ms".to_owned(),
    ];
    let store = store(&lines, 1);
    run(async {
        store.apply(&call(Lane::new(3), 0, vec![])).await.unwrap();
        server.signal("STOP");
        let hung = store
            .apply(&call(Lane::new(3), 1, vec![]))
            .await
            .unwrap_err();
        assert_eq!(hung.kind, ErrorKind::Timeout);
        server.signal("CONT");
        settled(&store).await;
        server.restart();
        settled(&store).await;
    });
}

/// Asks until it is answered.
async fn settled(store: &tidegate::sync::RedisStore) {
    for _ in 0..100 {
        if store.apply(&call(Lane::new(3), 9, vec![])).await.is_ok() {
            return;
        }
    }
    panic!("never answered");
}

#[test]
fn secrets_are_not_told() {
    let server = RedisServer::start(&["--requirepass", "hunter2"]);
    let url = server.url().replace("//", "//:wrong-secret@");
    let store = store_at(&url, 1);
    let error = run(store.apply(&call(Lane::new(3), 0, vec![]))).unwrap_err();
    assert_eq!(error.kind, ErrorKind::NoAuth);
    let told = format!("{error:?} {error} {store:?}");
    assert!(!told.contains("wrong-secret"), "{told}");
}

/// Two masters with half of the slots each. Lane 3 is on the first, lane 0 on the second.
fn two_shards() -> [RedisServer; 2] {
    // A server that hangs must not fail over: nobody may call the cluster broken meanwhile.
    let arguments = [
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "60000",
    ];
    let servers = [(); 2].map(|()| RedisServer::start(&arguments));
    for (server, [first, last]) in servers.iter().zip([["0", "8191"], ["8192", "16383"]]) {
        server.cli(&["CLUSTER", "ADDSLOTSRANGE", first, last]);
    }
    let port = servers[1].port().to_string();
    servers[0].cli(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    until("cluster_state:ok", Duration::from_secs(20), || {
        let whole = |server: &RedisServer| {
            let info = server.cli(&["CLUSTER", "INFO"]);
            field(&info, "cluster_state") == Some("ok")
        };
        servers.iter().all(whole).then_some(())
    });
    servers
}

/// The `redis` crate's own cluster client stops every call while it connects to the server that hangs
/// (docs/decisions/0019).
#[test]
fn a_shard_that_hangs_delays_only_its_own_lanes() {
    let [healthy, hanging] = two_shards();
    let lines = [
        format!("url: {}", healthy.url()),
        "topology: cluster".to_owned(),
        "timeout: 1s".to_owned(),
    ];
    let store = store(&lines, 1);
    let ask = async |lane: u8| store.apply(&call(Lane::new(lane), 0, vec![])).await;
    run(async {
        ask(3).await.unwrap();
        ask(0).await.unwrap();
        assert_ne!(store.shard_of(Lane::new(3)), store.shard_of(Lane::new(0)));
        hanging.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        hanging.signal("STOP");
        let failed = AtomicBool::new(false);
        let failing = async {
            for _ in 0..3 {
                assert!(ask(0).await.is_err());
            }
            failed.store(true, Ordering::Relaxed);
        };
        let answered = async {
            let mut answered = 0;
            while !failed.load(Ordering::Relaxed) {
                ask(3).await.expect("the other shard answers");
                answered += 1;
            }
            answered
        };
        let ((), answered) = tokio::join!(failing, answered);
        assert!(answered > 100, "{answered} in the time of three time-outs");
        hanging.signal("CONT");
    });
}
