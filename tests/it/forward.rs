//! `GET /v1/forward`: what a proxy asks, with the values in headers.

use tidegate_testing::{Client, Response, SidecarSetup};

const RULES: &str = r#"
- domain: edge
  descriptors:
    - { key: api_key, rate_limit: 2/day }
    - { key: remote_address, rate_limit: 2/day }
    - { key: path, rate_limit: 2/day }
    - { key: a, descriptors: [{ key: b, rate_limit: 2/day }] }
"#;

const BY_KEY: &str = "/v1/forward?domain=edge&api_key=@x-api-key";

fn ask(client: &mut Client, path: &str, headers: &[&str]) -> Response {
    client.request("GET", path, headers, b"")
}

/// Asks once with each of these headers.
fn statuses<const N: usize>(client: &mut Client, path: &str, headers: [&str; N]) -> [u16; N] {
    headers.map(|header| ask(client, path, &[header]).status)
}

#[test]
fn each_value_of_the_header_has_a_bucket() {
    let sidecar = SidecarSetup::rules(RULES).start();
    for door in sidecar.doors("http") {
        let mut client = door.connect();
        let [one, other] =
            ["one", "other"].map(|name| format!("X-Api-Key: {name}-{}", door.kind()));
        let headers = [&one[..], &one, &one, &other, &one];
        let found = statuses(&mut client, BY_KEY, headers);
        assert_eq!(found, [200, 200, 429, 200, 429]);
        let denied = ask(&mut client, &format!("{BY_KEY}&deny_status=403"), &[&one]);
        assert_eq!(denied.status, 403);
        assert!(denied.header("retry-after").is_some(), "{denied:?}");
        assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    }
}

/// It is the same check as with the value in the query.
#[test]
fn it_shares_its_bucket_with_the_other_forms() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let encoded = "/v1/check?domain=edge&api_key=a%26peek%3Dtrue%20%2525";
    let header = ["X-Api-Key: a&peek=true %25"];
    assert_eq!(statuses(&mut client, BY_KEY, header), [200]);
    assert_eq!(client.get(encoded).status, 200);
    assert_eq!(statuses(&mut client, BY_KEY, header), [429]);
    assert_eq!(client.get(encoded).status, 429);
    // And without an @, it is the other form.
    let plain = "/v1/forward?domain=edge&api_key=a%26peek%3Dtrue%20%2525";
    assert_eq!(client.get(plain).status, 429);
    // There, an @ means nothing.
    let literal = "/v1/check?domain=edge&api_key=@x-api-key";
    let found = [0; 3].map(|_| ask(&mut client, literal, &["X-Api-Key: other"]).status);
    assert_eq!(found, [200, 200, 429]);
}

#[test]
fn requests_without_the_header_share_a_bucket() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let found = statuses(&mut client, BY_KEY, ["X-Api-Key: ", "Other: 1", "Other: 2"]);
    assert_eq!(found, [200, 200, 429]);
}

#[test]
fn entries_keep_their_order() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let path = "/v1/forward?a=fixed&deny_status=401&b=@x-b&domain=edge";
    let found = statuses(&mut client, path, ["X-B: 1", "X-B: 1", "X-B: 1", "X-B: 2"]);
    assert_eq!(found, [200, 200, 401, 200]);
}

/// The headers that Traefik's forwardAuth adds, and one that a client made up before them.
#[test]
fn what_traefik_sends() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let path = "/v1/forward?domain=edge&remote_address=@x-forwarded-for";
    let found = [1, 2, 3].map(|nth| {
        let forwarded_for = format!("X-Forwarded-For: 198.51.100.{nth}, 192.0.2.7");
        let headers = [
            &forwarded_for,
            "X-Forwarded-Method: POST",
            "X-Forwarded-Proto: https",
            "X-Forwarded-Host: example.org",
            "X-Forwarded-Uri: /orders?page=1",
            "User-Agent: someone",
            "Accept-Encoding: gzip",
        ];
        ask(&mut client, path, &headers).status
    });
    assert_eq!(found, [200, 200, 429]);
    let path = "/v1/forward?domain=edge&path=@x-forwarded-uri";
    let uris = ["?a", "?b", ""].map(|query| format!("X-Forwarded-Uri: /orders{query}"));
    let found = statuses(&mut client, path, [&uris[0], &uris[1], &uris[2]]);
    assert_eq!(found, [200, 200, 429]);
}

#[test]
fn what_no_limit_can_be_kept_for_is_refused_and_counted() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let cases: [(&str, &[&str], &str); 5] = [
        (BY_KEY, &["X-Api-Key: 1", "X-Api-Key: 2"], "given twice"),
        ("/v1/forward?domain=edge&api_key=@", &[], "name of a header"),
        (
            "/v1/forward?domain=edge&api_key=@a(b)",
            &[],
            "name of a header",
        ),
        ("/v1/forward?domain=edge", &[], "no entry given"),
        ("/v1/forward", &[], "no entry given"),
    ];
    let count = cases.len();
    for (path, headers, what) in cases {
        let refused = ask(&mut client, path, headers);
        assert_eq!(refused.status, 400, "{path}: {}", refused.text());
        assert!(
            refused.message().contains(what),
            "{path}: {}",
            refused.text()
        );
    }
    let malformed = sidecar
        .metrics()
        .of("ratelimit_requests_malformed_total", &[("door", "http")]);
    let expected = u32::try_from(count).unwrap();
    assert_eq!(malformed, f64::from(expected));
}

