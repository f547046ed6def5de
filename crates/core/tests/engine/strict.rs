//! Checks that the store decides, with a store that the test plays.

use std::collections::HashMap;

use tidegate_core::engine::store_request::StoreFailure;
use tidegate_core::engine::{Answer, CheckStep, Engine, Question, Source, StorePlan, Verdict};
use tidegate_core::pure::rule::{Consistency, NodeSpec, OnStoreError, RuleSpec};
use tidegate_core::pure::sync::{StoreKey, StoreState, Take, TakeReply, Terms};
use tidegate_core::pure::{Algorithm, Cells, Check, Descriptor, Entry, Limit, Moment, Span, Unit};
use tidegate_testing::engine::{SECOND, START, reporting_engine, setup};
use tidegate_testing::rules::{a_second, node, rule, rules};

/// A store of levels and of windows. Its clock is the test's.
#[derive(Default)]
struct Store {
    levels: HashMap<StoreKey, u64>,
    windows: HashMap<(StoreKey, u64), u64>,
    asked: usize,
    /// Whether it does not answer.
    away: bool,
}

impl Store {
    fn take(&mut self, take: &Take, now: u64) -> Result<TakeReply, StoreFailure> {
        self.asked += 1;
        if self.away {
            return Err(StoreFailure);
        }
        Ok(match take.terms {
            Terms::Level {
                interval, capacity, ..
            } => {
                let tat = self.levels.entry(take.key).or_default();
                let level = tat.saturating_sub(now);
                let after = level + interval.get() * take.cost.get();
                let taken = after <= capacity.get();
                let most = take.terms.level_max().get();
                let level = match taken || take.charge {
                    true => after.min(most),
                    false => level,
                };
                *tat = now + level;
                TakeReply {
                    taken,
                    state: StoreState::Level {
                        level: Span::nanos(level),
                        demand: 0,
                        capped: take.charge && after > most,
                    },
                }
            }
            Terms::Window {
                window, requests, ..
            } => {
                let index = now / window.get();
                let before = index.checked_sub(1).map(|index| (take.key, index));
                let previous = before.and_then(|place| self.windows.get(&place)).copied();
                let current = self.windows.entry((take.key, index)).or_default();
                let taken = *current + take.cost.get() <= requests.get();
                if taken || take.charge {
                    *current += take.cost.get();
                }
                TakeReply {
                    taken,
                    state: StoreState::Window {
                        current: Cells::new(*current),
                        previous: Cells::new(previous.unwrap_or(0)),
                        left: Span::nanos((index + 1) * window.get() - now),
                    },
                }
            }
        })
    }

    fn give_back(&mut self, take: &Take, now: u64) {
        match take.terms {
            Terms::Level { interval, .. } => {
                let tat = self.levels.entry(take.key).or_default();
                *tat -= interval.get() * take.cost.get();
            }
            Terms::Window { window, .. } => {
                let place = (take.key, now / window.get());
                *self.windows.entry(place).or_default() -= take.cost.get();
            }
        }
    }
}

fn strict(limit: Limit, algorithm: Algorithm) -> RuleSpec {
    RuleSpec {
        consistency: Consistency::Strict,
        ..rule(limit, algorithm)
    }
}

fn otherwise(on_store_error: OnStoreError) -> RuleSpec {
    RuleSpec {
        on_store_error,
        ..strict(a_second(10, 3), Algorithm::Gcra)
    }
}

fn engine(nodes: Vec<NodeSpec>) -> Engine {
    reporting_engine(1_000, rules(nodes))
}

/// A check of `cost` cells of each key, value `v`.
fn begin(engine: &Engine, keys: &[&str], cost: u64, nanos: u64) -> CheckStep {
    let entries: Vec<[Entry<'_>; 1]> = keys.iter().map(|key| [Entry::new(key, "v")]).collect();
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .map(|entries| Descriptor {
            cost: Some(Cells::new(cost)),
            ..Descriptor::of(entries)
        })
        .collect();
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::ONE,
        peek: false,
    };
    engine.begin(Question::Check(&check), Moment::at(nanos))
}

