//! What operators see: health, metrics, the admin pages, and who may see them.

use serde_json::{Value, json};
use tidegate::telemetry::{ALL, CIRCUIT_STATE, MetricKind, REDIS_ERROR_KINDS, SYNC_STALENESS};
use tidegate_testing::{Endpoint, LISTEN, Response, SOON, Sidecar, SidecarSetup, until};

const RULES: &str = r#"
- domain: api
  descriptors:
    - key: client
      rate_limit: { name: clients, unit: day, requests_per_unit: 12, burst: 4 }
      descriptors: [{ key: path, value: "/files/*", rate_limit: 5/day }]
    - { key: free, rate_limit: { unlimited: true } }
    - { key: window, count_rejected: true, rate_limit: { unit: year, requests_per_unit: 9, algorithm: fixed_window } }
    - { key: trial, shadow_mode: true, rate_limit: { unit: hour, requests_per_unit: 1, unit_multiplier: 12 } }
"#;

fn start() -> Sidecar {
    SidecarSetup::rules(RULES).start()
}

fn page(sidecar: &Sidecar, door: &str) -> Endpoint {
    sidecar.door(door).unwrap()
}

/// The fields of an object, sorted.
fn fields(value: &Value) -> Vec<&str> {
    let object = value
        .as_object()
        .unwrap_or_else(|| panic!("no object: {value}"));
    let mut fields: Vec<&str> = object.keys().map(String::as_str).collect();
    fields.sort_unstable();
    fields
}

#[test]
fn health_is_told_in_words() {
    let sidecar = start();
    let metrics = page(&sidecar, "metrics");
    for (path, expected) in [
        ("/livez", "ok\n"),
        ("/readyz", "ok\n"),
        ("/healthcheck", "ok\n"),
        (
            "/readyz?verbose",
            "ok\nrules: 5, configuration version 1\nstore: none\n",
        ),
        (
            "/readyz?x&verbose=1",
            "ok\nrules: 5, configuration version 1\nstore: none\n",
        ),
    ] {
        let answer = metrics.get(path);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, expected),
            "{path}"
        );
        assert_eq!(
            answer.header("content-type"),
            Some("text/plain; charset=utf-8")
        );
    }
}

#[test]
fn other_pages_and_methods_are_refused() {
    let sidecar = start();
    let cases = [
        ("metrics", "/metrics", "GET, HEAD"),
        ("metrics", "/readyz", "GET, HEAD"),
        ("admin", "/", "GET"),
        ("admin", "/admin/v1/status", "GET"),
        ("admin", "/admin/v1/top", "GET"),
        ("admin", "/admin/v1/rules", "GET"),
        ("admin", "/admin/v1/usage", "GET"),
        ("admin", "/admin/v1/keys", "DELETE"),
    ];
    for (door, path, allowed) in cases {
        let mut client = page(&sidecar, door).connect();
        let methods = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"];
        for method in methods
            .into_iter()
            .filter(|method| !allowed.split(", ").any(|one| one == *method))
        {
            let answer = client.request(method, path, &[], b"");
            assert_eq!(answer.status, 405, "{method} {path}: {}", answer.text());
            assert_eq!(answer.header("allow"), Some(allowed), "{method} {path}");
        }
    }
    for door in ["metrics", "admin"] {
        let mut client = page(&sidecar, door).connect();
        for path in [
            "//",
            "/index.html",
            "/v1/check?domain=api&client=x",
            "/admin",
            "/admin/v1",
            "/admin/v1/status/",
            "/Metrics",
            "/metrics/",
            "/livez/x",
        ] {
            let answer = client.get(path);
            assert_eq!(answer.status, 404, "{door} {path}: {}", answer.text());
            assert_eq!(answer.json()["error"]["code"], "NOT_FOUND");
        }
    }
    // Each door has its own pages: metrics are safe to expose, the admin pages are not.
    assert_eq!(
        page(&sidecar, "metrics").get("/admin/v1/status").status,
        404
    );
    assert_eq!(page(&sidecar, "admin").get("/metrics").status, 404);
}

