//! Properties of every history of the fixed window, the sliding window and the sliding log.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tidegate_core::pure::algorithm::sliding_log::{ENTRIES_MAX, PARTS};
use tidegate_core::pure::algorithm::{Standing, window::WindowState};
use tidegate_core::pure::{Algorithm, Cells, Limit, Span};

use crate::config;
use crate::history::{Check, History, Time, ends, history, window_limit};
use crate::model::{Fixed, Log, Model, Sliding};

const WINDOWED: [Algorithm; 3] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

fn fresh(algorithm: Algorithm) -> WindowState {
    WindowState::new(algorithm).expect("a windowed algorithm")
}

/// Decides one check and asserts what holds for all of them: a look gives the same answer and changes nothing, a denial
/// changes nothing, waits are exact, and an idle state is like that of an unused key.
fn step(state: &mut WindowState, limit: &Limit, check: Check) -> Result<Standing, TestCaseError> {
    let (unix, cost) = (Span::nanos(check.at), Cells::new(check.cost));
    let before = state.clone();
    let looked = state.look(limit, unix, cost);
    let standing = state.decide(limit, unix, cost);
    prop_assert_eq!(standing.allowed, looked.allowed);
    prop_assert_eq!(standing.retry_after, looked.retry_after);
    if standing.allowed {
        prop_assert_eq!(standing.retry_after, None);
        prop_assert_eq!(standing.remaining, looked.remaining.less(cost));
    } else {
        prop_assert_eq!(&*state, &before, "a denial changed something: {:?}", check);
        prop_assert_eq!(standing, looked);
        let never = check.cost > limit.requests();
        prop_assert_eq!(standing.retry_after.is_none(), never, "{:?}", check);
    }
    let now = state.look(limit, unix, Cells::ZERO);
    prop_assert_eq!(now.remaining, standing.remaining);
    prop_assert_eq!(now.reset_after, standing.reset_after);
    if let Some(wait) = standing.retry_after {
        let allowed = |unix| state.look(limit, unix, cost).allowed;
        let after = unix.plus(wait);
        prop_assert!(allowed(after), "{:?} waited {}", check, wait);
        prop_assert!(
            !allowed(after.less(Span::nanos(1))),
            "{:?} need not wait {}",
            check,
            wait
        );
    }
    let ends = state.ends(limit, unix);
    prop_assert_eq!(ends, standing.reset_after);
    let idle = unix.plus(ends);
    prop_assert!(state.is_idle(limit, idle));
    prop_assert_eq!(
        state.look(limit, idle, cost).remaining.get(),
        limit.requests()
    );
    if ends > Span::ZERO {
        prop_assert!(!state.is_idle(limit, unix.plus(ends).less(Span::nanos(1))));
    }
    Ok(standing)
}

/// Runs a history beside its model. Denied checks count where the history says so.
fn agree<M: Model>(
    algorithm: Algorithm,
    History { limit, checks }: &History,
    count_rejected: bool,
) -> TestCaseResult {
    let (mut state, mut model) = (fresh(algorithm), M::default());
    for &check in checks {
        let expected = model.ask(limit, check.at, check.cost);
        let standing = step(&mut state, limit, check)?;
        prop_assert_eq!(standing.allowed, expected.allowed, "{:?}", check);
        if standing.allowed || (count_rejected && check.counted) {
            model.book(limit, check.at, check.cost);
        }
        if !standing.allowed && count_rejected && check.counted {
            state.charge(limit, Span::nanos(check.at), Cells::new(check.cost));
        }
        let look = state.look(limit, Span::nanos(check.at), Cells::ZERO);
        let room = model.ask(limit, check.at, 0).room;
        prop_assert_eq!(u128::from(look.remaining.get()), room, "{:?}", check);
    }
    Ok(())
}

/// Runs a history through one state.
fn run(algorithm: Algorithm, History { limit, checks }: &History) -> WindowState {
    let mut state = fresh(algorithm);
    for check in checks {
        state.decide(limit, Span::nanos(check.at), Cells::new(check.cost));
    }
    state
}

