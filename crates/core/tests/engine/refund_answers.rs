//! Refunds while the store's answers, its news and other refunds are on their way: none of them undoes a refund, and
//! no refund frees more than was used.

use std::collections::BTreeMap;

use tidegate_core::engine::sync::RoundTrip;
use tidegate_core::engine::{CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::rule::{Report, RuleSpec};
use tidegate_core::pure::sync::{
    Call, HeartbeatReply, News, NewsKind, Refund, StoreKey, StoreState, Terms,
};
use tidegate_core::pure::{Algorithm, Cells, Limit, Moment, Nanos, Rules, Span};
use tidegate_testing::Random;
use tidegate_testing::engine::{SECOND, ask, engine, left};
use tidegate_testing::rules::{a_second, node, one_rule, rule, rules};

use crate::refund::{Pod, always, an_hour, refund, rest_of_the_hour, windowed};

const MS: u64 = SECOND / 1_000;

/// What a cell of ten an hour costs.
const CELL: u64 = 360 * SECOND;

/// Who says the limit of the one key, and how it is counted.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Rule,
    Caller,
    Window(Algorithm),
}

const KINDS: [Kind; 5] = [
    Kind::Rule,
    Kind::Caller,
    Kind::Window(Algorithm::FixedWindow),
    Kind::Window(Algorithm::SlidingWindow),
    Kind::Window(Algorithm::SlidingLog),
];

fn ten_an_hour() -> Limit {
    Limit::from_caller(10, 10, 3_600).expect("a sound limit")
}

impl Kind {
    fn rules(self) -> Rules {
        match self {
            Self::Rule => always(an_hour(10)),
            Self::Caller => {
                let spec = RuleSpec {
                    report: Report::Always,
                    ..RuleSpec::new(a_second(1, 1))
                };
                one_rule(a_second(1, 1), Algorithm::Gcra).with_defaults(&spec)
            }
            Self::Window(algorithm) => one_rule(an_hour(10), algorithm),
        }
    }

    /// A pod in the middle of an hour, which is that of every window.
    fn pod(self) -> Pod {
        let mut pod = windowed(Algorithm::FixedWindow);
        let now = pod.now;
        pod = Pod::new(self.rules());
        pod.now = now;
        pod
    }

    /// Whether as many cells were there, and how many are left.
    fn use_cells(self, engine: &Engine, cells: u64, now: u64) -> (bool, u64) {
        match self {
            Self::Rule | Self::Window(_) => {
                let allowed = ask(engine, ("key", "a"), cells, now).allowed();
                (allowed, left(engine, ("key", "a"), now))
            }
            Self::Caller => throttle(engine, ten_an_hour(), (cells, false), now),
        }
    }

    fn refund(self, engine: &Engine, cells: u64, now: u64) -> u64 {
        match self {
            Self::Rule | Self::Window(_) => {
                assert!(refund(engine, &[("a", true)], cells, now).allowed());
                left(engine, ("key", "a"), now)
            }
            Self::Caller => throttle(engine, ten_an_hour(), (cells, true), now).1,
        }
    }

    /// Nanoseconds until all of it is free again; cells of a window.
    fn used(self, engine: &Engine, now: u64) -> u64 {
        match self {
            Self::Rule => {
                let answer = ask(engine, ("key", "a"), 0, now);
                let hit = answer.hits().first().expect("a rule matched");
                hit.standing.reset_after.get()
            }
            Self::Caller => {
                let throttle = throttle_of(ten_an_hour(), (0, false));
                let CheckStep::Decided(answer) =
                    engine.begin(Question::Throttle(&throttle), Moment::at(now))
                else {
                    unreachable!("nothing is strict");
                };
                let hit = answer.hits().first().expect("a rule matched");
                hit.standing.reset_after.get()
            }
            Self::Window(_) => 10 - self.left(engine, now),
        }
    }

    fn left(self, engine: &Engine, now: u64) -> u64 {
        self.use_cells(engine, 0, now).1
    }
}

