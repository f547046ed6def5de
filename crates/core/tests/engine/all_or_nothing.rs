//! A check passes on every rule it meets, or uses nothing anywhere.

use std::collections::BTreeMap;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config;
use tidegate_core::engine::{Answer, Engine, Stat};
use tidegate_core::pure::rule::{Matching, NodeSpec, RuleSpec};
use tidegate_core::pure::{Algorithm, Cells, Check, Descriptor, Entry, Moment, Rules};
use tidegate_testing::Random;
use tidegate_testing::engine::{SECOND, START, ask, engine, left};
use tidegate_testing::rules::{a_second, node, rule, rules, rules_by};

/// How a rule of the model behaves.
#[derive(Clone, Copy, Debug, Default)]
struct Kind {
    burst: u64,
    windowed: bool,
    shadow: bool,
    quota: bool,
    count_rejected: bool,
}

const INTERVAL: u64 = SECOND / 10;

/// The rules of the test, by key. `path` and `leaf` are met together by one descriptor; `newer` replaces `older`.
const KINDS: [(&str, Kind); 13] = {
    const PLAIN: Kind = Kind {
        burst: 3,
        windowed: false,
        shadow: false,
        quota: false,
        count_rejected: false,
    };
    const fn kind(burst: u64) -> Kind {
        Kind { burst, ..PLAIN }
    }
    [
        ("plain", PLAIN),
        (
            "window",
            Kind {
                windowed: true,
                ..kind(4)
            },
        ),
        (
            "counting",
            Kind {
                windowed: true,
                count_rejected: true,
                ..kind(4)
            },
        ),
        (
            "shadow",
            Kind {
                shadow: true,
                ..kind(2)
            },
        ),
        (
            "quota",
            Kind {
                quota: true,
                ..kind(2)
            },
        ),
        (
            "reserve",
            Kind {
                quota: true,
                ..kind(3)
            },
        ),
        ("older", kind(1)),
        ("newer", kind(5)),
        ("path", kind(4)),
        ("leaf", kind(2)),
        (
            "budget",
            Kind {
                count_rejected: true,
                ..kind(4)
            },
        ),
        (
            "trial",
            Kind {
                shadow: true,
                count_rejected: true,
                ..kind(3)
            },
        ),
        (
            "quota_budget",
            Kind {
                quota: true,
                count_rejected: true,
                ..kind(2)
            },
        ),
    ]
};

fn spec(name: &str, kind: &Kind) -> RuleSpec {
    let (limit, algorithm) = match kind.windowed {
        true => (a_second(kind.burst, kind.burst), Algorithm::FixedWindow),
        false => (a_second(10, kind.burst), Algorithm::Gcra),
    };
    RuleSpec {
        shadow: kind.shadow,
        quota: kind.quota,
        count_rejected: kind.count_rejected,
        name: Some(name.to_owned()),
        replaces: match name {
            "newer" => vec!["older".to_owned()],
            _ => Vec::new(),
        },
        ..rule(limit, algorithm)
    }
}

fn tree() -> Rules {
    let mut nodes: Vec<NodeSpec> = KINDS
        .iter()
        .filter(|(name, _)| *name != "leaf")
        .map(|(name, kind)| node(name, spec(name, kind)))
        .collect();
    for path in nodes.iter_mut().filter(|node| node.key == "path") {
        path.children = vec![node("leaf", spec("leaf", &KINDS[9].1))];
    }
    nodes.push(node("free", RuleSpec::unlimited()));
    rules_by(Matching::Path, nodes)
}

/// One descriptor of a drawn check: a rule (one behind the last is unlimited), a value and maybe a cost of its own.
#[derive(Clone, Debug)]
struct Asked {
    rule: usize,
    value: usize,
    cost: Option<u64>,
}

const VALUES: [&str; 2] = ["x", "y"];

/// The keys of the model: a rule and a value.
type State = BTreeMap<(usize, usize), Bucket>;

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    tat: u64,
    window: u64,
    count: u64,
}

