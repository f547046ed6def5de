//! Bad input of every kind: the daemon refuses it, says why, and goes on.

use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use tidegate_testing::{Client, Endpoint, Random, SOON, Sidecar, SidecarSetup, request, until};

const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 1000000/year }] }";
const CHECK: &str = "/v1/check?domain=api&client=x";

fn start() -> Sidecar {
    SidecarSetup::rules(RULES).start()
}

/// The daemon is the same, answers, and has not panicked.
fn is_well(sidecar: &mut Sidecar) {
    assert!(!sidecar.has_ended(), "{}", sidecar.stderr.text());
    for door in sidecar.doors("http") {
        assert_eq!(door.get(CHECK).status, 200);
    }
    assert_eq!(sidecar.stderr.text(), "");
    assert!(!sidecar.stdout.text().contains("panicked"));
}

/// A check with this in place of its one descriptor.
fn with_descriptor(descriptor: &str) -> String {
    format!(r#"{{"domain":"api","descriptors":[{descriptor}]}}"#)
}

fn with_entry(entry: &str) -> String {
    with_descriptor(&format!(r#"{{"entries":[{entry}]}}"#))
}

/// A good check with one more field.
fn with_field(field: &str) -> String {
    let entry = r#"{"key":"client","value":"x"}"#;
    format!(r#"{{"domain":"api",{field},"descriptors":[{{"entries":[{entry}]}}]}}"#)
}

/// Each body is refused with a message that holds its text.
fn refused_bodies(cases: &[(String, &str)]) {
    let mut sidecar = start();
    let mut client = sidecar.connect();
    for (body, expected) in cases {
        let answer = client.post("/v1/check", body);
        let case = body.get(..120).unwrap_or(body);
        assert_eq!(answer.status, 400, "{case}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "INVALID_REQUEST", "{case}");
        let message = answer.message();
        assert!(
            message.contains(expected),
            "{case}: {message:?}, expected {expected:?}"
        );
        assert!(message.len() < 500, "{case}: {message}");
    }
    let malformed = sidecar
        .metrics()
        .of("ratelimit_requests_malformed_total", &[("door", "http")]);
    assert_eq!(malformed, cases.len() as f64);
    is_well(&mut sidecar);
}

const ENTRY: &str = r#"{"key":"client","value":"x"}"#;

#[test]
fn bodies_of_another_shape_are_refused() {
    let cases = [
        ("", "EOF"),
        ("{", "EOF"),
        ("null", "invalid type: null"),
        ("[]", "invalid"),
        ("\"x\"", "invalid type: string"),
        ("{}", "missing field `domain`"),
        (r#"{"domain":"api"}"#, "missing field `descriptors`"),
        (r#"{"domain":7,"descriptors":[]}"#, "domain: invalid type"),
        (
            r#"{"domain":"","descriptors":[{"entries":[{"key":"k"}]}]}"#,
            "domain: must not be empty",
        ),
        (
            r#"{"domain":"api","descriptors":[]}"#,
            "descriptors: must be 1 to 64, are 0",
        ),
        (
            r#"{"domain":"api","descriptors":{}}"#,
            "descriptors: invalid type: map",
        ),
    ];
    refused_bodies(&cases.map(|(body, expected)| (body.to_owned(), expected)));
    refused_bodies(&[
        (with_entry(ENTRY) + "x", "trailing characters"),
        (
            with_entry(ENTRY) + &with_entry(ENTRY),
            "trailing characters",
        ),
    ]);
}

#[test]
fn bad_descriptors_are_refused_by_their_place() {
    let descriptor = r#"{"entries":[{"key":"k"}]}"#;
    refused_bodies(&[
        (
            with_descriptor(&vec![descriptor; 65].join(",")),
            "descriptors: must be 1 to 64, are 65",
        ),
        (
            with_descriptor("{}"),
            "descriptors[0]: missing field `entries`",
        ),
        (
            with_descriptor(r#"{"entries":[]}"#),
            "descriptors[0].entries: must be 1 to 32, are 0",
        ),
        (
            with_entry(&vec![ENTRY; 33].join(",")),
            "descriptors[0].entries: must be 1 to 32, are 33",
        ),
    ]);
}

#[test]
fn bad_entries_are_refused_by_their_place() {
    let long = "x".repeat(1_025);
    let long_key = format!(r#"{ENTRY},{{"key":"{long}"}}"#);
    let cases = [
        ("{}", "descriptors[0].entries[0]: missing field `key`"),
        (
            r#"{"key":""}"#,
            "descriptors[0].entries[0].key: must not be empty",
        ),
        (
            &long_key,
            "descriptors[0].entries[1].key: must be at most 1024 bytes, is 1025",
        ),
        (
            r#"{"key":"k","value":null}"#,
            "descriptors[0].entries[0].value: invalid type: null",
        ),
        (
            r#"{"key":"k","value":5}"#,
            "descriptors[0].entries[0].value: invalid type: integer",
        ),
        (r#"{"key":"k","key":"k"}"#, "duplicate field `key`"),
    ];
    refused_bodies(&cases.map(|(entry, expected)| (with_entry(entry), expected)));
}

#[test]
fn bad_costs_are_refused_by_the_name_of_the_field() {
    let cases = [
        (
            r#""hits_addend":-1"#,
            "hits_addend: invalid value: integer `-1`",
        ),
        (
            r#""hits_addend":1.5"#,
            "hits_addend: invalid type: floating point",
        ),
        (
            r#""hits_addend":18446744073709551616"#,
            "hits_addend: invalid",
        ),
        (r#""hits_addend":1e400"#, "hits_addend: number out of range"),
        (r#""hits_addend":"1""#, "hits_addend: invalid type: string"),
        (r#""peek":1"#, "peek: invalid type: integer"),
    ];
    refused_bodies(&cases.map(|(field, expected)| (with_field(field), expected)));
    let own = r#"{"entries":[{"key":"k"}],"hits_addend":-1}"#;
    refused_bodies(&[(
        with_descriptor(own),
        "descriptors[0].hits_addend: invalid value",
    )]);
}

#[test]
fn unknown_fields_are_refused_by_their_name() {
    let limit = r#"{"entries":[{"key":"k"}],"limit":1}"#;
    let value = r#"{"key":"k","valeu":"x"}"#;
    refused_bodies(&[
        (with_field(r#""pek":true"#), "unknown field `pek`"),
        (
            with_field(r#""deny_status":403"#),
            "unknown field `deny_status`",
        ),
        (
            with_field(r#""domain":"twice""#),
            "duplicate field `domain`",
        ),
        (
            with_descriptor(limit),
            "descriptors[0].limit: unknown field `limit`",
        ),
        (
            with_entry(value),
            "descriptors[0].entries[0].valeu: unknown field `valeu`",
        ),
    ]);
}

#[test]
fn deep_bodies_are_refused() {
    let deep = |open: &str, close: &str| format!("{}{}", open.repeat(10_000), close.repeat(10_000));
    refused_bodies(&[
        (deep("[", "]"), "[0]: invalid type: sequence"),
        (deep(r#"{"x":"#, "}"), "x: unknown field `x`"),
        (with_descriptor(&deep("[", "]")), "descriptors[0]"),
        (
            with_field(&format!(r#""x":{}"#, deep("[", "]"))),
            "x: unknown field `x`",
        ),
    ]);
}

#[test]
fn a_domain_that_is_no_text_is_refused() {
    let mut sidecar = start();
    let mut client = sidecar.connect();
    for bytes in [&b"\xff\xfe"[..], b"\xc3\x28", b"\xed\xa0\x80"] {
        let after = br#"","descriptors":[{"entries":[{"key":"client","value":"v"}]}]}"#;
        let body = [br#"{"domain":""#, bytes, after].concat();
        let answer = client.request("POST", "/v1/check", &[], &body);
        assert_eq!(answer.status, 400, "{bytes:x?}: {}", answer.text());
        let message = answer.message();
        assert!(message.starts_with("domain: "), "{bytes:x?}: {message}");
    }
    is_well(&mut sidecar);
}

/// Each query is refused with a message that holds its text.
fn refused_queries(cases: &[(&str, &str)]) {
    let mut sidecar = start();
    let mut client = sidecar.connect();
    for (query, expected) in cases {
        let answer = client.get(&format!("/v1/check{query}"));
        let case = query.get(..80).unwrap_or(query);
        assert_eq!(answer.status, 400, "{case}: {}", answer.text());
        let message = answer.message();
        assert!(
            message.contains(expected),
            "{case}: {message:?}, expected {expected:?}"
        );
    }
    is_well(&mut sidecar);
}

#[test]
fn queries_without_a_whole_check_are_refused() {
    refused_queries(&[
        ("", "no entry given"),
        ("?", "no entry given"),
        ("?&&&", "no entry given"),
        ("?domain=api", "no entry given"),
        ("?client=x", "domain: must not be empty"),
        ("?domain=&client=x", "domain: must not be empty"),
        (
            "?domain=api&=x",
            "descriptors[0].entries[0].key: must not be empty",
        ),
        ("?domain=api&client=x&client=y", "client: given twice"),
        ("?domain=api&cl%69ent=x&client=y", "client: given twice"),
        ("?domain=api&domain=api&client=x", "domain: given twice"),
        ("?domain=api&client=x&peek=1&p%65ek=0", "peek: given twice"),
        ("?domain=%c3%28&client=x", "domain: must be UTF-8"),
    ]);
}

#[test]
fn bad_reserved_fields_of_a_query_are_refused_by_name() {
    let whole = "hits_addend: must be a whole number";
    let status = "deny_status: must be a status from 400 to 599";
    let cases = [
        ("hits_addend=-1", whole),
        ("hits_addend=1.5", whole),
        ("hits_addend=", whole),
        ("hits_addend=18446744073709551616", whole),
        ("peek=maybe", "peek: must be true or false"),
        ("deny_status=200", status),
        ("deny_status=1000", status),
        ("deny_status=4O3", status),
    ];
    let cases = cases.map(|(field, expected)| (format!("?domain=api&client=x&{field}"), expected));
    let cases: Vec<_> = cases
        .iter()
        .map(|(query, expected)| (query.as_str(), *expected))
        .collect();
    refused_queries(&cases);
}

#[test]
fn queries_over_the_bounds_are_refused() {
    let long = "x".repeat(1_025);
    let many: String = (0..40).map(|nth| format!("&k{nth}=v")).collect();
    let bytes = "must be at most 1024 bytes";
    refused_queries(&[
        (
            &format!("?domain=api&{long}=x"),
            &format!("descriptors[0].entries[0].key: {bytes}"),
        ),
        (
            &format!("?domain={long}&client=x"),
            &format!("domain: {bytes}"),
        ),
        (
            &format!("?domain=api{many}"),
            "descriptors[0].entries: must be 1 to 32",
        ),
    ]);
}

/// Odd, and still meant: these pass.
#[test]
fn odd_spellings_of_a_good_check_pass() {
    let mut sidecar = start();
    let mut client = sidecar.connect();
    for query in [
        "domain=api&client",
        "domain=api&client=",
        "&domain=api&&client=x&",
        "domain=api&client=%",
        "domain=api&client=%zz",
        "domain=api&client=a=b",
        "client=x&domain=api",
    ] {
        let answer = client.get(&format!("/v1/check?{query}"));
        assert_eq!(answer.status, 200, "{query}: {}", answer.text());
        assert_eq!(
            answer.json()["statuses"][0]["rule"],
            "api/client",
            "{query}"
        );
    }
    for body in [
        with_entry(r#"{"key":"client"}"#),
        with_entry(r#"{"value":"x","key":"cl\u0069ent"}"#),
        format!(
            " \n\t{} ",
            with_entry(r#"{"key":"client","value":"\u0000"}"#)
        ),
    ] {
        let answer = client.post("/v1/check", &body);
        assert_eq!(answer.status, 200, "{body}: {}", answer.text());
        assert_eq!(answer.json()["statuses"][0]["rule"], "api/client", "{body}");
    }
    is_well(&mut sidecar);
}

#[test]
fn a_body_over_the_bound_is_refused_however_it_comes() {
    let mut sidecar = start();
    for door in sidecar.doors("http") {
        for size in [65_537, 10_000_000] {
            let mut client = door.connect();
            client.send(&request("POST", "/v1/check", &[], &vec![b' '; size]));
            let answer = client.response();
            assert_eq!(answer.status, 413, "{size} in one: {}", answer.text());
            assert_eq!(answer.message(), "the body must be at most 65536 bytes");

            let mut client = door.connect();
            client
                .send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
            let chunk = format!("1000\r\n{}\r\n", " ".repeat(0x1000));
            for _ in 0..=size / 0x1000 {
                client.send(chunk.as_bytes());
            }
            client.send(b"0\r\n\r\n");
            let answer = client.response();
            assert_eq!(answer.status, 413, "{size} in chunks: {}", answer.text());
        }
        // A length that will never come is refused before the body is sent.
        let mut client = door.connect();
        client.send(
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551615\r\n\r\n",
        );
        let status = client.receive().map(|answer| answer.status);
        assert!(matches!(status, Some(400 | 413 | 431)), "{status:?}");
    }
    let full = format!(
        "{}{}",
        with_entry(r#"{"key":"client"}"#),
        " ".repeat(65_536)
    );
    let mut client = sidecar.connect();
    assert_eq!(client.post("/v1/check", &full[..65_536]).status, 200);
    is_well(&mut sidecar);
}

#[test]
fn a_head_over_the_bound_is_refused() {
    let mut sidecar = start();
    let huge = format!("X: {}", "x".repeat(20_000));
    let many: Vec<String> = (0..101).map(|nth| format!("X{nth}: x")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let path = format!("{CHECK}{}", "x".repeat(20_000));
    for door in sidecar.doors("http") {
        for (what, path, headers) in [
            ("huge", CHECK, &[huge.as_str()][..]),
            ("many", CHECK, &many),
            ("path", path.as_str(), &[]),
        ] {
            let mut client = door.connect();
            client.send(&request("GET", path, headers, b""));
            let answer = client.response();
            assert!(matches!(answer.status, 414 | 431), "{what}: {answer:?}");
            assert!(client.is_closed(), "{what}");
        }
    }
    is_well(&mut sidecar);
}

#[test]
fn other_methods_are_refused_with_those_allowed() {
    let mut sidecar = start();
    let mut client = sidecar.connect();
    for method in ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CHECK", "get"] {
        let answer = client.request(method, CHECK, &[], b"");
        assert_eq!(answer.status, 405, "{method}: {}", answer.text());
        assert_eq!(answer.header("allow"), Some("GET, POST"), "{method}");
        assert_eq!(answer.json()["error"]["code"], "METHOD_NOT_ALLOWED");
    }
    is_well(&mut sidecar);
}

#[test]
fn odd_spellings_of_paths_are_not_found() {
    let paths = "/ /v1 /v1/ /v1/check/ /v1/checks /v1/chec //v1/check /v1//check /v1/check// /V1/check /v1/Check /v1/CHECK \
        /v1/%63heck /%761/check /v1%2fcheck /v1%2Fcheck /v1/check%20 /v1/check%00 /v1/check%0a /v1/check; /v1/check;x=y \
        /v1/./check /v1/../v1/check /./v1/check /../v1/check /v1/check/. /v1/check/.. /v1/check/../check /v2/check /v0/check \
        /v1/check.json /v1/check.php /v1\\check /check /json/ /jsons /Json /metrics /livez /readyz /healthcheck /admin/v1/status \
        /admin/v1/rules /admin/v1/usage /favicon.ico /.git/config /etc/passwd /../../etc/passwd /index.html \
        /v1/check~ /v1/check: /v1/check@x /v1/check! /v1/check$ /v1/check' /v1/check( /v1/check* /v1/check+ /v1/check, /v1/check=";
    let paths: Vec<&str> = paths.split_whitespace().collect();
    assert!(paths.len() >= 50, "{}", paths.len());
    let mut sidecar = start();
    for door in sidecar.doors("http") {
        for path in &paths {
            let answer = door.get(&format!("{path}?domain=api&client=x"));
            assert!(
                matches!(answer.status, 400 | 404),
                "{path}: {} {}",
                answer.status,
                answer.text()
            );
            if answer.status == 404 {
                assert_eq!(answer.json()["error"]["code"], "NOT_FOUND", "{path}");
            }
        }
    }
    is_well(&mut sidecar);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let mut sidecar = start();
    for door in sidecar.doors("http") {
        let mut client = door.connect();
        let one = |nth: usize| match nth % 3 {
            0 => request(
                "GET",
                &format!("/v1/check?domain=api&client={}", door.kind()),
                &[],
                b"",
            ),
            1 => request(
                "POST",
                "/v1/check",
                &[],
                with_entry(&format!(r#"{{"key":"client","value":"{}"}}"#, door.kind())).as_bytes(),
            ),
            _ => request("GET", "/nowhere", &[], b""),
        };
        let all: Vec<u8> = (0..200).flat_map(one).collect();
        client.send(&all);
        let mut left = 1_000_000;
        for nth in 0..200 {
            let answer = client.response();
            if nth % 3 == 2 {
                assert_eq!(answer.status, 404, "{nth}");
                continue;
            }
            left -= 1;
            assert_eq!(answer.status, 200, "{nth}: {}", answer.text());
            assert_eq!(
                answer.json()["statuses"][0]["limit_remaining"],
                left,
                "{nth}"
            );
        }
    }
    is_well(&mut sidecar);
}

/// The rest of the next request may wait for this answer.
#[test]
fn an_answer_does_not_wait_for_the_next_request() {
    let mut sidecar = start();
    for door in sidecar.doors("http") {
        let mut client = door.connect();
        let one = request("GET", CHECK, &[], b"");
        let (begin, rest) = one.split_at(10);
        client.send(&[&one, begin].concat());
        for _ in 0..3 {
            assert_eq!(client.response().status, 200);
            client.send(&[rest, begin].concat());
        }
    }
    is_well(&mut sidecar);
}

/// As with `nc -N`: who has said all and closes that half still wants the answer.
#[test]
fn who_stops_sending_is_still_answered() {
    let mut sidecar = start();
    let body = with_entry(r#"{"key":"client","value":"x"}"#);
    for door in sidecar.doors("http") {
        for bytes in [
            request("GET", CHECK, &[], b""),
            request("POST", "/v1/check", &[], body.as_bytes()),
        ] {
            let mut client = door.connect();
            client.send(&bytes);
            client.end_sending();
            assert_eq!(client.response().status, 200, "{}", door.kind());
            assert!(client.is_closed());
        }
        let mut client = door.connect();
        let bytes = request("POST", "/v1/check", &[], body.as_bytes());
        client.send(&bytes[..bytes.len() - 1]);
        client.end_sending();
        assert_eq!(client.response().status, 400, "half a body");
    }
    is_well(&mut sidecar);
}

fn open(sidecar: &Sidecar) -> f64 {
    sidecar
        .metrics()
        .of("ratelimit_connections", &[("door", "http")])
}

#[test]
fn half_sent_requests_hold_up_nobody_and_are_given_up() {
    let mut sidecar = start();
    let halves = |door: &Endpoint| {
        let sent: [&[u8]; 5] = [
            b"",
            b"G",
            b"GET /v1/check?domain=api",
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{\"domain\"",
            b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{",
        ];
        sent.map(|bytes| {
            let mut client = door.connect();
            client.send(bytes);
            client
        })
    };
    let held: Vec<Client> = sidecar
        .doors("http")
        .iter()
        .flat_map(|door| (0..10).flat_map(|_| halves(door)))
        .collect();
    until("all of them to be held", SOON, || {
        (open(&sidecar) == held.len() as f64).then_some(())
    });
    is_well(&mut sidecar);
    drop(held);
    until("all of them to be let go", SOON, || {
        (open(&sidecar) == 0.0).then_some(())
    });
    // Who stays and goes on waiting is told so in the end.
    let [_, _, _, mut body, mut chunk] = halves(&sidecar.http());
    for half in [&mut body, &mut chunk] {
        let answer = half.response();
        assert_eq!(answer.status, 408, "{}", answer.text());
        assert_eq!(answer.json()["error"]["code"], "TIMEOUT");
        assert!(half.is_closed());
    }
    is_well(&mut sidecar);
}

#[test]
fn other_protocols_are_turned_away() {
    let mut sidecar = start();
    let hello = [
        &b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"[..],
        &[0x5a; 501],
    ]
    .concat();
    let cases: [&[u8]; 16] = [
        b"GET /v1/check\r\n\r\n",
        b"GET /v1/check HTTP/0.9\r\n\r\n",
        b"GET /v1/check HTTP/9.9\r\nHost: x\r\n\r\n",
        b"GET  /v1/check  HTTP/1.1\r\n\r\n",
        b"\r\n\r\n\r\n\r\nx\r\n\r\n",
        b"hello\n",
        b"\0\0\0\0\0\0\0\0\r\n\r\n",
        &hello,
        b"*1\r\n$4\r\nPING\r\n",
        b"CL.THROTTLE key 1 2 3\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"GET /v1/check HTTP/1.1\r\nHost: x\r\nBad Header: x\r\n\r\n",
        b"GET /v1/check HTTP/1.1\r\nHost: x\r\n folded: x\r\n\r\n",
    ];
    for door in sidecar.doors("http") {
        for bytes in cases {
            let mut client = door.connect();
            client.send(bytes);
            client.end_sending();
            let case = String::from_utf8_lossy(bytes);
            let answer = client.receive();
            // Who speaks HTTP at all is told; others are only turned away.
            let told = answer.as_ref().map(|answer| answer.status);
            let expected = match case.contains("HTTP/1.1") {
                true => matches!(told, Some(400 | 501)),
                false => matches!(told, None | Some(400 | 431)),
            };
            assert!(expected, "{case:?}: {answer:?}");
            assert!(client.is_closed(), "{case:?}");
        }
    }
    // A body in chunks that lie about themselves.
    for chunk in ["x\r\n", "-1\r\n", "ffffffffffffffffff\r\n", "1\r\nab\r\n"] {
        let mut client = sidecar.connect();
        client.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
        client.send(chunk.as_bytes());
        client.end_sending();
        let status = client.receive().map(|answer| answer.status);
        assert!(
            matches!(status, None | Some(400 | 413)),
            "{chunk:?}: {status:?}"
        );
    }
    is_well(&mut sidecar);
}

/// How many files this process may still hold open: half of what it may at all, as other tests run beside.
fn files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let soft = line.split_whitespace().nth(3).unwrap();
    soft.parse().unwrap_or(20_000) / 2
}

#[test]
fn connections_beyond_the_bound_are_turned_away() {
    const ALL: usize = 10_000;
    const HELD: usize = 64;
    let mut sidecar = SidecarSetup::rules(RULES)
        .bounds("connections_max: 64")
        .start();
    let Endpoint::Tcp(address) = sidecar.http() else {
        panic!("the first door is on TCP");
    };
    // As many threads as there ever will be, once each kind of work was done.
    is_well(&mut sidecar);
    let threads = sidecar.process("Threads");
    let mut opened = 0;
    while opened < ALL {
        until("the last batch to be let go", SOON, || {
            (open(&sidecar) == 0.0).then_some(())
        });
        let batch = files_max().min(ALL - opened);
        let mut streams: Vec<TcpStream> = (0..batch)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        opened += batch;
        for stream in &streams {
            stream.set_nonblocking(true).unwrap();
        }
        let mut refused = Vec::new();
        until("all but those held to be turned away", SOON, || {
            streams.retain_mut(|stream| {
                let mut answer = [0; 1_024];
                match stream.read(&mut answer) {
                    Ok(length) => {
                        refused.push(String::from_utf8_lossy(&answer[..length]).into_owned())
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                    Err(error) => refused.push(error.to_string()),
                }
                false
            });
            (streams.len() <= HELD).then_some(())
        });
        assert_eq!(streams.len(), HELD);
        assert_eq!(open(&sidecar), HELD as f64);
        let told = refused
            .iter()
            .filter(|answer| answer.starts_with("HTTP/1.1 503 "))
            .count();
        assert!(
            told * 10 >= refused.len() * 9,
            "only {told} of {} were told why: {:?}",
            refused.len(),
            &refused[..3]
        );
        let (rss, now) = (sidecar.process("VmRSS"), sidecar.process("Threads"));
        assert!(rss < 100 * 1_024, "{rss} kB resident");
        assert_eq!(now, threads, "threads grow with connections");
    }
    until("a place to be free", SOON, || {
        (open(&sidecar) == 0.0).then_some(())
    });
    let refused = sidecar
        .metrics()
        .of("ratelimit_connections_refused_total", &[("door", "http")]);
    assert!(refused >= (ALL - HELD * 11) as f64, "{refused} refused");
    is_well(&mut sidecar);
}

/// The answer to a connection too many is a whole HTTP answer.
#[test]
fn who_is_turned_away_is_told_why() {
    let mut sidecar = SidecarSetup::rules(RULES)
        .bounds("connections_max: 1")
        .start();
    let mut held = sidecar.connect();
    assert_eq!(held.get(CHECK).status, 200);
    for door in sidecar.doors("http") {
        let mut client = door.connect();
        client.patience(Duration::from_secs(10));
        let answer = client.response();
        assert_eq!(answer.status, 503, "{}", answer.text());
        assert_eq!(answer.header("retry-after"), Some("1"));
        assert_eq!(answer.header("connection"), Some("close"));
        assert_eq!(answer.json()["error"]["code"], "TOO_MANY_CONNECTIONS");
        assert!(client.is_closed());
    }
    // The pages have room of their own: a daemon that is full can still be looked at.
    assert_eq!(sidecar.door("metrics").unwrap().get("/readyz").status, 200);
    assert_eq!(held.get(CHECK).status, 200);
    drop(held);
    until("a place to be free", SOON, || {
        let mut client = sidecar.connect();
        client.send(&request("GET", CHECK, &[], b""));
        (client.receive()?.status == 200).then_some(())
    });
    is_free(&mut sidecar);
}

fn is_free(sidecar: &mut Sidecar) {
    until("no connection", SOON, || {
        (open(sidecar) == 0.0).then_some(())
    });
    is_well_one_by_one(sidecar);
}

/// As `is_well`, where only one connection is allowed.
fn is_well_one_by_one(sidecar: &mut Sidecar) {
    for door in sidecar.doors("http") {
        until("the place to be free", SOON, || {
            (open(sidecar) == 0.0).then_some(())
        });
        assert_eq!(door.get(CHECK).status, 200);
    }
    assert!(!sidecar.has_ended());
}

/// Bytes at random, in every order a machine comes up with, from several sides.
#[test]
fn noise_does_no_harm() {
    let mut sidecar = start();
    let doors = sidecar.doors("http");
    thread::scope(|scope| {
        for seed in 1..=4_u64 {
            let door = &doors[usize::try_from(seed).unwrap() % 2];
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for _ in 0..100 {
                    let mut bytes = request(
                        "POST",
                        "/v1/check",
                        &[],
                        with_entry(r#"{"key":"client","value":"noise"}"#).as_bytes(),
                    );
                    for _ in 0..random.below(8) {
                        let at = random.index(bytes.len());
                        bytes[at] = random.byte();
                    }
                    let mut client = door.connect();
                    client.send(&bytes);
                    client.end_sending();
                    while let Some(answer) = client.receive() {
                        assert!((200..500).contains(&answer.status), "{bytes:?}: {answer:?}");
                    }
                }
            });
        }
    });
    is_well(&mut sidecar);
}
