//! The proxy does what it says, before a real Redis.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use tidegate_testing::stores::{FaultPlan, Proxy, ProxyFault, RedisServer, frame};
use tidegate_testing::{now, until};

use super::shared;

const SOON: Duration = Duration::from_secs(10);
/// Longer than the loopback takes, on a busy machine too.
const LATE: Duration = Duration::from_millis(300);

/// A connection that speaks the protocol by hand.
struct Talk {
    stream: TcpStream,
    read: Vec<u8>,
    /// The most that one read brought.
    chunk_max: usize,
}

impl Talk {
    fn to(proxy: &Proxy) -> Self {
        let url = proxy.url();
        let address = url.trim_start_matches("redis://");
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(SOON)).unwrap();
        Self {
            stream,
            read: Vec::new(),
            chunk_max: 0,
        }
    }

    /// Sends requests in one write: their words are set apart by blanks.
    fn send(&mut self, requests: &[&str]) {
        let mut bytes = String::new();
        for request in requests {
            let words: Vec<&str> = request.split(' ').collect();
            bytes += &format!("*{}\r\n", words.len());
            for word in words {
                bytes += &format!("${}\r\n{word}\r\n", word.len());
            }
        }
        self.stream.write_all(bytes.as_bytes()).unwrap();
    }

    /// The next reply, or what there was of it when the connection ended.
    fn receive(&mut self) -> Result<String, String> {
        let mut buffer = [0; 4096];
        loop {
            if let Some(length) = frame::length(&self.read) {
                return Ok(text(self.read.drain(..length).collect()));
            }
            match self.stream.read(&mut buffer) {
                Ok(read @ 1..) => {
                    self.chunk_max = self.chunk_max.max(read);
                    self.read.extend_from_slice(&buffer[..read]);
                }
                Ok(_) => return Err(text(std::mem::take(&mut self.read))),
                Err(error) => return Err(error.kind().to_string()),
            }
        }
    }

    fn ask(&mut self, request: &str) -> Result<String, String> {
        self.send(&[request]);
        self.receive()
    }
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn start() -> (RedisServer, Proxy) {
    let server = RedisServer::start(&[]);
    let proxy = Proxy::start(server.port());
    (server, proxy)
}

const OK: Result<&str, &str> = Ok("+OK\r\n");
const ENDED: Result<&str, &str> = Err("");

#[track_caller]
fn is(found: &Result<String, String>, expected: Result<&str, &str>) {
    assert_eq!(
        found.as_ref().map(String::as_str).map_err(String::as_str),
        expected
    );
}

#[test]
fn passes_what_it_is_not_told_to_spoil() {
    let _machine = shared();
    let (_server, proxy) = start();
    let mut talk = Talk::to(&proxy);
    talk.send(&[
        "SET a 1",
        "GET a",
        "SCRIPT LOAD return",
        "MGET a b",
        "HELLO 3",
        "PING",
    ]);
    for expected in [
        "+OK\r\n",
        "$1\r\n1\r\n",
        "$40\r\n",
        "*2\r\n$1\r\n1\r\n$-1\r\n",
        "%",
        "+PONG\r\n",
    ] {
        let found = talk.receive().unwrap();
        assert!(found.starts_with(expected), "{found:?} {expected:?}");
    }
    assert_eq!(
        (proxy.requests("SET"), proxy.requests("SCRIPT LOAD")),
        (1, 1)
    );
    assert_eq!(
        (proxy.requests("NONE"), proxy.injected(), proxy.lost()),
        (0, 0, 0)
    );
}

#[test]
fn cuts_before_the_request() {
    let _machine = shared();
    let (server, proxy) = start();
    proxy.plan(FaultPlan::next(1, &["INCR"], ProxyFault::CutBefore));
    let mut talk = Talk::to(&proxy);
    is(&talk.ask("SET a 1"), OK);
    is(&talk.ask("INCR a"), ENDED);
    assert_eq!((server.cli(&["GET", "a"]).as_str(), proxy.lost()), ("1", 0));
    is(&Talk::to(&proxy).ask("INCR a"), Ok(":2\r\n"));
}

#[test]
fn cuts_after_the_reply_for_as_long_as_it_is_told() {
    let _machine = shared();
    let (server, proxy) = start();
    proxy.plan(FaultPlan::next(2, &["INCR"], ProxyFault::CutAfter));
    is(&Talk::to(&proxy).ask("INCR a"), ENDED);
    is(&Talk::to(&proxy).ask("INCR a"), ENDED);
    is(&Talk::to(&proxy).ask("INCR a"), Ok(":3\r\n"));
    assert_eq!(
        (server.cli(&["GET", "a"]).as_str(), proxy.injected()),
        ("3", 2)
    );
    until("two replies lost", SOON, || {
        (proxy.lost() == 2).then_some(())
    });
}

#[test]
fn fails_by_chance() {
    let _machine = shared();
    let (_server, proxy) = start();
    let error = FaultPlan::every(&["PING"], ProxyFault::error("BUSY", false));
    proxy.plan(FaultPlan {
        per_mille: 300,
        ..error
    });
    let mut talk = Talk::to(&proxy);
    let failed = (0..1_000)
        .filter(|_| talk.ask("PING").unwrap().starts_with('-'))
        .count();
    assert!((230..370).contains(&failed), "{failed}");
    proxy.heal();
    is(&talk.ask("PING"), Ok("+PONG\r\n"));
}