/// Whether a check of a caller's own limit passes, and how many cells of it are left.
fn throttle(engine: &Engine, limit: Limit, (cost, refund): (u64, bool), now: u64) -> (bool, u64) {
    let throttle = throttle_of(limit, (cost, refund));
    let CheckStep::Decided(answer) = engine.begin(Question::Throttle(&throttle), Moment::at(now))
    else {
        unreachable!("nothing is strict");
    };
    let hit = answer.decisive().expect("a hit");
    (answer.allowed(), hit.standing.remaining.get())
}

fn throttle_of(limit: Limit, (cost, refund): (u64, bool)) -> Throttle<'static> {
    Throttle {
        key: b"k",
        limit,
        cost: Cells::new(cost),
        refund,
    }
}

/// The store: exact, and without a network.
#[derive(Default)]
struct Store {
    /// Where each bucket ends, or what each window has.
    keys: BTreeMap<StoreKey, u64>,
}

impl Store {
    fn store_state(
        &mut self,
        key: StoreKey,
        terms: Terms,
        now: u64,
        change: impl Fn(u64) -> u64,
    ) -> StoreState {
        let value = self.keys.entry(key).or_default();
        match terms {
            Terms::Level { .. } => {
                *value = change((*value).max(now)).max(now);
                StoreState::Level {
                    level: Span::nanos(*value - now),
                    demand: 0,
                    capped: false,
                }
            }
            Terms::Window { .. } => {
                *value = change(*value);
                StoreState::Window {
                    current: Cells::new(*value),
                    previous: Cells::ZERO,
                    left: rest_of_the_hour(now),
                }
            }
        }
    }

    fn apply(&mut self, call: &Call, now: u64) -> Vec<StoreState> {
        let deltas = call.deltas.iter();
        let store_state = deltas.map(|delta| {
            let more = match delta.terms {
                Terms::Level { .. } => delta.price.get(),
                Terms::Window { .. } => delta.billed.get(),
            };
            self.store_state(delta.key, delta.terms, now, |value| value + more)
        });
        store_state.collect()
    }

    fn give_back(&mut self, refund: &Refund, now: u64) -> StoreState {
        let less = match refund.terms {
            Terms::Level { .. } => refund.price.get(),
            Terms::Window { .. } => refund.cells.get(),
        };
        self.store_state(refund.key, refund.terms, now, |value| {
            value.saturating_sub(less)
        })
    }
}

/// Item by item: the cells are used, the report of them is on its way, they are refunded, the answer comes.
#[test]
fn an_answer_from_before_the_refund_does_not_undo_it() {
    for kind in KINDS {
        let (mut pod, mut store) = (kind.pod(), Store::default());
        assert_eq!(kind.use_cells(&pod.engine, 10, pod.now), (true, 0));
        let (calls, _) = pod.turns(1_500);
        assert_eq!(calls.len(), 1, "{kind:?}");
        assert_eq!(kind.refund(&pod.engine, 5, pod.now), 5, "{kind:?}");
        let store_state = store.apply(&calls[0], pod.now);
        pod.reply(&calls[0], store_state);
        assert_eq!(kind.left(&pod.engine, pod.now), 5, "{kind:?}: undone");
        let (_, back) = pod.turns(20);
        assert_eq!(back.len(), 1, "{kind:?}");
        let store_state = store.give_back(&back[0], pod.now);
        let trip = pod.trip();
        pod.rounds
            .refund_answered(&pod.engine, &back[0], store_state, trip);
        assert_eq!(kind.left(&pod.engine, pod.now), 5, "{kind:?}");
        // The next answer knows of the refund, and of what was used since.
        assert_eq!(kind.use_cells(&pod.engine, 2, pod.now), (true, 3));
        let (calls, _) = pod.turns(1_500);
        let store_state = store.apply(&calls[0], pod.now);
        pod.reply(&calls[0], store_state);
        assert_eq!(kind.left(&pod.engine, pod.now), 3, "{kind:?}");
    }
}