impl Bucket {
    fn used(&self, kind: &Kind, now: u64) -> u64 {
        match kind.windowed {
            true if self.window == now / SECOND => self.count,
            true => 0,
            false => self.tat.saturating_sub(now).div_ceil(INTERVAL),
        }
    }

    fn fits(&self, kind: &Kind, now: u64, cost: u64) -> bool {
        match kind.windowed {
            true => self.used(kind, now) + cost <= kind.burst,
            false => self.tat.saturating_sub(now) + cost * INTERVAL <= kind.burst * INTERVAL,
        }
    }

    fn charge(&mut self, kind: &Kind, now: u64, cost: u64) {
        self.count = self.used(kind, now) + cost;
        self.window = now / SECOND;
        self.tat = self.tat.max(now) + cost * INTERVAL;
    }

    /// Charges what was denied: a bucket takes one burst at a time, and as much above its capacity.
    fn charge_denied(&mut self, kind: &Kind, now: u64, cost: u64) {
        let level = self.tat.saturating_sub(now);
        let room = (2 * kind.burst * INTERVAL).saturating_sub(level) / INTERVAL;
        match kind.windowed {
            true => self.charge(kind, now, cost),
            false => self.charge(kind, now, cost.min(kind.burst).min(room)),
        }
    }

    fn left(&self, kind: &Kind, now: u64) -> u64 {
        kind.burst.saturating_sub(self.used(kind, now))
    }
}

/// A rule that a descriptor met: the rule, its value and the cost; then whether it has room.
type Met = ((usize, usize), u64, bool);

fn allowed(met: &[Met]) -> bool {
    let over = |quota: bool| {
        met.iter()
            .filter(move |((rule, _), _, _)| {
                !KINDS[*rule].1.shadow && KINDS[*rule].1.quota == quota
            })
            .map(|(_, _, fits)| !fits)
    };
    !over(false).any(|over| over) && (over(true).count() == 0 || !over(true).all(|over| over))
}

/// Decides by the definition: the state after it, and whether it passes.
fn model(state: &State, asked: &[Asked], now: u64, cost: u64) -> (State, bool) {
    let mut met: Vec<Met> = Vec::new();
    for one in asked.iter().filter(|one| one.rule < KINDS.len()) {
        let cost = one.cost.unwrap_or(cost);
        if KINDS[one.rule].0 == "leaf" {
            met.push(((one.rule - 1, one.value), cost, true));
        }
        met.push(((one.rule, one.value), cost, true));
    }
    if met
        .iter()
        .any(|((rule, _), _, _)| KINDS[*rule].0 == "newer")
    {
        met.retain(|((rule, _), _, _)| KINDS[*rule].0 != "older");
    }
    let bucket = |state: &State, key| state.get(&key).copied().unwrap_or_default();
    for (key, cost, fits) in &mut met {
        let (kind, bucket) = (&KINDS[key.0].1, bucket(state, *key));
        *fits = bucket.fits(kind, now, (*cost).max(1));
    }
    let mut after = state.clone();
    let mut passes = allowed(&met);
    if passes {
        let mut order: Vec<usize> = (0..met.len()).collect();
        order.sort_by_key(|&nth| {
            let (key, cost, fits) = met[nth];
            let left = bucket(state, key).left(&KINDS[key.0].1, now);
            left - if fits && !KINDS[key.0].1.windowed {
                cost
            } else {
                0
            }
        });
        for nth in order {
            let (key, cost, fits) = met[nth];
            if cost > 0 && fits {
                let kind = &KINDS[key.0].1;
                met[nth].2 = bucket(&after, key).fits(kind, now, cost);
                if met[nth].2 {
                    after.entry(key).or_default().charge(kind, now, cost);
                }
            }
        }
        passes = allowed(&met);
    }
    if !passes {
        after = state.clone();
    }
    for (key, cost, fits) in met.iter().filter(|(_, cost, _)| *cost > 0) {
        if KINDS[key.0].1.count_rejected && !(passes && *fits) {
            let bucket = after.entry(*key).or_default();
            bucket.charge_denied(&KINDS[key.0].1, now, *cost);
        }
    }
    (after, passes)
}

