//! Checks over HTTP: what is answered, in body and headers, on TCP and on a Unix socket alike.
//!
//! Limits are per day or slower where a test counts, so that nothing comes back while it does.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testing::{
    Client, Endpoint, Response, SOON, Sidecar, SidecarSetup, now, request, until,
};

const RULES: &str = r#"
- domain: api
  descriptors:
    - { key: client, rate_limit: 3/day }
    - { key: named, rate_limit: { name: 'the "named" one', unit: day, requests_per_unit: 5 } }
    - { key: multiplied, rate_limit: { unit: hour, requests_per_unit: 7, unit_multiplier: 6 } }
    - { key: wide, rate_limit: 10/day }
    - { key: free, rate_limit: { unlimited: true } }
    - { key: closed, rate_limit: { unit: day, requests_per_unit: 0 } }
    - { key: trial, shadow_mode: true, rate_limit: 1/day }
    - { key: quota_a, quota_mode: true, rate_limit: 1/day }
    - { key: quota_b, quota_mode: true, rate_limit: 2/day }
    - { key: quota_trial, quota_mode: true, shadow_mode: true, rate_limit: 1/day }
    - { key: customer, rate_limit: { name: everyone, unit: day, requests_per_unit: 1 } }
    - { key: contract, rate_limit: { name: contract, unit: day, requests_per_unit: 3, replaces: [{ name: everyone }] } }
    - { key: queue, rate_limit: { unit: hour, requests_per_unit: 60, burst: 3, algorithm: leaky_bucket } }
    - { key: window, rate_limit: { unit: year, requests_per_unit: 10, algorithm: fixed_window } }
    - { key: strict_window, count_rejected: true, rate_limit: { unit: year, requests_per_unit: 10, algorithm: fixed_window } }
    - { key: fast, rate_limit: 4/second burst 1 }
    - { key: remote_address, rate_limit: 2/day }
    - { key: a, descriptors: [{ key: b, rate_limit: 1/day }] }
- domain: tree
  match: path
  descriptors:
    - key: tenant
      rate_limit: 5/day
      descriptors:
        - key: user
          rate_limit: 3/day
          descriptors:
            - { key: endpoint, rate_limit: 2/day }
"#;

/// Runs `show` against a daemon, once over TCP and once over its Unix socket.
fn on_both(show: impl Fn(&Sidecar, &Endpoint)) {
    let sidecar = SidecarSetup::rules(RULES).start();
    let doors = sidecar.doors("http");
    assert_eq!(
        doors.iter().map(Endpoint::kind).collect::<Vec<_>>(),
        ["tcp", "unix"]
    );
    for door in &doors {
        show(&sidecar, door);
    }
}

/// A descriptor of `key=value` pairs.
fn descriptor(entries: &[(&str, &str)]) -> Value {
    let entry = |(key, value): &(&str, &str)| json!({ "key": key, "value": value });
    json!({ "entries": entries.iter().map(entry).collect::<Vec<_>>() })
}

fn body(descriptors: &[Value]) -> String {
    json!({ "domain": "api", "descriptors": descriptors }).to_string()
}

/// Asks with one descriptor of one entry.
fn ask(client: &mut Client, key: &str, value: &str) -> Response {
    client.post("/v1/check", &body(&[descriptor(&[(key, value)])]))
}

/// Asks with a JSON body.
fn ask_all(client: &mut Client, body: &Value) -> Response {
    client.post("/v1/check", &body.to_string())
}

/// The answers to `checks`: `a` for 200, `d` for 429, `?` for anything else.
fn letters(answers: impl IntoIterator<Item = Response>) -> String {
    let letter = |answer: Response| match answer.status {
        200 => 'a',
        429 => 'd',
        _ => '?',
    };
    answers.into_iter().map(letter).collect()
}

/// `1.5s` in seconds.
fn seconds(span: &Value) -> f64 {
    let text = span.as_str().unwrap_or_else(|| panic!("no time: {span}"));
    text.strip_suffix('s').unwrap().parse().unwrap()
}