fn asking(begun: CheckStep) -> Box<StorePlan> {
    match begun {
        CheckStep::NeedsStore(plan) => plan,
        CheckStep::Decided(answer) => {
            unreachable!("decided without the store: {:?}", answer.hits())
        }
    }
}

fn decided(begun: CheckStep) -> Answer {
    match begun {
        CheckStep::Decided(answer) => answer,
        CheckStep::NeedsStore(plan) => {
            unreachable!("asks the store: {:?}", plan.takes().collect::<Vec<_>>())
        }
    }
}

/// Asks `store` for what the plan wants, and gives back what it must.
fn finish(engine: &Engine, store: &mut Store, plan: Box<StorePlan>, nanos: u64) -> (Answer, usize) {
    let results: Vec<_> = plan.takes().map(|take| store.take(&take, nanos)).collect();
    let finished = engine.finish(plan, &results, Moment::at(nanos));
    for take in &finished.give_back {
        store.give_back(take, nanos);
    }
    let answer = finished.answer.expect("the rules did not change");
    (answer, finished.give_back.len())
}

fn ask(engine: &Engine, store: &mut Store, keys: &[&str], nanos: u64) -> (Answer, usize) {
    match begin(engine, keys, 1, nanos) {
        CheckStep::Decided(answer) => (answer, 0),
        CheckStep::NeedsStore(plan) => finish(engine, store, plan, nanos),
    }
}

fn says(answer: &Answer) -> Vec<(bool, Source, u64)> {
    let hits = answer.hits().iter();
    hits.map(|hit| {
        (
            hit.standing.allowed,
            hit.source,
            hit.standing.remaining.get(),
        )
    })
    .collect()
}

#[test]
fn the_store_decides_and_nothing_is_pending() {
    for algorithm in Algorithm::ALL {
        let limit = match algorithm.is_windowed() {
            true => a_second(3, 3),
            false => a_second(10, 3),
        };
        let engine = engine(vec![node("a", strict(limit, algorithm))]);
        let mut store = Store::default();
        for left in [2, 1, 0] {
            let (answer, _) = ask(&engine, &mut store, &["a"], START);
            let name = algorithm.name();
            assert_eq!(says(&answer), [(true, Source::Strict, left)], "{name}");
        }
        assert_eq!(store.asked, 3);
        // Memory knows by now.
        let answer = decided(begin(&engine, &["a"], 1, START));
        assert_eq!(says(&answer), [(false, Source::Mitigation, 0)]);
        assert!(answer.hits()[0].standing.retry_after > Some(Span::ZERO));
        assert_eq!(engine.pending(), Cells::ZERO);
        // And lets pass what the store has again.
        let (answer, _) = ask(&engine, &mut store, &["a"], START + 2 * SECOND);
        assert!(answer.allowed(), "{}", algorithm.name());
        assert_eq!(store.asked, 4);
    }
}

#[test]
fn what_other_pods_took_is_refused_and_then_denied_from_memory() {
    for algorithm in Algorithm::ALL {
        let limit = match algorithm.is_windowed() {
            true => a_second(3, 3),
            false => a_second(10, 3),
        };
        let pods = [0; 2].map(|_| engine(vec![node("a", strict(limit, algorithm))]));
        let mut store = Store::default();
        for _ in 0..3 {
            assert!(ask(&pods[0], &mut store, &["a"], START).0.allowed());
        }
        let (answer, given_back) = ask(&pods[1], &mut store, &["a"], START);
        assert_eq!(says(&answer), [(false, Source::Strict, 0)]);
        assert!(answer.hits()[0].standing.retry_after > Some(Span::ZERO));
        assert!(answer.verdict() != Verdict::StoreUnavailable);
        assert_eq!((given_back, store.asked), (0, 4));
        let (answer, _) = ask(&pods[1], &mut store, &["a"], START);
        assert_eq!(says(&answer), [(false, Source::Mitigation, 0)]);
        assert_eq!(store.asked, 4, "{}", algorithm.name());
        assert_eq!(pods[1].pending(), Cells::ZERO);
    }
}

