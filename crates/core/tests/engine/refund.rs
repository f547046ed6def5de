//! Cells that are given back: never beyond empty, never of a denied check, and reported to the store only if that knows of
//! them.

use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip, SyncActions};
use tidegate_core::engine::{Answer, CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::rule::{Consistency, Report, RuleSpec};
use tidegate_core::pure::sync::{
    Call, Grouping, HeartbeatReply, News, NewsKind, Refund, Share, StoreReply, StoreState,
    TakeReply,
};
use tidegate_core::pure::{
    Algorithm, Cells, Check, Descriptor, Entry, Limit, Moment, Nanos, Rules, Span, Unit,
};
use tidegate_testing::engine::{SECOND, START, ask, engine, left, reporting_engine};
use tidegate_testing::rules::{a_second, node, one_rule, rule, rules};

pub fn refund(engine: &Engine, values: &[(&str, bool)], cost: u64, nanos: u64) -> Answer {
    let entries: Vec<[Entry<'_>; 1]> = values
        .iter()
        .map(|(value, _)| [Entry::new("key", value)])
        .collect();
    let descriptors: Vec<Descriptor<'_>> = entries
        .iter()
        .zip(values)
        .map(|(entries, (_, refund))| Descriptor {
            refund: *refund,
            ..Descriptor::of(entries)
        })
        .collect();
    let check = Check {
        domain: "api",
        descriptors: &descriptors,
        cost: Cells::new(cost),
        peek: false,
    };
    engine.check(&check, Moment::at(nanos))
}

#[test]
fn what_is_given_back_can_be_used_again_and_no_more() {
    for algorithm in Algorithm::ALL {
        let limit = Limit::new(10, Unit::Hour, 1, None).expect("a sound limit");
        let engine = engine(64, one_rule(limit, algorithm));
        let at = START / (3_600 * SECOND) * 3_600 * SECOND + SECOND;
        assert!(ask(&engine, ("key", "a"), 10, at).allowed());
        assert!(!ask(&engine, ("key", "a"), 1, at).allowed());
        let answer = refund(&engine, &[("a", true)], 4, at + 1);
        assert!(answer.allowed(), "{algorithm:?}");
        let hit = answer.decisive().expect("a hit");
        assert_eq!(hit.standing.remaining, Cells::new(4), "{algorithm:?}");
        drop(answer);
        refund(&engine, &[("a", true)], u64::MAX, at + 2);
        assert_eq!(left(&engine, ("key", "a"), at + 2), 10, "{algorithm:?}");
        assert!(!ask(&engine, ("key", "a"), 11, at + 2).allowed());
        assert!(ask(&engine, ("key", "a"), 10, at + 2).allowed());
    }
}

#[test]
fn a_key_without_a_bucket_stays_so() {
    let engine = engine(64, one_rule(a_second(10, 10), Algorithm::Gcra));
    assert!(refund(&engine, &[("a", true)], 4, START).allowed());
    assert_eq!(
        (engine.keys_held(), left(&engine, ("key", "a"), START)),
        (0, 10)
    );
}

#[test]
fn a_denied_check_gives_nothing_back_and_one_that_passes_uses_its_other_part() {
    let engine = engine(64, one_rule(a_second(10, 10), Algorithm::Gcra));
    for value in ["a", "b"] {
        assert!(ask(&engine, ("key", value), 10, START).allowed());
    }
    assert!(!refund(&engine, &[("a", true), ("b", false)], 3, START).allowed());
    assert_eq!(left(&engine, ("key", "a"), START), 0);
    assert!(refund(&engine, &[("a", true), ("c", false)], 3, START).allowed());
    assert_eq!(left(&engine, ("key", "a"), START), 3);
    assert_eq!(left(&engine, ("key", "c"), START), 7);
}

#[test]
fn a_limit_that_is_carried_is_refunded_at_its_own_price() {
    let engine = engine(64, one_rule(a_second(1, 1), Algorithm::Gcra));
    let slow = Limit::from_caller(10, 1, 60).expect("a sound limit");
    let fast = Limit::from_caller(60, 1, 1).expect("a sound limit");
    let throttle = |limit, cost, refund| {
        let cost = Cells::new(cost);
        let throttle = Throttle {
            key: b"k",
            limit,
            cost,
            refund,
        };
        match engine.begin(Question::Throttle(&throttle), Moment::at(START)) {
            CheckStep::Decided(answer) => answer.decisive().map(|hit| hit.standing.remaining.get()),
            CheckStep::NeedsStore(_) => None,
        }
    };
    assert_eq!(throttle(slow, 10, false), Some(0));
    assert_eq!(throttle(fast, 120, true), Some(0), "two minutes of ten");
    assert_eq!(throttle(slow, 0, false), Some(2));
    assert_eq!(throttle(slow, u64::MAX, true), Some(10));
}

/// A pod with a store that the test plays.
pub struct Pod {
    pub engine: Engine,
    pub rounds: PodSync,
    pub now: u64,
    /// What the store has booked.
    pub settled: Cells,
}

impl Pod {
    pub fn new(rules: Rules) -> Self {
        Self::holding(64, rules)
    }

    /// A pod that holds so many keys.
    pub fn holding(keys_max: usize, rules: Rules) -> Self {
        let pace = Pace {
            interval: Span::seconds(1),
            accuracy: Share::even(10),
        };
        Self {
            engine: reporting_engine(keys_max, rules),
            rounds: PodSync::new(pace, keys_max, Grouping::Whole),
            now: START,
            settled: Cells::ZERO,
        }
    }

    /// Takes turns for `millis`, answers what only asks, and says what was to be sent.
    pub fn turns(&mut self, millis: u64) -> (Vec<Call>, Vec<Refund>) {
        let (mut all, mut back) = (Vec::new(), Vec::new());
        for _ in 0..millis {
            self.now += SECOND / 1_000;
            let SyncActions {
                calls, give_back, ..
            } = self.rounds.turn(&self.engine, Moment::at(self.now));
            let (probes, reports): (Vec<Call>, Vec<Call>) =
                calls.into_iter().partition(|call| call.id().is_probe);
            probes.iter().for_each(|probe| self.answer(probe));
            all.extend(reports);
            back.extend(give_back);
        }
        (all, back)
    }

    /// A turn a millisecond later, whose calls are answered: what is given back.
    pub fn answered_turn(&mut self) -> Vec<Refund> {
        self.now += SECOND / 1_000;
        let turn = self.rounds.turn(&self.engine, Moment::at(self.now));
        turn.calls.iter().for_each(|call| self.answer(call));
        turn.give_back
    }

    /// A turn a microsecond later: how many calls report something, and what is given back.
    fn turn(&mut self) -> (usize, Vec<Refund>) {
        self.now += 1_000;
        let turn = self.rounds.turn(&self.engine, Moment::at(self.now));
        let telling = turn.calls.iter().filter(|call| !call.deltas.is_empty());
        (telling.count(), turn.give_back)
    }

    /// Answers a call as a store does that has nothing else.
    pub fn answer(&mut self, call: &Call) {
        let store_state = |price| StoreState::Level {
            level: price,
            demand: 0,
            capped: false,
        };
        let store_state = call
            .deltas
            .iter()
            .map(|delta| store_state(delta.price))
            .collect();
        self.reply(call, store_state);
    }

    pub fn reply(&mut self, call: &Call, store_state: Vec<StoreState>) {
        let trip = self.trip();
        self.reply_after(call, store_state, trip);
    }

    pub fn reply_after(&mut self, call: &Call, store_state: Vec<StoreState>, trip: RoundTrip) {
        let gross = call.deltas.iter().map(|delta| delta.gross);
        self.settled = gross.fold(self.settled, Cells::plus);
        let reply = StoreReply {
            applied: true,
            sequence: call.sequence,
            gross: self.settled,
            states: store_state,
            repaired: 0,
        };
        self.rounds
            .call_answered(&self.engine, call.id(), &reply, trip);
    }

    pub fn trip(&self) -> RoundTrip {
        RoundTrip {
            sent: Nanos::new(self.now),
            back: Moment::at(self.now),
        }
    }

    /// Is sure of how many pods there are.
    pub fn steady(&mut self, pods: u64) {
        for _ in 0..20 {
            let heartbeat_answered = HeartbeatReply {
                pods,
                resets: 0,
                reset_keys: Vec::new(),
            };
            let moment = Moment::at(self.now);
            self.rounds
                .heartbeat_answered(&self.engine, &heartbeat_answered, moment);
            self.turns(1_000);
        }
    }

    pub fn throttle(&self, limit: Limit, cost: u64, refund: bool) -> CheckStep {
        let throttle = Throttle {
            key: b"k",
            limit,
            cost: Cells::new(cost),
            refund,
        };
        self.engine
            .begin(Question::Throttle(&throttle), Moment::at(self.now))
    }
}

pub fn always(limit: Limit) -> Rules {
    let spec = RuleSpec {
        report: Report::Always,
        ..rule(limit, Algorithm::Gcra)
    };
    rules(vec![node("key", spec)])
}

pub fn an_hour(requests: u64) -> Limit {
    Limit::new(requests, Unit::Hour, 1, None).expect("a sound limit")
}

#[test]
fn what_was_not_told_yet_is_not_told_at_all() {
    let mut pod = Pod::new(always(an_hour(100)));
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    refund(&pod.engine, &[("a", true)], 4, pod.now);
    let (calls, back) = pod.turns(20);
    let store_state: Vec<u64> = calls[0]
        .deltas
        .iter()
        .map(|delta| delta.gross.get())
        .collect();
    assert_eq!((store_state, back), (vec![6], vec![]));
}

#[test]
fn what_was_told_is_given_back_once_nothing_is_on_its_way() {
    let mut pod = Pod::new(always(an_hour(100)));
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    let (calls, _) = pod.turns(20);
    assert_eq!(calls.len(), 1);
    refund(&pod.engine, &[("a", true)], 4, pod.now);
    refund(&pod.engine, &[("a", true)], 3, pod.now);
    assert_eq!(pod.turns(20), (vec![], vec![]), "its batch is on its way");
    pod.answer(&calls[0]);
    let (_, back) = pod.turns(20);
    let delta = &calls[0].deltas[0];
    let given_back: Vec<_> = back
        .iter()
        .map(|refund| (refund.key, refund.cells))
        .collect();
    assert_eq!(given_back, [(delta.key, Cells::new(7))]);
    assert_eq!(pod.turns(20).1, vec![], "once");
}

#[test]
fn what_this_pod_was_silent_of_the_store_hears_nothing_of() {
    let mut pod = Pod::new(one_rule(an_hour(100), Algorithm::Gcra));
    pod.steady(1);
    assert!(ask(&pod.engine, ("key", "a"), 20, pod.now).allowed());
    assert_eq!(pod.turns(20), (vec![], vec![]), "a fifth, and it is alone");
    refund(&pod.engine, &[("a", true)], 15, pod.now);
    assert_eq!(pod.turns(2_000), (vec![], vec![]));
    assert_eq!(left(&pod.engine, ("key", "a"), pod.now), 95);
}

#[test]
fn a_refund_does_not_overtake_what_it_refunds() {
    let mut pod = Pod::new(one_rule(an_hour(100), Algorithm::Gcra));
    pod.steady(2);
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    assert_eq!(pod.turns(20), (vec![], vec![]), "silent");
    assert!(ask(&pod.engine, ("key", "a"), 60, pod.now).allowed());
    assert_eq!(pod.turn(), (0, vec![]), "it waits in its lane for others");
    refund(&pod.engine, &[("a", true)], 30, pod.now);
    assert_eq!(pod.turn(), (0, vec![]), "and the refund with it");
}

#[test]
fn a_bucket_of_a_former_limit_is_refunded_too() {
    let engine = engine(64, one_rule(an_hour(10), Algorithm::Gcra));
    assert!(ask(&engine, ("key", "a"), 10, START).allowed());
    engine.reload(one_rule(an_hour(20), Algorithm::Gcra));
    refund(&engine, &[("a", true)], 10, START + 9);
    assert_eq!(left(&engine, ("key", "a"), START + 9), 10);
}

#[test]
fn a_refund_is_no_quota_that_has_room() {
    let quota = RuleSpec {
        quota: true,
        ..rule(an_hour(1), Algorithm::Gcra)
    };
    let engine = engine(64, rules(vec![node("key", quota)]));
    assert!(ask(&engine, ("key", "a"), 1, START).allowed());
    assert!(!refund(&engine, &[("a", false), ("b", true)], 1, START).allowed());
}

#[test]
fn a_cheap_refund_leaves_the_price_of_what_was_dear() {
    let spec = RuleSpec {
        report: Report::Always,
        ..RuleSpec::new(a_second(1, 1))
    };
    let mut pod = Pod::new(one_rule(a_second(1, 1), Algorithm::Gcra).with_defaults(&spec));
    let slow = Limit::from_caller(10, 10, 3_600).expect("a sound limit");
    let fast = Limit::from_caller(1_000, 1_000, 1).expect("a sound limit");
    pod.throttle(slow, 10, false);
    pod.throttle(fast, 10, true);
    let (calls, _) = pod.turns(2_000);
    let deltas = calls.iter().flat_map(|call| &call.deltas);
    let price: u64 = deltas.map(|delta| delta.price.get()).sum();
    assert_eq!(price, 3_600 * SECOND - SECOND / 100);
}

#[test]
fn a_refund_of_a_strict_carried_limit_reaches_the_store() {
    let spec = RuleSpec {
        consistency: Consistency::Strict,
        ..RuleSpec::new(a_second(1, 1))
    };
    let mut pod = Pod::new(one_rule(a_second(1, 1), Algorithm::Gcra).with_defaults(&spec));
    let limit = Limit::from_caller(10, 10, 3_600).expect("a sound limit");
    let CheckStep::NeedsStore(plan) = pod.throttle(limit, 10, false) else {
        unreachable!("the store is asked");
    };
    let store_state = StoreState::Level {
        level: Span::seconds(3_600),
        demand: 0,
        capped: false,
    };
    let taken = Ok(TakeReply {
        taken: true,
        state: store_state,
    });
    pod.engine.finish(plan, &[taken], Moment::at(pod.now));
    pod.throttle(limit, 4, true);
    let (_, back) = pod.turns(50);
    let cells: Vec<u64> = back.iter().map(|refund| refund.cells.get()).collect();
    assert_eq!(cells, [4]);
}

/// How long the hour still is.
pub fn rest_of_the_hour(now: u64) -> Span {
    Span::nanos(3_600 * SECOND - now % (3_600 * SECOND))
}

pub fn windowed(algorithm: Algorithm) -> Pod {
    let mut pod = Pod::new(one_rule(an_hour(10), algorithm));
    // The middle of an hour.
    pod.now = START / (3_600 * SECOND) * 3_600 * SECOND + 1_800 * SECOND;
    pod
}

#[test]
fn a_window_is_refunded_once_wherever_its_cells_are() {
    let mut pod = windowed(Algorithm::FixedWindow);
    let (mut store, mut admitted, mut refunded) = (0_u64, 0_u64, 0_u64);
    for step in 0..4 {
        let free = left(&pod.engine, ("key", "a"), pod.now);
        if free > 0 {
            assert!(ask(&pod.engine, ("key", "a"), free, pod.now).allowed());
            admitted += free;
        }
        let (calls, back) = pod.turns(1_500);
        store -= back.iter().map(|refund| refund.cells.get()).sum::<u64>();
        for call in calls {
            if step == 0 {
                refund(&pod.engine, &[("a", true)], 10, pod.now);
                refunded = 10;
            }
            store += call.deltas[0].billed.get();
            let store_state = StoreState::Window {
                current: Cells::new(store),
                previous: Cells::ZERO,
                left: rest_of_the_hour(pod.now),
            };
            pod.reply(&call, vec![store_state]);
        }
        let (_, back) = pod.turns(20);
        store -= back.iter().map(|refund| refund.cells.get()).sum::<u64>();
    }
    assert_eq!((admitted - refunded, store), (10, 10));
}

#[test]
fn what_is_refunded_in_a_window_is_not_taken_from_the_one_before() {
    let mut pod = windowed(Algorithm::SlidingWindow);
    pod.now += rest_of_the_hour(pod.now).get() - 1_000_000;
    let answer = ask(&pod.engine, ("key", "a"), 5, pod.now);
    let hit = answer.decisive().expect("a hit").clone();
    let moment = Moment::at(pod.now);
    let (key, _) = pod.engine.store_key(&answer, &hit, moment).expect("told");
    drop(answer);
    pod.now += 2_000_000;
    let full = News {
        key,
        kind: NewsKind::Full(rest_of_the_hour(pod.now)),
    };
    pod.rounds
        .news_received(&pod.engine, full, Moment::at(pod.now));
    refund(&pod.engine, &[("a", true)], 3, pod.now);
    let (calls, _) = pod.turns(2_000);
    let store_state = calls.iter().flat_map(|call| &call.deltas);
    let store_state: Vec<u64> = store_state.map(|delta| delta.gross.get()).collect();
    assert_eq!(store_state, [5]);
}

#[test]
fn a_carried_key_that_is_only_known_as_full_can_be_reset() {
    let mut pod = Pod::new(one_rule(a_second(1, 1), Algorithm::Gcra));
    let limit = Limit::from_caller(10, 10, 3_600).expect("a sound limit");
    let other = Pod::new(one_rule(a_second(1, 1), Algorithm::Gcra));
    let CheckStep::Decided(answer) = other.throttle(limit, 1, false) else {
        unreachable!("nothing is strict");
    };
    let hit = answer.decisive().expect("a hit").clone();
    let moment = Moment::at(pod.now);
    let (key, _) = other.engine.store_key(&answer, &hit, moment).expect("told");
    drop(answer);
    let allowed = |pod: &Pod| match pod.throttle(limit, 1, false) {
        CheckStep::Decided(answer) => answer.allowed(),
        CheckStep::NeedsStore(_) => unreachable!("nothing is strict"),
    };
    for kind in [NewsKind::Full(Span::seconds(3_600)), NewsKind::Reset] {
        pod.rounds
            .news_received(&pod.engine, News { key, kind }, moment);
        assert!(!allowed(&pod), "what others say frees nothing");
    }
    let heartbeat_answered = HeartbeatReply {
        pods: 1,
        resets: 1,
        reset_keys: vec![key],
    };
    pod.rounds
        .heartbeat_answered(&pod.engine, &heartbeat_answered, moment);
    assert!(allowed(&pod));
}
