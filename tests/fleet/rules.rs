//! What rules promise of a fleet: strict to the cell, windows shared, resets and usage fleet-wide, and what holds
//! without the store.

use std::time::Duration;

use serde_json::Value;
use tidegate_testing::fleet::pods::SidecarFleet;
use tidegate_testing::stores::{RedisServer, StoreUnderTest};
use tidegate_testing::until;

use super::shared;

/// For news and rounds to get around.
const SOON: Duration = Duration::from_secs(10);

const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - { key: strict, rate_limit: 20/hour, consistency: strict }\n      \
    - { key: closed, rate_limit: 20/hour, consistency: strict, on_store_error: deny }\n      \
    - { key: deny, rate_limit: 20/hour, on_store_error: deny }\n      \
    - { key: allow, rate_limit: 3/hour, on_store_error: allow }\n      \
    - { key: full, rate_limit: 20/hour, on_store_error: local_full }\n      \
    - { key: share, rate_limit: 20/hour }\n      \
    - { key: fixed, rate_limit: { unit: hour, requests_per_unit: 20, algorithm: fixed_window } }\n      \
    - { key: sliding, rate_limit: { unit: hour, requests_per_unit: 20, algorithm: sliding_window } }\n      \
    - { key: log, rate_limit: { unit: hour, requests_per_unit: 20, algorithm: sliding_log } }";

fn check(fleet: &SidecarFleet, pod: usize, query: &str) -> (u16, Value) {
    let path = format!("/v1/check?domain=fleet&{query}");
    let response = fleet.pods[pod].sidecar.connect().get(&path);
    (response.status, response.json())
}

fn source(answer: &Value) -> &str {
    answer["statuses"][0]["source"].as_str().unwrap()
}

fn two() -> (RedisServer, SidecarFleet) {
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::sharing(2, &store.section(), RULES);
    (store, fleet)
}

/// Checks of `query` on both pods in turn, and how many of so many passed.
fn passed(fleet: &SidecarFleet, query: &str, checks: usize) -> usize {
    let allowed = |nth: &usize| check(fleet, nth % 2, query).0 == 200;
    (0..checks).filter(allowed).count()
}

#[test]
fn a_strict_rule_is_exact_over_the_fleet() {
    let _machine = shared();
    let (_store, fleet) = two();
    let (status, answer) = check(&fleet, 0, "strict=a");
    assert_eq!((status, source(&answer)), (200, "strict"), "{answer:#}");
    assert_eq!(passed(&fleet, "strict=a", 40), 19);
    let (status, answer) = check(&fleet, 1, "strict=a");
    assert_eq!((status, source(&answer)), (429, "mitigation"), "{answer:#}");
}

#[test]
fn windows_are_shared() {
    let _machine = shared();
    let (_store, fleet) = two();
    for query in ["fixed=a", "sliding=a", "log=a"] {
        // A pod reports a check after it has answered it, so the other pod may miss the last one or two.
        let passed: usize = (0..40)
            .map(|nth| {
                let (status, _) = check(&fleet, nth % 2, query);
                std::thread::park_timeout(Duration::from_millis(20));
                usize::from(status == 200)
            })
            .sum();
        assert!((20..=22).contains(&passed), "{query}: {passed}");
        until("both pods deny", SOON, || {
            let denied = |pod| check(&fleet, pod, &format!("{query}&peek=true")).0 == 429;
            (denied(0) && denied(1)).then_some(())
        });
    }
}

#[test]
fn usage_and_reset_are_fleet_wide() {
    let _machine = shared();
    let (_store, fleet) = two();
    until("a key used up everywhere", SOON, || {
        let denied = |pod| check(&fleet, pod, "share=a").0 == 429;
        (denied(0) && denied(1)).then_some(())
    });
    let usage = "/admin/v1/usage?domain=fleet&share=a";
    until("the store's count", SOON, || {
        let page = fleet.pods[1].sidecar.admin(usage);
        let used = page["usage"][0]["fleet"]["used"].as_u64()?;
        (used >= 20).then_some(())
    });
    let admin = fleet.pods[0].sidecar.door("admin").unwrap();
    let reset = "/admin/v1/keys?domain=fleet&share=a";
    let answer = admin.connect().request("DELETE", reset, &[], b"");
    assert_eq!(
        (answer.status, answer.json()["scope"].as_str()),
        (200, Some("fleet"))
    );
    until("a reset that travels", SOON, || {
        let passes = |pod| check(&fleet, pod, "share=a").0 == 200;
        (passes(0) && passes(1)).then_some(())
    });
}

#[test]
fn without_the_store_each_rule_goes_its_way() {
    let _machine = shared();
    let (mut store, fleet) = two();
    store.kill();
    until("the pods know", SOON, || {
        let knows = |pod| check(&fleet, pod, "deny=a&peek=true").0 == 503;
        (knows(0) && knows(1)).then_some(())
    });
    let (status, answer) = check(&fleet, 0, "closed=a");
    assert_eq!((status, source(&answer)), (503, "fallback"), "{answer:#}");
    let (status, answer) = check(&fleet, 0, "allow=a");
    assert_eq!((status, source(&answer)), (200, "fallback"), "{answer:#}");
    assert_eq!(passed(&fleet, "allow=a", 40), 40);
    assert_eq!(passed(&fleet, "full=a", 60), 40);
    // Both shares together are the limit, rounded.
    let shares = passed(&fleet, "share=a", 60);
    assert!((18..=22).contains(&shares), "{shares}");
    let forgiven = fleet.sum("ratelimit_failopen_total").unwrap();
    assert!(forgiven >= 30.0, "{forgiven}");
    store.restart();
    until("the store is back", SOON, || {
        (check(&fleet, 0, "closed=b").0 == 200).then_some(())
    });
}

#[test]
fn a_pod_starts_without_the_store_and_joins_when_it_comes() {
    let _machine = shared();
    let mut store = RedisServer::start(&[]);
    store.kill();
    let fleet = SidecarFleet::lone(&store.section(), RULES);
    assert_eq!(check(&fleet, 0, "full=a").0, 200);
    store.restart();
    until("the pod is counted", SOON, || {
        (store.cli(&["ZCARD", "tidegate:v1:{0}:pods"]) == "1").then_some(())
    });
}

#[test]
fn a_pod_that_stops_tells_what_is_pending_and_leaves() {
    let _machine = shared();
    let (store, mut fleet) = two();
    let leaving = fleet.pods.pop().unwrap();
    let mut sidecar = leaving.sidecar;
    let path = "/v1/check?domain=fleet&fixed=b&hits_addend=7";
    assert_eq!(sidecar.connect().get(path).status, 200);
    sidecar.signal("TERM");
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
    assert_eq!(store.cli(&["ZCARD", "tidegate:v1:{0}:pods"]), "1");
    let page = fleet.pods[0]
        .sidecar
        .admin("/admin/v1/usage?domain=fleet&fixed=b");
    assert_eq!(page["usage"][0]["fleet"]["used"], 7, "{page:#}");
}