/// Limits for which the log is exact.
fn small_limit() -> impl Strategy<Value = Limit> {
    let most = u64::try_from(ENTRIES_MAX).expect("fits");
    window_limit().prop_filter("the log would merge", move |limit| limit.requests() <= most)
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_fixed_window_counts_by_the_calendar(history in history(window_limit(), Time::AlsoBack)) {
        agree::<Fixed>(Algorithm::FixedWindow, &history, true)?;
    }

    #[test]
    fn the_sliding_window_weighs_as_a_fraction_would(history in history(window_limit(), Time::AlsoBack)) {
        agree::<Sliding>(Algorithm::SlidingWindow, &history, true)?;
    }

    #[test]
    fn the_log_is_exact_for_small_limits(history in history(small_limit(), Time::AlsoBack)) {
        agree::<Log>(Algorithm::SlidingLog, &history, false)?;
    }

    /// For any limit, the log never admits a check that the complete list of its admissions would deny, and it keeps
    /// cells for less than a part of the window too long.
    #[test]
    fn the_log_is_never_too_generous_and_hardly_too_strict(
        History { limit, checks } in history(window_limit(), Time::AlsoBack), count_rejected: bool
    ) {
        let late = u128::from(limit.window().get().div_ceil(PARTS));
        let (mut state, mut model) = (fresh(Algorithm::SlidingLog), Log::default());
        for check in checks {
            let exact = model.ask(&limit, check.at, check.cost);
            let held = model.used(&limit, check.at, late);
            let looked = state.look(&limit, Span::nanos(check.at), Cells::new(check.cost));
            let standing = step(&mut state, &limit, check)?;
            prop_assert!(exact.allowed || !standing.allowed, "{check:?}");
            prop_assert!(u128::from(looked.remaining.get()) <= exact.room, "{check:?}");
            let least = u128::from(limit.requests()).saturating_sub(held);
            prop_assert!(u128::from(looked.remaining.get()) >= least, "{check:?}");
            if standing.allowed {
                model.book(&limit, check.at, check.cost);
            } else if count_rejected && check.counted {
                model.book(&limit, check.at, check.cost);
                state.charge(&limit, Span::nanos(check.at), Cells::new(check.cost));
            }
        }
    }

    /// The first two admit no more than the limit in any calendar window, and the log in any window at all.
    #[test]
    fn no_window_admits_more_than_its_limit(
        History { limit, checks } in history(window_limit(), Time::Forward)
    ) {
        for algorithm in WINDOWED {
            let mut state = fresh(algorithm);
            let mut admitted = Vec::<(u64, u64)>::new();
            for &Check { at, cost, .. } in &checks {
                if !state.decide(&limit, Span::nanos(at), Cells::new(cost)).allowed {
                    continue;
                }
                admitted.push((at, cost));
                let window = limit.window().get();
                let same = |then: u64| {
                    if algorithm == Algorithm::SlidingLog {
                        at - then < window
                    } else {
                        at / window == then / window
                    }
                };
                let cells: u64 = admitted.iter().rev().filter(|(then, _)| same(*then)).map(|(_, cost)| cost).sum();
                prop_assert!(cells <= limit.requests(), "{algorithm:?}: {cells} at {at}");
            }
        }
    }

    /// An admission that is given back at once leaves no trace. If its time is before the state's time, it may leave
    /// less room than before, never more.
    #[test]
    fn what_is_given_back_was_never_taken(
        history in history(window_limit(), Time::Forward), cost in 1..=5_u64, back in 0..=1_000_u64
    ) {
        let limit = &history.limit;
        let last = history.checks.last().map_or(0, |check| check.at);
        let unix = Span::nanos(last.saturating_sub(limit.window().get() / 1_000 * back));
        for algorithm in WINDOWED {
            let before = run(algorithm, &history);
            let mut after = before.clone();
            if after.decide(limit, unix, Cells::new(cost)).allowed {
                after.give_back(limit, unix, Cells::new(cost));
            }
            let merges = algorithm == Algorithm::SlidingLog && limit.requests() > 64;
            for parts in 0..=40 {
                let probe = Span::nanos(last + limit.window().get() / 20 * parts);
                let (then, now) = (before.look(limit, probe, Cells::ONE), after.look(limit, probe, Cells::ONE));
                prop_assert!(now.remaining <= then.remaining, "{algorithm:?} at {probe}");
                if back == 0 && !merges {
                    prop_assert_eq!(now, then, "{:?} at {}", algorithm, probe);
                }
            }
        }
    }

    /// After a reload half full stays half full, to within a cell, and never less.
    #[test]
    fn another_limit_keeps_the_fullness(
        history in history(window_limit(), Time::Forward), to in window_limit(), same_window: bool
    ) {
        let from = &history.limit;
        if from.requests() == 0 {
            return Ok(()); // full and empty at once
        }
        let to = match same_window {
            true => Limit::new(to.requests(), from.unit(), from.unit_multiplier(), None),
            false => Ok(to),
        };
        let Ok(to) = to else { return Ok(()) };
        let unix = Span::nanos(history.checks.last().map_or(0, |check| check.at));
        for algorithm in WINDOWED {
            let mut state = run(algorithm, &history);
            let used = |state: &WindowState, limit: &Limit| {
                u128::from(limit.requests() - state.look(limit, unix, Cells::ZERO).remaining.get())
            };
            let (before, idle) = (used(&state, from), state.is_idle(from, unix));
            state.rescale(from, &to, unix);
            let (after, old, new) = (used(&state, &to), u128::from(from.requests()), u128::from(to.requests()));
            let mut least = (before * new).div_ceil(old);
            let mut most = least;
            if algorithm == Algorithm::SlidingWindow {
                // The estimate is rounded down, and the conversion counts nanoseconds of its window.
                least = before * new / old;
                most = ((before + 1) * new).div_ceil(old) + 1 + new / u128::from(from.window().get());
            }
            prop_assert!(least <= after && after <= most, "{algorithm:?}: {before} of {old}, {after} of {new}");
            prop_assert!(!idle || state.is_idle(&to, unix), "{algorithm:?}");
        }
    }

    #[test]
    fn nothing_panics_at_the_ends_of_time(
        limits in proptest::collection::vec(window_limit(), 2),
        calls in proptest::collection::vec((0..5_u8, ends(), ends()), 1..=100)
    ) {
        let (mut limit, mut other) = (&limits[0], &limits[1]);
        for algorithm in WINDOWED {
            let mut state = fresh(algorithm);
            for &(call, at, cost) in &calls {
                let (unix, cost) = (Span::nanos(at), Cells::new(cost));
                match call {
                    0 | 1 => prop_assert!(state.decide(limit, unix, cost).remaining.get() <= limit.requests()),
                    2 => state.charge(limit, unix, cost),
                    3 => state.give_back(limit, unix, cost),
                    _ => {
                        state.rescale(limit, other, unix);
                        (limit, other) = (other, limit);
                    }
                }
                state.look(limit, Span::nanos(u64::MAX), cost);
            }
        }
    }
}
