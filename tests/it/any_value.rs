//! Values of any length and any bytes: a rule matches the whole value, the engine counts it under a hash of the whole
//! value, and pages show it cut.

use serde_json::json;
use tidegate_testing::{Response, Sidecar, SidecarSetup, request};

use super::grpc::{LISTEN, tcp};
use super::resp;
use super::rls::{self, descriptor, letter};

const RULES: &str = r#"
- domain: api
  descriptors:
    - { key: client, rate_limit: 2/day }
    - { key: path, rate_limit: 1000/day }
    - { key: path, value: "/login*", rate_limit: { unit: day, requests_per_unit: 0 } }
    - { key: tail, rate_limit: 1000/day }
    - { key: tail, value: "*/admin", rate_limit: { unit: day, requests_per_unit: 0 } }
"#;

fn start() -> Sidecar {
    let listen = format!("{LISTEN}, resp: [\"127.0.0.1:0\"]");
    SidecarSetup::rules(RULES).listen_also(&listen).start()
}

/// Long, not text, and neither: each different from every other at its end only.
fn values() -> Vec<Vec<u8>> {
    let long = "x".repeat(1_100).into_bytes();
    let huge = "x".repeat(60_000).into_bytes();
    let starts = [
        &b""[..],
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b"a\0b",
        &long,
        &huge,
    ];
    let ends = [&b"1"[..], b"2", b"\xff"];
    let values = starts
        .iter()
        .flat_map(|start| ends.map(|end| [start, end].concat()));
    values.collect()
}

/// Twice allowed, then denied, each value for itself.
fn check(ask: impl Fn(&[u8]) -> char) {
    for value in values() {
        let letters: String = (0..3).map(|_| ask(&value)).collect();
        let (length, start) = (value.len(), &value[..value.len().min(8)]);
        assert_eq!(letters, "aad", "{length} bytes, {start:x?}");
    }
}

fn status_letter(answer: &Response) -> char {
    match answer.status {
        200 => 'a',
        429 => 'd',
        other => panic!("{other}: {}", answer.text()),
    }
}

fn percent(value: &[u8]) -> String {
    value.iter().map(|byte| format!("%{byte:02x}")).collect()
}

#[test]
fn every_value_has_a_bucket_of_its_own_over_grpc() {
    let sidecar = start();
    let rls = std::cell::RefCell::new(tcp(&sidecar));
    check(|value| {
        let request = rls::request([descriptor(&[("client", value)])]);
        letter(&rls.borrow_mut().ask(request).expect("an answer"))
    });
}

/// A JSON string of these bytes, with nothing escaped but what has to be.
fn json_string(value: &[u8]) -> Vec<u8> {
    let escaped = |byte: &u8| match byte {
        0..=0x1f => format!("\\u{byte:04x}").into_bytes(),
        byte => vec![*byte],
    };
    value.iter().flat_map(escaped).collect()
}