#[test]
fn answers_in_place_of_redis_and_in_order() {
    let _machine = shared();
    let (server, proxy) = start();
    let readonly = "READONLY You can't write against a read only replica.";
    proxy.plan(FaultPlan::next(
        1,
        &["INCR"],
        ProxyFault::error(readonly, false),
    ));
    proxy.plan(FaultPlan::next(
        1,
        &["INCR"],
        ProxyFault::error("OOM no", true),
    ));
    let garbage = ProxyFault::Answer {
        bytes: b"\x01\x02\r\n".to_vec(),
        applied: false,
    };
    proxy.plan(FaultPlan::next(1, &["ECHO"], garbage));
    let mut talk = Talk::to(&proxy);
    talk.send(&["SET a 1", "INCR a", "GET a", "INCR a", "ECHO a", "INCR a"]);
    let error = format!("-{readonly}\r\n");
    for expected in [
        "+OK\r\n",
        &error,
        "$1\r\n1\r\n",
        "-OOM no\r\n",
        "\u{1}\u{2}\r\n",
        ":3\r\n",
    ] {
        is(&talk.receive(), Ok(expected));
    }
    // The first was kept from Redis, the second was not.
    assert_eq!(server.cli(&["GET", "a"]), "3");
}

#[test]
fn slices_delays_and_truncates() {
    let _machine = shared();
    let (_server, proxy) = start();
    let mut talk = Talk::to(&proxy);
    // A reader that is late finds the slices put together again: one of many is in time.
    proxy.plan(FaultPlan::every(&["ECHO"], ProxyFault::Slice));
    let mut sliced = (0..1_000).map(|_| {
        talk.chunk_max = 0;
        is(&talk.ask("ECHO hello"), Ok("$5\r\nhello\r\n"));
        talk.chunk_max < 11
    });
    assert!(sliced.any(|is_sliced| is_sliced), "every read had it all");
    proxy.heal();
    proxy.plan(FaultPlan::next(1, &["ECHO"], ProxyFault::Delay(LATE)));
    proxy.plan(FaultPlan::next(1, &["ECHO"], ProxyFault::Truncate));
    let begun = now();
    is(&talk.ask("ECHO hello"), Ok("$5\r\nhello\r\n"));
    assert!(begun.elapsed() >= LATE);
    is(&talk.ask("ECHO hello"), Err("$5\r\nh"));
}

#[test]
fn swallows_until_it_is_healed() {
    let _machine = shared();
    let (server, proxy) = start();
    proxy.plan(FaultPlan::every(&[], ProxyFault::Swallow));
    let mut talk = Talk::to(&proxy);
    talk.stream.set_read_timeout(Some(LATE)).unwrap();
    let nothing = std::io::ErrorKind::WouldBlock.to_string();
    is(&talk.ask("SET a 1"), Err(&nothing));
    proxy.heal();
    is(&talk.receive(), ENDED);
    assert_eq!(server.cli(&["EXISTS", "a"]), "0");
    is(&Talk::to(&proxy).ask("SET a 1"), OK);
}

#[test]
fn tells_messages_from_replies() {
    let _machine = shared();
    let (server, proxy) = start();
    for hello in ["PING", "HELLO 3"] {
        let mut talk = Talk::to(&proxy);
        talk.ask(hello).unwrap();
        proxy.plan(FaultPlan::next(
            1,
            &["SUBSCRIBE"],
            ProxyFault::error("NOPERM no", false),
        ));
        is(&talk.ask("SUBSCRIBE a"), Ok("-NOPERM no\r\n"));
        talk.send(&["SUBSCRIBE a b", "SSUBSCRIBE c"]);
        for channel in ["a", "b", "c"] {
            let confirmed = talk.receive().unwrap();
            let name = format!("subscribe\r\n$1\r\n{channel}\r\n");
            assert!(confirmed.contains(&name), "{confirmed:?}");
        }
        assert_eq!(server.cli(&["PUBLISH", "b", "news"]), "1");
        assert!(
            talk.receive()
                .unwrap()
                .contains("message\r\n$1\r\nb\r\n$4\r\nnews")
        );
        // The next reply is still that of the next request.
        proxy.plan(FaultPlan::next(1, &["UNSUBSCRIBE"], ProxyFault::CutAfter));
        is(&talk.ask("UNSUBSCRIBE a"), ENDED);
        until("Redis has seen the end", SOON, || {
            (server.cli(&["PUBSUB", "CHANNELS"]).is_empty()).then_some(())
        });
    }
}

#[test]
fn ends_connections_to_a_redis_that_is_gone() {
    let _machine = shared();
    let (mut server, proxy) = start();
    let mut talk = Talk::to(&proxy);
    is(&talk.ask("SET a 1"), OK);
    server.kill();
    is(&talk.receive(), ENDED);
    is(&Talk::to(&proxy).receive(), ENDED);
    server.restart();
    is(&Talk::to(&proxy).ask("SET a 1"), OK);
    proxy.cut();
    assert_eq!(server.cli(&["GET", "a"]), "1");
}
