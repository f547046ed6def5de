//! Properties of every history of GCRA, the token bucket and the leaky bucket.

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use tidegate_core::pure::algorithm::{Standing, gcra, leaky_bucket, token_bucket};
use tidegate_core::pure::{Cells, Limit, Nanos, Span};

use crate::config;
use crate::history::{Check, History, Time, ends, history, level_limit};
use crate::model::{Model, Queue, Tokens, Water};

/// The type of all three algorithms.
type Decide = fn(&Limit, Nanos, Nanos, Cells) -> (Nanos, Standing);

/// Runs a history beside its model, and shows each step to `also`.
fn agree<M: Model>(
    decide: Decide,
    History { limit, checks }: &History,
    also: impl Fn(&M, Check, Standing) -> TestCaseResult,
) -> TestCaseResult {
    let (mut tat, mut model) = (Nanos::new(0), M::default());
    for &check in checks {
        let (now, cost) = (Nanos::new(check.at), Cells::new(check.cost));
        let expected = model.ask(limit, check.at, check.cost);
        let (next, standing) = decide(limit, tat, now, cost);
        prop_assert_eq!(standing.allowed, expected.allowed, "{:?}", check);
        also(&model, check, standing)?;
        if standing.allowed {
            prop_assert_eq!(standing.retry_after, None);
            prop_assert_eq!(next.since(now), standing.reset_after);
            model.book(limit, check.at, check.cost);
            tat = next;
        } else {
            prop_assert_eq!(next, tat, "a denial changed something: {:?}", check);
            prop_assert_eq!(standing.retry_after.is_none(), cost > limit.burst());
            if let Some(wait) = standing.retry_after {
                waits(check, wait, |now| decide(limit, tat, now, cost).1.allowed)?;
            }
        }
        let room = model.ask(limit, check.at, 0).room;
        prop_assert_eq!(u128::from(standing.remaining.get()), room, "{:?}", check);
    }
    Ok(())
}

/// The wait of the answer is enough for one client, and a nanosecond less is not.
fn waits(check: Check, wait: Span, allowed: impl Fn(Nanos) -> bool) -> TestCaseResult {
    let after = Nanos::new(check.at).after(wait);
    let before = after.before(Span::nanos(1));
    prop_assert!(allowed(after), "{:?} waited {}", check, wait);
    prop_assert!(!allowed(before), "{:?} need not wait {}", check, wait);
    Ok(())
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn gcra_is_water_that_drains(history in history(level_limit(), Time::AlsoBack)) {
        agree::<Water>(gcra::decide, &history, |model, check, standing| {
            prop_assert_eq!(standing.delay, Span::ZERO);
            if !standing.allowed {
                prop_assert_eq!(u128::from(standing.reset_after.get()), model.level(check.at));
            }
            Ok(())
        })?;
    }

    #[test]
    fn the_token_bucket_is_tokens_that_refill(history in history(level_limit(), Time::AlsoBack)) {
        agree::<Tokens>(token_bucket::decide, &history, |model, check, standing| {
            let tokens = model.ask(&history.limit, check.at, 0).room;
            let left = tokens - if standing.allowed { u128::from(check.cost) } else { 0 };
            prop_assert_eq!(u128::from(standing.remaining.get()), left);
            Ok(())
        })?;
    }

    /// An admitted check learns the wait until its turn, and turns are one interval per cell apart.
    #[test]
    fn the_leaky_bucket_is_a_queue_that_leaves_at_a_steady_pace(history in history(level_limit(), Time::Forward)) {
        let interval = history.limit.interval();
        let next = std::cell::Cell::new(Nanos::new(0));
        agree::<Queue>(leaky_bucket::decide, &history, |model, check, standing| {
            if !standing.allowed {
                prop_assert_eq!(standing.delay, Span::ZERO);
                return Ok(());
            }
            let turn = Nanos::new(check.at).after(standing.delay);
            prop_assert_eq!(u128::from(turn.get()), model.turn(&history.limit, check.at));
            prop_assert!(turn >= next.get(), "{:?} leaves with the one before", check);
            next.set(turn.after(interval.times(Cells::new(check.cost))));
            Ok(())
        })?;
    }

    /// Since any start, a bucket admits at most `burst` plus one cell per elapsed interval.
    #[test]
    fn no_span_of_time_admits_more_than_the_burst_and_the_rate(
        History { limit, checks } in history(level_limit(), Time::Forward)
    ) {
        let mut tat = Nanos::new(0);
        let mut admitted = Vec::<(Nanos, u64)>::new();
        for Check { at, cost, .. } in checks {
            let now = Nanos::new(at);
            let (next, standing) = gcra::decide(&limit, tat, now, Cells::new(cost));
            if !standing.allowed {
                continue;
            }
            tat = next;
            admitted.push((now, cost));
            let mut cells = 0;
            for &(start, cost) in admitted.iter().rev() {
                cells += cost;
                let most = limit.burst().plus(now.since(start).whole(limit.interval()));
                prop_assert!(cells <= most.get(), "{cells} from {start:?} to {now:?}");
            }
        }
    }

    #[test]
    fn nothing_panics_at_the_ends_of_time(
        limit in level_limit(), tat in ends(), now in ends(), cost in ends()
    ) {
        for decide in [gcra::decide as Decide, token_bucket::decide, leaky_bucket::decide] {
            let (tat, now, cost) = (Nanos::new(tat), Nanos::new(now), Cells::new(cost));
            let (next, standing) = decide(&limit, tat, now, cost);
            prop_assert!(standing.allowed || next == tat);
            prop_assert!(standing.remaining <= limit.burst());
            prop_assert!(token_bucket::tokens(&limit, tat, now) >= standing.remaining);
        }
    }
}
