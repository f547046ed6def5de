//! Budgets that are charged after the fact, as Envoy's `apply_on_stream_done` does: a call looks whether anything is
//! left, runs, and is charged what it cost. With `count_rejected` the fleet's budget runs out.

use std::time::Duration;

use serde_json::json;
use tidegate_testing::fleet::books::PodBooks;
use tidegate_testing::fleet::pods::SidecarFleet;
use tidegate_testing::stores::{RedisServer, StoreUnderTest};
use tidegate_testing::until;

use super::shared;

const SOON: Duration = Duration::from_secs(20);
const CALLS: usize = 50;

/// Budgets, and what a call costs: six tenths.
const HYBRID: [(&str, u64); 4] = [
    ("minute", 600),
    ("hour", 600_000),
    ("day", 600_000),
    ("window", 600_000),
];
const STRICT: [(&str, u64); 3] = [
    ("strict", 600),
    ("strict_day", 600_000),
    ("strict_window", 600_000),
];
const RULES: &str = "  - domain: llm\n    descriptors:\n      \
    - { key: minute, rate_limit: 1000/minute, count_rejected: true }\n      \
    - { key: hour, rate_limit: 1000000/hour, count_rejected: true }\n      \
    - { key: day, rate_limit: 1000000/day, count_rejected: true }\n      \
    - { key: window, rate_limit: { unit: year, requests_per_unit: 1000000, algorithm: fixed_window }, count_rejected: true }\n      \
    - { key: strict, rate_limit: 1000/minute, count_rejected: true, consistency: strict }\n      \
    - { key: strict_day, rate_limit: 1000000/day, count_rejected: true, consistency: strict }\n      \
    - { key: strict_window, rate_limit: { unit: year, requests_per_unit: 1000000, algorithm: fixed_window }, \
    count_rejected: true, consistency: strict }";

/// Whether a pod lets a check of so many cells pass.
fn ask(fleet: &SidecarFleet, pod: usize, key: &str, cells: u64) -> bool {
    let entries = json!([{ "key": key, "value": "alice" }]);
    let body =
        json!({ "domain": "llm", "descriptors": [{ "entries": entries, "hitsAddend": cells }] });
    let response = fleet.pods[pod]
        .sidecar
        .connect()
        .post("/json", &body.to_string());
    response.status == 200
}

/// Calls one after the other, of one pod after the other: how many were served.
fn served(fleet: &SidecarFleet, key: &str, cost: u64) -> u64 {
    let call = |nth: &usize| {
        let pod = nth % fleet.pods.len();
        // A call takes a while, and a round gets around meanwhile.
        std::thread::park_timeout(Duration::from_millis(20));
        let served = ask(fleet, pod, key, 0);
        if served {
            ask(fleet, pod, key, cost);
        }
        served
    };
    (0..CALLS).filter(call).count() as u64
}

fn all_deny(fleet: &SidecarFleet, key: &str) {
    until("every pod denies", SOON, || {
        let pods = 0..fleet.pods.len();
        let denied = pods.filter(|pod| !ask(fleet, *pod, key, 0));
        (denied.count() == fleet.pods.len()).then_some(())
    });
}

/// Every cell that was admitted or charged is in the books of a pod.
fn balance(fleet: &SidecarFleet, cells: u64) {
    until("books of all that was charged", SOON, || {
        let books: Vec<PodBooks> = fleet.pods.iter().map(PodBooks::of).collect();
        let lost: u64 = books.iter().map(|books| books.lost).sum();
        let sum: u64 = books.iter().map(PodBooks::sum).sum();
        assert_eq!(lost, 0, "{books:?}");
        (sum == cells).then_some(())
    });
}

#[test]
fn one_pods_budgets_run_out() {
    let _machine = shared();
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::lone(&store.section(), RULES);
    fleet.wait_for_links();
    for (key, cost) in HYBRID.iter().chain(&STRICT) {
        assert_eq!(served(&fleet, key, *cost), 2, "{key}");
    }
    let charged: u64 = HYBRID.iter().map(|(_, cost)| 2 * cost).sum();
    // Of a strict rule the first charge is taken in the store, the second is denied from memory and reported.
    let told: u64 = STRICT.iter().map(|(_, cost)| cost).sum();
    balance(&fleet, charged + told);
    for metric in [
        "ratelimit_overshoot_cells_total",
        "ratelimit_debt_capped_total",
    ] {
        assert_eq!(fleet.sum(metric), Some(0.0), "{metric}");
    }
    // More than one burst at once: the rest is forgiven, and counted.
    assert!(!ask(&fleet, 0, "minute", 5_000));
    assert_eq!(fleet.sum("ratelimit_debt_capped_total"), Some(1.0));
}

#[test]
fn the_budgets_of_three_pods_run_out() {
    let _machine = shared();
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::sharing(3, &store.section(), RULES);
    let mut charged = 0;
    for (key, cost) in HYBRID {
        let served = served(&fleet, key, cost);
        // Two would be exact. A pod that has not heard of the others' charges yet serves one more.
        assert!((2..=4).contains(&served), "{key}: {served}");
        charged += served * cost;
        all_deny(&fleet, key);
    }
    balance(&fleet, charged);
    for (key, cost) in STRICT {
        let served = served(&fleet, key, cost);
        assert!((2..=4).contains(&served), "{key}: {served}");
        all_deny(&fleet, key);
    }
}
