//! Sample outcomes for the tests of reports.

use std::path::Path;

use crate::judge::{BINS, Bin, Tally};
use crate::policy::Cost;
use crate::run::{Phase, RunOutcome};
use crate::scenario::Scenario;

use super::table::PolicyRow;

const SCENARIO: &str = "\
why: A client asks far more than it may, of twenty pods.
pods: 20
lasts: 20s
settles: 5s
rules: [{ domain: api, descriptors: [{ key: client, rate_limit: 1000/second }] }]
load: [{ checks_per_second: 5000 }]
expect: [{ overshoot_percent_max: 10 }]
";

pub fn scenario() -> Scenario {
    Scenario::parse(Path::new("sample.yaml"), SCENARIO).unwrap()
}

/// An outcome with so many admitted cells in each bin. The exact limiter admits 100.
pub fn outcome(seed: u64, admitted: u64) -> RunOutcome {
    let bin = Bin {
        asked: admitted.max(500),
        admitted,
        exact: 100,
    };
    let bins = BINS as u64;
    let over = admitted.saturating_sub(100) as f64;
    let tally = Tally {
        asked: bin.asked * bins,
        admitted: bin.admitted * bins,
        exact: bin.exact * bins,
        checks: 100_000,
        denied_wrongly: 0,
        overshoot_cells: over * 10.0,
        overshoot_percent: over,
        worst_key_ratio: admitted as f64 / 100.0,
    };
    let cost = Cost {
        updates: 5_000,
        messages: 14_000,
        waits: 5_000,
        ..Cost::default()
    };
    let phase = Phase {
        seconds: 20.0,
        tally,
        cost,
    };
    RunOutcome {
        seed,
        phases: vec![phase; 2],
        bins: vec![bin; BINS],
        violations: Vec::new(),
    }
}

pub fn row(name: &str, admitted: u64) -> PolicyRow {
    PolicyRow {
        name: name.to_owned(),
        outcomes: vec![outcome(1, admitted)],
    }
}

/// Every tag is closed in its turn, every value quoted, and every `&` begins an entity.
pub fn check_well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('<') {
        assert!(!before.contains('>'), "a lone > in {before:?}");
        check_entities(before);
        let (tag, after) = after.split_once('>').unwrap();
        check_entities(tag);
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        let name = tag.split_whitespace().next().unwrap();
        match (name.strip_prefix('/'), name) {
            (Some(name), _) => assert_eq!(open.pop(), Some(name)),
            (None, "!doctype" | "meta") => {}
            (None, _) if tag.ends_with('/') => {}
            (None, name) => open.push(name),
        }
        rest = after;
    }
    assert_eq!(open, [""; 0]);
    assert_eq!(rest.trim(), "");
}

fn check_entities(text: &str) {
    let known = ["amp;", "lt;", "gt;", "quot;", "#39;"];
    for after in text.split('&').skip(1) {
        assert!(
            known.iter().any(|entity| after.starts_with(entity)),
            "&{after}"
        );
    }
}
