//! A load of many keys and costs, a disturbance meanwhile, and then the books.

use super::books::{AllowedLoss, balance};
use super::load::{AnsweredCheck, CheckStream, FleetLoad, RunningLoad};
use super::pods::SidecarFleet;
use crate::stores::StoreUnderTest;

const PODS: usize = 3;
/// Keys over their limit, keys that no pod needs to report, and keys that are reported all the same.
const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - key: tight\n        rate_limit: 20/second burst 20\n      \
    - key: calm\n        rate_limit: 1000/second burst 1000\n      \
    - key: told\n        report: always\n        rate_limit: 1000/second burst 1000";
const KEYS: u32 = 60;

/// Random checks at three pods for so many seconds.
fn load(seconds: f64, seed: u64) -> FleetLoad {
    let kinds = ["tight", "calm", "told"];
    let name = |key: u32| format!("{}=k{key}", kinds[key as usize % kinds.len()]);
    let keys = (0..KEYS).map(name).collect();
    let stream = CheckStream {
        rate: 600.0,
        shares: &[0.5, 0.3, 0.2],
        from: 0.0,
        to: seconds,
        seed,
    };
    FleetLoad::new(PODS, keys).mixed(stream, |random| {
        // Three of ten checks go to one key: that one is over its limit.
        let key = if random.unit() < 0.3 {
            0
        } else {
            random.below(u64::from(KEYS))
        };
        let cost = 1 + random.below(3);
        (key as u32, cost as u32)
    })
}

/// Three sidecars on `section`, whatever stands between it and the store.
pub fn fleet(section: &str) -> SidecarFleet {
    SidecarFleet::sharing(PODS, section, RULES)
}

/// Runs the load for so many seconds.
pub fn ask(fleet: &SidecarFleet, seconds: f64, seed: u64) -> Vec<AnsweredCheck> {
    fleet.ask(load(seconds, seed)).finish()
}

/// What a disturbance acts on.
#[derive(Debug)]
pub struct Scene<'a, S> {
    pub store: &'a mut S,
    pub fleet: &'a SidecarFleet,
    pub load: &'a RunningLoad,
}

/// Runs the load for so many seconds while `disturb` acts, then waits until the books balance.
pub fn conserve<S: StoreUnderTest>(
    mut store: S,
    seconds: f64,
    loss: AllowedLoss,
    disturb: impl FnOnce(&mut Scene<'_, S>),
) {
    let fleet = fleet(&store.section());
    let running = fleet.ask(load(seconds, 11));
    disturb(&mut Scene {
        store: &mut store,
        fleet: &fleet,
        load: &running,
    });
    let asked = running.finish();
    balance(&fleet, &store, &asked, loss);
}
