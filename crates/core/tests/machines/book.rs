//! The book of a group over random histories of calls under way side by side, lost calls, answers that are lost, stale or
//! out of order, late duplicates, failovers and wipes.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::Config;
use tidegate_core::pure::sync::{
    BookOutcome, BookStep, Call, Delta, GroupBook, Grouping, KnownUsage, Lane, Share, StoreKey,
    StoreReply, Terms,
};
use tidegate_core::pure::{Cells, Nanos, Span};

/// One step of a history.
#[derive(Clone, Debug)]
enum Event {
    /// The pod freezes a batch of these deltas, if it may.
    Freeze(Vec<u64>),
    /// The pod sends a call, and the network loses it or its answer, or neither.
    Exchange { arrives: bool, answered: bool },
    /// The pod sends a call.
    Send,
    /// A call that is under way arrives at the store, whether or not it is the first, or is lost.
    Arrive(prop::sample::Index, bool),
    /// An answer that is under way arrives at the pod, whether or not it is the first, or is lost.
    Answer(prop::sample::Index, bool),
    /// The pod sends a probe, and the store answers it.
    Probe,
    /// An earlier call arrives once more.
    Duplicate(prop::sample::Index),
    /// An earlier answer arrives once more.
    StaleAnswer(prop::sample::Index),
    /// The store fails over to a replica that lacks so many calls.
    Failover(usize),
    /// The store before the last failover is back.
    FailBack,
    /// The store loses everything.
    Wipe,
    /// So many milliseconds pass.
    Wait(u64),
}

fn exchange() -> impl Strategy<Value = Event> {
    (prop::bool::weighted(0.8), prop::bool::weighted(0.8))
        .prop_map(|(arrives, answered)| Event::Exchange { arrives, answered })
}

fn freeze() -> impl Strategy<Value = Event> {
    vec(1_u64..100, 1..4).prop_map(Event::Freeze)
}

/// The network loses and repeats calls and answers.
fn network() -> BoxedStrategy<Event> {
    prop_oneof![
        8 => freeze(),
        3 => exchange(),
        8 => Just(Event::Send),
        8 => (any::<prop::sample::Index>(), prop::bool::weighted(0.9))
            .prop_map(|(which, arrives)| Event::Arrive(which, arrives)),
        8 => (any::<prop::sample::Index>(), prop::bool::weighted(0.9))
            .prop_map(|(which, arrives)| Event::Answer(which, arrives)),
        1 => Just(Event::Probe),
        2 => any::<prop::sample::Index>().prop_map(Event::Duplicate),
        1 => any::<prop::sample::Index>().prop_map(Event::StaleAnswer),
    ]
    .boxed()
}

/// The same, and the store loses what it had acknowledged.
fn failovers() -> BoxedStrategy<Event> {
    prop_oneof![
        16 => network(),
        2 => (0_usize..6).prop_map(Event::Failover),
        1 => Just(Event::FailBack),
        1 => Just(Event::Wipe),
    ]
    .boxed()
}

/// The same, and so much time passes that the book no longer keeps some batches.
fn everything() -> BoxedStrategy<Event> {
    prop_oneof![12 => failovers(), 1 => (0_u64..40_000).prop_map(Event::Wait)].boxed()
}

fn delta(name: u64, cells: u64) -> Delta {
    Delta {
        key: StoreKey::level(1, u128::from(name)),
        terms: Terms::Level {
            interval: Span::nanos(1_000_000),
            capacity: Span::seconds(10),
            debt_max: Span::seconds(10),
        },
        gross: Cells::new(cells),
        price: Span::nanos(1_000_000).times(Cells::new(cells)),
        billed: Cells::ZERO,
        age: Span::ZERO,
        share: Share::even(3),
        live: false,
        known: KnownUsage::default(),
    }
}

fn gross(deltas: &[Delta]) -> u64 {
    deltas.iter().map(|delta| delta.gross.get()).sum()
}

/// The calls that a store has applied. It applies a call only after the one that preceded it.
#[derive(Clone, Debug, Default)]
struct Store(Vec<Call>);

impl Store {
    fn sequence(&self) -> u64 {
        self.0.last().map_or(0, |call| call.sequence)
    }