/// News that the key is full, from before the refund, comes after it.
#[test]
fn news_from_before_the_refund_does_not_undo_it() {
    for kind in KINDS {
        let (mut pod, mut store) = (kind.pod(), Store::default());
        assert_eq!(kind.use_cells(&pod.engine, 10, pod.now), (true, 0));
        let (calls, _) = pod.turns(1_500);
        let key = calls[0].deltas[0].key;
        let store_state = store.apply(&calls[0], pod.now);
        let level = match store_state[0] {
            StoreState::Level { level, .. } => level,
            StoreState::Window { left, .. } => left,
        };
        assert_eq!(kind.refund(&pod.engine, 5, pod.now), 5);
        // To the nearest cell: what the store heard late drains late.
        let used = |pod: &Pod| match kind {
            Kind::Rule | Kind::Caller => (kind.used(&pod.engine, pod.now) + CELL / 2) / CELL,
            Kind::Window(_) => kind.used(&pod.engine, pod.now),
        };
        let news = |pod: &mut Pod| {
            let full = News {
                key,
                kind: NewsKind::Full(level),
            };
            let moment = Moment::at(pod.now);
            pod.rounds.news_received(&pod.engine, full, moment);
            used(pod)
        };
        assert_eq!(news(&mut pod), 5, "{kind:?}: before the answer");
        pod.reply(&calls[0], store_state);
        assert_eq!(used(&pod), 5, "{kind:?}");
        let moment = Moment::at(pod.now);
        let back = pod.rounds.turn(&pod.engine, moment).give_back;
        assert_eq!(back.len(), 1, "{kind:?}");
        assert_eq!(news(&mut pod), 5, "{kind:?}: while it is given back");
    }
}

#[test]
fn a_cell_that_has_drained_in_part_is_refunded_whole() {
    for kind in KINDS {
        let mut pod = kind.pod();
        assert_eq!(kind.use_cells(&pod.engine, 1, pod.now), (true, 9));
        assert_eq!(kind.refund(&pod.engine, 1, pod.now + 200), 10);
        assert_eq!(pod.turns(1_500), (vec![], vec![]), "{kind:?}: not told");

        let (mut pod, mut store) = (kind.pod(), Store::default());
        assert_eq!(kind.use_cells(&pod.engine, 1, pod.now), (true, 9));
        let (calls, _) = pod.turns(1_500);
        let store_state = store.apply(&calls[0], pod.now);
        pod.reply(&calls[0], store_state);
        pod.turns(3);
        assert_eq!(kind.refund(&pod.engine, 1, pod.now), 10, "{kind:?}");
        let (_, back) = pod.turns(1);
        let store_state = store.give_back(&back[0], pod.now);
        let empty = match store_state {
            StoreState::Level { level, .. } => level == Span::ZERO,
            StoreState::Window { current, .. } => current == Cells::ZERO,
        };
        assert!(empty, "{kind:?}: {store_state:?}");
    }
}

/// What a fast limit gives back is worth little on the time line that a slow one shares with it.
#[test]
fn a_cheap_refund_never_frees_what_was_dear() {
    let mut pod = Kind::Caller.pod();
    let fast = Limit::from_caller(1_000, 1_000, 1).expect("a sound limit");
    let (allowed, _) = throttle(&pod.engine, ten_an_hour(), (9, false), pod.now);
    assert!(allowed);
    let (calls, _) = pod.turns(20);
    let mut store = Store::default();
    let store_state = store.apply(&calls[0], pod.now);
    pod.reply(&calls[0], store_state);
    throttle(&pod.engine, fast, (8, true), pod.now);
    let (_, back) = pod.turns(20);
    let prices: Vec<u64> = back.iter().map(|refund| refund.price.get()).collect();
    assert_eq!(prices, [8 * MS]);
}