/// The window before counts, also on a pod that has never heard of it.
#[test]
fn a_sliding_window_follows_both_counts_of_the_store() {
    let limit = a_second(10, 10);
    let engine = engine(vec![node("a", strict(limit, Algorithm::SlidingWindow))]);
    let at = START + SECOND / 2;
    let plan = asking(begin(&engine, &["a"], 1, at));
    let refusal = TakeReply {
        taken: false,
        state: StoreState::Window {
            current: Cells::new(6),
            previous: Cells::new(8),
            left: Span::nanos(SECOND / 2),
        },
    };
    let finished = engine.finish(plan, &[Ok(refusal)], Moment::at(at));
    let answer = finished.answer.expect("an answer");
    assert!(!decided(begin(&engine, &["a"], 1, at)).allowed());
    let wait = answer.hits()[0].standing.retry_after.expect("a wait");
    // An eighth of a second later the window before weighs a cell less; a nanosecond makes that less than a whole one.
    assert!(wait <= Span::nanos(SECOND / 8 + 1), "{wait:?}");
    let _ = asking(begin(&engine, &["a"], 1, at + wait.get()));
}

#[test]
fn a_denial_by_another_rule_asks_nobody() {
    let nodes = vec![
        node("a", strict(a_second(10, 3), Algorithm::Gcra)),
        node("b", rule(a_second(10, 1), Algorithm::Gcra)),
    ];
    let engine = engine(nodes);
    let mut store = Store::default();
    let (answer, _) = ask(&engine, &mut store, &["a", "b"], START);
    assert_eq!(
        says(&answer),
        [(true, Source::Strict, 2), (true, Source::Local, 0)]
    );
    let answer = decided(begin(&engine, &["a", "b"], 1, START));
    assert_eq!(says(&answer)[0].2, 2);
    assert_eq!(store.asked, 1);
    // Only the other rule's cell is to be reported.
    assert_eq!(engine.pending(), Cells::ONE);
}

#[test]
fn two_strict_rules_take_both_or_none() {
    let nodes = vec![
        node("a", strict(a_second(10, 3), Algorithm::Gcra)),
        node("w", strict(a_second(1, 1), Algorithm::FixedWindow)),
    ];
    let pods = [engine(nodes.clone()), engine(nodes)];
    let mut store = Store::default();
    let (answer, _) = ask(&pods[0], &mut store, &["w"], START);
    assert!(answer.allowed());
    let (answer, given_back) = ask(&pods[1], &mut store, &["a", "w"], START);
    assert!(!answer.allowed());
    assert_eq!((given_back, store.asked), (1, 3));
    assert_eq!(
        says(&answer),
        [(true, Source::Local, 3), (false, Source::Strict, 0)]
    );
    // All of it is still there.
    let mut taken = 0;
    while ask(&pods[1], &mut store, &["a"], START).0.allowed() {
        taken += 1;
    }
    assert_eq!(taken, 3);
    assert_eq!(pods[1].pending(), Cells::ZERO);
}

#[test]
fn a_race_lost_on_another_rule_gives_back() {
    let nodes = vec![
        node("a", strict(a_second(10, 3), Algorithm::Gcra)),
        node("w", strict(a_second(3, 3), Algorithm::FixedWindow)),
        node("b", rule(a_second(10, 1), Algorithm::Gcra)),
    ];
    let engine = engine(nodes);
    let mut store = Store::default();
    let plan = asking(begin(&engine, &["a", "w", "b"], 1, START));
    // While the store is asked, another check takes the last cell.
    assert!(decided(begin(&engine, &["b"], 1, START)).allowed());
    let (answer, given_back) = finish(&engine, &mut store, plan, START);
    assert!(!answer.allowed());
    assert_eq!(given_back, 2);
    assert!(store.levels.values().all(|tat| *tat == START));
    assert!(store.windows.values().all(|count| *count == 0));
    assert_eq!(engine.pending(), Cells::ONE);
}

