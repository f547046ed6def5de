//! What must hold at every step, whatever happens: no cell is lost or doubled, nothing grows without bound, and once
//! everything is healed the store has all of it.

use super::World;

/// Violations that are told of one run.
const VIOLATIONS_MAX: usize = 5;
/// Keys that are looked through after every answer; of more, after fewer.
const KEYS_PER_LOOK: u64 = 32;
/// What may be under way for one pod: a call for each lane, its sign of life, and refunds of as many keys as are asked for.
const UNDER_WAY_MAX: usize = 65;

impl World<'_> {
    /// Every cell that pods admitted is somewhere, and once nothing is wrong any more the store has all of it.
    pub(super) fn check_settled(&mut self) {
        for number in 0..self.pods.len() {
            self.check_books(number);
            let Some(pod) = &self.pods[number] else {
                continue;
            };
            let books = pod.rounds.figures_now(&pod.engine).books;
            let booked = self.store.gross(pod.incarnation);
            if books.in_flight.get() > 0 || !pod.rounds.is_settled() {
                let text = format!("pod {number} still has {:?} to tell", books.in_flight);
                self.violate("convergence", &text);
            } else if booked != books.settled {
                let text = format!(
                    "pod {number} says that {:?} are settled, the store has {booked:?}",
                    books.settled
                );
                self.violate("conservation", &text);
            }
        }
    }

    /// After every answer where few keys are held; where there are many, looking through them takes longer than the run.
    pub(super) fn check_books_now_and_then(&mut self, number: usize) {
        if let Some(pod) = &mut self.pods[number] {
            pod.answers += 1;
            if pod
                .answers
                .is_multiple_of(1 + pod.engine.keys_held() / KEYS_PER_LOOK)
            {
                self.check_books(number);
            }
        }
    }

    /// Whether every cell that a pod admitted is in exactly one place, and nothing of it grows without bound.
    pub(super) fn check_books(&mut self, number: usize) {
        let Some(pod) = &self.pods[number] else {
            return;
        };
        let (books, under_way) = (pod.books(), pod.under_way);
        let key_sync = pod.rounds.figures_now(&pod.engine).keys as usize;
        if let Err(wrong) = books {
            self.violate("conservation", &format!("pod {number}: {wrong}"));
        }
        let keys = self
            .scenario
            .load
            .iter()
            .filter(|load| load.refunds.is_some());
        let refunded: usize = keys.map(|load| load.keys as usize).sum();
        if under_way > UNDER_WAY_MAX + refunded || key_sync > self.scenario.keys_max.max(1_000) {
            let text =
                format!("pod {number} has {under_way} calls under way and {key_sync} keys in mind");
            self.violate("growth", &text);
        }
    }

    pub(super) fn violate(&mut self, name: &str, text: &str) {
        if self.violations.len() < VIOLATIONS_MAX {
            let at = self.now.saturating_sub(self.before) as f64 / 1e9;
            self.violations.push(format!("t={at:.3}s {name}: {text}"));
        }
    }
}
