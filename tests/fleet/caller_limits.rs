//! Caller-supplied limits, and cells that callers give back, across a fleet.

use std::time::Duration;

use serde_json::{Value, json};
use tidegate_testing::fleet::pods::SidecarFleet;
use tidegate_testing::stores::{RedisServer, StoreUnderTest};
use tidegate_testing::until;

use super::shared;

/// For news and rounds to get around.
const SOON: Duration = Duration::from_secs(10);

const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - { key: minute, rate_limit: 60/minute, report: always }\n      \
    - { key: hour, rate_limit: 60/hour, report: always }\n      \
    - { key: strict, rate_limit: 60/minute, consistency: strict }\n      \
    - { key: window, rate_limit: { unit: hour, requests_per_unit: 60, algorithm: fixed_window } }";

fn two() -> (RedisServer, SidecarFleet) {
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::sharing(2, &store.section(), RULES);
    (store, fleet)
}

/// What a pod says to a check of one descriptor.
fn ask(fleet: &SidecarFleet, pod: usize, key: &str, descriptor: Value) -> (u16, Value) {
    ask_value(fleet, pod, (key, "a"), descriptor)
}

fn ask_value(
    fleet: &SidecarFleet,
    pod: usize,
    (key, value): (&str, &str),
    mut descriptor: Value,
) -> (u16, Value) {
    descriptor["entries"] = json!([{ "key": key, "value": value }]);
    let body = json!({ "domain": "fleet", "descriptors": [descriptor] });
    let response = fleet.pods[pod]
        .sidecar
        .connect()
        .post("/json", &body.to_string());
    (response.status, response.json())
}

/// The cells that a pod believes to be left after it has used one, if there was one.
fn use_one(fleet: &SidecarFleet, pod: usize, key: &str) -> Option<u64> {
    std::thread::park_timeout(Duration::from_millis(20));
    let (status, answer) = ask(fleet, pod, key, json!({ "hitsAddend": 1 }));
    let left = answer["statuses"][0]["limitRemaining"].as_u64();
    (status == 200).then_some(left.unwrap_or(0))
}

#[test]
fn a_caller_supplied_limit_is_held_by_the_fleet() {
    let _machine = shared();
    let (_store, fleet) = two();
    let descriptor = json!({ "limit": { "requestsPerUnit": 20, "unit": "HOUR" } });
    let passed: usize = (0..40)
        .map(|nth| {
            let (status, _) = ask(&fleet, nth % 2, "any", descriptor.clone());
            // A pod reports a check after it has answered it, so the other pod may miss the last one or two.
            std::thread::park_timeout(Duration::from_millis(20));
            usize::from(status == 200)
        })
        .sum();
    assert!((20..=22).contains(&passed), "{passed}");
    until("both pods deny", SOON, || {
        let denied = |pod| ask(&fleet, pod, "any", descriptor.clone()).0 == 429;
        (denied(0) && denied(1)).then_some(())
    });
    let decided = fleet.pods[0].metrics();
    let of_override = decided.series.iter().any(|series| {
        series.name == "ratelimit_decisions_total"
            && series.labels.iter().any(|(_, value)| value == "override")
    });
    assert!(of_override, "counted under the rule of overrides");
}

#[test]
fn what_one_pod_gives_back_the_others_get() {
    let _machine = shared();
    let (_store, fleet) = two();
    for key in ["minute", "strict", "window"] {
        assert_eq!(ask(&fleet, 0, key, json!({ "hitsAddend": 50 })).0, 200);
        // The other pod asks, and hears what is used.
        until("the other pod knows", SOON, || {
            use_one(&fleet, 1, key).filter(|left| *left < 15)
        });
        let refund = json!({ "hitsAddend": 45, "isNegativeHits": true });
        let (status, answer) = ask(&fleet, 0, key, refund);
        assert_eq!((status, &answer["overallCode"]), (200, &json!("OK")));
        let left = until("the other pod learns of it", SOON, || {
            use_one(&fleet, 1, key).filter(|left| *left > 20)
        });
        assert!(left <= 60, "{key}: never beyond empty");
    }
}

/// Refunds that follow the use so closely that the answer to the report of it is still on its way.
#[test]
fn a_refund_right_after_the_use_stays() {
    // News of the full key that comes in between counts for the time it took: a part of a cell may stay used.
    const FREE: u64 = 59;
    let _machine = shared();
    let (_store, fleet) = two();
    let supplied = json!({ "limit": { "requestsPerUnit": 60, "unit": "HOUR" } });
    for (key, descriptor) in [("hour", json!({})), ("any", supplied)] {
        let hits = |value: &str, hits: u64, is_refund: bool| {
            let mut descriptor = descriptor.clone();
            descriptor["hitsAddend"] = json!(hits);
            descriptor["isNegativeHits"] = json!(is_refund);
            let (status, answer) = ask_value(&fleet, 0, (key, value), descriptor);
            let left = answer["statuses"][0]["limitRemaining"].as_u64();
            (status, left.unwrap_or(0))
        };
        let values: Vec<String> = (0..15).map(|nth| format!("right-after-{nth}")).collect();
        for value in &values {
            assert_eq!(hits(value, 60, false).0, 200, "{key}");
            let (status, left) = hits(value, 60, true);
            assert!(
                status == 200 && left >= FREE,
                "{key}: {status}, {left} left"
            );
        }
        // The answers and the news have come by then.
        std::thread::park_timeout(Duration::from_millis(1_500));
        let undone: Vec<(&str, u64)> = values
            .iter()
            .map(|value| (value.as_str(), hits(value, 0, false).1))
            .filter(|(_, left)| *left < FREE)
            .collect();
        assert_eq!(undone, [], "{key}");
    }
}