#[test]
fn one_key_twice_in_a_check_is_taken_twice() {
    let engine = engine(vec![node("a", strict(a_second(10, 3), Algorithm::Gcra))]);
    let mut store = Store::default();
    let (answer, _) = ask(&engine, &mut store, &["a", "a"], START);
    assert!(answer.allowed());
    let (answer, given_back) = ask(&engine, &mut store, &["a", "a"], START);
    assert!(!answer.allowed());
    assert_eq!((given_back, store.asked), (1, 4));
    assert_eq!(
        store.levels.values().copied().collect::<Vec<_>>(),
        [START + SECOND / 5]
    );
}

#[test]
fn without_an_answer_a_rule_goes_its_own_way() {
    let cases = [
        (OnStoreError::LocalShare, "aaad", 3),
        (OnStoreError::LocalFull, "aaad", 3),
        (OnStoreError::Allow, "aaad", 3),
        (OnStoreError::Deny, "ddd", 0),
    ];
    for (on_store_error, expected, pending) in cases {
        let engine = engine(vec![node("a", otherwise(on_store_error))]);
        let mut store = Store {
            away: true,
            ..Store::default()
        };
        for decision in expected.chars() {
            let (answer, given_back) = ask(&engine, &mut store, &["a"], START);
            assert_eq!(answer.allowed(), decision == 'a', "{on_store_error:?}");
            assert_eq!(given_back, 0);
            assert_eq!(
                answer.verdict() == Verdict::StoreUnavailable,
                on_store_error == OnStoreError::Deny
            );
            assert!(!answer.hits()[0].forgiven);
            // Once memory knows the limit to be reached, nobody is asked.
            assert_eq!(
                answer.hits()[0].source == Source::Fallback,
                answer.allowed() || answer.verdict() == Verdict::StoreUnavailable
            );
        }
        // What was admitted while detached is reported later.
        assert_eq!(engine.pending(), Cells::new(pending), "{on_store_error:?}");
        assert_eq!(store.asked, 3);
    }
}

/// The cells were there when the check began, and gone when the store had not answered.
#[test]
fn allow_forgives_what_would_be_denied() {
    for (on_store_error, allowed) in [
        (OnStoreError::Allow, true),
        (OnStoreError::LocalFull, false),
    ] {
        let engine = engine(vec![node("a", otherwise(on_store_error))]);
        let plans = [(); 4].map(|()| asking(begin(&engine, &["a"], 1, START)));
        let mut answers = plans.map(|plan| {
            let finished = engine.finish(plan, &[Err(StoreFailure)], Moment::at(START));
            finished.answer.expect("an answer")
        });
        let last = answers.last_mut().expect("four");
        assert_eq!(
            (last.allowed(), last.hits()[0].forgiven),
            (allowed, allowed)
        );
        assert!(answers[..3].iter().all(|answer| !answer.hits()[0].forgiven));
        assert_eq!(engine.pending(), Cells::new(3));
    }
}

#[test]
fn one_rule_taken_and_one_undone_that_denies_gives_back() {
    let nodes = vec![
        node("a", strict(a_second(10, 3), Algorithm::Gcra)),
        node("b", otherwise(OnStoreError::Deny)),
    ];
    let engine = engine(nodes);
    let mut store = Store::default();
    let plan = asking(begin(&engine, &["a", "b"], 1, START));
    let takes: Vec<Take> = plan.takes().collect();
    let results = [store.take(&takes[0], START), Err(StoreFailure)];
    let finished = engine.finish(plan, &results, Moment::at(START));
    assert_eq!(finished.give_back, takes[..1]);
    assert!(finished.answer.expect("an answer").verdict() == Verdict::StoreUnavailable);
}

#[test]
fn a_shadow_rule_asks_and_never_denies() {
    let shadow = RuleSpec {
        shadow: true,
        ..strict(a_second(10, 2), Algorithm::Gcra)
    };
    let engine = engine(vec![node("a", shadow)]);
    let mut store = Store::default();
    for standing in [true, true, false, false] {
        let (answer, _) = ask(&engine, &mut store, &["a"], START);
        assert!(answer.allowed());
        assert_eq!(answer.hits()[0].standing.allowed, standing);
    }
    assert_eq!(store.asked, 2);
    assert_eq!(engine.pending(), Cells::ZERO);
}