#[test]
fn the_status_page() {
    let sidecar = SidecarSetup::rules(RULES)
        .variable("POD_NAME", "pod-7")
        .start();
    for value in ["a", "b", "b"] {
        let path = format!("/v1/check?domain=api&client={value}");
        assert_eq!(sidecar.http().get(&path).status, 200);
    }
    let mut status = sidecar.admin("/admin/v1/status");
    let configuration = status["configuration"].take();
    let incarnation = status["incarnation"].take();
    let is_hex = |text: &str| text.bytes().all(|byte| b"0123456789abcdef".contains(&byte));
    assert!(
        incarnation
            .as_str()
            .is_some_and(|text| text.len() == 32 && is_hex(text))
    );
    let expected = json!({
        "pod": "pod-7", "version": env!("CARGO_PKG_VERSION"), "ready": true, "configuration": null, "rules": 5,
        "incarnation": null, "pods": 1,
        "keys": { "held": 2, "max": 10_000, "tracked": 0, "tables": { "level": 2, "windowed": 0, "carried": 0 } },
        "store": { "link": "none", "staleness": null, "partitioned": false, "shards": [] },
        "books": { "settled": 0, "pending": 0, "in_flight": 0, "silent": 0, "lost": 0 },
    });
    assert_eq!(status, expected);
    assert_eq!(
        fields(&configuration),
        [
            "applied_at",
            "hash",
            "last_reload_faults",
            "version",
            "warnings"
        ]
    );
    assert_eq!(configuration["version"], 1);
    assert_eq!(configuration["hash"].as_str().map(str::len), Some(16));
    assert_eq!(configuration["last_reload_faults"], json!([]));
    let applied = configuration["applied_at"].as_str().unwrap();
    let date = sidecar.folder().shell("date -u +%Y-%m-");
    assert!(applied.starts_with(date.stdout.trim()), "{applied}");
    assert!(applied.ends_with('Z') && applied.len() == 20, "{applied}");

    let yaml = sidecar.setup().yaml().replace("9,", "8,");
    sidecar.folder().replace("sidecar.yaml", &yaml);
    let after = until("the next version", SOON, || {
        let after = sidecar.admin("/admin/v1/status")["configuration"].take();
        (after["version"] == 2).then_some(after)
    });
    assert_ne!(after["hash"], configuration["hash"]);
}

#[test]
fn the_rules_page() {
    let sidecar = start();
    let page = sidecar.admin("/admin/v1/rules");
    assert_eq!(page["version"], 1);
    let rules = page["rules"].as_array().unwrap();
    let names: Vec<_> = rules
        .iter()
        .map(|rule| rule["rule"].as_str().unwrap())
        .collect();
    assert_eq!(
        names,
        [
            "api/client",
            "api/client/path",
            "api/free",
            "api/window",
            "api/trial"
        ]
    );
    let expected = json!({
        "rule": "api/client", "name": "clients", "descriptors": [{ "key": "client", "value": null }],
        "limit": { "requests_per_unit": 12, "unit": "DAY", "unit_multiplier": 1, "burst": 4 },
        "unlimited": false, "algorithm": "gcra", "shadow_mode": false, "quota_mode": false, "count_rejected": false,
        "replaces": [], "consistency": "hybrid", "on_store_error": "local_share", "report": "contested",
    });
    assert_eq!(rules[0], expected);
    let path = json!([{ "key": "client", "value": null }, { "key": "path", "value": "/files/*" }]);
    assert_eq!(rules[1]["descriptors"], path);
    assert_eq!(
        (&rules[2]["unlimited"], &rules[2]["limit"]),
        (&json!(true), &Value::Null)
    );
    assert_eq!(
        (&rules[3]["algorithm"], &rules[3]["count_rejected"]),
        (&json!("fixed_window"), &json!(true))
    );
    assert_eq!(
        (
            &rules[4]["shadow_mode"],
            &rules[4]["limit"]["unit_multiplier"]
        ),
        (&json!(true), &json!(12))
    );
}

