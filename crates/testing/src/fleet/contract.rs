//! What holds on every kind of store: pods share a limit, mitigations reach other pods, books balance, also after a
//! failover.

use std::time::Duration;

use serde_json::Value;

use super::books::{AllowedLoss, balance};
use super::judge::{FleetVerdict, JudgedLimit, judge};
use super::load::{AnsweredCheck, CheckStream, FleetLoad};
use super::pods::SidecarFleet;
use crate::stores::StoreUnderTest;
use crate::wait::until;

const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - key: client\n        rate_limit: 100/second burst 100\n      \
    - key: thin\n        rate_limit: 5/minute burst 5";
/// For a mitigation to reach the other pod.
const TRAVELS_WITHIN: Duration = Duration::from_secs(5);

/// Checks all of it, each load for so many seconds.
pub fn run(store: &mut dyn StoreUnderTest, seconds: f64) {
    let mut suite = Suite {
        fleet: SidecarFleet::sharing(2, &store.section(), RULES),
        asked: Vec::new(),
    };
    suite.shares_a_limit(seconds);
    suite.mitigates("before");
    balance(&suite.fleet, store, &suite.asked, AllowedLoss::None);
    if store.fail_over() {
        suite.fleet.wait_for_links();
        // The pods replay what a failover lost, or count it. They hear each other again a little later.
        suite.load(seconds, 9);
        suite.mitigates("after");
        balance(&suite.fleet, store, &suite.asked, AllowedLoss::Counted);
    }
}

struct Suite {
    fleet: SidecarFleet,
    asked: Vec<AnsweredCheck>,
}

impl Suite {
    fn load(&mut self, seconds: f64, seed: u64) -> Vec<AnsweredCheck> {
        let stream = CheckStream {
            rate: 500.0,
            shares: &[0.5, 0.5],
            from: 0.0,
            to: seconds,
            seed,
        };
        // Each load has a key that nobody has used.
        let load = FleetLoad::new(2, vec![format!("client=k{seed}")]);
        let asked = self.fleet.ask(load.stream(stream)).finish();
        self.asked.extend_from_slice(&asked);
        asked
    }

    /// Both pods together admit the limit. Tried again if the machine was busy.
    fn shares_a_limit(&mut self, seconds: f64) {
        let limit = JudgedLimit {
            rate: 100.0,
            burst: 100.0,
        };
        let held = |verdict: &FleetVerdict| verdict.off_exact() <= 4.0 && verdict.overshoot <= 30.0;
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
        self.asked.push(AnsweredCheck {
            status: response.status,
            cost: u32::from(!is_look),
            pod: u8::try_from(pod).expect("few pods"),
            ..AnsweredCheck::default()
        });
        (response.status == 200, response.json())
    }
}