#[test]
fn of_quota_rules_one_with_room_is_enough() {
    let quota = |burst| RuleSpec {
        quota: true,
        ..strict(a_second(10, burst), Algorithm::Gcra)
    };
    let nodes = vec![node("a", quota(1)), node("b", quota(2))];
    let pods = [engine(nodes.clone()), engine(nodes)];
    let mut store = Store::default();
    assert!(ask(&pods[0], &mut store, &["a"], START).0.allowed());
    let (answer, given_back) = ask(&pods[1], &mut store, &["a", "b"], START);
    assert_eq!(
        says(&answer),
        [(false, Source::Strict, 0), (true, Source::Strict, 1)]
    );
    assert!(answer.allowed());
    assert_eq!(given_back, 0);
    assert!(ask(&pods[1], &mut store, &["a", "b"], START).0.allowed());
    assert!(!ask(&pods[1], &mut store, &["a", "b"], START).0.allowed());
}

#[test]
fn a_look_and_a_cost_that_never_fits_ask_nobody() {
    let engine = engine(vec![node("a", strict(a_second(10, 3), Algorithm::Gcra))]);
    assert!(decided(begin(&engine, &["a"], 0, START)).allowed());
    let answer = decided(begin(&engine, &["a"], 4, START));
    assert_eq!(says(&answer), [(false, Source::Local, 3)]);
    assert_eq!(answer.hits()[0].standing.retry_after, None);
}

#[test]
fn without_a_store_strict_is_local() {
    let nodes = vec![node("a", strict(a_second(10, 1), Algorithm::Gcra))];
    let engine = Engine::new(setup(100), rules(nodes));
    let answer = decided(begin(&engine, &["a"], 1, START));
    assert_eq!(says(&answer), [(true, Source::Local, 0)]);
    assert!(!decided(begin(&engine, &["a"], 1, START)).allowed());
}

#[test]
fn rules_that_changed_meanwhile_begin_the_check_again() {
    let nodes = |burst| {
        vec![
            node("a", strict(a_second(10, burst), Algorithm::Gcra)),
            node("b", rule(a_second(10, burst), Algorithm::Gcra)),
        ]
    };
    let engine = engine(nodes(3));
    let mut store = Store::default();
    let plan = asking(begin(&engine, &["a", "b"], 1, START));
    engine.reload(rules(nodes(2)));
    let takes: Vec<Take> = plan.takes().collect();
    let results = [store.take(&takes[0], START)];
    let finished = engine.finish(plan, &results, Moment::at(START));
    assert!(finished.answer.is_none());
    assert_eq!(finished.give_back, takes);
    assert_eq!(engine.pending(), Cells::ZERO);
}

#[test]
fn a_queue_tells_how_long_to_wait_for_those_ahead() {
    let limit = a_second(10, 3);
    let engine = engine(vec![node("a", strict(limit, Algorithm::LeakyBucket))]);
    let mut store = Store::default();
    for ahead in 0..3 {
        let (answer, _) = ask(&engine, &mut store, &["a"], START);
        assert_eq!(
            answer.hits()[0].standing.delay,
            Span::nanos(ahead * SECOND / 10)
        );
    }
}

fn counting(limit: Limit, algorithm: Algorithm) -> RuleSpec {
    RuleSpec {
        count_rejected: true,
        ..strict(limit, algorithm)
    }
}

/// Whether a call that looks first, and is charged `cost` when it is done, is served.
fn call(engine: &Engine, store: &mut Store, cost: u64, nanos: u64) -> bool {
    let served = decided(begin(engine, &["a"], 0, nanos)).allowed();
    if served && let CheckStep::NeedsStore(plan) = begin(engine, &["a"], cost, nanos) {
        finish(engine, store, plan, nanos);
    }
    served
}