/// An answer is lost for so long that the refunded cells have drained, and others use the bucket by then.
#[test]
fn what_has_drained_meanwhile_is_not_given_back() {
    for (waits, price) in [(2, 40 * MS), (30, 20 * MS), (200, 0)] {
        let spec = RuleSpec {
            report: Report::Always,
            ..rule(a_second(100, 100), Algorithm::Gcra)
        };
        let mut pod = Pod::new(rules(vec![node("key", spec)]));
        assert!(ask(&pod.engine, ("key", "a"), 5, pod.now).allowed());
        let (calls, _) = pod.turns(2);
        assert_eq!(calls.len(), 1);
        // Of 50 ms, 2 have drained: 8 stay used.
        refund(&pod.engine, &[("a", true)], 4, pod.now);
        pod.turns(waits - 1);
        pod.answer(&calls[0]);
        let (_, back) = pod.turns(1);
        let given_back: u64 = back.iter().map(|refund| refund.price.get()).sum();
        assert_eq!(given_back.div_ceil(10 * MS), price / (10 * MS), "{waits}");
    }
}

#[test]
fn above_a_windows_limit_all_that_is_refunded_is_given_back() {
    let mut pod = windowed(Algorithm::FixedWindow);
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    let (calls, _) = pod.turns(1_500);
    // Another pod has used five at the same time.
    let store_state = StoreState::Window {
        current: Cells::new(15),
        previous: Cells::ZERO,
        left: rest_of_the_hour(pod.now),
    };
    pod.reply(&calls[0], vec![store_state]);
    refund(&pod.engine, &[("a", true)], 8, pod.now);
    let (_, back) = pod.turns(20);
    let cells: Vec<u64> = back.iter().map(|refund| refund.cells.get()).collect();
    assert_eq!(cells, [8]);
    assert_eq!(left(&pod.engine, ("key", "a"), pod.now), 3);
}

/// The answer to a refund that a later report has overtaken knows nothing of that report.
#[test]
fn an_old_answer_to_a_refund_forgets_nothing() {
    let (mut pod, mut store) = (Kind::Rule.pod(), Store::default());
    assert!(Kind::Rule.use_cells(&pod.engine, 8, pod.now).0);
    let (calls, _) = pod.turns(20);
    let store_state = store.apply(&calls[0], pod.now);
    pod.reply(&calls[0], store_state);
    Kind::Rule.refund(&pod.engine, 5, pod.now);
    let (_, back) = pod.turns(1);
    let trip = pod.trip();
    let old = store.give_back(&back[0], pod.now);
    assert!(Kind::Rule.use_cells(&pod.engine, 6, pod.now).0);
    let (calls, _) = pod.turns(20);
    let store_state = store.apply(&calls[0], pod.now);
    pod.reply(&calls[0], store_state);
    let trip = RoundTrip {
        back: Moment::at(pod.now),
        ..trip
    };
    pod.rounds.refund_answered(&pod.engine, &back[0], old, trip);
    assert_eq!(Kind::Rule.left(&pod.engine, pod.now), 1);
}

/// Cells that were not reported are in no level that the store answers.
#[test]
fn the_answer_to_a_refund_keeps_what_is_used_in_silence() {
    let mut pod = Pod::new(one_rule(an_hour(100), Algorithm::Gcra));
    pod.steady(2);
    let answer = ask(&pod.engine, ("key", "a"), 1, pod.now);
    let hit = answer.decisive().expect("a hit").clone();
    let moment = Moment::at(pod.now);
    let (key, _) = pod.engine.store_key(&answer, &hit, moment).expect("told");
    drop(answer);
    let cells = |cells| Span::seconds(36).times(Cells::new(cells));
    let full = News {
        key,
        kind: NewsKind::Full(cells(90)),
    };
    pod.rounds.news_received(&pod.engine, full, moment);
    refund(&pod.engine, &[("a", true)], 40, pod.now);
    let (_, back) = pod.turns(1);
    assert_eq!(back.len(), 1);
    let trip = pod.trip();
    assert!(ask(&pod.engine, ("key", "a"), 10, pod.now).allowed());
    pod.turns(1);
    let store_state = StoreState::Level {
        level: cells(30),
        demand: 0,
        capped: false,
    };
    pod.rounds
        .refund_answered(&pod.engine, &back[0], store_state, trip);
    assert!(left(&pod.engine, ("key", "a"), pod.now) <= 60);
}