    fn gross(&self) -> u64 {
        self.0.iter().map(|call| gross(&call.deltas)).sum()
    }

    fn receive(&mut self, call: &Call) -> StoreReply {
        let applied = call.previous == self.sequence();
        if applied && call.sequence != call.previous {
            self.0.push(call.clone());
        }
        StoreReply {
            applied,
            sequence: self.sequence(),
            gross: Cells::new(self.gross()),
            states: Vec::new(),
            repaired: 0,
        }
    }
}

struct World {
    now: Nanos,
    book: GroupBook,
    store: Store,
    former: Store,
    /// Calls and answers that are under way.
    calls: Vec<Call>,
    replies: Vec<(u64, StoreReply)>,
    /// All calls and answers that were ever under way.
    sent: Vec<Call>,
    answers: Vec<(u64, StoreReply)>,
    /// The frozen deltas, by their sequence number.
    frozen: BTreeMap<u64, Vec<Delta>>,
    settled: Vec<u64>,
    total: u64,
    lost: u64,
    found: u64,
}

impl World {
    fn new() -> Self {
        Self {
            now: Nanos::new(1),
            book: GroupBook::new(Grouping::PerLane.group_of(Lane::new(5))),
            store: Store::default(),
            former: Store::default(),
            calls: Vec::new(),
            replies: Vec::new(),
            sent: Vec::new(),
            answers: Vec::new(),
            frozen: BTreeMap::new(),
            settled: Vec::new(),
            total: 0,
            lost: 0,
            found: 0,
        }
    }

    fn after(events: Vec<Event>) -> Self {
        let mut world = Self::new();
        for event in events {
            world.happens(event);
            world.balances();
        }
        world
    }

    fn happens(&mut self, event: Event) {
        match event {
            Event::Freeze(cells) => self.freeze(&cells),
            Event::Exchange { arrives, answered } => {
                if self.send() {
                    let last = self.calls.len() - 1;
                    self.arrive(last, arrives);
                    if arrives {
                        self.answer(self.replies.len() - 1, answered);
                    }
                }
            }
            Event::Send => {
                self.send();
            }
            Event::Arrive(which, arrives) => {
                if !self.calls.is_empty() {
                    self.arrive(which.index(self.calls.len()), arrives);
                }
            }
            Event::Answer(which, arrives) => {
                if !self.replies.is_empty() {
                    self.answer(which.index(self.replies.len()), arrives);
                }
            }
            Event::Probe => {
                let _ = self.probe();
            }
            Event::Duplicate(which) => {
                if !self.sent.is_empty() {
                    let call = which.get(&self.sent).clone();
                    self.store.receive(&call);
                }
            }
            Event::StaleAnswer(which) => {
                if !self.answers.is_empty() {
                    let (sequence, reply) = which.get(&self.answers).clone();
                    let outcome = self.book.answered(sequence, &reply, self.now);
                    self.note(&outcome);
                }
            }
            Event::Failover(lacks) => {
                self.former = self.store.clone();
                let left = self.store.0.len().saturating_sub(lacks);
                self.store.0.truncate(left);
            }
            Event::FailBack => std::mem::swap(&mut self.store, &mut self.former),
            Event::Wipe => self.store = Store::default(),
            Event::Wait(ms) => {
                self.now = self.now.after(Span::nanos(ms * 1_000_000));
                self.book.forget_old(self.now);
            }
        }
    }

    fn freeze(&mut self, cells: &[u64]) {
        let deltas: Vec<Delta> = (1..)
            .zip(cells)
            .map(|(name, &cells)| delta(name, cells))
            .collect();
        let open = self.book.may_freeze();
        assert_eq!(self.book.freeze(deltas.clone(), self.now).is_ok(), open);
        if open {
            self.total += gross(&deltas);
            let last = self.frozen.last_key_value().map_or(0, |(last, _)| *last);
            self.frozen.insert(last + 1, deltas);
        }
    }

    /// Sends the next call, if there is one.
    fn send(&mut self) -> bool {
        let Some(call) = self.book.next_call(self.now) else {
            assert!(self.book.is_idle() || self.book.is_calling());
            return false;
        };
        self.is_as_frozen(&call);
        self.sent.push(call.clone());
        self.calls.push(call);
        true
    }

