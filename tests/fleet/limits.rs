//! The scenarios of `make fleet`, shorter, with twice its tolerances.

use super::alone;
use super::harness::scenarios;

/// Of the targets that `make fleet` prints.
const TOLERANCE: f64 = 2.0;

#[test]
fn an_even_overload_is_held_to_the_limit() {
    let _machine = alone();
    scenarios::spread_evenly(10.0).assert(TOLERANCE);
}

#[test]
fn an_uneven_overload_is_held_to_the_limit() {
    let _machine = alone();
    scenarios::spread_unevenly(10.0).assert(TOLERANCE);
}

/// Else the two above would prove nothing.
#[test]
fn without_sync_the_limit_does_not_hold() {
    let _machine = alone();
    let figures = scenarios::without_sync(5.0);
    let off: Vec<_> = figures
        .all
        .iter()
        .filter(|figure| figure.target.is_some())
        .collect();
    assert_eq!(off.len(), 3);
    for figure in off {
        assert!(!figure.is_within(5.0 * TOLERANCE), "{figure}");
    }
}

/// And what the harness adds by itself is far less than what is asked of a fleet.
#[test]
fn one_sidecar_alone_is_exact() {
    let _machine = alone();
    scenarios::alone(5.0).assert(0.5);
}

#[test]
fn below_the_limit_nothing_is_denied() {
    let _machine = alone();
    scenarios::below_the_limit(10.0).assert(TOLERANCE);
}

#[test]
fn a_low_limit_holds_and_costs_nothing_while_mitigated() {
    let _machine = alone();
    scenarios::low_limit(15.0).assert(TOLERANCE);
}

#[test]
fn a_dead_store_is_survived() {
    let _machine = alone();
    scenarios::outage(4.0, 6.0).assert(TOLERANCE);
}

#[test]
fn an_overload_costs_the_store_little() {
    let _machine = alone();
    scenarios::cost_of_overload(4.0).assert(TOLERANCE);
}

#[test]
fn even_use_costs_the_store_nothing() {
    let _machine = alone();
    scenarios::cost_of_even_use(4.0).assert(TOLERANCE);
}

#[test]
fn many_keys_cost_the_store_little() {
    let _machine = alone();
    let figures = scenarios::cost_of_many_keys(5.0);
    figures.without(scenarios::REDIS_CPU).assert(TOLERANCE);
}
