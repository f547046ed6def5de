//! One pod: the sidecar's own engine and rounds, and a clock that has nothing to do with anybody else's.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::engine::sync::PodSync;
use tidegate_core::engine::{Answer, Engine, FleetKey, Setup};
use tidegate_core::pure::rule::Consistency;
use tidegate_core::pure::{Moment, Nanos, Rules, Span};

use crate::dice::Dice;
use crate::scenario::Scenario;

/// The Unix time at the start of every run, in nanoseconds.
pub const EPOCH: u64 = 1_700_000_000_000_000_000;

/// A running pod.
#[derive(Debug)]
pub struct Pod {
    pub engine: Engine,
    pub rounds: PodSync,
    pub incarnation: u128,
    /// When its rounds take their next turn.
    pub turn_at: u64,
    /// What its own time line shows at the start of the run.
    clock: u64,
    /// Nothing happens in it before.
    pub paused_until: u64,
    /// Whether it is about to stop.
    pub leaving: bool,
    /// Calls and signs of life that are not answered yet.
    pub under_way: usize,
    /// How many answers it has got.
    pub answers: u64,
    /// Cells it admitted, or charged although they were denied, under rules that the store is told of.
    pub admitted: u64,
    woken: Arc<AtomicBool>,
}

impl Pod {
    pub fn new(scenario: &Scenario, rules: &Rules, dice: &mut Dice) -> Self {
        let setup = Setup {
            keys_max: scenario.keys_max,
            fleet: FleetKey::derived(b"fleet"),
            seeds: [dice.roll(), dice.roll()],
            reporting: true,
        };
        let engine = Engine::new(setup, rules.clone());
        let woken = Arc::new(AtomicBool::new(false));
        let bell = Arc::clone(&woken);
        engine.set_waker(Box::new(move || bell.store(true, Ordering::Relaxed)));
        Self {
            engine,
            rounds: PodSync::new(scenario.pace, scenario.keys_max),
            incarnation: u128::from(dice.roll()) << 64 | u128::from(dice.roll()),
            turn_at: u64::MAX,
            clock: 1_000_000_000 + dice.below(1 << 50),
            paused_until: 0,
            leaving: false,
            under_way: 0,
            answers: 0,
            admitted: 0,
            woken,
        }
    }

    /// What its clocks show at `now`, if the calendar is off by so much.
    pub const fn moment(&self, now: u64, calendar: i64) -> Moment {
        Moment {
            now: self.at(now),
            unix: Span::nanos((EPOCH + now).saturating_add_signed(calendar)),
        }
    }

    pub const fn at(&self, now: u64) -> Nanos {
        Nanos::new(self.clock + now)
    }

    /// When, on the world's time line, it is `at` on the pod's.
    pub const fn back(&self, at: Nanos) -> u64 {
        at.get().saturating_sub(self.clock)
    }

    /// Whether a check wanted a round since this was last asked.
    pub fn was_rung(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// Notes what a check was admitted, or was charged for.
    pub fn note(&mut self, answer: &Answer) {
        for hit in answer.hits() {
            let hybrid = answer.rule(hit).spec.consistency == Consistency::Hybrid;
            if answer.limit(hit).is_none() || !hybrid {
                continue;
            }
            let admitted = answer.allowed() && hit.standing.allowed && !hit.forgiven;
            self.admitted += hit.charged.get() + u64::from(admitted) * hit.cost.get();
        }
    }

    /// What is wrong with its books, if anything: every cell that it admitted is in exactly one place.
    pub fn books(&self) -> Result<(), String> {
        let books = self.rounds.figures_now(&self.engine).books;
        let places = [books.settled, books.in_flight, books.pending, books.silent];
        let held: i128 = places.iter().map(|cells| i128::from(cells.get())).sum();
        let (lost, found) = (i128::from(books.lost.get()), i128::from(books.found.get()));
        let admitted = i128::from(self.admitted);
        let missing = admitted - (held + lost - found);
        if missing != 0 {
            return Err(format!(
                "{missing} of {admitted} admitted and charged cells are nowhere"
            ));
        }
        // What turns up again had been lost before: more than that was counted twice.
        if held > admitted {
            return Err(format!(
                "{held} cells are told of, {admitted} were admitted"
            ));
        }
        Ok(())
    }

    /// Cells that no store will hear of.
    pub fn lost(&self) -> u64 {
        let books = self.rounds.figures_now(&self.engine).books;
        books.lost.less(books.found).get()
    }
}
