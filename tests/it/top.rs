//! `/admin/v1/top` and the page at `/`: who is denied most, and who may see it.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testing::{
    Client, Endpoint, Response, SOON, Sidecar, SidecarSetup, now, send_signal, tidegate_binary,
    until,
};

const RULES: &str = r#"
  - domain: api
    descriptors:
      - key: client
        rate_limit: 2/day
        descriptors: [{ key: path, rate_limit: 1/day }]
      - { key: remote_address, rate_limit: 1/day, shadow_mode: true }
      - { key: path, value: "/v1/*", share_threshold: true, rate_limit: 1/day }
      - { key: free, rate_limit: { unlimited: true } }
"#;

fn check(sidecar: &Sidecar, descriptor: &str, times: usize) {
    let mut client = sidecar.connect();
    for _ in 0..times {
        let answer = client.get(&format!("/v1/check?domain=api&{descriptor}"));
        assert!([200, 429].contains(&answer.status), "{}", answer.text());
    }
}

fn rule<'a>(top: &'a Value, label: &str) -> &'a Value {
    let rules = top["rules"].as_array().unwrap().iter();
    let mut found = rules.filter(|rule| rule["rule"] == label);
    found.next().unwrap_or_else(|| panic!("{label}: {top}"))
}

/// Each key of a rule as `key=value ...`, and how often it was denied.
fn keys(top: &Value, label: &str) -> Vec<(String, u64)> {
    let keys = rule(top, label)["keys"].as_array().unwrap().iter();
    keys.map(|key| {
        let entries = key["entries"].as_array().unwrap().iter();
        let word = |entry: &Value, field: &str| entry[field].as_str().unwrap().to_owned();
        let words = entries.map(|entry| format!("{}={}", word(entry, "key"), word(entry, "value")));
        let words: Vec<_> = words.collect();
        (words.join(" "), key["denied"].as_u64().unwrap())
    })
    .collect()
}

fn expect(top: &Value, label: &str, expected: &[(&str, u64)]) {
    let found = keys(top, label);
    let found: Vec<_> = found.iter().map(|(key, n)| (key.as_str(), *n)).collect();
    assert_eq!(found, expected, "{label}");
}

#[test]
fn who_is_denied_most_comes_first() {
    let sidecar = SidecarSetup::rules(RULES).start();
    for (client, times) in [("a", 4), ("b", 7), ("c", 2)] {
        check(&sidecar, &format!("client={client}"), times);
    }
    check(&sidecar, "client=a&path=/x", 3);
    check(&sidecar, "free=z", 3);
    let top = sidecar.admin("/admin/v1/top");
    expect(&top, "api/client", &[("client=b", 5), ("client=a", 2)]);
    expect(&top, "api/client/path", &[("client=a path=/x", 2)]);
    expect(&top, "api/free", &[]);
    let found = rule(&top, "api/client");
    assert_eq!(
        found["decisions"],
        json!({ "allow": 6, "deny": 7, "shadow_deny": 0 })
    );
    assert_eq!(found["recent"], json!({ "denied": 7, "missed": 0 }));
    assert_eq!(found["remaining"], 0);
    assert_eq!(found["limit"]["unit"], "DAY");
    assert_eq!(rule(&top, "api/free")["limit"], Value::Null);
    let labels: Vec<_> = top["rules"].as_array().unwrap()[..2]
        .iter()
        .map(|rule| rule["rule"].clone())
        .collect();
    assert_eq!(labels, ["api/client", "api/client/path"]);
    assert_eq!(
        top["decisions"],
        json!({ "allow": 10, "deny": 9, "shadow_deny": 0 })
    );
    assert_eq!(top["checks"]["decided"], 19);
    for length in [
        &top["at"],
        &top["recent"],
        &top["checks"]["recent"]["p50"],
        &top["checks"]["recent"]["p99"],
    ] {
        assert!(seconds(length) > 0.0, "{top}");
    }
    assert!(seconds(&top["checks"]["recent"]["p50"]) <= seconds(&top["checks"]["recent"]["p99"]));
    assert_eq!(top["keys"], "plain");
}

fn seconds(length: &Value) -> f64 {
    let text = length.as_str().unwrap().strip_suffix('s').unwrap();
    text.parse().unwrap()
}

/// One a day for this key.
fn throttle(sidecar: &Sidecar, key: &str, times: usize) {
    let mut resp = sidecar.door("resp").unwrap().connect();
    for _ in 0..times {
        let command = format!("CL.THROTTLE {key} 0 1 86400\r\n");
        assert!(resp.send(command.as_bytes()));
        assert_eq!(resp.line().as_deref(), Some("*5"));
        (0..5).for_each(|_| drop(resp.line()));
    }
}