    fn arrive(&mut self, which: usize, arrives: bool) {
        let call = self.calls.remove(which);
        match arrives {
            true => {
                let reply = (call.sequence, self.store.receive(&call));
                self.answers.push(reply.clone());
                self.replies.push(reply);
            }
            false => self.book.failed(call.sequence),
        }
    }

    fn answer(&mut self, which: usize, arrives: bool) {
        let (sequence, reply) = self.replies.remove(which);
        match arrives {
            true => {
                let outcome = self.book.answered(sequence, &reply, self.now);
                self.note(&outcome);
            }
            false => self.book.failed(sequence),
        }
    }

    fn probe(&mut self) -> BookOutcome {
        let call = self.book.probe();
        let reply = self.store.receive(&call);
        let outcome = self.book.answered_probe(call.sequence, &reply, self.now);
        self.note(&outcome);
        outcome
    }

    /// A sequence number always names the same batch. A late report is net of what has drained; the admitted cells
    /// never change.
    fn is_as_frozen(&self, call: &Call) {
        let frozen = self.frozen.get(&call.sequence).expect("a number we gave");
        assert_eq!(frozen.len(), call.deltas.len());
        for (was, is) in frozen.iter().zip(&call.deltas) {
            assert_eq!((was.key, was.gross), (is.key, is.gross));
            assert!(is.price <= was.price);
        }
    }

    fn note(&mut self, outcome: &BookOutcome) {
        self.lost += outcome.lost.get();
        self.found += outcome.found.get();
        match &outcome.step {
            BookStep::Settled(batches) => {
                assert!(!batches.is_empty());
                for batch in batches {
                    assert_eq!(Some(&batch.deltas), self.frozen.get(&batch.sequence));
                    assert!(!self.settled.contains(&batch.sequence), "settled twice");
                    self.settled.push(batch.sequence);
                }
            }
            BookStep::Adopted => panic!("every number here is ours"),
            BookStep::Behind | BookStep::Replayed | BookStep::Unchanged => {}
        }
    }

    /// Every frozen cell is in exactly one place, at any time.
    fn balances(&self) {
        let books = self.book.settled().get() + self.book.in_flight().get();
        assert_eq!(self.total + self.found, books + self.lost);
    }

    /// From now on the network and the store lose nothing.
    fn calms_down(&mut self) {
        for _ in 0..4_000 {
            if !self.calls.is_empty() {
                self.arrive(0, true);
            } else if !self.replies.is_empty() {
                self.answer(0, true);
            } else if self.book.has_call() {
                self.send();
            } else if self.probe().step == BookStep::Unchanged {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// The store has every batch once, except for the cells that the book counted as lost.
    fn is_complete(&self) {
        self.balances();
        assert_eq!(self.book.in_flight(), Cells::ZERO);
        assert_eq!(self.book.settled().get(), self.store.gross());
        assert_eq!(self.store.gross() + self.lost, self.total + self.found);
        assert!(
            self.store.0.is_sorted_by(|a, b| a.sequence < b.sequence),
            "each once, in order"
        );
        self.store.0.iter().for_each(|call| self.is_as_frozen(call));
        assert_eq!(self.settled.len(), self.frozen.len(), "each settled once");
    }
}

fn many() -> Config {
    Config {
        cases: 1_500,
        failure_persistence: None,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(many())]

    #[test]
    fn a_bad_network_alone_loses_nothing_and_counts_nothing_twice(events in vec(network(), 0..150)) {
        let mut world = World::after(events);
        world.calms_down();
        world.is_complete();
        prop_assert_eq!((world.lost, world.found), (0, 0));
        prop_assert_eq!(world.store.gross(), world.total);
    }

    #[test]
    fn failovers_and_wipes_lose_nothing_that_is_still_kept(events in vec(failovers(), 0..150)) {
        let mut world = World::after(events);
        world.calms_down();
        world.is_complete();
        prop_assert_eq!((world.lost, world.found), (0, 0));
        prop_assert_eq!(world.store.gross(), world.total);
    }

    #[test]
    fn what_is_no_longer_kept_is_counted_to_the_cell(events in vec(everything(), 0..200)) {
        let mut world = World::after(events);
        world.calms_down();
        world.is_complete();
    }
}
