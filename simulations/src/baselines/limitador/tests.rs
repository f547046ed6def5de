//! What Limitador's way must do here, because Limitador does.

use crate::baselines::Baseline::Limitador;
use crate::baselines::trial::{Trial, at};

/// What two pods admit of a hundred checks each.
fn both(trial: &mut Trial, ms: u64) -> u64 {
    (0..2)
        .map(|pod| trial.ask(at(ms).pod(pod).times(100)))
        .sum()
}

#[test]
fn what_was_too_much_is_forgotten_with_its_window() {
    let mut trial = Trial::new(Limitador, 2, "10/10s", "");
    assert_eq!(both(&mut trial, 0), 20, "neither knows of the other");
    assert_eq!(both(&mut trial, 9_999), 0);
    assert_eq!(
        both(&mut trial, 10_000),
        20,
        "and so again in the next window"
    );
}

#[test]
fn a_key_seen_for_the_first_time_is_told_at_once() {
    let mut trial = Trial::new(Limitador, 2, "10/10s", "");
    assert_eq!(trial.ask(at(0).pod(0).times(4)), 4);
    assert_eq!(trial.ask(at(3).pod(1)), 1, "pod 1 asks for the total");
    assert_eq!(trial.ask(at(5).pod(1).times(100)), 5, "and goes on from it");
    assert_eq!(
        trial.ask(at(5).pod(0).times(100)),
        6,
        "while pod 0 has not heard of pod 1"
    );
}

#[test]
fn a_key_that_is_known_is_told_once_a_second() {
    let mut trial = Trial::new(Limitador, 1, "1000/20s", "");
    trial.ask(at(0));
    trial.run_until(2);
    let cost = trial.cost();
    assert_eq!((cost.calls, cost.updates), (1, 1));
    let asked = (0..2_000).map(|nth| at(2 + 5 * nth));
    assert_eq!(asked.map(|asked| trial.ask(asked)).sum::<u64>(), 999);
    trial.run_until(18_000);
    assert!(
        (5..=7).contains(&trial.cost().calls),
        "{} for five seconds",
        trial.cost().calls
    );
}

#[test]
fn a_window_of_a_second_is_told_after_each_round_trip() {
    let mut trial = Trial::new(Limitador, 1, "1000/second", "");
    let asked = (0..500).map(at);
    asked.for_each(|asked| assert_eq!(trial.ask(asked), 1));
    assert!(
        (450..=500).contains(&trial.cost().calls),
        "{:?}",
        trial.cost()
    );
}

#[test]
fn a_hundred_counters_do_not_wait() {
    let mut trial = Trial::new(Limitador, 1, "10/20s", "");
    (0..100).for_each(|key| assert_eq!(trial.ask(at(0).key(key)), 1));
    trial.run_until(1_500);
    let before = trial.cost();
    (0..99).for_each(|key| assert_eq!(trial.ask(at(1_500).key(key)), 1));
    assert_eq!(trial.cost(), before);
    trial.ask(at(1_500).key(99));
    assert_eq!(trial.cost().since(&before).updates, 100);
    assert_eq!(trial.cost().since(&before).calls, 1);
}

#[test]
fn a_denied_check_is_never_sent() {
    let mut trial = Trial::new(Limitador, 1, "10/20s", "");
    trial.ask(at(0).times(10));
    trial.run_until(3_000);
    let before = trial.cost();
    trial.ask(at(3_000).times(100));
    trial.run_until(6_000);
    assert_eq!(trial.cost(), before);
}

#[test]
fn without_a_store_pods_go_on_alone_and_tell_it_later() {
    let more = "faults: [{ at: 0s, for: 5s, cut: all }]";
    let mut trial = Trial::new(Limitador, 2, "150/20s", more);
    assert_eq!(both(&mut trial, 1_000), 200);
    assert!(
        trial.cost().calls <= 4,
        "one in a second: {:?}",
        trial.cost()
    );
    assert_eq!(
        both(&mut trial, 7_000),
        50,
        "who told it first has not heard of the other"
    );
    assert_eq!(trial.cost().lost, 0);
}

#[test]
fn what_is_of_an_old_window_is_dropped() {
    let more = "faults: [{ at: 0s, for: 12s, hang: true }]";
    let mut trial = Trial::new(Limitador, 2, "10/10s", more);
    assert_eq!(both(&mut trial, 1_000), 20);
    trial.run_until(11_500);
    assert_eq!(trial.cost().lost, 20);
    trial.run_until(13_500);
    assert_eq!(
        both(&mut trial, 13_500),
        20,
        "of which the new window knows nothing"
    );
}
