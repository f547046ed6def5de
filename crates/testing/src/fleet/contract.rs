//! What holds on every kind of store: one limit, mitigation that travels, a failover where there is one, whole books.

use std::time::Duration;

use serde_json::Value;

use super::books::{Loss, balance};
use super::fleet::Fleet;
use super::judge::{Limit, Verdict, judge};
use super::load::{Asked, Load, Stream};
use crate::redis::Store;
use crate::redis::server::until;

const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - key: client\n        rate_limit: 100/second burst 100\n      \
    - key: thin\n        rate_limit: 5/minute burst 5";
/// For a mitigation to reach the other pod.
const TRAVELS_WITHIN: Duration = Duration::from_secs(5);

/// Runs it all, each load for so many seconds.
pub fn run(store: &mut dyn Store, seconds: f64) {
    let mut suite = Suite {
        fleet: Fleet::sharing(2, &store.section(), RULES),
        asked: Vec::new(),
    };
    suite.shares_a_limit(seconds);
    suite.mitigates("before");
    balance(&suite.fleet, store, &suite.asked, Loss::None);
    if store.fail_over() {
        suite.fleet.wait_for_links();
        // What a failover lost is played again, or counted. Pods hear each other again a little later.
        suite.load(seconds, 9);
        suite.mitigates("after");
        balance(&suite.fleet, store, &suite.asked, Loss::Counted);
    }
}

struct Suite {
    fleet: Fleet,
    asked: Vec<Asked>,
}

impl Suite {
    fn load(&mut self, seconds: f64, seed: u64) -> Vec<Asked> {
        let stream = Stream {
            rate: 500.0,
            shares: &[0.5, 0.5],
            from: 0.0,
            to: seconds,
            seed,
        };
        // Each load has a key that nobody has used.
        let load = Load::new(2, vec![format!("client=k{seed}")]);
        let asked = self.fleet.ask(load.stream(stream)).finish();
        self.asked.extend_from_slice(&asked);
        asked
    }

    /// Both pods together admit the limit. On a machine that was busy meanwhile it is tried again.
    fn shares_a_limit(&mut self, seconds: f64) {
        let limit = Limit {
            rate: 100.0,
            burst: 100.0,
        };
        let held = |verdict: &Verdict| verdict.off_exact() <= 4.0 && verdict.overshoot <= 30.0;
        let mut verdicts = Vec::new();
        for seed in 1..=3 {
            let verdict = judge(limit, &self.load(seconds, seed), seconds);
            verdicts.push(verdict);
            if held(&verdict) {
                return;
            }
        }
        panic!("{verdicts:?}");
    }

    /// A key that one pod has used up is denied by the other, which has never seen it.
    fn mitigates(&mut self, key: &str) {
        until("a key used up", TRAVELS_WITHIN, || {
            (!self.check(0, key, "").0).then_some(())
        });
        until("a mitigation that travels", TRAVELS_WITHIN, || {
            (!self.check(1, key, "&peek=true").0).then_some(())
        });
        let (allowed, answer) = self.check(1, key, "");
        assert!(!allowed, "{answer:#}");
        assert_eq!(answer["statuses"][0]["source"], "mitigation", "{answer:#}");
    }

    /// One check of the low limit, and whether it was allowed.
    fn check(&mut self, pod: usize, key: &str, more: &str) -> (bool, Value) {
        let path = format!("/v1/check?domain=fleet&thin={key}{more}");
        let response = self.fleet.pods[pod].sidecar.connect().get(&path);
        let is_look = !more.is_empty();
        self.asked.push(Asked {
            status: response.status,
            cost: u32::from(!is_look),
            pod: u8::try_from(pod).expect("few pods"),
            ..Asked::default()
        });
        (response.status == 200, response.json())
    }
}
