//! How it stands with the store: the link, the fleet, and the books of what was admitted.

use serde_json::{Value, json};

use crate::engine::Stats;
use crate::engine::rounds::Figures;
use crate::pure::sync::Circuit;
use crate::pure::{Nanos, Span};
use crate::telemetry::{Telemetry, cells_lost};

/// People read milliseconds.
const MILLISECOND: Span = Span::nanos(1_000_000);

/// How the store can be reached, for the admin API.
pub(super) fn json(figures: &Figures, telemetry: &Telemetry, now: Nanos) -> Value {
    let shards = figures.shards.iter().enumerate();
    let shards: Vec<Value> = shards
        .map(|(shard, state)| {
            json!({
                "shard": telemetry.shard_name(shard),
                "circuit": word(state.circuit),
                "staleness": state.last_success.map(|at| rounded(now.since(at))),
            })
        })
        .collect();
    json!({
        "link": link(figures),
        "staleness": figures.staleness(now).map(rounded),
        "partitioned": figures.shards.iter().any(|shard| shard.partitioned),
        "shards": shards,
    })
}

/// The same in a line.
pub(super) fn line(figures: &Figures, now: Nanos) -> String {
    let link = link(figures);
    match figures.staleness(now).map(rounded) {
        _ if figures.shards.is_empty() => format!("store: {link}"),
        Some(staleness) => {
            let pods = figures.pods.max(1);
            format!("store: {link}, answered {staleness} ago, pods: {pods}")
        }
        None => format!("store: {link}, not answered yet"),
    }
}

/// Where every cell is that was admitted and is to be told. Of one moment, but for the pending ones, which are counted
/// once a second.
pub(super) fn books(stats: &Stats, figures: &Figures) -> Value {
    let lost = cells_lost(stats, figures);
    let lost = lost
        .iter()
        .fold(0_u64, |sum, (_, cells)| sum.saturating_add(*cells));
    json!({
        "settled": figures.settled.get(),
        "pending": figures.pending.get(),
        "in_flight": figures.in_flight.get(),
        "silent": figures.silent.get(),
        "lost": lost.saturating_sub(figures.found.get()),
    })
}

/// The worst circuit of all shards.
fn link(figures: &Figures) -> &'static str {
    let circuits = figures.shards.iter().map(|shard| shard.circuit);
    circuits
        .max_by_key(|circuit| circuit.number())
        .map_or("none", word)
}

const fn word(circuit: Circuit) -> &'static str {
    match circuit {
        Circuit::Closed => "closed",
        Circuit::HalfOpen => "half_open",
        Circuit::Open => "open",
    }
}

fn rounded(span: Span) -> String {
    MILLISECOND.times(span.whole(MILLISECOND)).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Snapshot;
    use crate::engine::rounds::{Loss, ShardState};
    use crate::engine::{FleetKey, Stat};
    use crate::pure::{Cells, Rules};

    const NOW: Nanos = Nanos::new(5_000_000_000);

    fn shard(circuit: Circuit, answered_at: Option<u64>) -> ShardState {
        ShardState {
            circuit,
            partitioned: circuit == Circuit::Open,
            last_success: answered_at.map(Nanos::new),
        }
    }

    fn figures(shards: Vec<ShardState>) -> Figures {
        Figures {
            shards,
            ..Figures::default()
        }
    }

    /// Checks the link, the staleness, whether it is partitioned, and the line.
    fn check(shards: Vec<ShardState>, expected: Value, expected_line: &str) {
        let rules = Snapshot::first(Rules::default(), &FleetKey::derived(b"test"), false);
        let figures = figures(shards);
        let page = json(&figures, &Telemetry::new(&rules), NOW);
        assert_eq!(
            json!([page["link"], page["staleness"], page["partitioned"]]),
            expected
        );
        assert_eq!(
            page["shards"].as_array().unwrap().len(),
            figures.shards.len()
        );
        assert_eq!(line(&figures, NOW), expected_line);
    }

    #[test]
    fn without_a_store_there_is_no_link() {
        check(vec![], json!(["none", null, false]), "store: none");
    }

    #[test]
    fn a_store_that_never_answered_has_no_staleness() {
        let shards = vec![
            shard(Circuit::Closed, None),
            shard(Circuit::Closed, Some(1)),
        ];
        let expected = json!(["closed", null, false]);
        check(shards, expected, "store: closed, not answered yet");
    }

    #[test]
    fn the_worst_shard_is_the_link() {
        let shards = vec![
            shard(Circuit::Closed, Some(4_900_000_000)),
            shard(Circuit::Open, Some(3_799_999_999)),
            shard(Circuit::HalfOpen, Some(4_000_000_000)),
        ];
        let expected_line = "store: open, answered 1.2s ago, pods: 1";
        check(shards, json!(["open", "1.2s", true]), expected_line);
    }

    #[test]
    fn what_was_found_is_not_lost() {
        let figures = Figures {
            settled: Cells::new(10),
            pending: Cells::new(3),
            in_flight: Cells::new(2),
            silent: Cells::new(4),
            lost: Loss {
                store: Cells::new(6),
                reset: Cells::new(1),
                rule: Cells::new(1),
            },
            found: Cells::new(5),
            ..Figures::default()
        };
        let stats = Stats::default();
        assert_eq!(stats.total(Stat::CellsLost), 0);
        let expected =
            json!({ "settled": 10, "pending": 3, "in_flight": 2, "silent": 4, "lost": 3 });
        assert_eq!(books(&stats, &figures), expected);
    }
}
