//! Budgets that are charged after the fact: a call looks whether anything is left, runs, and is then charged what it
//! cost. `count_rejected` makes such a budget run out.

use std::collections::HashMap;

use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip};
use tidegate_core::engine::{Answer, Engine, Shares, Source};
use tidegate_core::pure::rule::{NodeSpec, RuleSpec};
use tidegate_core::pure::sync::{
    Grouping, News, NewsKind, Share, StoreKey, StoreReply, StoreState,
};
use tidegate_core::pure::{Algorithm, Cells, Check, Descriptor, Entry, Limit, Moment, Span, Unit};
use tidegate_testing::engine::{SECOND, START, ask, engine, left, reporting_engine};
use tidegate_testing::rules::{a_second, node, rule, rules};

const CALLS: u64 = 50;

/// Budgets as people have them for tokens.
fn budgets() -> [Limit; 3] {
    [
        (1_000, Unit::Minute),
        (1_000_000, Unit::Hour),
        (1_000_000, Unit::Day),
    ]
    .map(|(cells, unit)| Limit::new(cells, unit, 1, None).expect("a sound limit"))
}

fn counting(limit: Limit, algorithm: Algorithm) -> RuleSpec {
    RuleSpec {
        count_rejected: true,
        ..rule(limit, algorithm)
    }
}

fn limiting(spec: RuleSpec) -> Engine {
    engine(1_000, rules(vec![node("key", spec)]))
}

/// One that notes cells for a store.
fn reporting(nodes: Vec<NodeSpec>) -> Engine {
    reporting_engine(1_000, rules(nodes))
}

/// A call that looks first and is charged `cost` when it is done; whether it was served.
fn call(engine: &Engine, cost: u64, at: u64) -> bool {
    let served = ask(engine, ("key", "v"), 0, at).allowed();
    if served {
        ask(engine, ("key", "v"), cost, at);
    }
    served
}

fn served(engine: &Engine, cost: u64, at: u64) -> usize {
    (0..CALLS)
        .filter(|nth| call(engine, cost, at + nth * SECOND / 100))
        .count()
}

#[test]
fn a_budget_that_is_charged_after_the_fact_runs_out() {
    for algorithm in Algorithm::ALL {
        for budget in budgets() {
            let cost = budget.requests() * 6 / 10;
            let engine = limiting(counting(budget, algorithm));
            let name = algorithm.name();
            assert_eq!(served(&engine, cost, START), 2, "{name} {budget:?}");
            assert_eq!(left(&engine, ("key", "v"), START + SECOND), 0, "{name}");
        }
    }
}

/// The debt drains at the rate, and then the budget is there again.
#[test]
fn what_was_charged_is_repaid_at_the_rate() {
    for budget in budgets() {
        let (cells, window) = (budget.requests(), budget.window().get());
        let engine = limiting(counting(budget, Algorithm::Gcra));
        assert_eq!(served(&engine, cells * 6 / 10, START), 2);
        // Six tenths twice are two tenths too much.
        let open = START + window / 5 + window / cells;
        assert!(!call(&engine, 1, open - SECOND));
        assert!(call(&engine, 1, open + SECOND), "{budget:?}");
        assert_eq!(left(&engine, ("key", "v"), START + 2 * window), cells);
    }
}

#[test]
fn without_count_rejected_a_denied_check_uses_nothing() {
    for algorithm in Algorithm::ALL {
        let engine = limiting(rule(budgets()[0], algorithm));
        assert_eq!(served(&engine, 600, START), 50, "{}", algorithm.name());
        assert!(left(&engine, ("key", "v"), START + SECOND) >= 400);
    }
}

/// The answer to a check of `cost`: whether it passes, what was charged, whether that is less than all of it, what is
/// left, and the seconds to wait.
fn store_state(engine: &Engine, cost: u64, at: u64) -> (bool, u64, bool, u64, Option<u64>) {
    let answer = ask(engine, ("key", "v"), cost, at);
    let hit = answer.hits().first().expect("a rule matched");
    let wait = hit.standing.retry_after.map(|wait| wait.get() / SECOND);
    let left = hit.standing.remaining.get();
    (answer.allowed(), hit.charged.get(), hit.capped, left, wait)
}