#[test]
fn every_value_has_a_bucket_of_its_own_over_json() {
    for path in ["/v1/check", "/json"] {
        let sidecar = start();
        check(|value| {
            let before = br#"{"domain":"api","descriptors":[{"entries":[{"key":"client","value":""#;
            let body = [before, &*json_string(value), br#""}]}]}"#].concat();
            status_letter(&sidecar.connect().request("POST", path, &[], &body))
        });
        // JavaScript sends a lone surrogate so.
        let body =
            r#"{"domain":"api","descriptors":[{"entries":[{"key":"client","value":"\ud800"}]}]}"#;
        let answers = (0..3).map(|_| status_letter(&sidecar.connect().post(path, body)));
        assert_eq!(answers.collect::<String>(), "aad", "{path}");
    }
}

#[test]
fn every_value_has_a_bucket_of_its_own_in_a_query_and_in_a_header() {
    let sidecar = start();
    // The head of a request has 16 KiB.
    let fits = |value: &[u8]| value.len() < 5_000;
    for value in values().iter().filter(|value| fits(value)) {
        let path = format!("/v1/check?domain=api&client={}", percent(value));
        let ask = || status_letter(&sidecar.connect().get(&path));
        assert_eq!([ask(), ask(), ask()], ['a', 'a', 'd'], "{path}");
        if value.contains(&0) {
            continue; // No header has it.
        }
        // The same bytes are the same key, however they come.
        let path = "/v1/forward?domain=api&client=@x-key";
        let before = request("GET", path, &["X-Key: ~"], b"");
        let at = before.iter().position(|byte| *byte == b'~').unwrap();
        let bytes = [&before[..at], value, &before[at + 1..]].concat();
        let mut client = sidecar.connect();
        client.send(&bytes);
        let answer = client.response();
        assert_eq!(answer.status, 429, "{value:x?}: {}", answer.text());
    }
}

#[test]
fn every_value_has_a_bucket_of_its_own_over_resp() {
    let sidecar = start();
    let door = sidecar.door("resp").unwrap();
    check(|value| {
        let head = format!(
            "*4\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$6\r\nclient\r\n${}\r\n",
            value.len()
        );
        let said = resp::said(&door, &[head.as_bytes(), value, b"\r\n"].concat());
        match said.as_str() {
            said if said.starts_with("*6\r\n:1\r\n") => 'a',
            said if said.starts_with("*6\r\n:0\r\n") => 'd',
            other => panic!("{other}"),
        }
    });
}

/// A value that is padded past every bound is still met by the pattern it was made to miss.
#[test]
fn patterns_see_all_of_a_value() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let padding = "x".repeat(1_100).into_bytes();
    for (key, value) in [
        ("path", [b"/login", &*padding].concat()),
        ("path", b"/login\xff".to_vec()),
        ("tail", [&*padding, b"/admin"].concat()),
        ("tail", b"\xff/admin".to_vec()),
    ] {
        let request = rls::request([descriptor(&[(key, &value)])]);
        let answer = rls.ask(request).expect("an answer");
        assert_eq!(letter(&answer), 'd', "{key}");
        let path = format!("/v1/check?domain=api&{key}={}", percent(&value));
        assert_eq!(sidecar.connect().get(&path).status, 429, "{key}");
    }
    assert_eq!(rls.letter("path", "/logi"), 'a');
}

#[test]
fn what_is_shown_is_cut_and_tagged() {
    let sidecar = start();
    let deny = |value: &[u8]| {
        let path = format!("/v1/check?domain=api&path={}", percent(value));
        let answer = sidecar.connect().get(&path);
        assert_eq!(answer.status, 429, "{}", answer.text());
        answer.json()["error"]["scope"].as_str().unwrap().to_owned()
    };
    assert_eq!(deny(b"/login"), "path:/login");
    let long = deny("/login".repeat(200).as_bytes());
    assert!(long.len() < 1_100, "{long}");
    assert!(long.contains("/log…[1200 bytes, "), "{long}");
    let broken = deny(b"/login\xff");
    assert!(
        broken.starts_with("path:/login\u{fffd}…[7 bytes, "),
        "{broken}"
    );
    // Who sends what was shown is shown as somebody else.
    let shown = broken.strip_prefix("path:").unwrap();
    assert_ne!(deny(shown.as_bytes()), broken);
    // What is kept is less, and as tagged.
    let top = sidecar.admin("/admin/v1/top");
    let keys = top["rules"][0]["keys"].as_array().unwrap();
    let kept = keys
        .iter()
        .map(|key| key["entries"][0]["value"].as_str().unwrap());
    let kept: Vec<&str> = kept.collect();
    assert_eq!(kept.len(), 4, "{kept:?}");
    assert!(kept.iter().all(|value| value.len() < 320), "{kept:?}");
    assert!(
        kept.iter().any(|value| value.contains("…[1200 bytes, ")),
        "{kept:?}"
    );
    assert!(kept.contains(&"/login"), "{kept:?}");
    assert_eq!(top["rules"][0]["rule"], json!("api/path=/login*"));
}
