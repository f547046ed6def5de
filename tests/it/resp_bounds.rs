//! What a client of the Redis door can and cannot do to it: bounds, garbage, passwords, other protocols, the drain.

use std::time::Duration;

use tidegate_config::check_text;
use tidegate_testing::{Client, Endpoint, SOON, Sidecar, now, until};

use super::resp::{RULES, array, check, door, malformed, said, setup};

/// A door that wants a password.
fn guarded() -> Sidecar {
    let setup = setup().listen_also("resp_password_file: password");
    setup.folder.write("password", "open sesame\n");
    setup.start()
}

/// The same, and the other side ends it.
fn said_last(door: &Endpoint, bytes: &[u8]) -> String {
    let mut client = door.connect();
    client.send(bytes);
    client.receive_any().unwrap_or_default()
}

/// The daemon is the same and answers.
fn is_well(sidecar: &mut Sidecar) {
    assert!(!sidecar.has_ended(), "{}", sidecar.stderr.text());
    check(sidecar, &[("PING", "+PONG")]);
    assert_eq!(sidecar.stderr.text(), "");
}

#[test]
fn who_does_not_read_is_not_heard_and_let_go() {
    let mut sidecar = setup().start();
    let mut deaf = door(&sidecar).connect();
    let before = sidecar.process("VmRSS");
    let command = array(&["ECHO", &"x".repeat(60_000)]);
    let begun = now();
    // 600 MB, if anybody took them.
    let sent = (0..10_000)
        .take_while(|_| deaf.send(command.as_bytes()))
        .count();
    assert!(sent < 10_000, "all of it was taken");
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    let grown = sidecar.process("VmRSS").saturating_sub(before);
    assert!(grown < 8 * 1_024, "grew by {grown} kB");
    is_well(&mut sidecar);
}