#[test]
fn a_charge_books_one_burst_at_most_and_debt_is_one_burst_at_most() {
    for algorithm in [
        Algorithm::Gcra,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
    ] {
        let engine = limiting(counting(budgets()[0], algorithm));
        assert_eq!(
            store_state(&engine, 5_000, START),
            (false, 1_000, true, 0, None)
        );
        // The wait is that for the same check after what was charged.
        assert_eq!(
            store_state(&engine, 600, START),
            (false, 600, false, 0, Some(72))
        );
        assert_eq!(
            store_state(&engine, 600, START),
            (false, 400, true, 0, Some(96))
        );
        assert_eq!(
            store_state(&engine, 600, START),
            (false, 0, true, 0, Some(96))
        );
        // The debt drains at 1,000 a minute, and is charged again.
        let later = START + 6 * SECOND;
        assert_eq!(
            store_state(&engine, 600, later),
            (false, 100, true, 0, Some(96))
        );
        assert!(!store_state(&engine, 1, START + 66 * SECOND).0);
        let repaid = START + 67 * SECOND;
        assert_eq!(store_state(&engine, 1, repaid), (true, 0, false, 14, None));
    }
}

#[test]
fn a_limit_of_nothing_has_nothing_to_charge() {
    let ban = Limit::new(0, Unit::Second, 1, None).expect("a sound limit");
    let engine = limiting(counting(ban, Algorithm::Gcra));
    assert_eq!(store_state(&engine, 5, START), (false, 0, false, 0, None));
}

/// At the cap nothing becomes pending: a flood costs the store what a bucket takes and then the rate, not more.
#[test]
fn a_flood_costs_the_store_at_most_the_rate() {
    let engine = reporting(vec![node(
        "key",
        counting(a_second(100, 200), Algorithm::Gcra),
    )]);
    let mut booked = 0;
    for nth in 0..100_000 {
        let at = START + nth * SECOND / 10_000;
        let answer = ask(&engine, ("key", "v"), 1 + nth % 7, at);
        let hit = answer.hits().first().expect("a rule matched");
        booked += hit.charged.get() + u64::from(answer.allowed()) * hit.cost.get();
    }
    // Two bursts, and 100 a second for ten seconds.
    assert!((1_390..=1_400).contains(&booked), "{booked}");
    assert_eq!(engine.pending(), Cells::new(booked));
}

/// A key that is not held yet enters with its charge, also as one of many.
#[test]
fn a_key_that_was_never_seen_is_charged() {
    let engine = engine(
        10,
        rules(vec![node("key", counting(budgets()[0], Algorithm::Gcra))]),
    );
    for nth in 0..1_000 {
        let value = nth.to_string();
        assert!(!ask(&engine, ("key", &value), 1_001, START).allowed());
        assert_eq!(left(&engine, ("key", &value), START), 0, "{nth}");
    }
}

fn check_both(engine: &Engine, costs: [u64; 2], at: u64) -> Answer {
    let entries = ["budget", "other"].map(|key| [Entry::new(key, "v")]);
    let descriptors = [0, 1].map(|nth| Descriptor {
        cost: Some(Cells::new(costs[nth])),
        ..Descriptor::of(&entries[nth])
    });
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::ONE,
        peek: false,
    };
    engine.check(&check, Moment::at(at))
}

/// A check is all or nothing, but for what counts what was denied: whichever rule denied it.
#[test]
fn what_another_rule_denies_is_charged_too_and_shown() {
    for algorithm in Algorithm::ALL {
        let engine = reporting(vec![
            node("budget", counting(budgets()[0], algorithm)),
            node("other", rule(a_second(10, 3), Algorithm::Gcra)),
        ]);
        let answer = check_both(&engine, [600, 4], START);
        assert!(!answer.allowed());
        let said = answer.hits().iter();
        let said: Vec<_> = said
            .map(|hit| {
                (
                    hit.standing.allowed,
                    hit.charged.get(),
                    hit.standing.remaining.get(),
                )
            })
            .collect();
        assert_eq!(said, [(true, 600, 400), (false, 0, 3)]);
        drop(answer);
        assert_eq!(left(&engine, ("budget", "v"), START), 400);
        assert_eq!(left(&engine, ("other", "v"), START), 3);
        assert_eq!(engine.pending(), Cells::new(600));
        assert!(check_both(&engine, [0, 0], START).allowed());
        assert_eq!(engine.pending(), Cells::new(600), "a look charges nothing");
    }
}

/// On trial, a budget runs out as it would.
#[test]
fn a_shadow_rule_charges_what_it_would_deny() {
    for algorithm in Algorithm::ALL {
        let shadow = RuleSpec {
            shadow: true,
            ..counting(budgets()[0], algorithm)
        };
        let engine = limiting(shadow);
        let would = |cost| {
            let answer = ask(&engine, ("key", "v"), cost, START);
            assert!(answer.allowed());
            answer.hits()[0].standing.allowed
        };
        let name = algorithm.name();
        assert!(would(600) && would(0) && !would(600) && !would(0), "{name}");
    }
}

