//! One pod: the sidecar's own engine and sync, and a clock of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tidegate_core::engine::sync::PodSync;
use tidegate_core::engine::{Answer, Engine, FleetKey, Setup};
use tidegate_core::pure::rule::Consistency;
use tidegate_core::pure::sync::Grouping;
use tidegate_core::pure::{Moment, Nanos, Rules, Span};

use crate::random::SeededRandom;
use crate::scenario::Scenario;

/// The Unix time at the start of every run, in nanoseconds.
pub const EPOCH: u64 = 1_700_000_000_000_000_000;

/// A running pod.
#[derive(Debug)]
pub struct SimulatedPod {
    pub engine: Engine,
    pub rounds: PodSync,
    pub incarnation: u128,
    /// The next turn of its sync.
    pub turn_at: u64,
    /// The time on its own clock at the start of the run.
    clock: u64,
    /// It does nothing until then.
    pub paused_until: u64,
    /// When the last of its calls arrives at the store.
    pub last_arrival: u64,
    /// Whether it is about to stop.
    pub leaving: bool,
    /// Calls, heartbeats and refunds without an answer yet.
    pub under_way: usize,
    /// The number of answers it got.
    pub answers: u64,
    /// Cells that it admitted, or charged although it denied them, under rules that report to the store.
    pub admitted: u64,
    woken: Arc<AtomicBool>,
}

impl SimulatedPod {
    pub fn new(scenario: &Scenario, rules: &Rules, random: &mut SeededRandom) -> Self {
        let setup = Setup {
            keys_max: scenario.keys_max,
            fleet: FleetKey::derived(b"fleet"),
            seeds: [random.roll(), random.roll()],
            reporting: true,
        };
        let engine = Engine::new(setup, rules.clone());
        let woken = Arc::new(AtomicBool::new(false));
        let bell = Arc::clone(&woken);
        engine.set_waker(Box::new(move || bell.store(true, Ordering::Relaxed)));
        Self {
            engine,
            rounds: PodSync::new(scenario.pace, scenario.keys_max, Grouping::Whole),
            incarnation: u128::from(random.roll()) << 64 | u128::from(random.roll()),
            turn_at: u64::MAX,
            clock: 1_000_000_000 + random.below(1 << 50),
            paused_until: 0,
            last_arrival: 0,
            leaving: false,
            under_way: 0,
            answers: 0,
            admitted: 0,
            woken,
        }
    }

    /// The time on its clocks at `now`; `calendar` is the error of the calendar.
    pub const fn moment(&self, now: u64, calendar: i64) -> Moment {
        Moment {
            now: self.at(now),
            unix: Span::nanos((EPOCH + now).saturating_add_signed(calendar)),
        }
    }

    pub const fn at(&self, now: u64) -> Nanos {
        Nanos::new(self.clock + now)
    }

    /// The time in the world when it is `at` on the pod's clock.
    pub const fn world_time(&self, at: Nanos) -> u64 {
        at.get().saturating_sub(self.clock)
    }

    /// Whether a check has woken the sync since the last call.
    pub fn take_wake(&self) -> bool {
        self.woken.swap(false, Ordering::Relaxed)
    }

    /// Counts the cells that a check was admitted or charged.
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

    /// Checks its books: every admitted cell is in exactly one place.
    pub fn books(&self) -> Result<(), String> {
        let books = self.rounds.figures_now(&self.engine).books;
        let places = [books.settled, books.in_flight, books.pending, books.silent];
        let held: i128 = places.iter().map(|cells| i128::from(cells.get())).sum();
        let (lost, found) = (i128::from(books.lost.get()), i128::from(books.found.get()));
        let admitted = i128::from(self.admitted);
        let missing = admitted - (held + lost - found);
        if missing != 0 {
            return Err(format!(
                "{missing} of {admitted} admitted and charged cells are unaccounted for"
            ));
        }
        // Cells that are found again had been lost before; any more were counted twice.
        if held > admitted {
            return Err(format!(
                "{held} cells are accounted for, {admitted} were admitted"
            ));
        }
        Ok(())
    }

    /// Cells that are never reported.
    pub fn lost(&self) -> u64 {
        let books = self.rounds.figures_now(&self.engine).books;
        books.lost.less(books.found).get()
    }
}
