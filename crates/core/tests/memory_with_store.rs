//! What a key takes in a pod that reports to a store, as docs/operations.md says it: a table is filled, then flooded, with
//! keys that come once.
//!
//! A binary of its own: it counts the memory of the whole process. Every pod stays until the end, so that none uses again
//! what another one left.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "a test that expects too much fails, as it should"
)]

use std::fs;

use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip};
use tidegate_core::engine::{CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::sync::{
    Call, Delta, Grouping, HeartbeatReply, Share, StoreReply, StoreState, Terms,
};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Span, Unit};
use tidegate_testing::engine::{SECOND, START, admits, reporting_engine};
use tidegate_testing::rules::one_rule;

/// Sizes of the tables. What does not grow with them is no key's.
const KEYS: [u64; 2] = [20_000, 60_000];
const PAGE_BYTES: u64 = 4096;
/// A table is filled, or flooded, in so many turns of a millisecond: the pod reports as much whatever the table's size.
const TURNS: u64 = 500;
const TURN: u64 = SECOND / 1_000;

fn resident() -> u64 {
    let sizes = fs::read_to_string("/proc/self/statm").unwrap();
    let pages = sizes.split(' ').nth(1).unwrap();
    pages.parse::<u64>().unwrap() * PAGE_BYTES
}

/// One row of the page.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Its first column.
    name: &'static str,
    pods: u64,
    limit: (u64, Unit, Option<u64>),
    /// `None`: callers supply the limit.
    algorithm: Option<Algorithm>,
}

const CASES: [Case; 5] = [
    Case {
        name: "`gcra`, a share with room",
        pods: 3,
        limit: (100, Unit::Day, None),
        algorithm: Some(Algorithm::Gcra),
    },
    Case {
        name: "`gcra`, a share of two cells",
        pods: 10,
        limit: (100, Unit::Day, None),
        algorithm: Some(Algorithm::Gcra),
    },
    Case {
        name: "`gcra`, 100/minute burst 20 on 100 pods",
        pods: 100,
        limit: (100, Unit::Minute, Some(20)),
        algorithm: Some(Algorithm::Gcra),
    },
    Case {
        name: "`fixed_window` on 3 pods",
        pods: 3,
        limit: (100, Unit::Day, None),
        algorithm: Some(Algorithm::FixedWindow),
    },
    Case {
        name: "caller-supplied limits on 100 pods",
        pods: 100,
        limit: (100, Unit::Day, None),
        algorithm: None,
    },
];

/// A pod, and a store that answers at once and knows of no other pod's cells.
struct Pod {
    case: Case,
    engine: Engine,
    sync: PodSync,
    gross: Cells,
    now: u64,
}

impl Pod {
    /// A pod that knows how many pods there are.
    fn new(case: Case, keys: u64) -> Self {
        let keys_max = usize::try_from(keys).unwrap();
        let rules = one_rule(limit(case), case.algorithm.unwrap_or_default());
        let pace = Pace {
            interval: Span::seconds(1),
            accuracy: Share::of(1, 10),
        };
        let mut pod = Self {
            case,
            engine: reporting_engine(keys_max, rules),
            sync: PodSync::new(pace, keys_max, Grouping::Whole),
            gross: Cells::ZERO,
            now: START,
        };
        for _ in 0..5 {
            pod.turn();
            pod.now += SECOND;
        }
        pod
    }

    fn turn(&mut self) {
        let moment = Moment::at(self.now);
        let actions = self.sync.turn(&self.engine, moment);
        let trip = RoundTrip {
            sent: moment.now,
            back: moment,
        };
        for call in actions.calls {
            let reply = self.reply(&call);
            self.sync
                .call_answered(&self.engine, call.id(), &reply, trip);
        }
        if actions.heartbeat.is_some() {
            let reply = HeartbeatReply {
                pods: self.case.pods,
                resets: 0,
                reset_keys: Vec::new(),
            };
            self.sync.heartbeat_answered(&self.engine, &reply, moment);
        }
    }