/// After a reset there is nothing of it to give back: what is used then is others'.
#[test]
fn a_reset_ends_a_refund_that_was_on_its_way() {
    for kind in KINDS {
        let (mut pod, mut store) = (kind.pod(), Store::default());
        assert!(kind.use_cells(&pod.engine, 8, pod.now).0);
        let (calls, _) = pod.turns(1_500);
        kind.refund(&pod.engine, 5, pod.now);
        let key = calls[0].deltas[0].key;
        let heartbeat_answered = HeartbeatReply {
            pods: 1,
            resets: 1,
            reset_keys: vec![key],
        };
        pod.turns(1);
        let moment = Moment::at(pod.now);
        pod.rounds
            .heartbeat_answered(&pod.engine, &heartbeat_answered, moment);
        let store_state = store.apply(&calls[0], pod.now);
        pod.reply(&calls[0], store_state);
        assert_eq!(pod.turns(20).1, vec![], "{kind:?}");
    }
}

/// Refunds of many keys take their part of what the pod may ask of the store, and all of them go in the end.
#[test]
fn refunds_are_sent_within_the_budget() {
    const KEYS: usize = 200;
    let spec = RuleSpec {
        report: Report::Always,
        ..rule(an_hour(10), Algorithm::Gcra)
    };
    let mut pod = Pod::holding(4_096, rules(vec![node("key", spec)]));
    let heartbeat_answered = HeartbeatReply {
        pods: 1_000,
        resets: 0,
        reset_keys: Vec::new(),
    };
    let moment = Moment::at(pod.now);
    pod.rounds
        .heartbeat_answered(&pod.engine, &heartbeat_answered, moment);
    let names: Vec<String> = (0..KEYS).map(|nth| nth.to_string()).collect();
    for name in &names {
        assert!(ask(&pod.engine, ("key", name), 5, pod.now).allowed());
    }
    for _ in 0..6_000 {
        pod.answered_turn();
    }
    for name in &names {
        refund(&pod.engine, &[(name, true)], 5, pod.now);
    }
    let mut sent = Vec::new();
    let mut at_once = 0;
    for millis in 0..12_000 {
        for refund in &pod.answered_turn() {
            let store_state = StoreState::Level {
                level: Span::ZERO,
                demand: 0,
                capped: false,
            };
            let trip = pod.trip();
            pod.rounds
                .refund_answered(&pod.engine, refund, store_state, trip);
            sent.push(refund.key);
        }
        at_once = if millis == 0 { sent.len() } else { at_once };
    }
    assert!(
        (1..=25).contains(&at_once),
        "{at_once} of a hundred updates"
    );
    sent.sort_unstable();
    sent.dedup();
    assert_eq!(sent.len(), KEYS);
}

/// What is on its way.
enum Message {
    Call(Call),
    Reply(Call, Vec<StoreState>),
    Refund(Refund),
    GivenBack(Refund, StoreState),
}

/// One pod whose calls and answers take their time, beside a limiter that needs no store.
struct Trial {
    kind: Kind,
    pod: Pod,
    exact: Engine,
    store: Store,
    /// By when it arrives; what was sent first is there first.
    under_way: BTreeMap<(u64, u64), (u64, Message)>,
    sent: u64,
    way: u64,
    used: u64,
}

impl Trial {
    fn new(kind: Kind, way: u64) -> Self {
        Self {
            kind,
            pod: kind.pod(),
            exact: engine(64, kind.rules()),
            store: Store::default(),
            under_way: BTreeMap::new(),
            sent: 0,
            way,
            used: 0,
        }
    }