fn check(engine: &Engine, asked: &[Asked], now: u64, cost: u64) -> Answer {
    let entries: Vec<Vec<Entry<'_>>> = asked
        .iter()
        .map(|one| {
            let value = VALUES[one.value];
            let key = KINDS.get(one.rule).map_or("free", |(name, _)| name);
            match key {
                "leaf" => vec![Entry::new("path", value), Entry::new(key, value)],
                _ => vec![Entry::new(key, value)],
            }
        })
        .collect();
    let descriptors: Vec<Descriptor<'_>> = asked
        .iter()
        .zip(&entries)
        .map(|(one, entries)| Descriptor {
            cost: one.cost.map(Cells::new),
            ..Descriptor::of(entries)
        })
        .collect();
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::new(cost),
        peek: false,
    };
    engine.check(&check, Moment::at(now))
}

fn drawn() -> impl Strategy<Value = Asked> {
    let cost = prop_oneof![3 => Just(None), 1 => (0_u64..4).prop_map(Some)];
    (0..=KINDS.len(), 0..VALUES.len(), cost).prop_map(|(rule, value, cost)| Asked {
        rule,
        value,
        cost,
    })
}

proptest! {
    #![proptest_config(Config { cases: 400, failure_persistence: None, ..Config::default() })]

    /// After every check of any history, every key has what the definition leaves it.
    #[test]
    fn a_check_passes_everywhere_or_uses_nothing(
        history in vec((vec(drawn(), 1..5), 0_u64..3, 0..SECOND / 2), 1..40),
    ) {
        let engine = engine(1_000, tree());
        let (mut state, mut now) = (State::new(), START);
        for (asked, cost, later) in history {
            now += later;
            let (after, passes) = model(&state, &asked, now, cost);
            state = after;
            let answer = check(&engine, &asked, now, cost);
            prop_assert_eq!(answer.allowed(), passes, "{:?} at {}", asked, now);
            drop(answer);
            for (rule, (name, kind)) in KINDS.iter().enumerate() {
                for value in 0..VALUES.len() {
                    let look = Asked { rule, value, cost: Some(0) };
                    let answer = check(&engine, &[look], now, 0);
                    let hit = answer.hits().last().expect("it met its rule");
                    let bucket = state.get(&(rule, value)).copied().unwrap_or_default();
                    prop_assert_eq!(
                        hit.standing.remaining.get(), bucket.left(kind, now),
                        "{} {} after {:?} of {} at {}", name, value, asked, cost, now
                    );
                }
            }
        }
        prop_assert_eq!(engine.stats().total(Stat::KeptAfterRace), 0);
    }
}

/// A denied check shows each rule that had room with all of it, whether the look or the admission found out.
#[test]
fn a_denied_check_shows_what_is_left_before_it() {
    let engine = engine(1_000, tree());
    let one = |rule, cost| Asked {
        rule,
        value: 0,
        cost: Some(cost),
    };
    let spelled = |answer: &Answer| -> Vec<(bool, u64)> {
        let hits = answer.hits().iter();
        hits.map(|hit| (hit.standing.allowed, hit.standing.remaining.get()))
            .collect()
    };
    let looked = check(&engine, &[one(0, 4), one(8, 1)], START, 1);
    assert!(!looked.allowed());
    assert_eq!(spelled(&looked), [(false, 3), (true, 4)]);
    let twice = check(&engine, &[one(0, 2), one(0, 2), one(8, 1)], START, 1);
    assert!(!twice.allowed());
    assert_eq!(spelled(&twice), [(true, 3), (false, 1), (true, 4)]);
}