#[test]
fn a_budget_that_is_charged_after_the_fact_runs_out() {
    let budgets = [
        (1_000, Unit::Minute),
        (1_000_000, Unit::Hour),
        (1_000_000, Unit::Day),
    ];
    for algorithm in Algorithm::ALL {
        for (cells, unit) in budgets {
            let limit = Limit::new(cells, unit, 1, None).expect("a sound limit");
            let pods = [0; 3].map(|_| engine(vec![node("a", counting(limit, algorithm))]));
            let served = |pods: &[Engine], calls: usize| {
                let mut store = Store::default();
                let at = |nth: usize| START + nth as u64 * SECOND / 100;
                let call = |nth: &usize| {
                    call(
                        &pods[nth % pods.len()],
                        &mut store,
                        cells * 6 / 10,
                        at(*nth),
                    )
                };
                (0..calls).filter(call).count()
            };
            let name = algorithm.name();
            assert_eq!(served(&pods[..1], 50), 2, "{name} {unit:?}");
            let pods = [0; 3].map(|_| engine(vec![node("a", counting(limit, algorithm))]));
            // Without news each pod finds out by its own charge; the first had one that fitted.
            assert_eq!(served(&pods, 50), 4, "{name} {unit:?}");
        }
    }
}

/// Also when another rule denies: what was taken for it stays taken.
#[test]
fn what_the_store_took_for_a_denied_check_is_kept_where_it_counts() {
    for algorithm in Algorithm::ALL {
        let limit = match algorithm.is_windowed() {
            true => a_second(3, 3),
            false => a_second(10, 3),
        };
        let engine = engine(vec![
            node("a", counting(limit, algorithm)),
            node("b", rule(a_second(10, 1), Algorithm::Gcra)),
        ]);
        let mut store = Store::default();
        let plan = asking(begin(&engine, &["a", "b"], 1, START));
        assert!(decided(begin(&engine, &["b"], 1, START)).allowed());
        let (answer, given_back) = finish(&engine, &mut store, plan, START);
        assert!(!answer.allowed());
        assert_eq!(given_back, 0);
        let name = algorithm.name();
        assert_eq!(says(&answer)[0], (true, Source::Strict, 2), "{name}");
        // Memory denies the next one, and charges it here: the store hears of it with the rounds.
        let answer = decided(begin(&engine, &["a", "b"], 1, START));
        assert_eq!(answer.hits()[0].charged, Cells::ONE);
        assert_eq!(says(&answer)[0].2, 1, "{name}");
        assert_eq!(engine.pending(), Cells::new(2), "b's and a's");
    }
}

/// What memory denies never asks the store; it is charged here and reported with the rounds, up to the cap.
#[test]
fn a_flood_of_a_charged_key_asks_the_store_nothing() {
    let engine = engine(vec![node("a", counting(a_second(10, 20), Algorithm::Gcra))]);
    let mut store = Store::default();
    let plan = asking(begin(&engine, &["a"], 20, START));
    finish(&engine, &mut store, plan, START);
    for nth in 0..10_000 {
        let answer = decided(begin(&engine, &["a"], 3, START + nth * SECOND / 10_000));
        assert!(!answer.allowed());
    }
    assert_eq!(store.asked, 1);
    // One burst of debt, and a second of the rate.
    let pending = engine.pending().get();
    assert!((29..=30).contains(&pending), "{pending}");
}

#[test]
fn a_charge_that_the_store_caps_is_said() {
    let pods = [0; 3].map(|_| engine(vec![node("a", counting(a_second(10, 3), Algorithm::Gcra))]));
    let mut store = Store::default();
    let mut take = |pod: usize, at| {
        let plan = asking(begin(&pods[pod], &["a"], 3, at));
        finish(&pods[pod], &mut store, plan, at).0
    };
    assert!(take(0, START).allowed());
    for (pod, capped) in [(1, false), (2, true)] {
        let refused = take(pod, START);
        let hit = &refused.hits()[0];
        assert_eq!((refused.allowed(), hit.capped), (false, capped));
        // Twice the burst is used by then, and the same again has to fit.
        let wait = hit.standing.retry_after;
        assert_eq!(wait, Some(Span::nanos(SECOND * 6 / 10)));
    }
    assert!(pods.iter().all(|pod| pod.pending() == Cells::ZERO));
}