    fn post(&mut self, at: u64, began: u64, message: Message) {
        self.sent += 1;
        let number = self.sent;
        self.under_way.insert((at, number), (began, message));
    }

    fn arrive(&mut self, began: u64, message: Message) {
        let (now, then) = (self.pod.now, self.pod.now + self.way);
        let trip = RoundTrip {
            sent: Nanos::new(began),
            back: Moment::at(now),
        };
        match message {
            Message::Call(call) => {
                let store_state = self.store.apply(&call, now);
                self.post(then, began, Message::Reply(call, store_state));
            }
            Message::Refund(refund) => {
                let store_state = self.store.give_back(&refund, now);
                self.post(then, began, Message::GivenBack(refund, store_state));
            }
            Message::Reply(call, store_state) => self.pod.reply_after(&call, store_state, trip),
            Message::GivenBack(refund, store_state) => {
                let (rounds, engine) = (&mut self.pod.rounds, &self.pod.engine);
                rounds.refund_answered(engine, &refund, store_state, trip);
            }
        }
    }

    /// A millisecond passes.
    fn tick(&mut self) {
        let (calls, back) = self.pod.turns(1);
        let (now, then) = (self.pod.now, self.pod.now + self.way);
        for refund in back {
            self.post(then, now, Message::Refund(refund));
        }
        for call in calls {
            self.post(then, now, Message::Call(call));
        }
        while let Some(entry) = self.under_way.first_entry()
            && entry.key().0 <= now
        {
            let (began, message) = entry.remove();
            self.arrive(began, message);
        }
    }

    fn step(&mut self, random: &mut Random) {
        let (kind, now) = (self.kind, self.pod.now);
        let cells = 1 + random.below(4);
        match random.below(3) {
            0 => {
                if kind.use_cells(&self.pod.engine, cells, now).0 {
                    let (allowed, _) = kind.use_cells(&self.exact, cells, now);
                    assert!(allowed, "{kind:?} admitted too much");
                    self.used += cells;
                }
            }
            1 if self.used >= cells => {
                kind.refund(&self.pod.engine, cells, now);
                kind.refund(&self.exact, cells, now);
                self.used -= cells;
            }
            _ => (0..1 + random.below(2 * self.way / MS + 3)).for_each(|_| self.tick()),
        }
        self.compare();
    }

    /// Never less used than in truth, and no more than what has drained while the store had not heard of it.
    fn compare(&self) {
        let (kind, now) = (self.kind, self.pod.now);
        let [pod, exact] = [&self.pod.engine, &self.exact].map(|engine| kind.used(engine, now));
        let late = match kind {
            Kind::Rule | Kind::Caller => 3 * self.way + 10 * MS,
            Kind::Window(_) => 0,
        };
        assert!(
            (exact..=exact + late).contains(&pod),
            "{kind:?}: {pod} used, in truth {exact}"
        );
    }
}

/// Of one pod, the store knows nothing that the pod does not: whatever is on its way, it admits what one limiter would.
#[test]
fn whatever_is_on_its_way_a_refund_counts_once() {
    for seed in 1..=12 {
        let mut random = Random::new(seed);
        for kind in KINDS {
            let mut trial = Trial::new(kind, random.below(15) * MS);
            for _ in 0..60 {
                trial.step(&mut random);
            }
            (0..1_500).for_each(|_| trial.tick());
            let now = trial.pod.now;
            assert_eq!(trial.under_way.len(), 0, "{kind:?} {seed}");
            trial.compare();
            let exact = kind.left(&trial.exact, now);
            let used = trial.store.keys.values().map(|value| match kind {
                Kind::Rule | Kind::Caller => value.saturating_sub(now).div_ceil(CELL),
                Kind::Window(_) => *value,
            });
            let in_store = 10_u64.saturating_sub(used.sum());
            assert_eq!(in_store, exact, "{kind:?} {seed}");
        }
    }
}
