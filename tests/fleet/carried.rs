//! Limits that callers bring along, and cells that they give back, over a fleet.

use std::time::Duration;

use serde_json::{Value, json};

use super::harness::fleet::Fleet;
use super::redis::Store;
use super::redis::server::{Server, until};
use super::shared;

/// For news and rounds to get around.
const SOON: Duration = Duration::from_secs(10);

const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - { key: minute, rate_limit: 60/minute, report: always }\n      \
    - { key: strict, rate_limit: 60/minute, consistency: strict }\n      \
    - { key: window, rate_limit: { unit: hour, requests_per_unit: 60, algorithm: fixed_window } }";

fn two() -> (Server, Fleet) {
    let store = Server::start(&[]);
    let fleet = Fleet::sharing(2, &store.section(), RULES);
    (store, fleet)
}

/// What a pod says to a check of one descriptor.
fn ask(fleet: &Fleet, pod: usize, key: &str, mut descriptor: Value) -> (u16, Value) {
    descriptor["entries"] = json!([{ "key": key, "value": "a" }]);
    let body = json!({ "domain": "fleet", "descriptors": [descriptor] });
    let response = fleet.pods[pod]
        .sidecar
        .connect()
        .post("/json", &body.to_string());
    (response.status, response.json())
}

/// The cells that a pod believes to be left after it has used one, if there was one.
fn use_one(fleet: &Fleet, pod: usize, key: &str) -> Option<u64> {
    std::thread::park_timeout(Duration::from_millis(20));
    let (status, answer) = ask(fleet, pod, key, json!({ "hitsAddend": 1 }));
    let left = answer["statuses"][0]["limitRemaining"].as_u64();
    (status == 200).then_some(left.unwrap_or(0))
}

#[test]
fn a_carried_limit_is_held_by_the_fleet() {
    let _machine = shared();
    let (_store, fleet) = two();
    let descriptor = json!({ "limit": { "requestsPerUnit": 20, "unit": "HOUR" } });
    let passed: usize = (0..40)
        .map(|nth| {
            let (status, _) = ask(&fleet, nth % 2, "any", descriptor.clone());
            // A check is told when it is answered, so the other pod may miss the last one or two.
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
