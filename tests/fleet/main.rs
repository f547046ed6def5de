//! Fleets of real sidecars on real stores, in one binary: what they hold together, and what they survive.
//!
//! `tidegate_testing::fleet` has the load, the judge and the scenarios; `make fleet` prints the same scenarios in full
//! length.
#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on fails"
)]

mod books;
mod budgets;
mod caller_limits;
mod contract;
mod errors;
mod frames;
mod idle;
mod judge;
mod limits;
mod load;
mod proxy;
mod rules;
mod stores;

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// What a test does with the machine. Tests of one use run side by side, tests of different uses do not.
#[derive(Clone, Copy, PartialEq)]
enum MachineUse {
    /// Kills, cuts and floods, as fast as it can.
    Busy,
    /// Measures, under a load that leaves most of the machine idle.
    Measured,
}

/// The present use, and how many tests share it.
static MACHINE: Mutex<Option<(MachineUse, usize)>> = Mutex::new(None);
static MACHINE_FREE: Condvar = Condvar::new();

/// Held by a test for as long as it uses the machine.
struct Machine;

impl Machine {
    /// Waits until no test of another use runs.
    fn wait_for(wanted: MachineUse) -> Self {
        let mut machine = lock();
        loop {
            match *machine {
                None => *machine = Some((wanted, 1)),
                Some((present, tests)) if present == wanted => {
                    *machine = Some((present, tests + 1))
                }
                Some(_) => {
                    machine = MACHINE_FREE
                        .wait(machine)
                        .unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
            }
            return Self;
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let mut machine = lock();
        *machine = match *machine {
            Some((present, tests)) if tests > 1 => Some((present, tests - 1)),
            Some(_) | None => None,
        };
        MACHINE_FREE.notify_all();
    }
}

fn lock() -> MutexGuard<'static, Option<(MachineUse, usize)>> {
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The machine, for a test that measures nothing.
fn shared() -> Machine {
    Machine::wait_for(MachineUse::Busy)
}

/// The machine, for a test that measures.
fn measured() -> Machine {
    Machine::wait_for(MachineUse::Measured)
}
