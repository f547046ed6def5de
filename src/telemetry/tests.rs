//! The metrics page and the recent figures.

use super::*;
use tidegate_core::engine::{FleetKey, Question, Setup};
use tidegate_core::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
use tidegate_core::pure::sync::Circuit;
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Limit, Moment, Rules, Unit};

fn setup() -> Setup {
    Setup {
        keys_max: 64,
        fleet: FleetKey::derived(b"test"),
        seeds: [1, 2],
        reporting: true,
    }
}

fn engine() -> Engine {
    Engine::new(setup(), Rules::default())
}

#[test]
fn what_is_recent_is_of_the_last_half_to_whole_minute() {
    let limit = Limit::new(1, Unit::Day, 1, None).unwrap();
    let node = NodeSpec {
        key: "client".to_owned(),
        value: None,
        share_threshold: false,
        rule: Some(RuleSpec::new(limit)),
        children: Vec::new(),
    };
    let domain = DomainSpec {
        name: "api".to_owned(),
        matching: Matching::Specific,
        nodes: vec![node],
    };
    let engine = Engine::new(setup(), Rules::compile(vec![domain], Default::default()));
    let telemetry = Telemetry::new(&engine.snapshot(), KeyDisplay::Plain);
    let entries = [Entry::new("client", "a")];
    let check = Check {
        domain: "api",
        descriptors: &[Descriptor::of(&entries)],
        cost: Cells::ONE,
        peek: false,
    };
    let recent = |at| {
        let denied = telemetry.meters()[0].recent().denied;
        (denied, telemetry.recent_span(Nanos::new(at)).get())
    };
    for at in 1..=4 {
        telemetry.decided(
            &engine.check(&check, Moment::at(at)),
            Question::Check(&check),
        );
    }
    assert_eq!(recent(29), (3, 29));
    telemetry.half_minute(Nanos::new(30));
    assert_eq!(recent(31), (3, 31));
    telemetry.decided(
        &engine.check(&check, Moment::at(31)),
        Question::Check(&check),
    );
    telemetry.half_minute(Nanos::new(60));
    assert_eq!(recent(61), (1, 31));
    telemetry.half_minute(Nanos::new(90));
    assert_eq!(recent(91), (0, 31));
    assert_eq!(telemetry.meters()[0].decisions().denied, 4);
}

fn shard(number: usize, circuit: Circuit, last_success: Option<Nanos>) -> ShardState {
    ShardState {
        number,
        circuit,
        partitioned: false,
        last_success,
    }
}

#[test]
fn the_stalest_shard_counts_and_one_that_never_answered_is_stale_since_the_start() {
    let (early, late) = (Nanos::new(3), Nanos::new(8));
    for (shards, expected) in [
        (vec![], None),
        (vec![Some(late)], Some(2)),
        (vec![Some(late), Some(early)], Some(7)),
        (vec![Some(late), None], Some(10)),
    ] {
        let shards: Vec<_> = shards
            .into_iter()
            .map(|at| shard(0, Circuit::Closed, at))
            .collect();
        let found = staleness(&shards, Nanos::new(10));
        assert_eq!(found.map(Span::get), expected, "{shards:?}");
    }
}

#[test]
fn every_kind_of_store_error_is_there_from_the_start_and_an_unknown_one_is_other() {
    let engine = engine();
    let telemetry = Telemetry::new(&engine.snapshot(), KeyDisplay::Plain);
    for kind in ["loading", "loading", "unheard_of"] {
        telemetry.redis_error(kind);
    }
    let page = telemetry.render(&engine, Nanos::new(1));
    for kind in REDIS_ERROR_KINDS {
        let count = match kind {
            "loading" => 2,
            "other" => 1,
            _ => 0,
        };
        let line = format!("ratelimit_redis_errors_total{{kind=\"{kind}\"}} {count}");
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
    assert!(!page.contains("ratelimit_circuit_state"), "{page}");
    assert!(!page.contains("ratelimit_sync_staleness_seconds"), "{page}");
    assert!(page.contains("\nratelimit_pods 1\n"), "{page}");
}

#[test]
fn a_shard_goes_by_its_name_and_without_one_by_its_number() {
    let engine = engine();
    let telemetry = Telemetry::new(&engine.snapshot(), KeyDisplay::Plain);
    assert_eq!(telemetry.shard_name(0), "0");
    telemetry.set_shards(vec!["a\"b".to_owned(), "a\"b".to_owned()]);
    let figures = Figures {
        shards: vec![
            shard(0, Circuit::Open, None),
            shard(1, Circuit::HalfOpen, None),
            shard(2, Circuit::Closed, None),
        ],
        ..Figures::default()
    };
    let mut page = String::new();
    telemetry.write_circuits(&mut page, &figures).unwrap();
    let series: Vec<_> = page.lines().skip(2).collect();
    assert_eq!(
        series,
        [
            r#"ratelimit_circuit_state{shard="a\"b"} 2"#,
            r#"ratelimit_circuit_state{shard="1"} 1"#,
            r#"ratelimit_circuit_state{shard="2"} 0"#,
        ]
    );
}
