//! A server that refuses calls over several slots: the pod goes on with a group for each lane, and no cell counts twice.

use tidegate_core::engine::Engine;
use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip};
use tidegate_core::pure::sync::{Call, Grouping, Share, StoreReply, StoreState};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Span, Unit};
use tidegate_testing::engine::{SECOND, START, ask, reporting_engine};
use tidegate_testing::rules::one_rule;

const KEYS: usize = 40;
const MS: u64 = SECOND / 1_000;

struct Pod {
    engine: Engine,
    rounds: PodSync,
    now: u64,
}

impl Pod {
    /// A pod that has admitted a cell of each of its keys.
    fn new() -> Self {
        let limit = Limit::new(20, Unit::Hour, 1, Some(20)).expect("a sound limit");
        let engine = reporting_engine(4_096, one_rule(limit, Algorithm::Gcra));
        for key in 0..KEYS {
            assert!(ask(&engine, ("key", &format!("key-{key}")), 1, START).allowed());
        }
        let pace = Pace {
            interval: Span::seconds(1),
            accuracy: Share::even(10),
        };
        let rounds = PodSync::new(pace, 4_096, Grouping::Whole);
        Self {
            engine,
            rounds,
            now: START,
        }
    }

    /// The calls of the next turns, which are a millisecond apart.
    fn calls(&mut self, turns: usize) -> Vec<Call> {
        let mut calls = Vec::new();
        for _ in 0..turns {
            self.now += MS;
            let turn = self.rounds.turn(&self.engine, Moment::at(self.now));
            calls.extend(turn.calls);
        }
        calls
    }

    fn answer(&mut self, call: &Call, sequence: u64, gross: u64) {
        let empty = StoreState::Level {
            level: Span::ZERO,
            demand: 0,
            capped: false,
        };
        let reply = StoreReply {
            applied: !call.id().is_probe,
            sequence,
            gross: Cells::new(gross),
            states: vec![empty; call.deltas.len()],
            repaired: 0,
        };
        let back = Moment::at(self.now);
        let trip = RoundTrip {
            sent: back.now,
            back,
        };
        self.rounds
            .call_answered(&self.engine, call.id(), &reply, trip);
    }

    /// Sends the report, which the server refuses, and then answers the probe with what the store has.
    fn refused(&mut self, sequence: u64, gross: u64) {
        let calls: Vec<Call> = self.calls(3);
        let reports: Vec<&Call> = calls.iter().filter(|call| !call.id().is_probe).collect();
        assert_eq!(reports.len(), 1, "all lanes share a call");
        assert_eq!(reports[0].deltas.len(), KEYS);
        // The first heartbeat comes with a probe.
        for call in calls.iter().filter(|call| call.id().is_probe) {
            self.answer(call, 0, 0);
        }
        let now = Moment::at(self.now).now;
        self.rounds.call_refused(&self.engine, reports[0].id(), now);
        let probes = self.calls(1);
        assert!(probes.len() == 1 && probes[0].id().is_probe, "{probes:?}");
        self.answer(&probes[0], sequence, gross);
    }

    fn settled(&self) -> (Cells, Cells) {
        let books = self.rounds.figures_now(&self.engine).books;
        (books.settled, books.in_flight)
    }
}

#[test]
fn what_the_store_does_not_have_is_reported_lane_by_lane() {
    let mut pod = Pod::new();
    pod.refused(0, 0);
    assert_eq!(pod.settled(), (Cells::ZERO, Cells::new(KEYS as u64)));
    let calls = pod.calls(1);
    let reported: usize = calls.iter().map(|call| call.deltas.len()).sum();
    assert_eq!(reported, KEYS);
    for call in &calls {
        let lane = call.group.lane();
        assert!(call.deltas.iter().all(|delta| delta.key.lane() == lane));
        assert!(call.group.is_split(), "a record of another name");
        pod.answer(call, 1, call.deltas.len() as u64);
    }
    assert_eq!(pod.settled(), (Cells::new(KEYS as u64), Cells::ZERO));
}

/// A probe from before the refusal says nothing of what arrived since: the pod asks again.
#[test]
fn an_earlier_probe_does_not_split_the_group() {
    let mut pod = Pod::new();
    let calls = pod.calls(3);
    let (probes, reports): (Vec<Call>, Vec<Call>) =
        calls.into_iter().partition(|call| call.id().is_probe);
    assert_eq!((probes.len(), reports.len()), (1, 1));
    let now = Moment::at(pod.now).now;
    pod.rounds.call_refused(&pod.engine, reports[0].id(), now);
    assert_eq!(pod.calls(1), [], "a probe is under way");
    pod.answer(&probes[0], 0, 0);
    let asked = pod.calls(1);
    assert!(asked.len() == 1 && asked[0].id().is_probe, "{asked:?}");
    pod.answer(&asked[0], 1, KEYS as u64);
    assert_eq!(pod.settled(), (Cells::new(KEYS as u64), Cells::ZERO));
}

#[test]
fn what_the_store_has_is_not_reported_again() {
    let mut pod = Pod::new();
    pod.refused(1, KEYS as u64);
    assert_eq!(pod.settled(), (Cells::new(KEYS as u64), Cells::ZERO));
    let reports = pod
        .calls(9)
        .into_iter()
        .filter(|call| !call.deltas.is_empty());
    assert_eq!(reports.count(), 0);
}