/// Debt of a pod's own charges is no news from the fleet.
#[test]
fn a_pod_that_charged_denies_by_itself() {
    let engine = limiting(counting(budgets()[0], Algorithm::Gcra));
    assert_eq!(served(&engine, 600, START), 2);
    let answer = ask(&engine, ("key", "v"), 1, START);
    assert_eq!(answer.hits()[0].source, Source::Local);
    assert!(answer.hits()[0].standing.retry_after > Some(Span::seconds(11)));
}

/// The rounds of a pod that hears of nobody else.
fn rounds() -> PodSync {
    let pace = Pace {
        interval: Span::seconds(1),
        accuracy: Share::of(1, 10),
    };
    PodSync::new(pace, 1_000, Grouping::Whole)
}

/// Reports what is pending 2 ms later, and answers that the key's level is its price. Returns the reported cells.
fn tell(engine: &Engine, rounds: &mut PodSync, now: u64) -> u64 {
    let _ = rounds.turn(engine, Moment::at(now));
    let later = Moment::at(now + SECOND / 500);
    let mut store_state = 0;
    for call in rounds.turn(engine, later).calls {
        let delta = call.deltas.first().expect("one key");
        store_state += delta.gross.get();
        let reply = StoreReply {
            applied: true,
            sequence: call.sequence,
            gross: delta.gross,
            states: vec![StoreState::Level {
                level: delta.price,
                demand: 0,
                capped: false,
            }],
            repaired: 0,
        };
        let trip = RoundTrip {
            sent: later.now,
            back: later,
        };
        rounds.call_answered(engine, call.id(), &reply, trip);
    }
    store_state
}

/// The books are of what was admitted and of what was charged. Only admitted cells above capacity are overshoot.
#[test]
fn what_is_charged_is_told_and_is_no_overshoot() {
    let engine = reporting(vec![node("key", counting(budgets()[0], Algorithm::Gcra))]);
    let mut rounds = rounds();
    assert!(ask(&engine, ("key", "v"), 600, START).allowed());
    assert!(!ask(&engine, ("key", "v"), 600, START).allowed());
    assert_eq!(tell(&engine, &mut rounds, START), 1_200);
    let figures = rounds.figures_now(&engine);
    assert_eq!(figures.books.settled, Cells::new(1_200));
    assert_eq!(figures.overshoot, []);
    assert_eq!(left(&engine, ("key", "v"), START + SECOND), 0);
    let answer = ask(&engine, ("key", "v"), 0, START + SECOND);
    assert_eq!(answer.hits()[0].source, Source::Mitigation);
}

fn key_of(engine: &Engine) -> StoreKey {
    let answer = ask(engine, ("key", "v"), 0, START);
    let hit = answer.hits().first().expect("a rule matched");
    let key = engine.store_key(&answer, hit, Moment::at(START));
    key.expect("a key that the store is told of").0
}

/// A key that is only known as denied enters with its charge, and is denied from then on as it was before.
#[test]
fn a_charge_of_a_key_that_the_fleet_denies_frees_nothing() {
    for algorithm in Algorithm::ALL {
        let engine = reporting(vec![node("key", counting(a_second(10, 10), algorithm))]);
        let news = News {
            key: key_of(&engine),
            kind: NewsKind::Full(Span::seconds(1)),
        };
        rounds().news_received(&engine, news, Moment::at(START));
        for _ in 0..5 {
            let answer = ask(&engine, ("key", "v"), 1, START + 1);
            assert!(!answer.allowed(), "{}", algorithm.name());
        }
        assert_eq!(engine.pending(), Cells::new(5));
    }
}

/// While the store is unreachable, a pod that grants its share charges its share, and by the same measure.
#[test]
fn without_the_store_a_share_of_a_budget_runs_out() {
    for algorithm in Algorithm::ALL {
        let engine = reporting(vec![node("key", counting(budgets()[0], algorithm))]);
        let shares = Shares {
            unlearned: Share::of(1, 2),
            learned: HashMap::new(),
        };
        engine.set_partition(u64::MAX, 0, shares);
        let name = algorithm.name();
        assert_eq!(served(&engine, 300, START), 2, "{name}");
        assert_eq!(engine.pending(), Cells::new(600), "{name}");
        let answer = ask(&engine, ("key", "v"), 0, START + SECOND);
        assert_eq!(answer.hits()[0].source, Source::Fallback);
    }
}
