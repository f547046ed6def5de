//! `POST /json`, as envoyproxy/ratelimit has it: protobuf's JSON in and out.

use serde_json::{Value, json};
use tidegate_testing::{Client, Response, SidecarSetup};

use super::grpc::RULES;

fn post(client: &mut Client, body: &Value) -> Response {
    client.post("/json", &body.to_string())
}

/// A check of one descriptor of one entry.
fn check(key: &str, value: &str) -> Value {
    json!({ "domain": "api", "descriptors": [{ "entries": [{ "key": key, "value": value }] }] })
}

#[test]
fn the_answer_is_in_protobufs_json_with_defaults_left_out() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let answer = post(&mut client, &check("client", "v"));
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (200, Some("application/json"))
    );
    assert_eq!(answer.header("x-ratelimit-remaining"), Some("2"));
    let header = |key: &str, value: &str| json!({ "key": key, "value": value });
    let expected = json!({
        "overallCode": "OK",
        "statuses": [{
            "code": "OK",
            "currentLimit": { "requestsPerUnit": 3, "unit": "DAY" },
            "limitRemaining": 2,
            "durationUntilReset": "28800s",
        }],
        "responseHeadersToAdd": [
            header("ratelimit-policy", "\"api/client\";q=3;w=86400"),
            header("ratelimit", "\"api/client\";r=2;t=28800"),
            header("x-ratelimit-limit", "3"),
            header("x-ratelimit-remaining", "2"),
            header("x-ratelimit-reset", "28800"),
        ],
        "dynamicMetadata": { "descriptor": 0, "rule": "api/client", "source": "local" },
    });
    assert_eq!(answer.json(), expected);
    let nothing = post(&mut client, &check("nothing", "v"));
    assert_eq!(
        nothing.json(),
        json!({ "overallCode": "OK", "statuses": [{ "code": "OK" }] })
    );
    let named = post(&mut client, &check("named", "v")).json();
    let limit = json!({ "name": "gold", "requestsPerUnit": 5, "unit": "WEEK" });
    assert_eq!(named["statuses"][0]["currentLimit"], limit);
    let multiplied = post(&mut client, &check("multiplied", "v")).json();
    assert_eq!(
        multiplied["statuses"][0]["currentLimit"]["unitMultiplier"],
        6
    );
}

#[test]
fn a_denial_is_a_429_that_says_what_is_left_by_leaving_it_out() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let statuses: Vec<_> = (0..4)
        .map(|_| post(&mut client, &check("client", "v")).status)
        .collect();
    assert_eq!(statuses, [200, 200, 200, 429]);
    let denial = post(&mut client, &check("client", "v"));
    assert_eq!(denial.header("retry-after"), Some("28800"));
    let body = denial.json();
    assert_eq!(
        (&body["overallCode"], &body["statuses"][0]["code"]),
        (&json!("OVER_LIMIT"), &json!("OVER_LIMIT"))
    );
    assert!(
        body["statuses"][0].get("limitRemaining").is_none(),
        "{body}"
    );
}

#[test]
fn fields_may_be_in_camel_case_or_not_and_numbers_in_quotes() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    let entries = json!([{ "key": "wide", "value": "v" }]);
    let mut left = |request: Value, of_descriptor: Value| {
        let mut body = json!({ "domain": "api", "descriptors": [{ "entries": entries }] });
        body.as_object_mut()
            .unwrap()
            .extend(request.as_object().unwrap().clone());
        body["descriptors"][0]
            .as_object_mut()
            .unwrap()
            .extend(of_descriptor.as_object().unwrap().clone());
        let answer = post(&mut client, &body);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["statuses"][0]["limitRemaining"]
            .as_u64()
            .unwrap_or(0)
    };
    assert_eq!(left(json!({}), json!({})), 9);
    assert_eq!(left(json!({ "hitsAddend": 2 }), json!({})), 7);
    assert_eq!(left(json!({ "hits_addend": "2" }), json!({})), 5);
    assert_eq!(
        left(json!({ "hitsAddend": null }), json!({ "hitsAddend": "2" })),
        3
    );
    assert_eq!(
        left(json!({ "hitsAddend": 3 }), json!({ "hits_addend": 0 })),
        3
    );
    assert_eq!(
        left(
            json!({ "hitsAddend": 3 }),
            json!({ "hitsAddend": null, "isNegativeHits": false })
        ),
        0
    );
}