    fn reply(&mut self, call: &Call) -> StoreReply {
        let gross = call.deltas.iter().map(|delta| delta.gross);
        self.gross = gross.fold(self.gross, Cells::plus);
        StoreReply {
            applied: !call.id().is_probe,
            sequence: call.sequence,
            gross: self.gross,
            states: call.deltas.iter().map(state).collect(),
            repaired: 0,
        }
    }

    fn ask(&self, nth: u64) -> bool {
        let value = nth.to_string();
        if self.case.algorithm.is_some() {
            return admits(&self.engine, &value, self.now);
        }
        let throttle = Throttle {
            key: value.as_bytes(),
            limit: limit(self.case),
            cost: Cells::ONE,
            refund: false,
        };
        let question = Question::Throttle(&throttle);
        match self.engine.begin(question, Moment::at(self.now)) {
            CheckStep::Decided(answer) => answer.allowed(),
            CheckStep::NeedsStore(_) => unreachable!("no rule is strict"),
        }
    }

    /// Asks for these keys once each, and lets the pod report meanwhile.
    fn ask_all(&mut self, keys: std::ops::Range<u64>) {
        let each = (keys.end - keys.start).div_ceil(TURNS).max(1);
        for nth in keys {
            assert!(self.ask(nth), "{:?}", self.case);
            if nth % each == 0 {
                self.now += TURN;
                self.turn();
            }
        }
        self.turn();
    }
}

fn limit(case: Case) -> Limit {
    let (requests, unit, burst) = case.limit;
    Limit::new(requests, unit, 1, burst).unwrap()
}

/// The state of a key of which the store has this delta alone.
fn state(delta: &Delta) -> StoreState {
    match delta.terms {
        Terms::Level { .. } => StoreState::Level {
            level: delta.price,
            demand: delta.gross.get() * 1_000,
            capped: false,
        },
        Terms::Window { window, .. } => StoreState::Window {
            current: delta.billed,
            previous: Cells::ZERO,
            left: Span::nanos(window.get() / 2),
        },
    }
}

fn page() -> String {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operations.md");
    fs::read_to_string(page).unwrap()
}

/// What the page says of `case`: bytes a key while all are held, and in a flood.
fn documented(case: &str) -> [u64; 2] {
    let page = page();
    let row = page
        .lines()
        .find(|line| line.starts_with(&format!("| {case} |")));
    let cells: Vec<&str> = row.unwrap().split('|').map(str::trim).collect();
    [cells[2], cells[3]].map(|cell| cell.parse().unwrap())
}

/// Fills a table of so many keys, then floods it. Says what both took.
fn fill(case: Case, keys: u64) -> (Pod, [u64; 2]) {
    let before = resident();
    let mut pod = Pod::new(case, keys);
    pod.ask_all(0..keys);
    assert!(pod.engine.keys_held() * 100 >= keys * 99, "{case:?}");
    let full = resident() - before;
    pod.ask_all(keys..3 * keys);
    let flooded = resident() - before;
    (pod, [full, flooded])
}

#[test]
fn a_key_of_a_pod_with_a_store_takes_what_the_page_says() {
    let mut pods = Vec::new();
    let mut seen = Vec::new();
    for case in CASES {
        // The first one takes what the process needs for the first of a kind.
        pods.push(fill(case, KEYS[0] / 10).0);
        let [small, large] = KEYS.map(|keys| {
            let (pod, bytes) = fill(case, keys);
            pods.push(pod);
            bytes
        });
        let more = KEYS[1] - KEYS[0];
        let bytes = [0, 1].map(|nth| (large[nth] - small[nth]).div_ceil(more));
        seen.push((case.name, bytes));
    }
    for (case, bytes) in &seen {
        for (bytes, said) in bytes.iter().zip(documented(case)) {
            // Tables of other sizes are a little fuller or emptier, so the page rounds up.
            let truth = said * 8 / 10..=said;
            assert!(
                truth.contains(bytes),
                "{case}: {said} are documented: {seen:?}"
            );
        }
    }
    // And what the pod keeps of each reported key for a replay.
    let kept = format!("about {} bytes for each reported key", size_of::<Delta>());
    assert!(page().contains(&kept), "{kept}");
}