fn header_number(answer: &Response, name: &str) -> u64 {
    let value = answer.header(name);
    let value = value.unwrap_or_else(|| panic!("no {name}: {answer:?}"));
    value.parse().unwrap()
}

/// A list of strings with whole-number parameters, as RFC 9651 has it; anything else fails.
fn structured(field: &str) -> Vec<(String, Vec<(String, u64)>)> {
    let mut list = Vec::new();
    let mut rest = field;
    loop {
        let mut text = String::new();
        rest = rest.strip_prefix('"').expect(field);
        loop {
            let character = rest.chars().next().expect(field);
            rest = &rest[1..];
            match character {
                '"' => break,
                '\\' => {
                    let escaped = rest.chars().next().expect(field);
                    assert!(matches!(escaped, '"' | '\\'), "{field}");
                    text.push(escaped);
                    rest = &rest[1..];
                }
                ' '..='~' => text.push(character),
                _ => panic!("not printable ASCII: {field:?}"),
            }
        }
        let mut parameters = Vec::new();
        while let Some(after) = rest.strip_prefix(';') {
            let (name, after) = after.split_once('=').expect(field);
            assert!(
                name.bytes().all(|byte| byte.is_ascii_lowercase()),
                "{field}"
            );
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            assert!((1..=15).contains(&digits), "{field}");
            parameters.push((name.to_owned(), after[..digits].parse().unwrap()));
            rest = &after[digits..];
        }
        list.push((text, parameters));
        if rest.is_empty() {
            return list;
        }
        rest = rest.strip_prefix(", ").expect(field);
    }
}

#[test]
fn the_burst_passes_and_the_next_is_denied() {
    on_both(|_, door| {
        let kind = door.kind();
        let mut client = door.connect();
        let post: Vec<_> = (0..5).map(|_| ask(&mut client, "client", kind)).collect();
        assert_eq!(letters(post), "aaadd", "POST on {kind}");
        let path = format!("/v1/check?domain=api&client=get-{kind}");
        let get: Vec<_> = (0..5).map(|_| client.get(&path)).collect();
        assert_eq!(letters(get), "aaadd", "GET on {kind}");
    });
}

#[test]
fn both_forms_and_both_transports_share_one_bucket() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let [tcp, unix] = [0, 1].map(|index| sidecar.doors("http")[index].connect());
    let (mut tcp, mut unix) = (tcp, unix);
    let path = "/v1/check?domain=api&client=shared%20%2B+one";
    let answers = [
        tcp.get(path),
        ask(&mut unix, "client", "shared + one"),
        unix.get(path),
        ask(&mut tcp, "client", "shared + one"),
    ];
    assert_eq!(letters(answers), "aaad");
}

#[test]
fn the_body_of_an_allowed_check() {
    on_both(|_, door| {
        let answer = ask(&mut door.connect(), "client", door.kind());
        assert_eq!(answer.header("content-type"), Some("application/json"));
        let expected = json!({
            "overall_code": "OK",
            "statuses": [{
                "code": "OK", "rule": "api/client",
                "current_limit": { "requests_per_unit": 3, "unit": "DAY" },
                "limit_remaining": 2, "duration_until_reset": "28800s", "source": "local",
            }],
        });
        assert_eq!(answer.json(), expected);
    });
}