#[test]
fn the_usage_page() {
    let sidecar = start();
    let usage = |query: &str| sidecar.admin(&format!("/admin/v1/usage?{query}"));
    let fresh = usage("domain=api&client=x");
    assert_eq!(fresh["domain"], "api");
    let one = &fresh["usage"][0];
    assert_eq!(
        fields(one),
        [
            "fleet",
            "key",
            "limit",
            "remaining",
            "reset_after",
            "retry_after",
            "rule",
            "used"
        ]
    );
    assert_eq!(
        (&one["rule"], &one["used"], &one["remaining"]),
        (&json!("api/client"), &json!(0), &json!(4))
    );
    assert_eq!(
        (&one["reset_after"], &one["retry_after"]),
        (&json!("0s"), &Value::Null)
    );
    assert_eq!(one["key"].as_str().map(str::len), Some(32));
    for used in 1..=4 {
        assert_eq!(
            sidecar.http().get("/v1/check?domain=api&client=x").status,
            200
        );
        for _ in 0..2 {
            let one = usage("domain=api&client=x")["usage"][0].take();
            assert_eq!(
                (&one["used"], &one["remaining"]),
                (&json!(used), &json!(4 - used)),
                "looking is free"
            );
        }
    }
    assert!(usage("domain=api&client=x")["usage"][0]["retry_after"].is_string());
    assert_eq!(usage("domain=api&window=x")["usage"][0]["remaining"], 9);
    assert_eq!(usage("domain=api&free=x")["usage"][0]["used"], Value::Null);
    assert_eq!(usage("domain=api&stranger=x")["usage"], json!([]));
    let bad = page(&sidecar, "admin").get("/admin/v1/usage?domain=api");
    assert_eq!(
        (bad.status, bad.message().contains("no entry given")),
        (400, true)
    );
}

#[test]
fn every_start_is_another_incarnation() {
    let incarnation = || start().admin("/admin/v1/status")["incarnation"].take();
    assert_ne!(incarnation(), incarnation());
}

fn delete(sidecar: &Sidecar, query: &str) -> Response {
    let path = format!("/admin/v1/keys?{query}");
    let mut client = page(sidecar, "admin").connect();
    client.request("DELETE", &path, &[], b"")
}

#[test]
fn a_key_that_is_reset_passes_again() {
    let sidecar = start();
    let ask = |query: &str| {
        let path = format!("/v1/check?domain=api&{query}");
        sidecar.http().get(&path).status
    };
    for (query, rule, most) in [
        ("client=x", "api/client", 4),
        ("client=x&path=/files/1", "api/client/path", 5),
        ("window=x", "api/window", 9),
    ] {
        let (all, other) = (format!("{query}&hits_addend={most}"), format!("{query}2"));
        assert_eq!((ask(&all), ask(query)), (200, 429), "{query}");
        assert_eq!(ask(&format!("{other}&hits_addend={most}")), 200);
        let answer = delete(&sidecar, &format!("domain=api&{query}"));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let mut told = answer.json();
        let key = told["reset"][0]["key"].take();
        let usage = sidecar.admin(&format!("/admin/v1/usage?domain=api&{query}"));
        assert_eq!(key, usage["usage"][0]["key"]);
        assert_eq!(usage["usage"][0]["used"], 0);
        let expected = json!({
            "domain": "api", "scope": "pod",
            "reset": [{ "rule": rule, "key": null, "scope": "pod" }],
        });
        assert_eq!(told, expected);
        assert_eq!((ask(&all), ask(query)), (200, 429), "all of it is back");
        assert_eq!(ask(&other), 429, "another key stays as it is");
    }
    let answer = delete(&sidecar, "domain=api&client=never-seen");
    assert_eq!(answer.status, 200, "{}", answer.text());
}

#[test]
fn a_reset_that_means_no_key_is_refused() {
    let sidecar = start();
    for (query, status, code, what) in [
        (
            "domain=api&stranger=x",
            404,
            "NO_RULE",
            "no rule with a limit matches",
        ),
        (
            "domain=nobody&client=x",
            404,
            "NO_RULE",
            "no rule with a limit matches",
        ),
        (
            "domain=api&free=x",
            404,
            "NO_RULE",
            "no rule with a limit matches",
        ),
        ("domain=api", 400, "INVALID_REQUEST", "no entry given"),
        ("", 400, "INVALID_REQUEST", "no entry given"),
        (
            "client=x",
            400,
            "INVALID_REQUEST",
            "domain: must not be empty",
        ),
        (
            "domain=%ff&client=x",
            400,
            "INVALID_REQUEST",
            "must be UTF-8",
        ),
    ] {
        let answer = delete(&sidecar, query);
        assert_eq!(answer.status, status, "{query}: {}", answer.text());
        assert_eq!(answer.json()["error"]["code"], code, "{query}");
        assert!(
            answer.message().contains(what),
            "{query}: {}",
            answer.text()
        );
    }
}

