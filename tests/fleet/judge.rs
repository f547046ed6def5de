//! The judge is right on histories whose verdict is known.

use tidegate_testing::fleet::figure::FleetFigures;
use tidegate_testing::fleet::judge::{JudgedLimit, judge, p99};
use tidegate_testing::fleet::load::AnsweredCheck;

const LIMIT: JudgedLimit = JudgedLimit {
    rate: 10.0,
    burst: 5.0,
};

/// Checks at these milliseconds, and whether they were allowed.
fn checks(history: &[(u64, bool)]) -> Vec<AnsweredCheck> {
    let check = |(millis, allowed): &(u64, bool)| AnsweredCheck {
        at: millis * 1_000_000,
        status: if *allowed { 200 } else { 429 },
        cost: 1,
        ..AnsweredCheck::default()
    };
    history.iter().map(check).collect()
}

/// `count` checks, `gap` milliseconds apart, allowed as `allow` says of the number.
fn steady(count: u64, gap: u64, allow: impl Fn(u64) -> bool) -> Vec<AnsweredCheck> {
    let history: Vec<_> = (0..count).map(|nth| (nth * gap, allow(nth))).collect();
    checks(&history)
}

#[test]
fn an_exact_fleet_is_exact() {
    // Ten times the rate for ten seconds: five at once, then one in ten.
    let exact = judge(LIMIT, &steady(1_000, 10, |_| true), 10.0);
    assert_eq!(exact.exact, 104.0);
    let verdict = judge(
        LIMIT,
        &steady(1_000, 10, |nth| nth < 5 || (nth >= 10 && nth % 10 == 0)),
        10.0,
    );
    assert_eq!((verdict.admitted, verdict.allowance), (104.0, 105.0));
    assert!(
        verdict.overshoot < 1e-9 && verdict.denied == 896,
        "{verdict:?}"
    );
    assert!(
        verdict.off_exact() < 1e-9 && verdict.off_allowance() < 1.0,
        "{verdict:?}"
    );
    assert_eq!(verdict.denied_beyond(), 0.0);
}

#[test]
fn three_limiters_apart_admit_three_times_the_limit() {
    let verdict = judge(LIMIT, &steady(1_000, 10, |nth| nth % 10 < 3), 10.0);
    assert_eq!(verdict.admitted, 300.0);
    assert!(
        verdict.off_exact() > 180.0 && verdict.overshoot > 190.0,
        "{verdict:?}"
    );
}

#[test]
fn overshoot_is_that_of_the_worst_span() {
    // Quiet, then eight at once, then quiet: three too many, though few over the run.
    let history: Vec<_> = (0..8).map(|_| (5_000, true)).collect();
    let verdict = judge(LIMIT, &checks(&history), 10.0);
    assert_eq!(
        (
            verdict.overshoot.round(),
            verdict.exact,
            verdict.exact_denied
        ),
        (3.0, 5.0, 3)
    );
    // Answers that took a while may have been decided when three cells had drained.
    let mut slow = checks(&history);
    slow.iter_mut().for_each(|check| check.micros = 300_000);
    assert!(judge(LIMIT, &slow, 10.0).overshoot < 1e-6);
    // The same as every span looked at, one by one.
    let asked = steady(200, 37, |nth| nth % 5 != 2);
    let spans = (0..asked.len()).flat_map(|from| (from..asked.len()).map(move |to| (from, to)));
    let over = spans.map(|(from, to)| {
        let admitted = asked[from..=to]
            .iter()
            .filter(|check| check.allowed())
            .count();
        let seconds = asked[to].seconds() - asked[from].seconds();
        admitted as f64 - LIMIT.burst - LIMIT.rate * seconds
    });
    let worst = over.fold(0.0, f64::max);
    assert!((judge(LIMIT, &asked, 7.4).overshoot - worst).abs() < 1e-6);
    assert!(worst > 10.0);
}

#[test]
fn a_denial_is_false_when_there_was_room() {
    let verdict = judge(LIMIT, &checks(&[(0, true), (1, false), (2, true)]), 1.0);
    assert_eq!((verdict.false_denials, verdict.denied_beyond()), (1, 1.0));
    let full: Vec<_> = (0..6).map(|nth| (nth, nth < 5)).collect();
    let verdict = judge(LIMIT, &checks(&full), 1.0);
    assert_eq!(
        (
            verdict.false_denials,
            verdict.denied,
            verdict.denied_beyond()
        ),
        (0, 1, 0.0)
    );
}

#[test]
fn one_in_a_hundred_is_slower() {
    let mut asked = steady(1_000, 1, |_| true);
    for (nth, check) in (0..).zip(&mut asked) {
        check.micros = nth;
    }
    assert_eq!(p99(&asked), 990.0);
    assert!(p99(&[]).is_nan());
}

#[test]
fn a_figure_is_within_its_target_or_not() {
    let figures = FleetFigures::of("s")
        .most("a", 2.0, 1.0)
        .most("b", None, 1.0)
        .show("c", 3.0);
    let within = |times| {
        figures
            .all
            .iter()
            .map(|figure| figure.is_within(times))
            .collect::<Vec<_>>()
    };
    assert_eq!(within(1.0), [false, false, true]);
    assert_eq!(within(2.0), [true, false, true]);
    let lines: Vec<String> = figures.all.iter().map(ToString::to_string).collect();
    let expected = [
        "| s | a | 2.00 | ≤ 1 | SHORT |",
        "| s | b | UNKNOWN | ≤ 1 | SHORT |",
        "| s | c | 3.00 |  |  |",
    ];
    assert_eq!(lines, expected);
}