/// A key that enters in place of one with the same TAT, and whose check is then denied, gets back what it had.
#[test]
fn a_key_that_just_entered_gets_back_what_a_denied_check_took() {
    let one = |key: &'static str| node(key, rule(a_second(10, 2), Algorithm::Gcra));
    let engine = engine(1, rules(vec![one("a"), one("b")]));
    assert!(ask(&engine, ("a", "first"), 2, START).allowed());
    // Under pressure a key comes twice to be let in; then one cell is counted and one is left.
    assert!(ask(&engine, ("b", "k"), 1, START).allowed());
    assert_eq!(left(&engine, ("b", "k"), START), 1);
    let entries = [Entry::new("b", "k")];
    let descriptor = Descriptor::of(&entries);
    let twice = Check {
        domain: "api",
        descriptors: &[descriptor, descriptor],
        cost: Cells::ONE,
        peek: false,
    };
    assert!(!engine.check(&twice, Moment::at(START)).allowed());
    assert_eq!(left(&engine, ("b", "k"), START), 1);
    assert_eq!(engine.stats().total(Stat::KeptAfterRace), 0);
}

const KEYS: [&str; 4] = ["a", "b", "c", "window"];
const BURSTS: [u64; 4] = [9, 10, 11, 12];

/// One check of three or four rules for `value`, drawn by `random`. Answers the cells it was given of each.
fn one_of_many(engine: &Engine, value: &str, random: &mut Random) -> [u64; 4] {
    let skipped = random.below(5) as usize;
    let costs: [u64; 4] = std::array::from_fn(|nth| match nth == skipped {
        true => 0,
        false => 1 + random.below(3),
    });
    let entries = KEYS.map(|key| [Entry::new(key, value)]);
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .zip(costs)
        .filter(|(_, cost)| *cost > 0)
        .map(|(entries, cost)| Descriptor {
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
    match engine.check(&check, Moment::at(START)).allowed() {
        true => costs,
        false => [0; 4],
    }
}

/// Eight threads ask for three or four rules at once, more than there is, in many rounds of new keys. No limit is
/// passed, and every cell is accounted for: admitted, left, or kept after a race.
#[test]
fn threads_never_pass_a_limit_and_every_cell_is_accounted_for() {
    const ROUNDS: usize = 1_500;
    let nodes = KEYS.iter().zip(BURSTS).map(|(key, burst)| match *key {
        "window" => node(key, rule(a_second(burst, burst), Algorithm::FixedWindow)),
        _ => node(key, rule(a_second(10, burst), Algorithm::Gcra)),
    });
    let engine = engine(10 * ROUNDS, rules(nodes.collect()));
    let admitted: Vec<[AtomicU64; 4]> = (0..ROUNDS).map(|_| Default::default()).collect();
    let barrier = Barrier::new(8);
    thread::scope(|scope| {
        for seed in 0..8 {
            let (engine, admitted, barrier) = (&engine, &admitted, &barrier);
            scope.spawn(move || {
                let mut random = Random::new(seed);
                for (round, admitted) in admitted.iter().enumerate() {
                    let value = round.to_string();
                    barrier.wait();
                    for _ in 0..3 {
                        let given = one_of_many(engine, &value, &mut random);
                        for (total, cells) in admitted.iter().zip(given) {
                            total.fetch_add(cells, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
    });
    let mut kept = 0;
    for (round, admitted) in admitted.iter().enumerate() {
        for (nth, admitted) in admitted.iter().enumerate() {
            let used = BURSTS[nth] - left(&engine, (KEYS[nth], &round.to_string()), START);
            let admitted = admitted.load(Ordering::Relaxed);
            let key = KEYS[nth];
            assert!(
                admitted <= used,
                "{key}: {admitted} admitted, {used} counted"
            );
            kept += used - admitted;
        }
    }
    assert_eq!(kept, engine.stats().total(Stat::KeptAfterRace));
}
