//! Limits that callers bring along: one time line for each key, whatever they say.

use tidegate_core::engine::{Answer, CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::{Algorithm, Cells, Check, Descriptor, Entry, Limit, Moment, Unit};
use tidegate_testing::Random;
use tidegate_testing::engine::{SECOND, START, ask, engine};
use tidegate_testing::rules::{a_second, one_rule};

fn caller_limit(burst: u64, count: u64, seconds: u64) -> Limit {
    Limit::from_caller(burst, count, seconds).expect("a sound limit")
}

pub fn throttle(engine: &Engine, key: &[u8], limit: Limit, cost: u64, nanos: u64) -> Answer {
    let throttle = Throttle {
        key,
        limit,
        cost: Cells::new(cost),
        refund: false,
    };
    match engine.begin(Question::Throttle(&throttle), Moment::at(nanos)) {
        CheckStep::Decided(answer) => answer,
        CheckStep::NeedsStore(_) => unreachable!("there is no store"),
    }
}

/// Overrides the limit of `key: value`, and asks for one cell.
fn overridden(engine: &Engine, domain: &str, value: &str, limit: Limit) -> Answer {
    let entries = [Entry::new("key", value)];
    let descriptors = [Descriptor {
        limit: Some(limit),
        ..Descriptor::of(&entries)
    }];
    let check = Check {
        domain,
        descriptors: &descriptors,
        cost: Cells::ONE,
        peek: false,
    };
    engine.check(&check, Moment::at(START))
}

#[test]
fn callers_of_one_key_share_one_time_line_whatever_they_say() {
    // What redis-cell does, in wide numbers.
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let mut random = Random::new(7);
    let (mut tats, mut now) = ([0_i128; 3], START);
    for nth in 0..20_000 {
        now += random.below(3 * SECOND);
        let key = random.below(3) as usize;
        let limit = caller_limit(
            1 + random.below(20),
            1 + random.below(9),
            1 + random.below(30),
        );
        let cost = random.below(5);
        let answer = throttle(&engine, &[key as u8], limit, cost, now);
        let (at, interval) = (i128::from(now), i128::from(limit.interval().get()));
        let capacity = i128::from(limit.burst().get()) * interval;
        let next = tats[key].max(at) + interval * i128::from(cost);
        // A look that finds no cell is a denial; redis-cell has no looks of that kind.
        let fits = next - at <= capacity;
        if cost > 0 {
            assert_eq!(answer.allowed(), fits, "call {nth}");
        }
        if fits && cost > 0 {
            tats[key] = next;
        }
        let left = (capacity - (tats[key].max(at) - at)).max(0) / interval;
        let hit = answer.decisive().expect("a hit");
        assert_eq!(i128::from(hit.standing.remaining.get()), left, "call {nth}");
        assert_eq!(answer.limit(hit), Some(&limit));
    }
}

#[test]
fn keys_are_bytes_and_apart_from_each_other() {
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let limit = caller_limit(1, 1, 60);
    for key in [&b"\xff\x00"[..], b"\xff", b""] {
        assert!(throttle(&engine, key, limit, 1, START).allowed());
        assert!(!throttle(&engine, key, limit, 1, START).allowed());
    }
    assert_eq!(engine.keys_held(), 3);
}

#[test]
fn an_override_holds_instead_of_the_rule_and_leaves_that_alone() {
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let three = Limit::new(3, Unit::Minute, 1, None).expect("a sound limit");
    let allowed = [0; 4].map(|_| overridden(&engine, "api", "a", three).allowed());
    assert_eq!(allowed, [true, true, true, false]);
    assert!(
        overridden(&engine, "api", "b", three).allowed(),
        "another key"
    );
    assert!(
        ask(&engine, ("key", "a"), 1, START).allowed(),
        "the rule's bucket"
    );
    // Of another override the same is used.
    let ten = Limit::new(10, Unit::Minute, 1, None).expect("a sound limit");
    let answer = overridden(&engine, "api", "a", ten);
    let hit = answer.decisive().expect("a hit");
    assert_eq!(answer.rule(hit).label, "override");
    assert!(
        !answer.allowed(),
        "60 s of three a minute are 60 s of ten a minute"
    );
}

#[test]
fn an_override_of_nothing_denies_and_one_of_an_unknown_domain_does_not_count() {
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let none = Limit::new(0, Unit::Minute, 1, None).expect("a sound limit");
    assert!(!overridden(&engine, "api", "a", none).allowed());
    let answer = overridden(&engine, "elsewhere", "a", none);
    assert!(answer.allowed() && !answer.domain_known() && answer.hits().is_empty());
}

#[test]
fn a_flood_of_keys_is_bounded_and_does_not_free_who_is_over() {
    let engine = engine(1_000, one_rule(a_second(1, 1), Algorithm::Gcra));
    let limit = caller_limit(5, 1, 3_600);
    assert!(throttle(&engine, b"over", limit, 5, START).allowed());
    for nth in 0..20_000_u64 {
        let key = nth.to_le_bytes();
        assert!(throttle(&engine, &key, limit, 1, START + nth).allowed());
    }
    assert!(engine.keys_held() <= 1_000);
    assert!(!throttle(&engine, b"over", limit, 1, START + SECOND).allowed());
}

#[test]
fn all_or_nothing_holds_for_overrides_too() {
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let five = Limit::new(5, Unit::Minute, 1, None).expect("a sound limit");
    let (free, spent) = ([("key", "free")], [("key", "spent")]);
    assert!(ask(&engine, spent[0], 1, START).allowed());
    let entries = [free, spent].map(|[(key, value)]| [Entry::new(key, value)]);
    let descriptors = [
        Descriptor {
            limit: Some(five),
            ..Descriptor::of(&entries[0])
        },
        Descriptor::of(&entries[1]),
    ];
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::ONE,
        peek: false,
    };
    assert!(!engine.check(&check, Moment::at(START)).allowed());
    let left = overridden(&engine, "api", "free", five);
    let hit = left.decisive().expect("a hit");
    assert_eq!(
        hit.standing.remaining,
        Cells::new(4),
        "only its own is used"
    );
}