#[test]
fn it_is_asked_with_get_only() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let refused = client.request(method, BY_KEY, &[], b"");
        assert_eq!(refused.status, 405, "{method}: {}", refused.text());
        assert_eq!(refused.header("allow"), Some("GET"));
    }
    // A body that comes along is not read as anything.
    let answer = client.request("GET", BY_KEY, &["X-Api-Key: body"], b"{}");
    assert_eq!(answer.status, 200);
    assert_eq!(ask(&mut client, BY_KEY, &["X-Api-Key: body"]).status, 200);
}

const PATHS: &str = r#"
- domain: edge
  descriptors:
    - { key: path, rate_limit: 3/day }
    - { key: path, value: /login, rate_limit: { unit: day, requests_per_unit: 0 } }
    - { key: path, value: "/admin/*", rate_limit: { unit: day, requests_per_unit: 0 } }
    - { key: endpoint, rate_limit: 1000/day }
    - { key: endpoint, value: "GET /login/", rate_limit: { unit: day, requests_per_unit: 0 } }
"#;

/// Spellings that an application serves as it serves `/login`.
const LOGINS: [&str; 8] = [
    "/login",
    "/lo%67in",
    "//login",
    "/login/",
    "/./login",
    "/x/../login",
    "/%2e/x/%2E%2e/login//?next=/",
    "http://host/login",
];

#[test]
fn every_spelling_of_a_path_meets_its_rule() {
    let sidecar = SidecarSetup::rules(PATHS).start();
    let mut client = sidecar.connect();
    let by_path = "/v1/forward?domain=edge&path=@x-forwarded-uri";
    for path in LOGINS {
        let header = format!("X-Forwarded-Uri: {path}");
        let answer = ask(&mut client, by_path, &[&header]);
        assert_eq!(answer.status, 429, "{path}: {}", answer.text());
    }
    // A folder is asked for with its slash and without.
    for path in ["/admin", "/admin/", "/admin/x", "//admin/./x/"] {
        let header = format!("X-Forwarded-Uri: {path}");
        let answer = ask(&mut client, by_path, &[&header]);
        assert_eq!(answer.status, 429, "{path}: {}", answer.text());
    }
    // All spellings share a bucket where the key alone is met.
    let orders = ["/orders", "//orders", "/orders/", "/%6frders"];
    let orders = orders.map(|path| format!("X-Forwarded-Uri: {path}"));
    let found = statuses(
        &mut client,
        by_path,
        [&orders[0], &orders[1], &orders[2], &orders[3]],
    );
    assert_eq!(found, [200, 200, 200, 429]);
    // Elsewhere values are as they are sent, unless the configuration says otherwise.
    assert_eq!(client.get("/v1/check?domain=edge&path=//login").status, 200);
}

#[test]
fn paths_are_normalised_where_the_configuration_says_so() {
    let setup = SidecarSetup::rules(PATHS)
        .top("log: { format: json }\npaths: { keys: [endpoint], forward_keys: [] }");
    let sidecar = setup.start();
    let mut client = sidecar.connect();
    // The rule is written with a slash at its end, which is left out of both.
    for path in LOGINS.iter().filter(|path| path.starts_with('/')) {
        let path = path.replace('%', "%25").replace('?', "%3F");
        let answer = client.get(&format!("/v1/check?domain=edge&endpoint=GET%20{path}"));
        assert_eq!(answer.status, 429, "{path}: {}", answer.text());
    }
    let header = "X-Forwarded-Uri: //login";
    let by_path = "/v1/forward?domain=edge&path=@x-forwarded-uri";
    assert_eq!(ask(&mut client, by_path, &[header]).status, 200);
}

#[test]
fn a_port_makes_no_other_client() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    for key in ["remote_address", "api_key"] {
        let path = format!("/v1/forward?domain=edge&{key}=@x-forwarded-for");
        let four = ["192.0.2.7:1", "192.0.2.7:2", "192.0.2.7"];
        let four = four.map(|address| format!("X-Forwarded-For: {address}"));
        let found = statuses(&mut client, &path, [&four[0], &four[1], &four[2]]);
        assert_eq!(found, [200, 200, 429], "{key}");
        let six = ["[2001:db8::1]:1", "[2001:db8::1]:2", "2001:db8::1"];
        let six = six.map(|address| format!("X-Forwarded-For: {address}"));
        let found = statuses(&mut client, &path, [&six[0], &six[1], &six[2]]);
        assert_eq!(found, [200, 200, 429], "{key}");
    }
    // Whichever door it comes by.
    let answer = client.get("/v1/check?domain=edge&remote_address=192.0.2.7:4711");
    assert_eq!(answer.status, 429, "{}", answer.text());
}
