//! How far off a fleet is. The figures are those of `docs/sync.md`; the real processes are in `tests/fleet`.

use tidegate::pure::rule::{Report, RuleSpec};
use tidegate::pure::{Limit, Unit};

use super::world::{Judged, MS, SECOND, Way, World, judge};

/// A fleet that is asked for one key.
struct Case {
    spec: RuleSpec,
    /// Checks a second, of each pod.
    rates: Vec<f64>,
    seconds: u64,
    way: Way,
}

/// What came of it.
struct Came {
    judged: Judged,
    /// Key updates the store was sent.
    updates: u64,
    burst: u64,
}

impl Case {
    fn of(limit: Limit, rates: Vec<f64>) -> Self {
        Self {
            spec: RuleSpec::new(limit),
            rates,
            seconds: 10,
            way: Way::GOOD,
        }
    }

    fn run(&self, seed: u64) -> Came {
        let limit = self.spec.limit.expect("a limit");
        let mut world = World::new(self.rates.len(), &self.spec, self.way, seed);
        let begun = world.now();
        for (pod, rate) in self.rates.iter().enumerate() {
            world.load(pod, 1, *rate, (begun, self.seconds * SECOND));
        }
        let before = world.updates;
        world.run_until(begun + self.seconds * SECOND);
        Came {
            judged: judge(&world.decided, &limit),
            updates: world.updates - before,
            burst: limit.burst().get(),
        }
    }

    /// Runs a few seeds and expects of each at most so many percent of the burst above the limit, and no more than so
    /// many thousandths above what one limiter that sees everything admits.
    fn expect(&self, overshoot_percent: u64, above_per_mille: u64) {
        for seed in 1..=5 {
            let Came { judged, burst, .. } = self.run(seed);
            assert!(
                judged.overshoot * 100 <= burst * overshoot_percent,
                "seed {seed}: {judged:?} of {burst}"
            );
            assert!(
                judged.admitted * 1_000 <= judged.exact * (1_000 + above_per_mille),
                "seed {seed}: {judged:?}"
            );
            assert!(
                judged.admitted * 100 >= judged.exact * 99,
                "seed {seed}: {judged:?}"
            );
        }
    }
}

fn second(requests: u64) -> Limit {
    Limit::new(requests, Unit::Second, 1, None).expect("a sound limit")
}

fn minute(requests: u64) -> Limit {
    Limit::new(requests, Unit::Minute, 1, None).expect("a sound limit")
}

#[test]
fn ten_times_the_limit_passes_as_the_limit() {
    Case::of(second(100), vec![333.0; 3]).expect(15, 10);
}

#[test]
fn it_does_so_too_where_one_pod_has_nearly_all_of_it() {
    Case::of(second(100), vec![900.0, 50.0, 50.0]).expect(15, 10);
}

#[test]
fn five_times_the_limit_on_twenty_pods_is_a_tenth_of_the_burst_off() {
    Case::of(second(1_000), vec![250.0; 20]).expect(12, 10);
}

#[test]
fn under_the_limit_nothing_is_denied() {
    for rates in [vec![30.0; 3], vec![80.0, 5.0, 5.0], vec![0.92; 100]] {
        for seed in 1..=5 {
            let Came { judged, .. } = Case::of(second(100), rates.clone()).run(seed);
            assert_eq!(judged.admitted, judged.exact, "seed {seed}: {judged:?}");
        }
    }
}

#[test]
fn a_low_limit_under_attack_is_one_or_two_cells_off() {
    for rates in [vec![66.0; 3], vec![2.0; 100]] {
        let case = Case {
            seconds: 30,
            ..Case::of(minute(5), rates)
        };
        for seed in 1..=5 {
            let Came {
                judged, updates, ..
            } = case.run(seed);
            assert!(judged.overshoot <= 2, "seed {seed}: {judged:?}");
            // What is denied costs the store nothing.
            assert!(
                updates <= judged.admitted,
                "seed {seed}: {updates} of {judged:?}"
            );
        }
    }
}

#[test]
fn a_key_within_every_pods_even_share_costs_the_store_nothing() {
    for rates in [vec![166.0; 3], vec![25.0; 20]] {
        let quiet = Case::of(second(1_000), rates);
        assert_eq!(quiet.run(1).updates, 0);
        let told = Case {
            spec: RuleSpec {
                report: Report::Always,
                ..quiet.spec
            },
            ..quiet
        };
        assert!(told.run(1).updates > 0);
    }
}

#[test]
fn a_contested_key_costs_few_updates() {
    let Came {
        judged, updates, ..
    } = Case::of(second(1_000), vec![1_666.0; 3]).run(1);
    assert!(
        updates * 1_000 <= judged.asked * 10,
        "{updates} of {judged:?}"
    );
}

#[test]
fn without_the_store_the_fleet_admits_about_the_limit_and_nothing_is_denied_after_it() {
    let limit = second(100);
    for (rates, seed) in [(vec![300.0; 3], 1), (vec![800.0, 50.0, 50.0], 2)] {
        let way = Way {
            cut: (10 * SECOND, 30 * SECOND),
            ..Way::GOOD
        };
        let mut world = World::new(3, &RuleSpec::new(limit), way, seed);
        for (pod, rate) in rates.iter().enumerate() {
            world.load(pod, 1, *rate, (world.now(), 25 * SECOND));
            world.load(pod, 1, rate / 12.0, (29 * SECOND, 20 * SECOND));
        }
        world.run_until(60 * SECOND);
        let admitted = |from: u64, to: u64| {
            let within = world
                .decided
                .iter()
                .filter(|one| (from..to).contains(&one.at));
            within.filter(|one| one.allowed).count() as u64
        };
        // From the moment that the pods know of it: three answers that did not come.
        let alone = admitted(11 * SECOND, 29 * SECOND);
        assert!(alone <= 120 * 18 + 100 + 3, "{alone} admitted in 18 s");
        assert!(alone >= 80 * 18, "{alone} admitted in 18 s");
        let denied = world
            .decided
            .iter()
            .filter(|one| one.at > 31 * SECOND && !one.allowed);
        assert_eq!(denied.count(), 0);
    }
}

#[test]
fn a_slow_way_to_the_store_costs_what_arrives_meanwhile() {
    let case = Case {
        way: Way {
            rtt: 20 * MS,
            ..Way::GOOD
        },
        ..Case::of(second(100), vec![333.0; 3])
    };
    case.expect(40, 20);
}

/// What was told in full while a key was loud is not billed once more when it is let go.
#[test]
fn a_key_that_calms_down_is_not_billed_again() {
    for pods in [1, 3] {
        let mut world = World::new(pods, &RuleSpec::new(minute(60)), Way::GOOD, 3);
        let begun = world.now();
        // Forty cells within a tenth of a second: far beyond the even share.
        world.load(0, 1, 400.0, (begun, SECOND / 10));
        world.run_until(begun + SECOND);
        let admitted = judge(&world.decided, &minute(60)).admitted;
        assert!(admitted > 20, "{admitted}");
        for seconds in [12, 25, 40] {
            world.run_until(begun + seconds * SECOND);
            let level = world.level_in_store();
            // One cell a second has drained.
            assert!(
                level <= admitted.saturating_sub(seconds - 1),
                "{level} cells after {seconds} s, of {admitted}"
            );
        }
    }
}