#[test]
fn the_body_of_a_denied_check() {
    on_both(|_, door| {
        let mut client = door.connect();
        let entries = descriptor(&[("client", door.kind())]);
        let free = descriptor(&[("free", "x")]);
        let answers: Vec<_> = (0..4)
            .map(|_| client.post("/v1/check", &body(&[entries.clone(), free.clone()])))
            .collect();
        let mut found = answers[3].json();
        let wait = seconds(&found["statuses"][0]["retry_after"].take());
        let reset = seconds(&found["statuses"][0]["duration_until_reset"].take());
        assert!((28_000.0..=28_800.0).contains(&wait), "{wait}");
        assert!((86_000.0..=86_400.0).contains(&reset), "{reset}");
        let retry_after = header_number(&answers[3], "retry-after");
        assert_eq!(retry_after as f64, wait.ceil());
        let expected = json!({
            "overall_code": "OVER_LIMIT",
            "statuses": [
                {
                    "code": "OVER_LIMIT", "rule": "api/client",
                    "current_limit": { "requests_per_unit": 3, "unit": "DAY" },
                    "limit_remaining": 0, "duration_until_reset": null, "retry_after": null, "source": "local",
                },
                { "code": "OK", "rule": "api/free", "limit_remaining": 4_294_967_295_u32, "source": "local" },
            ],
            "error": {
                "code": "RATE_LIMITED",
                "message": format!("rate limit 3/day of api/client exceeded: retry after {retry_after} seconds"),
                "retry_after": retry_after, "limit": 3, "window": "1d", "scope": format!("client:{}", door.kind()),
            },
        });
        assert_eq!(found, expected);
    });
}

#[test]
fn the_headers_of_an_answer() {
    on_both(|_, door| {
        let mut client = door.connect();
        let both = [
            descriptor(&[("named", door.kind())]),
            descriptor(&[("wide", door.kind())]),
        ];
        let answers: Vec<_> = (0..6)
            .map(|_| client.post("/v1/check", &body(&both)))
            .collect();
        let policies = [("the \"named\" one", 5), ("api/wide", 10)].map(|(name, quota)| {
            let parameters = vec![("q".to_owned(), quota), ("w".to_owned(), 86_400)];
            (name.to_owned(), parameters)
        });
        for (index, answer) in (0_u64..).zip(&answers) {
            let left = 4_u64.saturating_sub(index);
            assert_eq!(header_number(answer, "x-ratelimit-limit"), 5);
            assert_eq!(header_number(answer, "x-ratelimit-remaining"), left);
            assert_eq!(
                structured(answer.header("ratelimit-policy").unwrap()),
                policies
            );
            let state = structured(answer.header("ratelimit").unwrap());
            let reset = header_number(answer, "x-ratelimit-reset");
            let until = if index < 5 {
                reset
            } else {
                header_number(answer, "retry-after")
            };
            let parameters = vec![("r".to_owned(), left), ("t".to_owned(), until)];
            assert_eq!(state, [("the \"named\" one".to_owned(), parameters)]);
            assert!((1..=86_400).contains(&reset), "{reset}");
        }
        let (first, denied) = (&answers[0], &answers[5]);
        assert_eq!(header_number(first, "x-ratelimit-reset"), 17_280);
        assert_eq!(first.header("retry-after"), None);
        assert_eq!(first.header("x-ratelimit-retry-after"), None);
        let retry_after = header_number(denied, "retry-after");
        assert!((17_000..=17_280).contains(&retry_after), "{retry_after}");
        assert_eq!(
            header_number(denied, "x-ratelimit-retry-after"),
            retry_after
        );
    });
}

/// The names of an answer's headers that are about limits, for an allowed and a denied check.
fn limit_headers(styles: &str) -> (Vec<String>, Vec<Response>) {
    let top = format!("log: {{ format: json }}\nheaders: {styles}");
    let sidecar = SidecarSetup::rules(RULES).top(&top).start();
    let mut client = sidecar.connect();
    let answers: Vec<_> = (0..4).map(|_| ask(&mut client, "client", "x")).collect();
    let mut names: Vec<String> = answers
        .iter()
        .flat_map(|answer| &answer.headers)
        .map(|(name, _)| name.clone())
        .filter(|name| name.contains("ratelimit") || name == "retry-after")
        .collect();
    names.sort();
    names.dedup();
    (names, answers)
}

