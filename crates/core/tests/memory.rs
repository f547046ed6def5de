//! What a key takes, as docs/operations.md says it: each table is filled, then flooded with keys that come once.
//!
//! A binary of its own: it counts the memory of the whole process. Every engine stays until the end, so that none
//! uses again what another one left.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "a test that expects too much fails, as it should"
)]

use std::fs;

use tidegate_core::engine::{CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Unit};
use tidegate_testing::engine::{START, admits};
use tidegate_testing::rules::{limit, one_rule};

/// Sizes of the tables. What does not grow with them is no key's.
const KEYS: [u64; 2] = [20_000, 60_000];
const PAGE_BYTES: u64 = 4096;

fn resident() -> u64 {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = sizes.split(' ').nth(1).unwrap();
    pages.parse::<u64>().unwrap() * PAGE_BYTES
}

/// The names of the first column, and the limit each is filled under.
const KINDS: [(&str, Option<Algorithm>); 4] = [
    ("`gcra`", Some(Algorithm::Gcra)),
    ("`fixed_window`", Some(Algorithm::FixedWindow)),
    ("`sliding_log`", Some(Algorithm::SlidingLog)),
    ("caller-supplied limits", None),
];

fn daily() -> Limit {
    limit(100, Unit::Day)
}

fn engine(algorithm: Option<Algorithm>, keys: u64) -> Engine {
    let rules = one_rule(daily(), algorithm.unwrap_or_default());
    tidegate_testing::engine::engine(usize::try_from(keys).unwrap(), rules)
}

fn ask(engine: &Engine, algorithm: Option<Algorithm>, nth: u64) -> bool {
    let value = nth.to_string();
    if algorithm.is_some() {
        return admits(engine, &value, START);
    }
    let throttle = Throttle {
        key: value.as_bytes(),
        limit: daily(),
        cost: Cells::ONE,
        refund: false,
    };
    match engine.begin(Question::Throttle(&throttle), Moment::at(START)) {
        CheckStep::Decided(answer) => answer.allowed(),
        CheckStep::NeedsStore(_) => unreachable!("there is no store"),
    }
}

/// What the page says of `kind`: bytes a key while all are held, and in a flood.
fn documented(kind: &str) -> [u64; 2] {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    let page = fs::read_to_string(page).unwrap();
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {kind}")));
    let cells: Vec<&str> = row.unwrap().split('|').map(str::trim).collect();
    [cells[2], cells[3]].map(|cell| cell.parse().unwrap())
}

/// Fills a table of so many keys, then floods it. Says what both took.
fn fill(algorithm: Option<Algorithm>, keys: u64) -> (Engine, [u64; 2]) {
    let before = resident();
    let engine = engine(algorithm, keys);
    for nth in 0..keys {
        assert!(ask(&engine, algorithm, nth));
    }
    assert!(engine.keys_held() * 100 >= keys * 99, "{algorithm:?}");
    let full = resident() - before;
    for nth in keys..3 * keys {
        assert!(ask(&engine, algorithm, nth));
    }
    assert_eq!(engine.keys_forgotten(), 0, "{algorithm:?}");
    (engine, [full, resident() - before])
}

#[test]
fn a_key_takes_what_the_page_says() {
    let mut engines = Vec::new();
    let mut seen = Vec::new();
    for (kind, algorithm) in KINDS {
        // The first one takes what the process needs for the first of a kind.
        engines.push(fill(algorithm, KEYS[0] / 10).0);
        let [small, large] = KEYS.map(|keys| {
            let (engine, bytes) = fill(algorithm, keys);
            engines.push(engine);
            bytes
        });
        let more = KEYS[1] - KEYS[0];
        seen.push((
            kind,
            [0, 1].map(|nth| (large[nth] - small[nth]).div_ceil(more)),
        ));
    }
    for (kind, bytes) in &seen {
        for (bytes, said) in bytes.iter().zip(documented(kind)) {
            // Tables of other sizes are a little fuller or emptier, so the page rounds up.
            let truth = said * 8 / 10..=said;
            assert!(
                truth.contains(bytes),
                "{kind}: {said} are documented: {seen:?}"
            );
        }
    }
}