#[test]
fn a_look_and_a_quota_beside_one_with_room_are_no_denials() {
    let sidecar = SidecarSetup::rules(
        r#"
  - domain: api
    match: path
    descriptors:
      - key: client
        rate_limit: 1/day
        quota_mode: true
        descriptors: [{ key: path, quota_mode: true, rate_limit: 2/day }]
"#,
    )
    .start();
    check(&sidecar, "client=a&path=x&peek=true", 3);
    check(&sidecar, "client=a&path=x", 2);
    check(&sidecar, "client=a&path=x&peek=true", 3);
    let top = sidecar.admin("/admin/v1/top");
    expect(&top, "api/client", &[]);
    check(&sidecar, "client=a&path=x", 2);
    let top = sidecar.admin("/admin/v1/top");
    expect(&top, "api/client", &[("client=a", 2)]);
    expect(&top, "api/client/path", &[("client=a path=x", 2)]);
}

#[test]
fn a_key_is_told_as_it_is_counted() {
    let sidecar = SidecarSetup::rules(RULES)
        .listen_also(r#"resp: ["127.0.0.1:0"]"#)
        .start();
    for host in 1..=3 {
        check(&sidecar, &format!("remote_address=2001:db8:0:7::{host}"), 1);
        check(&sidecar, &format!("path=/v1/{host}"), 1);
    }
    let body = json!({ "domain": "api", "descriptors": [{
        "entries": [{ "key": "who", "value": "me" }, { "key": "what", "value": "that" }],
        "limit": { "requestsPerUnit": 1, "unit": "DAY" },
    }] });
    for _ in 0..2 {
        sidecar.connect().post("/json", &body.to_string());
    }
    throttle(&sidecar, "u:42", 2);
    let top = sidecar.admin("/admin/v1/top");
    let network = [("remote_address=2001:db8:0:7::", 2)];
    expect(&top, "api/remote_address", &network);
    expect(&top, "api/path", &[("path=/v1/*", 2)]);
    expect(&top, "override", &[("domain=api who=me what=that", 1)]);
    expect(&top, "throttle", &[("key=u:42", 1)]);
    let shadow = rule(&top, "api/remote_address");
    assert_eq!(shadow["shadow_mode"], true);
    assert_eq!(shadow["decisions"]["shadow_deny"], 2);
}

#[test]
fn hashed_keys_show_no_value_anywhere_and_can_be_looked_up() {
    let sidecar = SidecarSetup::rules(RULES)
        .top("log: { format: json, level: trace }\nkeys: hashed")
        .listen_also(r#"resp: ["127.0.0.1:0"]"#)
        .start();
    check(&sidecar, "client=s3cret-api-key", 4);
    throttle(&sidecar, "s3cret-user", 2);
    let top = sidecar.admin("/admin/v1/top");
    let metrics = sidecar.door("metrics").unwrap().get("/metrics").text();
    let log = format!("{:?}", sidecar.events());
    for text in [&top.to_string(), &metrics, &log] {
        assert!(!text.is_empty() && !text.contains("s3cret"), "{text}");
    }
    assert_eq!(rule(&top, "throttle")["recent"]["denied"], 1);
    let warning =
        "without store.hash_key_file, anybody who sees a hash can find its value by guessing";
    assert!(log.contains(warning), "{log}");
    assert_eq!(top["keys"], "hashed");
    let key = &rule(&top, "api/client")["keys"][0];
    assert_eq!(key["entries"], Value::Null);
    assert_eq!(key["denied"], 2);
    let usage = sidecar.admin("/admin/v1/usage?domain=api&client=s3cret-api-key");
    assert_eq!(usage["usage"][0]["key"], key["key"]);
}

#[test]
fn a_flood_of_denied_keys_is_bounded_and_does_not_hide_the_worst() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let long = "x".repeat(900);
    for nth in 0..2_000 {
        // Three of five checks are of the same client; every other client is denied once.
        check_on(&mut client, "client=worst", 3);
        check_on(&mut client, &format!("client={nth}-{long}"), 3);
    }
    let page = sidecar.door("admin").unwrap().get("/admin/v1/top?keys=32");
    let top = page.json();
    let found = keys(&top, "api/client");
    assert_eq!(found.len(), 32);
    assert_eq!(found[0].0, "client=worst");
    assert!((5_998..=8_000).contains(&found[0].1), "{found:?}");
    assert!(found[1].0.contains("…[905 bytes, "), "{found:?}");
    assert!(found.iter().all(|(key, _)| key.len() < 300), "{found:?}");
    let error = &rule(&top, "api/client")["keys"][1]["error"];
    assert!(error.as_u64() > Some(0), "{top}");
    assert_eq!(
        keys(&sidecar.admin("/admin/v1/top"), "api/client").len(),
        10
    );
    assert_eq!(
        keys(&sidecar.admin("/admin/v1/top?keys=0"), "api/client"),
        []
    );
    let one = sidecar.admin("/admin/v1/top?rules=1&keys=1");
    assert_eq!(one["rules"].as_array().unwrap().len(), 1);
    assert_eq!(one["rules_left_out"], 4);
    for query in ["keys=33", "keys=x", "rules=-1", "limit=1", "keys"] {
        let answer = sidecar
            .door("admin")
            .unwrap()
            .get(&format!("/admin/v1/top?{query}"));
        assert_eq!(answer.status, 400, "{query}: {}", answer.text());
    }
}

fn check_on(client: &mut Client, descriptor: &str, times: usize) {
    for _ in 0..times {
        client.get(&format!("/v1/check?domain=api&{descriptor}"));
    }
}

#[test]
fn a_reload_keeps_what_was_counted() {
    let sidecar = SidecarSetup::rules(RULES)
        .listen_also(r#"resp: ["127.0.0.1:0"]"#)
        .start();
    check(&sidecar, "client=a", 5);
    check(&sidecar, "free=a", 5);
    throttle(&sidecar, "u:42", 3);
    let before = sidecar.admin("/admin/v1/top");
    // Another limit, and a rule that is gone.
    let yaml = sidecar.setup().yaml().replace("2/day", "3/day");
    let yaml = yaml.replace("key: free", "key: paid");
    sidecar.folder().replace("sidecar.yaml", &yaml);
    until("the next version", SOON, || {
        (sidecar.admin("/admin/v1/rules")["version"] == 2).then_some(())
    });
    let top = sidecar.admin("/admin/v1/top");
    expect(&top, "api/client", &[("client=a", 3)]);
    expect(&top, "throttle", &[("key=u:42", 2)]);
    assert_eq!(
        top["decisions"], before["decisions"],
        "they are of the start"
    );
    let labels = top["rules"].as_array().unwrap().iter();
    assert!(
        labels.clone().all(|rule| rule["rule"] != "api/free"),
        "{top}"
    );
    assert_eq!(rule(&top, "api/client")["limit"]["requests_per_unit"], 3);
    let denied = sidecar
        .metrics()
        .of("ratelimit_denied_total", &[("rule", "api/client")]);
    assert_eq!(denied, 3.0);
}

fn page(door: &Endpoint, headers: &[&str]) -> Response {
    door.connect().request("GET", "/", headers, b"")
}

#[test]
fn the_page_is_for_this_host_and_asks_nobody_else() {
    let setup = SidecarSetup::rules(RULES).listen_also("token_file: token");
    setup.folder.write("token", "s3cret");
    let sidecar = setup.start();
    let admin = sidecar.door("admin").unwrap();
    let answer = page(&admin, &[]);
    assert_eq!(answer.status, 200, "it holds nothing that a token guards");
    assert_eq!(
        answer.header("content-type"),
        Some("text/html; charset=utf-8")
    );
    let policy = answer.header("content-security-policy").unwrap();
    let nonce = policy.split("'nonce-").nth(1).unwrap();
    let nonce = nonce.split('\'').next().unwrap();
    let text = answer.text();
    assert_eq!(text.matches(&format!("nonce=\"{nonce}\"")).count(), 2);
    assert!(!text.contains("NONCE"));
    for word in ["http://", "https://", "//", "s3cret"] {
        let found = text
            .lines()
            .find(|line| line.contains(word) && !line.trim_start().starts_with("//"));
        assert_eq!(found, None, "{word}");
    }
    let again = page(&admin, &[]);
    assert_ne!(again.header("content-security-policy"), Some(policy));
    for host in [
        "Host: evil.example",
        "Host: localhost.evil.example",
        "Host: ",
    ] {
        assert_eq!(page(&admin, &[host]).status, 403, "{host}");
    }
    let answer = admin.get("/admin/v1/top");
    assert_eq!(answer.status, 401, "{}", answer.text());
}

/// Denies a key whose name would clear a terminal, three times.
fn start_denying(setup: SidecarSetup) -> Sidecar {
    let sidecar = setup.start();
    check(&sidecar, "client=bad%1B%5B2J", 5);
    sidecar
}

#[test]
fn the_command_writes_one_plain_view_into_a_pipe() {
    let setup = SidecarSetup::rules(RULES).listen_also("token_file: token");
    setup.folder.write("token", "s3cret\n");
    let sidecar = start_denying(setup);
    let to = sidecar.door("admin").unwrap().to();
    let top = |more: &[&str]| {
        let arguments = [&["top", "--every", "100ms", "--to", &to], more].concat();
        sidecar.folder().run(&arguments)
    };
    let ran = top(&["--token-file", "token"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(!ran.stdout.contains('\x1b'), "{}", ran.stdout);
    let lines: Vec<_> = ran.stdout.lines().collect();
    let line = |start: &str| {
        let mut found = lines.iter().filter(|line| line.starts_with(start));
        assert_eq!(found.clone().count(), 1, "{start}: {}", ran.stdout);
        found.next().unwrap().split_whitespace().collect::<Vec<_>>()
    };
    assert!(
        lines[0].contains("ready  no store: limits alone"),
        "{}",
        lines[0]
    );
    assert_eq!(line("client=bad")[1..], ["api/client", "3"]);
    assert_eq!(line("api/client ")[1..], ["2/day", "0", "0", "0"]);

    let ran = top(&["--token-file", "token", "--count", "2"]);
    assert_eq!(ran.stdout.matches("DENIED MOST").count(), 2, "{ran:?}");
    let (words, absent) = (
        "the sidecar requires a token: use --token-file",
        &["--token-file", "no"],
    );
    for (more, expected) in [(&[][..], words), (absent, "read no: No such file")] {
        let ran = top(more);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.stderr.contains(expected), "{ran:?}");
    }
    for bad in [["--every", "1ms"], ["--every", "soon"], ["--count", "0"]] {
        let ran = top(&bad);
        assert_eq!(ran.code, Some(64), "{ran:?}");
    }
    let ran = sidecar.folder().run(&["top", "--to", "unix:nowhere.sock"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn in_a_terminal_the_command_draws_over_itself_and_sends_nothing_that_a_client_sent() {
    let sidecar = start_denying(SidecarSetup::rules(RULES));
    let line = format!(
        "{} top --count 3 --every 100ms --to {}",
        tidegate_binary().display(),
        sidecar.door("admin").unwrap().to()
    );
    // `script` is a terminal for it.
    let ran = sidecar
        .folder()
        .shell(&format!("script -qec '{line}' /dev/null"));
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.stdout.matches("\x1b[H").count(), 3, "{ran:?}");
    assert!(ran.stdout.contains("client=bad\u{fffd}[2J"), "{ran:?}");
    assert!(!ran.stdout.contains("\x1b[2J"), "{ran:?}");
}

#[test]
fn the_command_ends_at_once_even_while_the_sidecar_hangs() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let admin = sidecar.door("admin").unwrap().to();
    let mut command = sidecar
        .folder()
        .command(&["top", "--count", "1000", "--to", &admin]);
    let mut top = command
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut first = [0; 1];
    std::io::Read::read_exact(top.stdout.as_mut().unwrap(), &mut first).unwrap();
    sidecar.signal("STOP");
    // It has looked before, so its handler is in place: from here on it waits for the sidecar.
    let begun = now();
    let status = until("its end", SOON, || {
        send_signal(top.id(), "INT");
        top.try_wait().unwrap()
    });
    let took = begun.elapsed();
    sidecar.signal("CONT");
    assert_eq!(status.code(), Some(0));
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// What is asked for is what it costs: whoever looks on does not hold up checks.
#[test]
fn one_rule_is_told_without_going_through_the_keys_of_all() {
    const RULES: usize = 200;
    const KEYS: usize = 32;
    let rules = (0..RULES).map(|nth| format!("{{ key: k{nth}, rate_limit: 0/day }}"));
    let rules: Vec<_> = rules.collect();
    let domain = format!("  - {{ domain: api, descriptors: [{}] }}", rules.join(", "));
    let sidecar = SidecarSetup::rules(&domain).start();
    let mut client = sidecar.connect();
    for rule in 0..RULES {
        let entry =
            |key| json!({ "entries": [{ "key": format!("k{rule}"), "value": format!("v{key}") }] });
        let descriptors: Vec<_> = (0..KEYS).map(entry).collect();
        let body = json!({ "domain": "api", "descriptors": descriptors });
        assert_eq!(client.post("/v1/check", &body.to_string()).status, 429);
    }
    let mut admin = sidecar.door("admin").unwrap().connect();
    let mut quickest = |times: usize, query: &str, bytes_min: usize| {
        let times = (0..times).map(|_| {
            let begun = now();
            let answer = admin.get(&format!("/admin/v1/top?{query}"));
            let taken = begun.elapsed();
            assert!(answer.text().len() > bytes_min, "{}", answer.text());
            taken
        });
        times.min().unwrap()
    };
    let all = quickest(10, "rules=200&keys=32", RULES * KEYS * 32);
    let one = quickest(50, "rules=1&keys=1", 100);
    // Two hundred times as quick, and not thirty times, as when all keys were gone through.
    assert!(one * 60 < all, "one takes {one:?}, all take {all:?}");
}