#[test]
fn header_styles_are_chosen_by_the_configuration() {
    let draft = ["ratelimit", "ratelimit-policy"];
    let legacy =
        ["limit", "remaining", "reset", "retry-after"].map(|end| format!("x-ratelimit-{end}"));
    let legacy: Vec<&str> = legacy.iter().map(String::as_str).collect();
    let sorted = |names: &[&[&str]]| {
        let mut names: Vec<String> = names
            .concat()
            .iter()
            .map(|name| (*name).to_owned())
            .collect();
        names.sort();
        names
    };
    let retry = ["retry-after"];
    for (styles, expected) in [
        ("[draft-11]", sorted(&[&draft, &retry])),
        ("[legacy]", sorted(&[&legacy, &retry])),
        ("[legacy-epoch]", sorted(&[&legacy, &retry])),
        (
            "[draft-11, legacy-epoch]",
            sorted(&[&draft, &legacy, &retry]),
        ),
        ("[]", Vec::new()),
    ] {
        let (names, _) = limit_headers(styles);
        // Retry-After is plain HTTP and comes with a denial under every style.
        let expected = if expected.is_empty() {
            sorted(&[&retry])
        } else {
            expected
        };
        assert_eq!(names, expected, "headers: {styles}");
    }
}

#[test]
fn the_epoch_style_tells_the_reset_as_a_unix_time() {
    let (_, answers) = limit_headers("[legacy-epoch]");
    let date = std::process::Command::new("date")
        .arg("+%s")
        .output()
        .unwrap();
    let today: u64 = String::from_utf8(date.stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let reset = header_number(&answers[0], "x-ratelimit-reset");
    let expected = today + 28_800;
    assert!(
        reset.abs_diff(expected) <= 30,
        "{reset}, expected about {expected}"
    );
}

#[test]
fn limits_are_told_as_they_are_configured() {
    on_both(|_, door| {
        let mut client = door.connect();
        let status = |answer: &Response| answer.json()["statuses"][0].clone();
        let multiplied = status(&ask(&mut client, "multiplied", door.kind()));
        let limit = json!({ "requests_per_unit": 7, "unit": "HOUR", "unit_multiplier": 6 });
        assert_eq!(multiplied["current_limit"], limit);
        let free = ask(&mut client, "free", door.kind());
        let expected = json!({ "code": "OK", "rule": "api/free", "limit_remaining": 4_294_967_295_u32, "source": "local" });
        assert_eq!(status(&free), expected);
        assert_eq!(free.header("x-ratelimit-limit"), None);
        let closed = ask(&mut client, "closed", door.kind());
        assert_eq!((closed.status, closed.header("retry-after")), (429, None));
    });
}

#[test]
fn a_shadow_rule_counts_and_never_denies() {
    on_both(|sidecar, door| {
        let mut client = door.connect();
        let counted = |decision| {
            let labels = [
                ("rule", "api/trial"),
                ("decision", decision),
                ("source", "local"),
            ];
            sidecar.metrics().of("ratelimit_decisions_total", &labels)
        };
        let before = [counted("allow"), counted("shadow_deny"), counted("deny")];
        let answers: Vec<_> = (0..3)
            .map(|_| ask(&mut client, "trial", door.kind()))
            .collect();
        let last = answers[2].json();
        assert_eq!(letters(answers), "aaa");
        assert_eq!(last["overall_code"], "OK");
        assert_eq!(last["statuses"][0]["code"], "OK", "{last}");
        assert_eq!(last["statuses"][0]["shadow"], true, "{last}");
        assert_eq!(last["statuses"][0]["limit_remaining"], 0, "{last}");
        let after = [counted("allow"), counted("shadow_deny"), counted("deny")];
        assert_eq!(after, [before[0] + 1.0, before[1] + 2.0, before[2]]);
    });
}

#[test]
fn quota_rules_deny_only_together() {
    on_both(|_, door| {
        let mut client = door.connect();
        let both = [
            descriptor(&[("quota_a", door.kind())]),
            descriptor(&[("quota_b", door.kind())]),
        ];
        let answers: Vec<_> = (0..4)
            .map(|_| client.post("/v1/check", &body(&both)))
            .collect();
        let codes: Vec<_> = answers
            .iter()
            .map(|answer| {
                let answer = answer.json();
                [0, 1].map(|index| {
                    answer["statuses"][index]["code"]
                        .as_str()
                        .unwrap()
                        .to_owned()
                })
            })
            .collect();
        assert_eq!(letters(answers), "aadd");
        assert_eq!(
            codes,
            [
                ["OK", "OK"],
                ["OVER_LIMIT", "OK"],
                ["OVER_LIMIT"; 2],
                ["OVER_LIMIT"; 2]
            ]
        );
    });
}

/// As envoyproxy/ratelimit: a quota that is in shadow mode is never over, so that the others are never over together.
#[test]
fn a_quota_rule_in_shadow_mode_never_denies_and_lets_the_others_not_either() {
    on_both(|_, door| {
        let mut client = door.connect();
        let both = [
            descriptor(&[("quota_trial", door.kind())]),
            descriptor(&[("quota_a", &format!("{}-trial", door.kind()))]),
        ];
        for code in ["OK", "OVER_LIMIT", "OVER_LIMIT"] {
            let answer = client.post("/v1/check", &body(&both));
            let found = answer.json();
            assert_eq!(answer.status, 200, "{found}");
            let codes = [0, 1].map(|index| found["statuses"][index]["code"].clone());
            assert_eq!(codes, ["OK", code], "{found}");
        }
        // Alone it is denied.
        let answer = client.post("/v1/check", &body(&both[1..]));
        assert_eq!(answer.status, 429, "{}", answer.text());
    });
}

#[test]
fn a_rule_that_replaces_another_counts_instead_of_it() {
    on_both(|_, door| {
        let mut client = door.connect();
        let both = [
            descriptor(&[("customer", door.kind())]),
            descriptor(&[("contract", door.kind())]),
        ];
        let answers: Vec<_> = (0..4)
            .map(|_| client.post("/v1/check", &body(&both)))
            .collect();
        let first = answers[0].json();
        assert_eq!(first["statuses"][0], json!({ "code": "OK" }), "{first}");
        assert_eq!(first["statuses"][1]["rule"], "api/contract", "{first}");
        assert_eq!(letters(answers), "aaad");
        let alone = ask(&mut client, "customer", door.kind());
        assert_eq!(
            alone.status,
            200,
            "the replaced rule was charged: {}",
            alone.text()
        );
    });
}

#[test]
fn every_rule_on_the_way_holds_in_a_domain_that_matches_by_path() {
    on_both(|_, door| {
        let mut client = door.connect();
        let kind = door.kind();
        let paths = [
            ("u1", "e1"),
            ("u1", "e1"),
            ("u1", "e1"),
            ("u1", "e2"),
            ("u1", "e3"),
            ("u2", "e1"),
            ("u2", "e1"),
            ("u3", "e1"),
        ];
        let ask = |client: &mut Client, (user, endpoint): (&str, &str)| {
            client.get(&format!(
                "/v1/check?domain=tree&tenant={kind}&user={user}&endpoint={endpoint}"
            ))
        };
        let answers: Vec<_> = paths.map(|path| ask(&mut client, path)).into();
        let rules: Vec<_> = answers
            .iter()
            .map(|answer| {
                answer.json()["statuses"][0]["rule"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect();
        // e1 is used up by two, u1 by three, the tenant by five; what was denied was charged nowhere.
        assert_eq!(letters(answers), "aadadaad");
        assert_eq!(
            [&rules[2], &rules[4], &rules[7]],
            [
                "tree/tenant/user/endpoint",
                "tree/tenant/user",
                "tree/tenant"
            ]
        );
    });
}

#[test]
fn a_leaky_bucket_tells_the_delay() {
    on_both(|_, door| {
        let mut client = door.connect();
        let answers: Vec<_> = (0..4)
            .map(|_| ask(&mut client, "queue", door.kind()))
            .collect();
        let delays: Vec<_> = answers
            .iter()
            .map(|answer| answer.json()["statuses"][0]["delay"].clone())
            .collect();
        assert_eq!(delays[0], Value::Null);
        assert!((30.0..=60.0).contains(&seconds(&delays[1])), "{delays:?}");
        assert!((90.0..=120.0).contains(&seconds(&delays[2])), "{delays:?}");
        assert_eq!(delays[3], Value::Null);
        assert_eq!(letters(answers), "aaad");
    });
}

#[test]
fn a_denied_check_is_counted_only_where_the_rule_says_so() {
    on_both(|_, door| {
        let mut client = door.connect();
        for (key, left) in [("window", 2), ("strict_window", 0)] {
            let cost = |cost: u64| json!({ "domain": "api", "hits_addend": cost, "descriptors": [descriptor(&[(key, door.kind())])] });
            let answers = [
                ask_all(&mut client, &cost(8)),
                ask_all(&mut client, &cost(5)),
            ];
            assert_eq!(letters(answers), "ad", "{key}");
            let peek = client.get(&format!(
                "/v1/check?domain=api&{key}={}&peek=1",
                door.kind()
            ));
            assert_eq!(peek.json()["statuses"][0]["limit_remaining"], left, "{key}");
        }
    });
}

#[test]
fn costs_of_the_check_and_of_its_descriptors() {
    on_both(|_, door| {
        let mut client = door.connect();
        let kind = door.kind();
        // hits_addend of the check, of the descriptor, peek, and what is left of ten afterwards.
        let cases = [
            (Value::Null, Value::Null, false, 9),
            (json!(0), Value::Null, false, 8),
            (json!(3), Value::Null, false, 5),
            (json!(3), json!(1), false, 4),
            (json!(3), json!(0), false, 4),
            (json!(3), Value::Null, true, 4),
            (Value::Null, json!(4), true, 4),
            (Value::Null, json!(4), false, 0),
        ];
        for (whole, own, peek, left) in cases {
            let mut asked = json!({ "domain": "api", "peek": peek, "descriptors": [descriptor(&[("wide", kind)])] });
            let case = format!("{whole} {own} {peek}");
            if !whole.is_null() {
                asked["hits_addend"] = whole;
            }
            if !own.is_null() {
                asked["descriptors"][0]["hits_addend"] = own;
            }
            let answer = ask_all(&mut client, &asked);
            assert_eq!(answer.status, 200, "{case}: {}", answer.text());
            assert_eq!(
                answer.json()["statuses"][0]["limit_remaining"],
                left,
                "{case}"
            );
        }
        for query in [
            "peek=true",
            "peek",
            "peek=1",
            "peek=false",
            "hits_addend=0",
            "hits_addend=2",
        ] {
            let answer = client.get(&format!("/v1/check?domain=api&wide={kind}&{query}"));
            assert_eq!(
                answer.status,
                429,
                "nothing is left, {query}: {}",
                answer.text()
            );
            assert!(answer.header("retry-after").is_some(), "{query}");
        }
    });
}

#[test]
fn a_cost_above_the_burst_is_denied_for_good() {
    on_both(|_, door| {
        let mut client = door.connect();
        for cost in ["4", "18446744073709551615"] {
            let path = format!(
                "/v1/check?domain=api&client={}&hits_addend={cost}",
                door.kind()
            );
            let answer = client.get(&path);
            assert_eq!(answer.status, 429, "{}", answer.text());
            assert_eq!(answer.header("retry-after"), None);
            assert_eq!(answer.header("x-ratelimit-retry-after"), None);
            // Not at once: who reads that nothing has to be waited for comes back at once, for ever.
            assert_eq!(answer.header("x-ratelimit-reset"), Some("86400"));
            let found = answer.json();
            assert_eq!(found["error"].get("retry_after"), None, "{found}");
            assert_eq!(found["statuses"][0].get("retry_after"), None, "{found}");
            assert_eq!(found["statuses"][0]["limit_remaining"], 3, "{found}");
            assert!(
                answer.message().contains("no wait will let it pass"),
                "{found}"
            );
        }
    });
}

#[test]
fn a_denied_check_consumes_nothing_anywhere() {
    on_both(|_, door| {
        let mut client = door.connect();
        let both = [
            descriptor(&[("wide", door.kind())]),
            descriptor(&[("client", door.kind())]),
        ];
        let answers: Vec<_> = (0..6)
            .map(|_| client.post("/v1/check", &body(&both)))
            .collect();
        let last = answers[5].json();
        assert_eq!(letters(answers), "aaaddd");
        assert_eq!(last["statuses"][0]["code"], "OK");
        assert_eq!(last["statuses"][0]["limit_remaining"], 7, "{last}");
        assert_eq!(last["statuses"][1]["code"], "OVER_LIMIT");
        let alone = ask(&mut client, "wide", door.kind());
        assert_eq!(
            alone.json()["statuses"][0]["limit_remaining"],
            6,
            "{}",
            alone.text()
        );
    });
}

/// One cell comes back every 250 ms. Two checks in one write: the second is denied, whatever the machine does.
#[test]
fn retry_after_is_neither_too_long_nor_too_short() {
    on_both(|_, door| {
        let mut client = door.connect();
        let path = format!("/v1/check?domain=api&fast={}", door.kind());
        let asked = now();
        client.send(&request("GET", &path, &[], b"").repeat(2));
        let (first, denied) = (client.response(), client.response());
        let answered = now();
        assert_eq!(letters([first, denied.clone()]), "ad");
        assert_eq!(header_number(&denied, "retry-after"), 1);
        let wait = seconds(&denied.json()["statuses"][0]["retry_after"]);
        let wait = Duration::from_secs_f64(wait);
        assert!(wait <= Duration::from_millis(250), "{wait:?}");
        // Not before: it was denied after `asked`, and its answer is rounded up to the millisecond.
        let passed = until("the next to pass", SOON, || {
            (client.get(&path).status == 200).then(now)
        });
        let passed = passed.duration_since(asked) + Duration::from_millis(1);
        assert!(
            passed >= wait,
            "passed {passed:?} after the denial that said {wait:?}"
        );
        // Not after: a client that waits as long passes at once.
        let path = format!("{path}-again");
        client.send(&request("GET", &path, &[], b"").repeat(2));
        let (_, denied) = (client.response(), client.response());
        let answered = answered.max(now());
        let wait = seconds(&denied.json()["statuses"][0]["retry_after"]);
        let wait = Duration::from_secs_f64(wait);
        until("the wait to be over", SOON, || {
            (answered.elapsed() >= wait).then_some(())
        });
        let waited = client.get(&path);
        assert_eq!(waited.status, 200, "after {wait:?}: {}", waited.text());
    });
}

#[test]
fn a_denial_has_the_status_the_caller_asks_for() {
    on_both(|_, door| {
        let mut client = door.connect();
        let path = format!(
            "/v1/check?domain=api&deny_status=403&client={}",
            door.kind()
        );
        let statuses = [0; 4].map(|_| client.get(&path).status);
        assert_eq!(statuses, [200, 200, 200, 403]);
    });
}

#[test]
fn what_nothing_limits_passes_and_is_counted() {
    on_both(|sidecar, door| {
        let mut client = door.connect();
        let unmatched = |reason| {
            sidecar
                .metrics()
                .of("ratelimit_unmatched_total", &[("reason", reason)])
        };
        let before = [unmatched("domain"), unmatched("rule")];
        for path in [
            "/v1/check?domain=nobody&client=x",
            "/v1/check?domain=api&stranger=x",
            "/v1/check?domain=api&a=x",
        ] {
            let answer = client.get(path);
            assert_eq!(answer.status, 200);
            assert_eq!(
                answer.json(),
                json!({ "overall_code": "OK", "statuses": [{ "code": "OK" }] })
            );
            assert_eq!(answer.header("x-ratelimit-limit"), None);
            assert_eq!(answer.header("ratelimit"), None);
        }
        assert_eq!(
            [unmatched("domain"), unmatched("rule")],
            [before[0] + 1.0, before[1] + 2.0]
        );
    });
}

#[test]
fn addresses_of_one_client_share_a_bucket() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let mut passes = |addresses: &[&str]| {
        let answers: Vec<_> = addresses
            .iter()
            .map(|address| ask(&mut client, "remote_address", address))
            .collect();
        letters(answers)
    };
    assert_eq!(
        passes(&["192.0.2.7", "::ffff:192.0.2.7", "::FFFF:c000:207"]),
        "aad"
    );
    assert_eq!(passes(&["192.0.2.8"]), "a");
    assert_eq!(
        passes(&["2001:db8::1", "2001:DB8:0:0:ffff::2", "2001:db8:0:0::3"]),
        "aad"
    );
    assert_eq!(passes(&["2001:db8:0:1::1"]), "a");
    assert_eq!(
        passes(&["not an address", "not an address", "NOT an address"]),
        "aaa"
    );
}

#[test]
fn keys_that_look_alike_once_joined_are_different() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let pairs = [
        ("x:y", "z"),
        ("x", "y:z"),
        ("x:y:z", ""),
        ("", "x:y:z"),
        ("x_y", "z"),
        ("x", "y_z"),
        ("x/y", "z"),
        ("x", "y/z"),
        ("x\0y", "z"),
        ("x", "y\0z"),
        ("xy", "z"),
        ("x", "yz"),
        ("\u{1}x", "z"),
        ("x,b=z", "z"),
        ("é", "e"),
        ("e\u{301}", "e"),
    ];
    for round in ["a", "d"] {
        for (a, b) in pairs {
            let answer = client.post("/v1/check", &body(&[descriptor(&[("a", a), ("b", b)])]));
            assert_eq!(letters([answer]), round, "{a:?} {b:?}");
        }
    }
}

#[test]
fn curl_gets_the_same_on_both_transports() {
    on_both(|sidecar, door| {
        let (to, url) = match door {
            Endpoint::Tcp(address) => (String::new(), format!("http://{address}")),
            Endpoint::Unix(_) => (
                "--unix-socket t.sock".to_owned(),
                "http://localhost".to_owned(),
            ),
        };
        let line = format!(
            r#"curl -sS -w '%{{http_code}}\n' -o /dev/null {to} '{url}/v1/check?domain=api&client=curl-{}'"#,
            door.kind()
        );
        let codes = [0; 4].map(|_| sidecar.folder().shell(&line));
        let codes = codes.map(|ran| format!("{}{}", ran.stdout.trim(), ran.stderr));
        assert_eq!(codes, ["200", "200", "200", "429"]);
        let data = body(&[descriptor(&[("client", &format!("curl-{}", door.kind()))])]);
        let line = format!("curl -sS -i {to} -d '{data}' '{url}/v1/check'");
        let ran = sidecar.folder().shell(&line);
        assert!(ran.stdout.starts_with("HTTP/1.1 429 "), "{ran:?}");
    });
}

#[test]
fn the_line_to_try_works_as_it_is_printed() {
    let rules = r#"
- domain: "it's a domain & more"
  descriptors: [{ key: "a key", value: "100% 'quoted' *", rate_limit: 1/day }]
"#;
    for listen in [r#"http: ["127.0.0.1:0"]"#, r#"http: ["unix:t.sock"]"#] {
        let sidecar = SidecarSetup::rules(rules).listen(listen).start();
        let events = sidecar.events();
        let lines: Vec<_> = events
            .iter()
            .filter_map(|event| event["message"].as_str()?.strip_prefix("try: "))
            .collect();
        assert_eq!(lines.len(), 1, "{events:?}");
        for status in ["200 ", "429 "] {
            let ran = sidecar.folder().shell(&format!("{} -sS", lines[0]));
            assert!(
                ran.stdout.starts_with(&format!("HTTP/1.1 {status}")),
                "{}: {ran:?}",
                lines[0]
            );
        }
    }
}
