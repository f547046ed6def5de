//! The Redis door, byte by byte: commands, pipelines, and what the store decides. What else comes in: `resp_bounds.rs`.

use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Endpoint, Sidecar, SidecarSetup};

pub const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 3/hour }, \
    { key: free, rate_limit: { unlimited: true } }] }";

pub fn setup() -> SidecarSetup {
    SidecarSetup::rules(RULES).listen_also(r#"resp: ["127.0.0.1:0", "unix:r.sock"]"#)
}

pub fn door(sidecar: &Sidecar) -> Endpoint {
    sidecar.door("resp").unwrap()
}

/// Everything that is answered to these bytes until the connection ends.
pub fn said(door: &Endpoint, bytes: &[u8]) -> String {
    let mut client = door.connect();
    client.send(bytes);
    client.end_sending();
    client.receive_any().unwrap_or_default()
}

/// Each line is answered so, on every kind of socket.
pub fn check(sidecar: &Sidecar, cases: &[(&str, &str)]) {
    for door in sidecar.doors("resp") {
        for (line, expected) in cases {
            let line = line.replace("KIND", door.kind());
            let answer = said(&door, format!("{line}\r\n").as_bytes());
            assert_eq!(answer, format!("{expected}\r\n"), "{line}");
        }
    }
}

pub fn array(words: &[&str]) -> String {
    let words: Vec<String> = words
        .iter()
        .map(|word| format!("${}\r\n{word}\r\n", word.len()))
        .collect();
    format!("*{}\r\n{}", words.len(), words.concat())
}

pub fn malformed(sidecar: &Sidecar) -> f64 {
    sidecar
        .metrics()
        .of("ratelimit_requests_malformed_total", &[("door", "resp")])
}

#[test]
fn what_clients_say_on_connecting_is_answered() {
    let sidecar = setup().start();
    check(
        &sidecar,
        &[
            ("ping", "+PONG"),
            ("PING \"a b\"", "$3\r\na b"),
            ("ECHO x", "$1\r\nx"),
            ("SELECT 0", "+OK"),
            ("SELECT 1", "-ERR DB index is out of range"),
            ("CLIENT SETNAME me", "+OK"),
            (
                "CLIENT SETNAME 'a b'",
                "-ERR Client names cannot contain spaces, newlines or special characters.",
            ),
            ("CLIENT GETNAME", "$-1"),
            ("CLIENT SETINFO LIB-NAME x", "+OK"),
            ("CLIENT NO-EVICT on", "+OK"),
            (
                "CLIENT SETNAME",
                "-ERR wrong number of arguments for 'client|setname' command",
            ),
            (
                "CLIENT KILL x",
                "-ERR unknown subcommand 'KILL'. Try CLIENT HELP.",
            ),
            ("COMMAND COUNT", ":13"),
            ("COMMAND DOCS", "*0"),
            (
                "COMMAND INFO nope ping",
                "*2\r\n$-1\r\n*6\r\n$4\r\nping\r\n:-1\r\n*1\r\n+fast\r\n:0\r\n:0\r\n:0",
            ),
            ("RESET", "+RESET"),
            ("QUIT", "+OK"),
            (
                "GETX a b",
                "-ERR unknown command 'GETX', with args beginning with: 'a' 'b' ",
            ),
            ("ECHO", "-ERR wrong number of arguments for 'echo' command"),
            ("HELLO 4", "-NOPROTO unsupported protocol version"),
            (
                "HELLO x",
                "-ERR Protocol version is not an integer or out of range",
            ),
            ("HELLO 3 NOPE", "-ERR Syntax error in HELLO option 'NOPE'"),
        ],
    );
    let door = door(&sidecar);
    let both = said(
        &door,
        b"CLIENT SETNAME me\r\nCLIENT GETNAME\r\nHELLO 3 SETNAME you\r\nCLIENT GETNAME\r\n",
    );
    assert!(both.starts_with("+OK\r\n$2\r\nme\r\n%7\r\n"), "{both}");
    assert!(both.ends_with("$3\r\nyou\r\n"), "{both}");
    assert!(said(&door, b"COMMAND\r\n").starts_with("*13\r\n*6\r\n$11\r\ncl.throttle\r\n:-5\r\n"));
    assert!(said(&door, b"INFO server\r\n").contains("\r\nloading:0\r\n"));
    // After QUIT nothing is answered.
    assert_eq!(said(&door, b"QUIT\r\nPING\r\n"), "+OK\r\n");
}

#[test]
fn a_check_under_the_rules_tells_six_things() {
    let sidecar = setup().start();
    check(
        &sidecar,
        &[
            (
                "TG.CHECK api client KIND",
                "*6\r\n:1\r\n:3\r\n:2\r\n:0\r\n:1200000\r\n$10\r\napi/client",
            ),
            (
                "TG.CHECK api free KIND",
                "*6\r\n:1\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n$8\r\napi/free",
            ),
            (
                "TG.CHECK api other KIND",
                "*6\r\n:1\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n$-1",
            ),
            (
                "TG.CHECK other client KIND",
                "*6\r\n:1\r\n:-1\r\n:-1\r\n:0\r\n:0\r\n$-1",
            ),
            // More than the whole bucket: no wait helps.
            (
                "tg.check api client KIND-4 cost 4",
                "*6\r\n:0\r\n:3\r\n:3\r\n:-1\r\n:3600000\r\n$10\r\napi/client",
            ),
            (
                "TG.CHECK api client KIND-5 PEEK",
                "*6\r\n:1\r\n:3\r\n:3\r\n:0\r\n:0\r\n$10\r\napi/client",
            ),
            (
                "TG.CHECK api client KIND-5 COST 0",
                "*6\r\n:1\r\n:3\r\n:3\r\n:0\r\n:0\r\n$10\r\napi/client",
            ),
            (
                "TG.CHECK api client KIND-6 COST 3",
                "*6\r\n:1\r\n:3\r\n:0\r\n:0\r\n:3600000\r\n$10\r\napi/client",
            ),
            (
                "TG.CHECK api client KIND-5 PEEK COST 2",
                "*6\r\n:1\r\n:3\r\n:3\r\n:0\r\n:0\r\n$10\r\napi/client",
            ),
        ],
    );
    let denied = said(&door(&sidecar), b"TG.CHECK api client tcp-6\r\n");
    let [allowed, limit, remaining, retry, reset] = [1, 2, 3, 4, 5].map(|line| {
        let line = denied.lines().nth(line).unwrap();
        line[1..].parse::<i64>().unwrap()
    });
    assert_eq!((allowed, limit, remaining), (0, 3, 0));
    assert!((1_100_000..=1_200_000).contains(&retry), "{denied}");
    assert!((3_500_000..=3_600_000).contains(&reset), "{denied}");
}

#[test]
fn a_check_that_is_none_is_refused_by_what_is_wrong() {
    let sidecar = setup().start();
    check(
        &sidecar,
        &[
            (
                "TG.CHECK api client",
                "-ERR wrong number of arguments for 'tg.check' command",
            ),
            (
                "TG.CHECK api client x y",
                "-ERR \"y\": expected up to 32 pairs of entry and value, then COST n or PEEK",
            ),
            (
                "TG.CHECK api client x PEEK y z",
                "-ERR \"y\": expected up to 32 pairs of entry and value, then COST n or PEEK",
            ),
            (
                "TG.CHECK api client x COST -1",
                "-ERR COST: must be a whole number from 0 to 18446744073709551615, is \"-1\"",
            ),
            ("TG.CHECK '' client x", "-ERR domain: must not be empty"),
            (
                "TG.CHECK api '' x",
                "-ERR entries[0].key: must not be empty",
            ),
        ],
    );
    let long = format!("TG.CHECK api {} x\r\n", "x".repeat(1_025));
    let refused = said(&door(&sidecar), long.as_bytes());
    assert_eq!(
        refused,
        "-ERR entries[0].key: must be at most 1024 bytes, is 1025\r\n"
    );
    let refused = said(&door(&sidecar), b"TG.CHECK \xff client x\r\n");
    assert_eq!(refused, "-ERR domain: must be UTF-8\r\n");
    let many = format!("TG.CHECK api{}\r\n", " e v".repeat(33));
    let refused = said(&door(&sidecar), many.as_bytes());
    assert!(
        refused.starts_with("-ERR \"e\": expected up to 32 pairs"),
        "{refused}"
    );
    assert_eq!(malformed(&sidecar), 13.0);
}

#[test]
fn http_and_resp_share_what_is_left_and_are_counted_alike() {
    let sidecar = setup().start();
    let path = "/v1/check?domain=api&client=both";
    assert_eq!(sidecar.http().get(path).status, 200);
    assert!(
        said(&door(&sidecar), b"TG.CHECK api client both COST 2\r\n")
            .starts_with("*6\r\n:1\r\n:3\r\n:0\r\n")
    );
    assert_eq!(sidecar.http().get(path).status, 429);
    let metrics = sidecar.metrics();
    assert_eq!(metrics.decided("api/client"), (2.0, 1.0));
    assert_eq!(
        metrics.of("ratelimit_check_duration_seconds_count", &[]),
        3.0
    );
}

#[test]
fn cells_are_taken_looked_at_and_given_back() {
    let sidecar = setup().start();
    let door = door(&sidecar);
    let ask = |quantity: &str| {
        let answer = said(
            &door,
            format!("CL.THROTTLE k 9 1 60 {quantity}\r\n").as_bytes(),
        );
        answer.replace("\r\n:", " ").trim_end().to_owned()
    };
    assert_eq!(ask("0"), "*5 0 10 10 -1 0");
    assert_eq!(ask("4"), "*5 0 10 6 -1 240");
    assert!(ask("0").starts_with("*5 0 10 6 -1 23"));
    assert!(ask("-3").starts_with("*5 0 10 9 -1 5"));
    // Never below empty: what comes back too much is not kept.
    assert_eq!(ask("-100"), "*5 0 10 10 -1 0");
    assert_eq!(ask("10"), "*5 0 10 0 -1 600");
    // As in redis-cell: who asks for nothing is not limited by an empty hand, but who asks for one cell is.
    assert!(ask("0").starts_with("*5 0 10 0 -1 59"));
    assert!(ask("1").starts_with("*5 1 10 0 59 59"));
    assert!(ask("11").starts_with("*5 1 10 0 -1 59"));
    // Another caller's limit on the same time line.
    let other = said(&door, b"THROTTLE k 0 1 60 0\r\n").replace("\r\n:", " ");
    assert!(other.starts_with("*5 1 1 0 53"), "{other}");
}

#[test]
fn keys_are_bytes() {
    let sidecar = setup().start();
    let ask =
        b"*5\r\n$11\r\nCL.THROTTLE\r\n$4\r\n\xff\0\r\n\r\n$1\r\n0\r\n$1\r\n1\r\n$4\r\n3600\r\n";
    assert!(said(&door(&sidecar), ask).starts_with("*5\r\n:0\r\n:1\r\n:0\r\n"));
    assert!(said(&door(&sidecar), ask).starts_with("*5\r\n:1\r\n:1\r\n:0\r\n"));
    // Of any length that fits into a command, and different if only the end is.
    for end in ["1", "2"] {
        let long = format!("CL.THROTTLE {}{end} 0 1 3600\r\n", "x".repeat(60_000));
        let twice = said(&door(&sidecar), long.repeat(2).as_bytes());
        assert!(twice.starts_with("*5\r\n:0\r\n:1\r\n"), "{twice}");
        assert!(twice.contains("\r\n*5\r\n:1\r\n:1\r\n"), "{twice}");
    }
}

#[test]
fn wherever_a_pipeline_is_cut_its_answers_are_the_same() {
    let sidecar = setup().start();
    let door = door(&sidecar);
    let whole = [
        array(&["ECHO", "a\r\nb"]),
        "PING 'x y'\r\n\r\n".to_owned(),
        array(&["CL.THROTTLE", "cut", "4", "1", "60", "0"]),
        array(&["TG.CHECK", "api", "other", ""]),
        "*0\r\n".to_owned(),
        array(&["nope"]),
        array(&["CLIENT", "GETNAME"]),
    ]
    .concat();
    let expected = said(&door, whole.as_bytes());
    assert_eq!(expected.matches("\r\n").count(), 20, "{expected}");
    let mut client = door.connect();
    for cut in 1..whole.len() {
        let (first, second) = whole.as_bytes().split_at(cut);
        client.send(first);
        // Answered behind it on another connection: the first piece has most likely been read by now.
        let _ = said(&door, b"PING\r\n");
        client.send(second);
        let got: Vec<String> = (0..20).map(|_| client.line().unwrap()).collect();
        assert_eq!(got.join("\r\n") + "\r\n", expected, "cut at {cut}");
    }
}

#[test]
fn ten_thousand_commands_are_answered_in_their_order() {
    let sidecar = setup().start();
    for door in sidecar.doors("resp") {
        let mut client = door.connect();
        let commands: String = (0..10_000)
            .map(|nth| match nth % 2 {
                0 => array(&["ECHO", &nth.to_string()]),
                _ => array(&["CL.THROTTLE", "many", "99999", "1", "3600"]),
            })
            .collect();
        client.send(commands.as_bytes());
        for nth in 0..10_000 {
            let first = client.line().unwrap();
            match nth % 2 {
                0 => assert_eq!(client.line().unwrap(), nth.to_string(), "{first}"),
                _ => {
                    assert_eq!(first, "*5");
                    assert_eq!(client.line().unwrap(), ":0");
                    for _ in 0..4 {
                        client.line().unwrap();
                    }
                }
            }
        }
    }
}

/// A daemon whose checks all ask this store.
fn strict(redis: &RedisServer) -> Sidecar {
    let top = format!(
        "log: {{ format: json }}\nstore: {{ url: \"{}\", timeout: 5s }}\ndefaults: {{ consistency: strict }}",
        redis.url()
    );
    let setup = SidecarSetup::rules(RULES).top(&top);
    setup.listen_also(r#"resp: ["127.0.0.1:0"]"#).start()
}

/// Commands behind a check that waits for the store are answered behind it.
#[test]
fn strict_checks_keep_the_order() {
    let redis = RedisServer::start(&[]);
    let sidecar = strict(&redis);
    let three = |nth| format!("ECHO {nth}\r\nTG.CHECK api client x\r\nCL.THROTTLE x 2 1 3600\r\n");
    let commands: String = (0..20).map(three).collect();
    let answers = said(&door(&sidecar), commands.as_bytes());
    let mut lines = answers.lines();
    for nth in 0..20 {
        let [allowed, limited] = if nth < 3 { [":1", ":0"] } else { [":0", ":1"] };
        assert_eq!(lines.nth(1), Some(nth.to_string().as_str()), "{answers}");
        assert_eq!(lines.next(), Some("*6"));
        assert_eq!(lines.next(), Some(allowed), "{answers}");
        assert_eq!(lines.nth(5), Some("api/client"), "{answers}");
        assert_eq!(lines.next(), Some("*5"));
        assert_eq!(lines.next(), Some(limited), "{answers}");
        assert_eq!(lines.next(), Some(":3"), "{answers}");
        lines.nth(2);
    }
    assert_eq!(lines.next(), None);
    for rule in ["api/client", "throttle"] {
        let labels = [("rule", rule), ("decision", "allow"), ("source", "strict")];
        let allowed = sidecar.metrics().of("ratelimit_decisions_total", &labels);
        assert_eq!(allowed, 3.0, "{rule}");
    }
}

#[test]
fn a_check_that_waits_for_the_store_does_not_hold_back_what_was_asked_before() {
    let redis = RedisServer::start(&[]);
    let sidecar = strict(&redis);
    assert!(said(&door(&sidecar), b"TG.CHECK api client x\r\n").starts_with("*6\r\n:1"));
    redis.signal("STOP");
    let mut client = door(&sidecar).connect();
    client.send(b"PING\r\nTG.CHECK api client x\r\n");
    assert_eq!(client.line().as_deref(), Some("+PONG"));
    let durations = "ratelimit_check_duration_seconds_count";
    assert_eq!(sidecar.metrics().of(durations, &[]), 1.0, "not decided yet");
    redis.signal("CONT");
    assert_eq!(client.line().as_deref(), Some("*6"));
}

#[test]
fn pods_share_what_callers_carry() {
    let redis = RedisServer::start(&[]);
    let pods = [strict(&redis), strict(&redis)];
    let ask = b"CL.THROTTLE shared 4 1 3600\r\n";
    let answers = (0..12).map(|nth| said(&door(&pods[nth % 2]), ask));
    let passed = answers.filter(|answer| answer.starts_with("*5\r\n:0\r\n"));
    assert_eq!(passed.count(), 5);
}
