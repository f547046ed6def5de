//! The state of the store as the admin API shows it: the link, the fleet, and the books of admitted cells.

use serde_json::{Value, json};

use crate::telemetry::Telemetry;
use tidegate_core::engine::sync::{Books, Figures};
use tidegate_core::pure::sync::Circuit;
use tidegate_core::pure::{Cells, Nanos, Span};

/// The precision of times that people read.
const MILLISECOND: Span = Span::nanos(1_000_000);

/// The link to the store and its shards.
pub(super) fn json(figures: &Figures, telemetry: &Telemetry, now: Nanos) -> Value {
    let shards: Vec<Value> = figures
        .shards
        .iter()
        .map(|state| {
            json!({
                "shard": telemetry.shard_name(state.number),
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

/// The same in one line of text.
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

/// Where every admitted cell is that the pod has to report. The five figures add up to all of these cells, as of the last
/// count, at most a second ago. `lost` is negative if more cells were found than lost: the store then has cells under
/// this pod's name from another start.
pub(super) fn books(books: &Books) -> Value {
    let signed = |cells: Cells| i64::try_from(cells.get()).unwrap_or(i64::MAX);
    json!({
        "settled": books.settled.get(),
        "pending": books.pending.get(),
        "in_flight": books.in_flight.get(),
        "silent": books.silent.get(),
        "lost": signed(books.lost).saturating_sub(signed(books.found)),
    })
}

/// The worst circuit state of all shards.
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
    use tidegate_core::engine::Snapshot;
    use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip, ShardState};
    use tidegate_core::engine::{Engine, FleetKey, Setup};
    use tidegate_core::pure::rule::{DomainSpec, Matching, NodeSpec, RuleSpec};
    use tidegate_core::pure::sync::{
        Call, Grouping, HeartbeatReply, LANES, Share, StoreReply, StoreState,
    };
    use tidegate_core::pure::{Check, Descriptor, Entry, KeyDisplay, Limit, Moment, Rules, Unit};

    const NOW: Nanos = Nanos::new(5_000_000_000);

    fn shard(circuit: Circuit, answered_at: Option<u64>) -> ShardState {
        ShardState {
            number: 0,
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
        let page = json(&figures, &Telemetry::new(&rules, KeyDisplay::Plain), NOW);
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
        let counted = Books {
            settled: Cells::new(10),
            pending: Cells::new(3),
            in_flight: Cells::new(2),
            silent: Cells::new(4),
            lost: Cells::new(9),
            found: Cells::new(6),
        };
        let expected =
            json!({ "settled": 10, "pending": 3, "in_flight": 2, "silent": 4, "lost": 3 });
        assert_eq!(books(&counted), expected);
    }

    const MILLISECONDS: u64 = 1_000_000;
    const KEYS: u64 = 200;

    fn at(milliseconds: u64) -> Moment {
        Moment::at(milliseconds * MILLISECONDS)
    }

    /// A hundred a second for each client, in a table that does not hold all of them.
    fn crowded() -> Engine {
        let node = NodeSpec {
            key: "client".to_owned(),
            value: None,
            share_threshold: false,
            rule: Some(RuleSpec::new(
                Limit::new(100, Unit::Second, 1, None).unwrap(),
            )),
            children: Vec::new(),
        };
        let domain = DomainSpec {
            name: "api".to_owned(),
            matching: Matching::Specific,
            nodes: vec![node],
        };
        let setup = Setup {
            keys_max: 64,
            fleet: FleetKey::derived(b"test"),
            seeds: [1, 2],
            reporting: true,
        };
        Engine::new(setup, Rules::compile(vec![domain], Default::default()))
    }

    /// One check, and now and then a reset. The cells that were admitted.
    fn use_some(engine: &Engine, nth: u64, moment: Moment) -> u64 {
        let client = (nth * 37 % KEYS).to_string();
        let entries = [Entry::new("client", &client)];
        let descriptor = Descriptor::of(&entries);
        let cost = 1 + nth % 7;
        let answer = engine.check(
            &Check {
                domain: "api",
                descriptors: &[descriptor],
                cost: Cells::new(cost),
                peek: false,
            },
            moment,
        );
        if nth.is_multiple_of(50) {
            engine.forget_hit(&answer, &answer.hits()[0], moment);
        }
        if answer.allowed() { cost } else { 0 }
    }

    /// What the store answers to `call`, which it applies.
    fn settle(call: &Call, gross: &mut u64) -> StoreReply {
        let cells = call.deltas.iter().map(|delta| delta.gross.get());
        *gross += cells.sum::<u64>();
        let store_state = StoreState::Level {
            level: Span::nanos(5_000_000),
            demand: 0,
            capped: false,
        };
        StoreReply {
            applied: true,
            sequence: call.sequence,
            gross: Cells::new(*gross),
            states: vec![store_state; call.deltas.len()],
            repaired: 0,
        }
    }

    /// The books that are shown, and what they add up to.
    fn shown(engine: &Engine) -> (Value, u64) {
        let books = books(&engine.figures().books);
        let places = ["settled", "pending", "in_flight", "silent", "lost"];
        let sum: i64 = places
            .map(|place| books[place].as_i64().unwrap())
            .iter()
            .sum();
        (books, u64::try_from(sum).unwrap())
    }

    #[test]
    fn the_books_add_up_to_what_was_admitted_at_one_moment() {
        let engine = crowded();
        let pace = Pace {
            interval: Span::nanos(100 * MILLISECONDS),
            accuracy: Share::of(1, 100),
        };
        let mut rounds = PodSync::new(pace, 64, Grouping::PerLane);
        let mut gross = vec![0_u64; usize::from(LANES)];
        let (mut admitted, mut nth) = (0, 0);
        let mut admitted_before = Vec::new();
        for turn in 0..600_u64 {
            let moment = at(1_000 + turn * 10);
            for _ in 0..20 {
                nth += 1;
                admitted += use_some(&engine, nth, moment);
            }
            let todo = rounds.turn(&engine, moment);
            admitted_before.push(admitted);
            let within_a_second = &admitted_before[admitted_before.len().saturating_sub(100)..];
            let (books, sum) = shown(&engine);
            assert!(within_a_second.contains(&sum), "turn {turn}: {books}");
            if todo.heartbeat.is_some() {
                let heartbeat_answered = HeartbeatReply {
                    pods: 3,
                    resets: 0,
                    reset_keys: Vec::new(),
                };
                rounds.heartbeat_answered(&engine, &heartbeat_answered, moment);
            }
            for (call, nth) in todo.calls.iter().zip(turn..) {
                // For a while the store is away, and now and then it is.
                if (300..350).contains(&turn) || nth % 40 == 0 {
                    rounds.call_failed(&engine, call.id(), moment.now, nth);
                    continue;
                }
                let reply = settle(call, &mut gross[call.group.index()]);
                let trip = RoundTrip {
                    sent: moment.now,
                    back: moment,
                };
                rounds.call_answered(&engine, call.id(), &reply, trip);
            }
        }
        let _ = rounds.turn(&engine, at(9_000));
        let (books, sum) = shown(&engine);
        assert_eq!(sum, admitted, "{books}");
        for field in ["settled", "silent", "lost"] {
            assert!(books[field].as_i64() > Some(0), "{field} of {books}");
        }
    }
}
