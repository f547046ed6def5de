//! How often a key is reported that is far from its limit: when it is first seen, then once in an interval.

use tidegate_core::pure::{Limit, Moment, Unit};
use tidegate_testing::engine::{SECOND, admits};

use crate::refund::{Pod, always};

const MS: u64 = SECOND / 1_000;

/// The cells of each report within `millis`, of which every tenth brings a check.
fn reports(pod: &mut Pod, millis: u64) -> Vec<u64> {
    let mut reports = Vec::new();
    for millisecond in 0..millis {
        if millisecond % 10 == 0 {
            assert!(admits(&pod.engine, "a", pod.now));
        }
        pod.now += MS;
        let turn = pod.rounds.turn(&pod.engine, Moment::at(pod.now));
        for call in &turn.calls {
            reports.extend(call.deltas.iter().map(|delta| delta.gross.get()));
            pod.answer(call);
        }
    }
    reports
}

#[test]
fn a_busy_key_is_reported_once_in_an_interval() {
    let limit = Limit::new(100_000, Unit::Year, 1, None).expect("a sound limit");
    // The interval of the pod is a second.
    let mut pod = Pod::new(always(limit));
    assert_eq!(reports(&mut pod, 950), [1]);
    assert_eq!(reports(&mut pod, 3_000), [100, 100, 100]);
}