/// Each is answered so, and then the connection is closed.
#[test]
fn what_is_no_command_is_refused_and_closed() {
    let mut sidecar = setup().start();
    let cases: [(&[u8], &str); 10] = [
        (
            b"*1000000000\r\n",
            "a command may have at most 128 arguments",
        ),
        (b"*x\r\n", "invalid multibulk length"),
        (b"*99999999999999999999\r\n", "invalid multibulk length"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n:5\r\n", "expected '$', got ':'"),
        (
            b"*1\r\n$65536\r\n",
            "a command may have at most 65536 bytes",
        ),
        (
            b"*1\r\n$9223372036854775807\r\n",
            "a command may have at most 65536 bytes",
        ),
        (b"*1\r\n$4\r\nPINGxx", "expected CRLF after a bulk string"),
        (b"ECHO \"a\r\n", "unbalanced quotes in request"),
        (
            b"\x16\x03\x01\x02",
            "expected '*' or a line of words, got '\\x16'",
        ),
    ];
    for (bytes, expected) in cases {
        // What came before is answered.
        let bytes = [b"PING\r\n", bytes].concat();
        for door in sidecar.doors("resp") {
            let answer = said_last(&door, &bytes);
            assert_eq!(
                answer,
                format!("+PONG\r\n-ERR Protocol error: {expected}\r\n")
            );
        }
    }
    let line = "x".repeat(70_000);
    let answer = said_last(&door(&sidecar), line.as_bytes());
    assert_eq!(
        answer,
        "-ERR Protocol error: a command may have at most 65536 bytes\r\n"
    );
    assert_eq!(malformed(&sidecar), 21.0);
    is_well(&mut sidecar);
}

#[test]
fn http_is_closed_at_once_and_without_a_word() {
    let mut sidecar = setup().start();
    let requests = [
        "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30\r\n\r\nCL.THROTTLE http 0 1 3600\r\n",
        "OPTIONS * HTTP/1.1\r\n",
        "HEAD / HTTP/1.1\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "Host: x\r\n",
    ];
    for request in requests {
        for door in sidecar.doors("resp") {
            assert_eq!(said_last(&door, request.as_bytes()), "", "{request}");
        }
    }
    assert_eq!(malformed(&sidecar), 2.0 * requests.len() as f64);
    // What was in the body was not done.
    check(
        &sidecar,
        &[(
            "CL.THROTTLE http-KIND 0 1 3600",
            "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600",
        )],
    );
    is_well(&mut sidecar);
}

#[test]
fn garbage_is_survived() {
    let mut sidecar = setup().start();
    let mut state = 88_172_645_463_325_252_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let alphabet = b"*$\r\n+-:0123456789 \"'PINGCLTHROTTLE.\0\xff";
    for _ in 0..300 {
        let length = random() % 3_000;
        let bytes: Vec<u8> = (0..length)
            .map(|_| match random() % 4 {
                0 => (random() >> 8) as u8,
                _ => alphabet[random() as usize % alphabet.len()],
            })
            .collect();
        let _ = said(&door(&sidecar), &bytes);
    }
    is_well(&mut sidecar);
}

/// Half a command is given its time, however slowly the rest drips in; a client that rests between commands stays.
#[test]
fn a_command_that_does_not_come_to_its_end_is_late() {
    let sidecar = setup().start();
    let mut resting = door(&sidecar).connect();
    resting.send(b"PING\r\n");
    assert_eq!(resting.line().as_deref(), Some("+PONG"));
    let begun = now();
    let mut dripping = door(&sidecar).connect();
    dripping.send(b"*1\r\n$60000\r\n");
    let mut sent = 0;
    until("the connection to be closed", SOON, || {
        sent += 1;
        (!dripping.send(b"x")).then_some(())
    });
    let took = begun.elapsed();
    assert!(
        sent > 5 && took > Duration::from_secs(9),
        "{sent} after {took:?}"
    );
    resting.send(b"PING\r\n");
    assert_eq!(resting.line().as_deref(), Some("+PONG"));
}

#[test]
fn a_password_is_asked_for() {
    let sidecar = guarded();
    check(
        &sidecar,
        &[
            ("PING", "-NOAUTH Authentication required."),
            ("CL.THROTTLE a 1 1 1", "-NOAUTH Authentication required."),
            ("TG.CHECK api client a", "-NOAUTH Authentication required."),
            ("INFO", "-NOAUTH Authentication required."),
            ("QUIT", "+OK"),
            (
                "AUTH wrong",
                "-WRONGPASS invalid username-password pair or user is disabled.",
            ),
            (
                "AUTH 'open sesam'",
                "-WRONGPASS invalid username-password pair or user is disabled.",
            ),
            (
                "AUTH other 'open sesame'",
                "-WRONGPASS invalid username-password pair or user is disabled.",
            ),
            ("AUTH 'open sesame'", "+OK"),
            ("AUTH default 'open sesame'\r\nPING", "+OK\r\n+PONG"),
            (
                "AUTH 'open sesame'\r\nRESET\r\nPING",
                "+OK\r\n+RESET\r\n-NOAUTH Authentication required.",
            ),
        ],
    );
    let door = door(&sidecar);
    assert!(said(&door, b"HELLO 3\r\n").starts_with("-NOAUTH HELLO must be called"));
    assert!(said(&door, b"HELLO 3 AUTH default nope\r\nPING\r\n").starts_with("-WRONGPASS"));
    let hello = said(&door, b"HELLO 3 AUTH default 'open sesame'\r\nPING\r\n");
    assert!(
        hello.starts_with("%7\r\n") && hello.ends_with("+PONG\r\n"),
        "{hello}"
    );
    assert!(!sidecar.stdout.text().contains("sesame"));
}

#[test]
fn without_a_password_auth_is_answered_as_redis_does() {
    let sidecar = setup().start();
    let none = "-ERR AUTH <password> called without any password configured for the default user. Are you sure your \
        configuration is correct?";
    check(
        &sidecar,
        &[
            ("AUTH x", none),
            ("AUTH default x", "+OK"),
            (
                "AUTH other x",
                "-WRONGPASS invalid username-password pair or user is disabled.",
            ),
        ],
    );
}

#[test]
fn a_password_file_that_holds_none_is_a_fault() {
    for (text, expected) in [
        (Some(" \n"), "the RESP password in password is empty"),
        (None, "read the RESP password from password"),
    ] {
        let setup = setup().listen_also("resp_password_file: password");
        if let Some(text) = text {
            setup.folder.write("password", text);
        }
        let (ran, _folder) = setup.fail();
        assert_eq!(ran.code, Some(78), "{ran:?}");
        assert!((ran.stdout + &ran.stderr).contains(expected), "{expected}");
    }
}

#[test]
fn connections_are_bound_together_with_those_of_http() {
    let mut sidecar = setup().bounds("connections_max: 2").start();
    let mut held = door(&sidecar).connect();
    held.send(b"PING\r\n");
    assert_eq!(held.line().as_deref(), Some("+PONG"));
    let mut http = sidecar.connect();
    assert_eq!(http.get("/v1/check?domain=api&client=x").status, 200);
    for door in sidecar.doors("resp") {
        assert_eq!(
            said_last(&door, b""),
            "-ERR max number of clients reached\r\n"
        );
    }
    assert_eq!(
        sidecar
            .metrics()
            .of("ratelimit_connections_refused_total", &[("door", "resp")]),
        2.0
    );
    drop((held, http));
    until("a place to be free", SOON, || {
        (said(&door(&sidecar), b"PING\r\n") == "+PONG\r\n").then_some(())
    });
    until("all places to be free", SOON, || {
        let open = sidecar
            .metrics()
            .of("ratelimit_connections", &[("door", "resp")]);
        (open == 0.0).then_some(())
    });
    is_well(&mut sidecar);
}

/// Idle connections end at once; a command that has begun may come to its end, and is answered.
#[test]
fn a_drain_ends_connections_after_what_they_are_in() {
    let mut sidecar = setup().top("log: { format: json }\ndrain: 10s").start();
    let mut idle: Vec<Client> = sidecar
        .doors("resp")
        .iter()
        .map(Endpoint::connect)
        .collect();
    let mut half = door(&sidecar).connect();
    half.send(b"PING\r\n*1\r\n$4\r\nPI");
    assert_eq!(half.line().as_deref(), Some("+PONG"));
    for client in &mut idle {
        client.send(b"PING\r\n");
        assert_eq!(client.line().as_deref(), Some("+PONG"));
    }
    sidecar.signal("TERM");
    for client in &mut idle {
        assert!(client.is_closed());
    }
    assert!(!sidecar.has_ended());
    half.send(b"NG\r\n");
    assert_eq!(half.line().as_deref(), Some("+PONG"));
    assert!(half.is_closed());
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
    assert_eq!(sidecar.said("stopped").len(), 1);
    assert!(!sidecar.folder().path("r.sock").exists());
}

#[test]
fn an_address_open_to_other_hosts_is_warned_about_unless_it_has_a_password() {
    let warnings = |listen: &str| {
        let text = format!("listen: {{ {listen} }}\nrules:\n{RULES}");
        let config = check_text("test.yaml", &text, &|_| None).unwrap();
        let warnings = config.warnings.iter().map(ToString::to_string);
        warnings.collect::<Vec<_>>().join("\n")
    };
    let open = warnings(r#"resp: ["127.0.0.1:1", "unix:r.sock", "0.0.0.0:2"]"#);
    assert_eq!(
        open,
        "test.yaml:1:48: listen.resp[2]: 0.0.0.0:2 is open to other hosts: whoever reaches it can use up limits"
    );
    assert_eq!(
        warnings(r#"resp: ["0.0.0.0:2"], resp_password_file: p"#),
        ""
    );
}
