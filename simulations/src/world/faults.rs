//! The faults: those of the scenario, and random ones.

use tidegate_core::pure::Span;
use tidegate_core::pure::sync::{News, NewsKind, StoreKey};

use super::World;
use super::events::Event;
use crate::random::SeededRandom;
use crate::scenario::{FaultKind, FaultTarget, Forgery, Restart, Scenario, ScenarioFault};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// The time between two forged messages.
const FORGED_EVERY: u64 = 100 * MS;

/// The scenario's faults and the random ones. All of them end before the load does.
pub fn drawn(scenario: &Scenario, random: &mut SeededRandom) -> Vec<ScenarioFault> {
    let mut faults = scenario.faults.clone();
    let latest = scenario.lasts.saturating_sub(4 * SECOND).max(1);
    for _ in 0..scenario.random_faults {
        let at = random.below(latest);
        let for_up_to = |random: &mut SeededRandom, most: u64| at + 1 + random.below(most);
        let some = FaultTarget::Some(1 + random.below(scenario.pods as u64) as usize);
        let part = 0.05 + 0.9 * (random.below(1_000) as f64 / 1_000.0);
        let (what, to) = match random.below(11) {
            0 => (
                FaultKind::Cut(FaultTarget::All),
                for_up_to(random, 4 * SECOND),
            ),
            1 => (FaultKind::Cut(some), for_up_to(random, 4 * SECOND)),
            2 => (FaultKind::Lose(part), for_up_to(random, 2 * SECOND)),
            3 | 4 => (FaultKind::LoseAnswers(part), for_up_to(random, 2 * SECOND)),
            5 => (FaultKind::LoseNews(part), for_up_to(random, 4 * SECOND)),
            6 => (
                FaultKind::Slow(random.below(400 * MS)),
                for_up_to(random, 2 * SECOND),
            ),
            7 => (FaultKind::Hang, for_up_to(random, 2 * SECOND)),
            8 => {
                let restart = match random.chance(0.5) {
                    true => Restart::Empty,
                    false => Restart::Kept,
                };
                (FaultKind::Restart(restart), for_up_to(random, 2 * SECOND))
            }
            9 => (
                FaultKind::Failover(random.below(2 * SECOND)),
                for_up_to(random, 3 * SECOND),
            ),
            _ => (FaultKind::Pause(1), for_up_to(random, 2 * SECOND)),
        };
        faults.push(ScenarioFault { at, to, what });
    }
    faults
}

impl World<'_> {
    /// Applies a fault.
    pub(super) fn fault(&mut self, number: usize) {
        let ScenarioFault { at, to, what } = self.faults[number].clone();
        let (until, lasts) = (self.before + to, to.saturating_sub(at));
        let faults = &mut self.network.faults;
        match what {
            FaultKind::Cut(FaultTarget::All) => {
                faults.all_cut_until = until.max(faults.all_cut_until)
            }
            FaultKind::Cut(FaultTarget::Some(pods)) => {
                for pod in self.some(pods) {
                    self.network.cut(pod, until);
                }
            }
            FaultKind::Lose(part) => faults.lose = (part, until),
            FaultKind::LoseAnswers(part) => faults.lose_answers = (part, until),
            FaultKind::LoseNews(part) => faults.lose_news = (part, until),
            FaultKind::Slow(by) => faults.slow = (by, until),
            FaultKind::Hang => faults.hung_until = until.max(faults.hung_until),
            FaultKind::Restart(restart) => {
                faults.down_until = until.max(faults.down_until);
                self.store.restart(restart);
            }
            FaultKind::Failover(unheard) => {
                faults.down_until = until.max(faults.down_until);
                self.store.fail_over(self.now.saturating_sub(unheard));
            }
            FaultKind::Join(pods) => {
                for nth in 0..pods as u64 {
                    self.join(self.now + lasts * nth / (pods as u64).max(1));
                }
            }
            FaultKind::Leave(pods) => {
                for pod in self.some(pods) {
                    self.leave(pod);
                }
            }
            FaultKind::Crash(pods) => {
                for pod in self.some(pods) {
                    self.stop(pod);
                }
            }
            FaultKind::Pause(pods) => {
                for pod in self.some(pods) {
                    self.pause(pod, until);
                }
            }
            FaultKind::Roll(each) => {
                for (nth, pod) in (0..).zip(self.alive.clone()) {
                    self.plan(self.now + each * nth, Event::Replace { pod });
                }
            }
            FaultKind::StoreClock(by) => self.store_clock += by,
            FaultKind::Calendars(by) => self.calendar += by,
            FaultKind::Reload(rules) => {
                for pod in self.pods.iter().flatten() {
                    pod.engine.reload((*rules).clone());
                }
                self.rules = *rules;
            }
            FaultKind::Reset(key) => self.reset(key),
            FaultKind::Forge(forged, key) => {
                self.forge(forged, key);
                let next = self.now + FORGED_EVERY;
                if next < until {
                    self.plan(next, Event::Fault { number });
                }
            }
        }
    }

    /// So many live pods, at random.
    fn some(&mut self, pods: usize) -> Vec<usize> {
        let mut alive = self.alive.clone();
        let mut drawn = Vec::new();
        while drawn.len() < pods && !alive.is_empty() {
            let nth = self.random.below(alive.len() as u64) as usize;
            drawn.push(alive.swap_remove(nth));
        }
        drawn
    }

    /// Pauses a pod: it does nothing and gets no checks.
    fn pause(&mut self, number: usize, until: u64) {
        if let Some(pod) = &mut self.pods[number] {
            pod.paused_until = until;
            self.alive.retain(|alive| *alive != number);
            self.plan(until, Event::Start { pod: number });
        }
    }

    /// Resets a key of the first load.
    fn reset(&mut self, key: u32) {
        for key in self.keys_of(key) {
            let news = self.store.reset(key);
            self.publish(vec![news]);
        }
    }

    /// Publishes false news of a key of the first load.
    fn forge(&mut self, forged: Forgery, key: u32) {
        let kind = match forged {
            Forgery::Full => NewsKind::Full(Span::seconds(3_600)),
            Forgery::Live => NewsKind::Live(Span::seconds(3_600)),
            Forgery::Reset => NewsKind::Reset,
        };
        for key in self.keys_of(key) {
            self.publish(vec![News { key, kind }]);
        }
    }

    /// The names in the store of a key of the first load.
    fn keys_of(&self, key: u32) -> Vec<StoreKey> {
        let pod = self
            .alive
            .first()
            .and_then(|first| self.pods[*first].as_ref());
        let (Some(load), Some(pod)) = (self.scenario.load.first(), pod) else {
            return Vec::new();
        };
        let moment = self.moment(pod);
        load.ask(key, 0, |check| {
            let answer = pod.engine.check(check, moment);
            let hits = answer.hits().iter();
            let keys = hits.filter_map(|hit| pod.engine.store_key(&answer, hit, moment));
            keys.map(|(key, _)| key).collect()
        })
    }
}
