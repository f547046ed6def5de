//! The end: on request, in order, and in time.

use std::time::Duration;

use tidegate_testing::{Endpoint, SOON, Sidecar, SidecarSetup, now, until};

const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 3/day }] }";
const CHECK: &str = "/v1/check?domain=api&client=x";
const BODY: &str = r#"{"domain":"api","descriptors":[{"entries":[{"key":"client","value":"y"}]}]}"#;

fn drain(drain: &str) -> Sidecar {
    let top = format!("log: {{ format: json }}\ndrain: {drain}");
    SidecarSetup::rules(RULES).top(&top).start()
}

fn said(sidecar: &Sidecar, message: &str) -> bool {
    !sidecar.said(message).is_empty()
}

/// The readiness probe fails: it is answered 503, or not at all.
fn is_unready(metrics: &Endpoint) -> bool {
    match metrics.try_connect() {
        Ok(mut client) => {
            client.send(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n");
            client.receive().is_none_or(|answer| answer.status == 503)
        }
        Err(_) => true,
    }
}

#[test]
fn open_checks_are_answered_and_then_it_ends() {
    for signal in ["TERM", "INT"] {
        let mut sidecar = drain("15s");
        let metrics = sidecar.door("metrics").unwrap();
        for door in sidecar.doors("http") {
            assert_eq!(door.get(CHECK).status, 200);
        }
        let mut halves: Vec<_> = sidecar
            .doors("http")
            .iter()
            .map(|door| {
                let mut half = door.connect();
                // One whole request first, so that the connection is known to be served.
                assert_ne!(half.get(CHECK).status, 0);
                let head = format!(
                    "POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n",
                    BODY.len()
                );
                half.send(head.as_bytes());
                half.send(&BODY.as_bytes()[..20]);
                half
            })
            .collect();
        let mut idle = sidecar.connect();
        idle.get(CHECK);
        let mut fresh = sidecar.connect();
        until("the connections to be accepted", SOON, || {
            let open = sidecar
                .metrics()
                .of("ratelimit_connections", &[("door", "http")]);
            (open == 4.0).then_some(())
        });
        sidecar.signal(signal);
        until("not ready", SOON, || is_unready(&metrics).then_some(()));
        assert!(idle.is_closed(), "{signal}: an idle connection stays open");
        assert!(fresh.is_closed(), "{signal}: a fresh connection stays open");
        for door in sidecar.doors("http") {
            until("no further connection", SOON, || {
                (!door.is_open()).then_some(())
            });
        }
        assert!(!sidecar.has_ended(), "{signal}: ended with open checks");
        for half in &mut halves {
            half.send(&BODY.as_bytes()[20..]);
            let answer = half.response();
            assert_eq!(answer.status, 200, "{signal}: {}", answer.text());
            assert_eq!(answer.header("connection"), Some("close"), "{answer:?}");
            assert!(half.is_closed());
        }
        let status = sidecar.wait(Duration::from_secs(15));
        assert_eq!(status.code(), Some(0), "{signal}");
        assert!(said(&sidecar, "stopped"), "{}", sidecar.stdout.text());
        assert!(!sidecar.folder().path("t.sock").exists());
    }
}

#[test]
fn a_connection_that_never_finishes_does_not_hold_it() {
    let mut sidecar = drain("1s");
    let mut half_body = sidecar.connect();
    half_body.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    let mut half_head = sidecar.connect();
    half_head.send(b"GET /v1/check?domain=api");
    until("the connections to be accepted", SOON, || {
        let open = sidecar
            .metrics()
            .of("ratelimit_connections", &[("door", "http")]);
        (open == 2.0).then_some(())
    });
    // A request on another connection came later than both: they have been read by now.
    assert_eq!(sidecar.http().get(CHECK).status, 200);
    let begun = now();
    sidecar.signal("TERM");
    let status = sidecar.wait(SOON);
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(0));
    // The drain is 1 s; the rest is for the process to end on a busy machine.
    assert!(took < Duration::from_secs(6), "took {took:?}");
    assert!(
        said(&sidecar, "stopped with connections still open"),
        "{}",
        sidecar.stdout.text()
    );
    assert!(!sidecar.folder().path("t.sock").exists());
}

#[test]
fn it_ends_at_once_when_nothing_is_open() {
    let mut sidecar = drain("10m");
    sidecar.signal("TERM");
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
    assert!(said(&sidecar, "stopped"), "{}", sidecar.stdout.text());
}

/// Whoever does not want to wait says so twice.
#[test]
fn a_second_signal_is_harmless() {
    let mut sidecar = drain("1s");
    let mut half = sidecar.connect();
    half.send(b"POST /v1/check HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    assert_eq!(sidecar.http().get(CHECK).status, 200);
    for signal in ["TERM", "TERM", "HUP"] {
        sidecar.signal(signal);
    }
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
}
