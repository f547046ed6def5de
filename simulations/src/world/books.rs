//! The invariants of every step: no cell is lost or counted twice, nothing grows without bound, and once all faults have
//! ended, the store has every cell.

use super::World;

/// The most violations that one run reports.
const VIOLATIONS_MAX: usize = 5;
/// The most keys for which the books are checked after every answer; with more keys, the checks are rarer.
const KEYS_PER_LOOK: u64 = 32;
/// The most requests in flight of one pod. Its open batches, a probe and a heartbeat are fewer. Refunds of each key come on
/// top.
const UNDER_WAY_MAX: usize = 65;

impl World<'_> {
    /// Checks at the end that every admitted cell is accounted for and that the store has all of them.
    pub(super) fn check_settled(&mut self) {
        for number in 0..self.pods.len() {
            self.check_books(number);
            let Some(pod) = &self.pods[number] else {
                continue;
            };
            let books = pod.rounds.figures_now(&pod.engine).books;
            let booked = self.store.gross(pod.incarnation);
            if books.in_flight.get() > 0 || !pod.rounds.is_settled() {
                let text = format!("pod {number} has not reported {:?}", books.in_flight);
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

    /// Checks the books after every answer where the pod holds few keys. With many keys that would take longer than the run.
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

    /// Checks that every admitted cell is in exactly one place, and that nothing grows without bound.
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
                format!("pod {number} has {under_way} calls in flight and tracks {key_sync} keys");
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
