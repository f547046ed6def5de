//! Budgets that are charged after the fact, at every door: `docs/guides/token-budgets.md`.

use serde_json::json;
use tidegate::protocol::envoy::proto::RateLimitDescriptor;
use tidegate_testing::{Sidecar, SidecarSetup};

use super::guides;
use super::resp::said;
use super::rls::{Rls, descriptor, letter, request};

const CALLS: usize = 50;
const COST: u64 = 600_000;

fn start() -> Sidecar {
    let sidecar = guides::guide("token-budgets.md", "yaml").remove(0);
    let (_, rules) = sidecar.split_once("rules:\n").unwrap();
    SidecarSetup::rules(rules)
        .listen_also(r#"grpc: ["127.0.0.1:0"], resp: ["127.0.0.1:0"]"#)
        .start()
}

/// How many of 50 calls are served: each looks first (a cost of `None`) and is charged when it is done.
fn served(mut ask: impl FnMut(Option<u64>) -> bool) -> usize {
    let mut call = |_: &usize| {
        let served = ask(None);
        if served {
            ask(Some(COST));
        }
        served
    };
    (0..CALLS).filter(|nth| call(nth)).count()
}

#[test]
fn every_door_looks_and_charges_alike() {
    let sidecar = start();
    let mut client = sidecar.connect();
    let native = served(|cost| {
        let what = cost.map_or("peek=true".to_owned(), |cost| format!("hits_addend={cost}"));
        let path = format!("/v1/check?domain=llm&user=native&{what}");
        client.get(&path).status == 200
    });
    let posted = served(|cost| {
        let entries = json!([{ "key": "user", "value": "posted" }]);
        let cost = cost.unwrap_or(0);
        let descriptor = json!({ "entries": entries, "hits_addend": cost });
        let body = json!({ "domain": "llm", "descriptors": [descriptor] });
        client.post("/v1/check", &body.to_string()).status == 200
    });
    let mut rls = Rls::connect(&sidecar.door("grpc").unwrap());
    let grpc = served(|cost| {
        let descriptor = RateLimitDescriptor {
            hits_addend: Some(cost.unwrap_or(0)),
            ..descriptor(&[("user", "grpc")])
        };
        let mut request = request([descriptor]);
        request.domain = "llm".to_owned();
        letter(&rls.ask(request).unwrap()) == 'a'
    });
    let door = sidecar.door("resp").unwrap();
    let resp = served(|cost| {
        let what = cost.map_or("PEEK".to_owned(), |cost| format!("COST {cost}"));
        let answer = said(
            &door,
            format!("TG.CHECK llm user resp {what}\r\n").as_bytes(),
        );
        answer.starts_with("*6\r\n:1\r\n")
    });
    assert_eq!([native, posted, grpc, resp], [2; 4]);
    let label = [("rule", "llm/user")];
    let metrics = sidecar.metrics();
    assert_eq!(metrics.of("ratelimit_debt_capped_total", &label), 0.0);
    assert_eq!(metrics.of("ratelimit_overshoot_cells_total", &label), 0.0);
}

/// The wait is that until the debt is repaid, on every door.
#[test]
fn a_budget_in_debt_says_when_it_is_there_again() {
    let sidecar = start();
    let mut client = sidecar.connect();
    for status in [200, 429] {
        let path = format!("/v1/check?domain=llm&user=alice&hits_addend={COST}");
        assert_eq!(client.get(&path).status, status);
    }
    // Two tenths of a day, and one cell.
    let path = "/v1/check?domain=llm&user=alice&peek=true";
    let answer = client.get(path);
    let wait: u64 = answer.header("retry-after").unwrap().parse().unwrap();
    assert!((17_270..=17_281).contains(&wait), "{wait}");
    assert_eq!(answer.json()["statuses"][0]["source"], "local");
    // A charge of more than a burst books one burst, here up to the cap; the rest is forgiven and counted.
    let path = "/v1/check?domain=llm&user=alice&hits_addend=5000000";
    assert_eq!(client.get(path).status, 429);
    let path = "/v1/check?domain=llm&user=alice&peek=true";
    let wait: u64 = client
        .get(path)
        .header("retry-after")
        .unwrap()
        .parse()
        .unwrap();
    assert!((86_390..=86_401).contains(&wait), "{wait}");
    let capped = sidecar
        .metrics()
        .of("ratelimit_debt_capped_total", &[("rule", "llm/user")]);
    assert_eq!(capped, 1.0);
}
