//! A pod of a hundred that has more to report than it may: what it grants of keys that would be reported late.

use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip};
use tidegate_core::engine::{Engine, Source};
use tidegate_core::pure::sync::{Grouping, HeartbeatReply, Share, StoreReply};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Span, Unit};
use tidegate_testing::engine::{SECOND, START, ask, reporting_engine};
use tidegate_testing::rules::one_rule;

const MS: u64 = SECOND / 1_000;
const PODS: u64 = 100;

/// A turn whose reports are lost, while the store answers that it has what the pod says.
fn take_turn(engine: &Engine, rounds: &mut PodSync, now: u64) {
    let moment = Moment::at(now);
    for call in rounds.turn(engine, moment).calls {
        if call.id().is_probe {
            let reply = StoreReply {
                applied: false,
                sequence: call.sequence,
                gross: Cells::ZERO,
                states: Vec::new(),
                repaired: 0,
            };
            let trip = RoundTrip {
                sent: moment.now,
                back: moment,
            };
            rounds.call_answered(engine, call.id(), &reply, trip);
        }
    }
}

/// How many of 40 checks of one key pass within two seconds, after `others` keys were asked for, and what decided the
/// last one. The store answers nothing, and is not late yet.
fn admitted(algorithm: Algorithm, others: u64) -> (usize, Source) {
    let burst = (!algorithm.is_windowed()).then_some(20);
    let limit = Limit::new(20, Unit::Hour, 1, burst).expect("a sound limit");
    let engine = reporting_engine(4_096, one_rule(limit, algorithm));
    let pace = Pace {
        interval: Span::seconds(1),
        accuracy: Share::even(10),
    };
    let mut rounds = PodSync::new(pace, 65_536, Grouping::Whole);
    let mut now = START;
    for _ in 0..4 {
        take_turn(&engine, &mut rounds, now);
        let heartbeat_answered = HeartbeatReply {
            pods: PODS,
            resets: 0,
            reset_keys: Vec::new(),
        };
        rounds.heartbeat_answered(&engine, &heartbeat_answered, Moment::at(now));
        now += SECOND;
    }
    for other in 0..others {
        assert!(ask(&engine, ("key", &format!("other-{other}")), 1, now).allowed());
    }
    take_turn(&engine, &mut rounds, now);
    let mut allowed = 0;
    let mut source = Source::Local;
    for _ in 0..40 {
        now += MS;
        let answer = ask(&engine, ("key", "victim"), 1, now);
        allowed += usize::from(answer.allowed());
        source = answer.decisive().map_or(source, |hit| hit.source);
        take_turn(&engine, &mut rounds, now);
    }
    (allowed, source)
}

#[test]
fn a_key_that_would_be_reported_late_is_granted_by_share() {
    use Algorithm::{FixedWindow, Gcra, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};
    for algorithm in [
        Gcra,
        TokenBucket,
        LeakyBucket,
        FixedWindow,
        SlidingWindow,
        SlidingLog,
    ] {
        // The first cell tells the pod that the key is in use; a share of less than a cell grants one.
        let (allowed, source) = admitted(algorithm, 1_000);
        assert!((1..=2).contains(&allowed), "{algorithm:?}: {allowed}");
        assert_eq!(source, Source::Fallback, "{algorithm:?}");
        let (allowed, _) = admitted(algorithm, 0);
        assert_eq!(allowed, 20, "{algorithm:?} with budget to spare");
    }
}