#[test]
fn a_limit_can_be_carried_by_the_name_or_the_number_of_its_unit() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    for (field, unit, expected) in [
        ("requestsPerUnit", json!("DAY"), 200),
        ("requests_per_unit", json!(4), 200),
        ("requestsPerUnit", json!("day"), 400),
        ("requestsPerUnit", json!("UNKNOWN"), 429),
        ("requestsPerUnit", json!(7), 429),
    ] {
        let mut body = check("client", "carried");
        body["descriptors"][0]["limit"] = json!({ field: 50, "unit": unit });
        let status = post(&mut client, &body).status;
        assert_eq!(status, expected, "{field} {unit}");
    }
}

#[test]
fn what_is_no_check_is_a_400() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let mut client = sidecar.connect();
    for (body, words) in [
        ("", "EOF while parsing"),
        ("{}", "domain: must not be empty"),
        ("[]", "invalid"),
        (r#"{"domain":"api"}"#, "descriptors: must be 1 to 64, are 0"),
        (r#"{"domain":"api","other":1}"#, "other: unknown field"),
        (
            r#"{"domain":"api","hitsAddend":-1}"#,
            "invalid type: integer `-1`, expected a whole number",
        ),
        (
            r#"{"domain":"api","hitsAddend":4294967296}"#,
            "is not a whole number that fits",
        ),
        (
            r#"{"domain":"api","hitsAddend":1,"hits_addend":1}"#,
            "duplicate field",
        ),
    ] {
        let answer = client.post("/json", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(
            answer.message().contains(words),
            "{body}: {}",
            answer.message()
        );
    }
    let get = client.get("/json");
    assert_eq!((get.status, get.header("allow")), (405, Some("POST")));
}

#[test]
fn what_is_over_a_bound_is_denied_and_says_why() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let entry = r#"{"key":"client","value":"v"}"#;
    let with = |entries: &[&str]| {
        let entries = entries.join(",");
        format!(r#"{{"domain":"api","descriptors":[{{"entries":[{entries}]}}]}}"#)
    };
    let many = vec![r#"{"entries":[]}"#; 65].join(",");
    let long = format!(r#"{{"key":"{}"}}"#, "k".repeat(1025));
    for (body, reason) in [
        (
            with(&[entry; 33]),
            "descriptors[0].entries: must be 1 to 32, are 33",
        ),
        (
            format!(r#"{{"domain":"api","descriptors":[{many}]}}"#),
            "descriptors: must be 1 to 64, are 65",
        ),
        (
            with(&[&long]),
            "descriptors[0].entries[0].key: must be at most 1024 bytes, is 1025",
        ),
        ("x".repeat(70_000), "the body must be at most 65536 bytes"),
    ] {
        let answer = sidecar.connect().post("/json", &body);
        assert_eq!(answer.status, 429, "{reason}: {}", answer.text());
        let found = answer.json();
        assert_eq!(found["overallCode"], "OVER_LIMIT", "{found}");
        assert_eq!(found["dynamicMetadata"]["reason"], reason, "{found}");
    }
    // What no rule can meet is no reason to fail.
    for descriptor in ["{}", r#"{"entries":[{"value":"v"}]}"#] {
        let body = format!(r#"{{"domain":"api","descriptors":[{descriptor}]}}"#);
        let answer = sidecar.connect().post("/json", &body);
        assert_eq!(answer.status, 200, "{descriptor}: {}", answer.text());
    }
}
