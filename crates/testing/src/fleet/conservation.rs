//! A load of many keys and costs, something that goes wrong under it, and then the books.

use super::books::{Loss, balance};
use super::fleet::Fleet;
use super::load::{Asked, Load, Running, Stream};
use crate::redis::Store;

const PODS: usize = 3;
/// Keys that are over their limit, keys that nobody needs to hear of, and keys that are told all the same.
const RULES: &str = "  - domain: fleet\n    descriptors:\n      \
    - key: tight\n        rate_limit: 20/second burst 20\n      \
    - key: calm\n        rate_limit: 1000/second burst 1000\n      \
    - key: told\n        report: always\n        rate_limit: 1000/second burst 1000";
const KEYS: u32 = 60;

/// Random checks at three pods for so many seconds.
fn load(seconds: f64, seed: u64) -> Load {
    let kinds = ["tight", "calm", "told"];
    let name = |key: u32| format!("{}=k{key}", kinds[key as usize % kinds.len()]);
    let keys = (0..KEYS).map(name).collect();
    let stream = Stream {
        rate: 600.0,
        shares: &[0.5, 0.3, 0.2],
        from: 0.0,
        to: seconds,
        seed,
    };
    Load::new(PODS, keys).mixed(stream, |random| {
        // A third of the checks goes to one key: that one is over its limit.
        let key = if random.unit() < 0.3 {
            0
        } else {
            random.next() % u64::from(KEYS)
        };
        let cost = 1 + random.next() % 3;
        (key as u32, cost as u32)
    })
}

/// Three sidecars on `section`, whatever stands between it and the store.
pub fn fleet(section: &str) -> Fleet {
    Fleet::sharing(PODS, section, RULES)
}

/// Asks for so many seconds.
pub fn ask(fleet: &Fleet, seconds: f64, seed: u64) -> Vec<Asked> {
    fleet.ask(load(seconds, seed)).finish()
}

/// Where something is to go wrong.
#[derive(Debug)]
pub struct Scene<'a, S> {
    pub store: &'a mut S,
    pub fleet: &'a Fleet,
    pub load: &'a Running,
}

/// Asks for so many seconds while `disturb` does what it does, then waits until the books balance.
pub fn conserve<S: Store>(
    mut store: S,
    seconds: f64,
    loss: Loss,
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