#[test]
fn a_reset_needs_the_token_and_the_host() {
    let setup = SidecarSetup::rules(RULES).listen_also("token_file: token");
    setup.folder.write("token", "s3cret");
    let sidecar = setup.start();
    let all = "/v1/check?domain=api&client=x&hits_addend=4";
    assert_eq!(sidecar.http().get(all).status, 200);
    let token = "Authorization: Bearer s3cret";
    for (headers, status) in [
        (vec![], 401),
        (vec!["Authorization: Bearer wrong"], 401),
        (vec!["Host: evil.example", token], 403),
        (vec![token], 200),
    ] {
        assert_eq!(sidecar.http().get(all).status, 429, "nobody has reset it");
        let mut client = page(&sidecar, "admin").connect();
        let path = "/admin/v1/keys?domain=api&client=x";
        let answer = client.request("DELETE", path, &headers, b"");
        assert_eq!(answer.status, status, "{headers:?}: {}", answer.text());
    }
    assert_eq!(sidecar.http().get(all).status, 200);
}

const PAGES: [&str; 5] = [
    "/admin/v1/status",
    "/admin/v1/rules",
    "/admin/v1/top",
    "/admin/v1/usage?domain=api&client=x",
    "/admin/v1/nowhere",
];

fn ask(door: &Endpoint, path: &str, headers: &[&str]) -> Response {
    door.connect().request("GET", path, headers, b"")
}

#[test]
fn only_a_request_that_names_this_host_is_answered() {
    let listen = LISTEN.replace(
        r#"admin: ["127.0.0.1:0"]"#,
        r#"admin: ["127.0.0.1:0", "unix:a.sock"]"#,
    );
    let sidecar = SidecarSetup::rules(RULES).listen(&listen).start();
    for door in sidecar.doors("admin") {
        for path in PAGES {
            for host in [
                "evil.example",
                "evil.example:7601",
                "127.0.0.1.evil.example",
                "localhost.evil.example",
                "",
            ] {
                let answer = ask(&door, path, &[&format!("Host: {host}")]);
                assert_eq!(answer.status, 403, "{path} for {host:?}: {}", answer.text());
                assert_eq!(answer.json()["error"]["code"], "HOST_REFUSED");
            }
            for host in ["localhost", "127.0.0.1", "localhost:1", "[::1]:7601"] {
                let answer = ask(&door, path, &[&format!("Host: {host}")]);
                assert!(
                    matches!(answer.status, 200 | 404),
                    "{path} for {host:?}: {}",
                    answer.text()
                );
            }
            let mut client = door.connect();
            client.send(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes());
            client.end_sending();
            let answer = client.receive_any().unwrap();
            assert!(answer.contains(" 403 "), "{path} without a Host: {answer}");
        }
    }
    // Health and metrics are for whoever asks: a probe names the pod as it likes.
    let answer = ask(
        &page(&sidecar, "metrics"),
        "/readyz",
        &["Host: pod-7.example"],
    );
    assert_eq!(answer.status, 200);
}

#[test]
fn with_a_token_every_page_needs_it() {
    let setup = SidecarSetup::rules(RULES).listen_also("token_file: token");
    setup.folder.write("token", "  s3cret-token\n");
    let sidecar = setup.start();
    let door = page(&sidecar, "admin");
    let wrong = [
        "X: x",
        "Authorization: Bearer",
        "Authorization: Bearer ",
        "Authorization: Bearer s3cret-toke",
        "Authorization: Bearer s3cret-token1",
        "Authorization: Bearer S3cret-token",
        "Authorization: s3cret-token",
        "Authorization: Basic s3cret-token",
        "Authorization: Bearer wrong",
    ];
    for path in PAGES {
        for header in wrong {
            let answer = ask(&door, path, &[header]);
            assert_eq!(
                answer.status,
                401,
                "{path} with {header:?}: {}",
                answer.text()
            );
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            assert!(!answer.text().contains("s3cret"), "{}", answer.text());
        }
        let expected = if path.ends_with("nowhere") { 404 } else { 200 };
        // The scheme is the same in any case, the token is not.
        for scheme in ["Bearer", "bearer", "BEARER"] {
            let answer = ask(
                &door,
                path,
                &[&format!("Authorization: {scheme} s3cret-token")],
            );
            assert_eq!(answer.status, expected, "{path}: {}", answer.text());
        }
        let answer = ask(
            &door,
            path,
            &["Host: evil.example", "Authorization: Bearer s3cret-token"],
        );
        assert_eq!(
            answer.status, 403,
            "{path}: a token does not make up for the Host"
        );
    }
    // What is read-only needs none.
    assert_eq!(page(&sidecar, "metrics").get("/metrics").status, 200);
    assert!(
        !sidecar.stdout.text().contains("s3cret"),
        "the token is in the log"
    );
}

