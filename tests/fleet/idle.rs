//! What a sidecar does at rest: its threads sleep, apart from a heartbeat a second and a look at its files now and then.
//!
//! The tests count wake-ups, which a slow machine makes fewer and never more. So they need no machine of their own.

use std::time::Duration;

use tidegate_testing::benchmark::voluntary_switches;
use tidegate_testing::fleet::pods::{SidecarFleet, rules};
use tidegate_testing::stores::{RedisServer, StoreUnderTest};
use tidegate_testing::{now, rest_until};

use super::shared;

/// Long enough for every timer of a sidecar, the slowest of which is the poll of the files.
const MEASURED: Duration = Duration::from_secs(10);

/// The wake-ups of all threads of the first sidecar in a second.
fn wakeups_per_second(fleet: &SidecarFleet) -> f64 {
    let process = fleet.pods[0].sidecar.pid();
    let (begun, before) = (now(), voluntary_switches(process));
    rest_until(begun + MEASURED);
    let wakeups = voluntary_switches(process) - before;
    wakeups as f64 / begun.elapsed().as_secs_f64()
}

/// The target is 5; the rest is slack for the moment at which the timers of a start happen to lie.
#[test]
fn a_sidecar_with_a_store_wakes_up_a_few_times_a_second() {
    let _machine = shared();
    let store = RedisServer::start(&[]);
    let fleet = SidecarFleet::lone(&store.section(), &rules("100/second burst 100"));
    fleet.wait_for_links();
    let wakeups = wakeups_per_second(&fleet);
    eprintln!("{wakeups:.1} wake-ups a second with a store");
    assert!(wakeups <= 6.0, "{wakeups} wake-ups a second");
}

#[test]
fn a_sidecar_without_a_store_wakes_up_once_a_second() {
    let _machine = shared();
    let fleet = SidecarFleet::apart(1, &rules("100/second burst 100"));
    let wakeups = wakeups_per_second(&fleet);
    eprintln!("{wakeups:.1} wake-ups a second without a store");
    assert!(wakeups <= 2.0, "{wakeups} wake-ups a second");
}