#[test]
fn an_admin_door_without_a_lock_is_refused() {
    for address in ["0.0.0.0:0", "[::]:0", "192.0.2.7:0"] {
        let listen = format!(r#"http: ["127.0.0.1:0"], admin: ["{address}"]"#);
        let (ran, _folder) = SidecarSetup::rules(RULES).listen(&listen).fail();
        assert_eq!(ran.code, Some(78), "{address}: {ran:?}");
        let expected = "is open to other hosts: give listen.token_file, or listen on loopback";
        assert!(
            ran.stderr.contains("listen.admin[0]: ") && ran.stderr.contains(expected),
            "{ran:?}"
        );
    }
    for (token, expected) in [
        (Some(""), "the admin token in token is empty"),
        (Some(" \n"), "is empty"),
        (None, "read the admin token from token: No such file"),
    ] {
        let setup = SidecarSetup::rules(RULES).listen_also("token_file: token");
        if let Some(token) = token {
            setup.folder.write("token", token);
        }
        let (ran, _folder) = setup.fail();
        assert_eq!(ran.code, Some(78), "{token:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{token:?}: {ran:?}");
    }
}

/// A daemon in which every metric has a value.
fn busy() -> Sidecar {
    let sidecar = start();
    let mut client = sidecar.connect();
    for key in ["client", "free", "window", "trial", "stranger"] {
        for _ in 0..6 {
            let answer = client.get(&format!("/v1/check?domain=api&{key}=x"));
            assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
        }
    }
    assert_eq!(client.get("/v1/check?domain=nobody&x=y").status, 200);
    assert_eq!(client.get("/v1/check").status, 400);
    sidecar
}

#[test]
fn every_metric_is_there_with_its_labels() {
    let sidecar = busy();
    let answer = page(&sidecar, "metrics").get("/metrics");
    assert_eq!(
        answer.header("content-type"),
        Some("text/plain; version=0.0.4; charset=utf-8")
    );
    let metrics = sidecar.metrics();
    let of_a_store = [CIRCUIT_STATE.name, SYNC_STALENESS.name];
    for name in of_a_store {
        assert!(!metrics.types.contains_key(name), "{name} without a store");
    }
    for metric in ALL
        .iter()
        .filter(|metric| !of_a_store.contains(&metric.name))
    {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        assert_eq!(
            metrics.types.get(metric.name).map(String::as_str),
            Some(kind),
            "{}",
            metric.name
        );
        assert_eq!(
            metrics.helps.get(metric.name).map(String::as_str),
            Some(metric.help),
            "{}",
            metric.name
        );
        let mut labels: Vec<&str> = metric.labels.to_vec();
        labels.sort_unstable();
        let series: Vec<_> = metrics
            .series
            .iter()
            .filter(|series| metrics.family(&series.name) == metric.name)
            .collect();
        assert!(!series.is_empty(), "{} has no series", metric.name);
        for series in series {
            let mut found: Vec<&str> = series
                .labels
                .iter()
                .map(|(label, _)| label.as_str())
                .filter(|label| *label != "le")
                .collect();
            found.sort_unstable();
            assert_eq!(found, labels, "{series:?}");
        }
    }
    for series in &metrics.series {
        let family = metrics.family(&series.name);
        assert!(
            ALL.iter().any(|metric| metric.name == family),
            "{} is not documented",
            series.name
        );
        let counter = metrics.types[&family] == "counter";
        assert_eq!(counter, series.name.ends_with("_total"), "{}", series.name);
        assert!(
            series.value.is_finite() && series.value >= 0.0,
            "{series:?}"
        );
    }
}

/// Dashboards and alerts count on these being there before anything has happened.
#[test]
fn what_a_store_would_count_stands_at_zero_without_one() {
    let sidecar = start();
    let metrics = sidecar.metrics();
    for (name, label, values) in [
        (
            "ratelimit_sync_rounds_total",
            "end",
            vec!["settled", "returned", "replayed"],
        ),
        (
            "ratelimit_cells_lost_total",
            "reason",
            vec![
                "evicted", "netted", "kept_out", "refunded", "reset", "store", "rule",
            ],
        ),
        (
            "ratelimit_sync_reason_total",
            "reason",
            vec![
                "trigger",
                "interval",
                "share",
                "live",
                "mitigation",
                "drain",
            ],
        ),
        (
            "ratelimit_redis_errors_total",
            "kind",
            REDIS_ERROR_KINDS.to_vec(),
        ),
        (
            "ratelimit_overshoot_cells_total",
            "rule",
            vec!["api/client", "api/window"],
        ),
    ] {
        for value in values {
            assert_eq!(metrics.of(name, &[(label, value)]), 0.0, "{name} {value}");
        }
    }
    let version = [("version", env!("CARGO_PKG_VERSION"))];
    assert_eq!(metrics.of("ratelimit_build_info", &version), 1.0);
    assert_eq!(metrics.of("ratelimit_mitigations", &[]), 0.0);
    assert_eq!(metrics.of("ratelimit_pods", &[]), 1.0);
    assert_eq!(metrics.of("ratelimit_sync_round_seconds_count", &[]), 0.0);
}

#[test]
fn metrics_tell_what_happened() {
    let sidecar = busy();
    let metrics = sidecar.metrics();
    let decided = |rule: &str, decision: &str| {
        let labels = [("rule", rule), ("decision", decision), ("source", "local")];
        metrics.of("ratelimit_decisions_total", &labels)
    };
    assert_eq!(
        (
            decided("api/client", "allow"),
            decided("api/client", "deny")
        ),
        (4.0, 2.0)
    );
    assert_eq!(
        (decided("api/free", "allow"), decided("api/free", "deny")),
        (6.0, 0.0)
    );
    assert_eq!(
        (
            decided("api/window", "allow"),
            decided("api/window", "deny")
        ),
        (6.0, 0.0)
    );
    assert_eq!(
        (
            decided("api/trial", "allow"),
            decided("api/trial", "shadow_deny")
        ),
        (1.0, 5.0)
    );
    assert_eq!(
        metrics.of("ratelimit_denied_total", &[("rule", "api/client")]),
        2.0
    );
    assert_eq!(
        metrics.of("ratelimit_denied_total", &[("rule", "api/trial")]),
        0.0
    );
    assert_eq!(
        metrics.of("ratelimit_unmatched_total", &[("reason", "rule")]),
        6.0
    );
    assert_eq!(
        metrics.of("ratelimit_unmatched_total", &[("reason", "domain")]),
        1.0
    );
    assert_eq!(
        metrics.of("ratelimit_requests_malformed_total", &[("door", "http")]),
        1.0
    );
    assert_eq!(
        metrics.of("ratelimit_check_duration_seconds_count", &[]),
        31.0
    );
    assert_eq!(
        metrics.of("ratelimit_check_duration_seconds_bucket", &[("le", "+Inf")]),
        31.0
    );
}

/// Nobody has asked yet: that is no reason to tell an operator that limits are used up.
#[test]
fn a_rule_that_nobody_asked_has_everything_left() {
    let sidecar = start();
    let metrics = sidecar.metrics();
    let full = f64::from(u32::MAX);
    for (rule, left) in [
        ("api/client", 4.0),
        ("api/client/path", 5.0),
        ("api/free", full),
        ("api/window", 9.0),
        ("api/trial", 1.0),
    ] {
        let found = metrics.of("ratelimit_remaining", &[("rule", rule)]);
        assert_eq!(found, left, "{rule}");
    }
}

/// What a rule has left is that of its scarcest key.
#[test]
fn the_remaining_cells_of_a_rule_are_those_of_its_scarcest_key() {
    let sidecar = busy();
    let metrics = sidecar.metrics();
    assert_eq!(
        metrics.of("ratelimit_remaining", &[("rule", "api/client")]),
        0.0
    );
    assert_eq!(
        metrics.of("ratelimit_remaining", &[("rule", "api/window")]),
        3.0
    );
    assert_eq!(
        sidecar
            .http()
            .get("/v1/check?domain=api&window=y&hits_addend=8")
            .status,
        200
    );
    assert_eq!(
        sidecar
            .metrics()
            .of("ratelimit_remaining", &[("rule", "api/window")]),
        1.0
    );
    assert_eq!(
        sidecar.http().get("/v1/check?domain=api&window=z").status,
        200
    );
    assert_eq!(
        sidecar
            .metrics()
            .of("ratelimit_remaining", &[("rule", "api/window")]),
        1.0
    );
}

#[test]
fn keys_are_no_labels() {
    let sidecar = busy();
    let before = sidecar.metrics().series.len();
    let mut client = sidecar.connect();
    for nth in 0..2_000 {
        let entries = format!("client=hidden-{nth}&path=/files/hidden-{nth}");
        let paths = [
            format!("domain=api&{entries}"),
            format!("domain=hidden-{nth}&hidden-{nth}=x"),
        ];
        let path = &paths[usize::from(nth % 4 == 3)];
        assert_eq!(client.get(&format!("/v1/check?{path}")).status, 200);
    }
    let text = page(&sidecar, "metrics").get("/metrics").text();
    assert!(!text.contains("hidden"), "{text}");
    let after = sidecar.metrics();
    assert_eq!(after.series.len(), before);
    // The window of `busy` is held elsewhere than the buckets: both count.
    let held = after.of("ratelimit_keys", &[]);
    assert!((1_500.0..=1_510.0).contains(&held), "{held} keys held");
    let of_table = |name, table| after.of(name, &[("table", table)]);
    let tables = ["level", "windowed", "carried"];
    let by_table = tables.map(|table| of_table("ratelimit_table_keys", table));
    assert_eq!(by_table, [held - 1.0, 1.0, 0.0]);
    for table in tables {
        assert_eq!(of_table("ratelimit_table_keys_max", table), 10_000.0);
    }
}

#[test]
fn what_a_client_sends_makes_no_log_lines() {
    for format in ["json", "text"] {
        let top = format!("log: {{ level: trace, format: {format} }}");
        let setup = SidecarSetup::rules(RULES)
            .listen(r#"http: ["unix:t.sock"]"#)
            .top(&top);
        let mut sidecar = setup.start();
        let door = Endpoint::Unix(sidecar.folder().path("t.sock"));
        let mut client = door.connect();
        let nasty = [
            "a\r\nINFO forged",
            "a\nforged\n",
            "\u{1b}[31mforged",
            "forged\0",
            "\u{2028}forged",
            "{\"message\":\"forged\"}",
        ];
        for text in nasty {
            for (key, value) in [("client", text), (text, "x")] {
                for domain in ["api", text] {
                    let body = json!({ "domain": domain, "descriptors": [{ "entries": [{ "key": key, "value": value }] }] });
                    for _ in 0..6 {
                        let answer = client.post("/v1/check", &body.to_string());
                        assert!(matches!(answer.status, 200 | 429), "{}", answer.text());
                    }
                }
            }
            let body = json!({ text: text }).to_string();
            assert_eq!(client.post("/v1/check", &body).status, 400);
        }
        client.send(b"GET /forged\x1b[31m HTTP/1.1\r\nforged\r\n\r\n");
        assert_eq!(client.response().status, 400);
        assert!(client.is_closed());
        sidecar.signal("TERM");
        sidecar.wait(SOON);
        let said = sidecar.stdout.text();
        assert!(said.contains("stopped"), "{said}");
        for line in said.lines() {
            match format {
                "json" => assert!(serde_json::from_str::<Value>(line).is_ok(), "{line:?}"),
                _ => assert!(line.starts_with("20") && line.contains('Z'), "{line:?}"),
            }
            assert!(!line.contains("forged"), "{line:?}");
            assert!(!line.chars().any(char::is_control), "{line:?}");
        }
        assert_eq!(sidecar.stderr.text(), "");
    }
}
