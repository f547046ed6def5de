//! What goes wrong, as the scenario has it, or drawn by lot.

use tidegate_core::pure::Span;
use tidegate_core::pure::sync::{News, NewsKind, StoreKey};

use super::World;
use super::agenda::Event;
use crate::dice::Dice;
use crate::scenario::{Fault, Forged, Restart, Scenario, What, Whom};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// How often a forger says the same.
const FORGED_EVERY: u64 = 100 * MS;

/// The scenario's faults, and those that are drawn. All of them have ended when the load does.
pub fn drawn(scenario: &Scenario, dice: &mut Dice) -> Vec<Fault> {
    let mut faults = scenario.faults.clone();
    let latest = scenario.lasts.saturating_sub(4 * SECOND).max(1);
    for _ in 0..scenario.random_faults {
        let at = dice.below(latest);
        let for_up_to = |dice: &mut Dice, most: u64| at + 1 + dice.below(most);
        let some = Whom::Some(1 + dice.below(scenario.pods as u64) as usize);
        let part = 0.05 + 0.9 * (dice.below(1_000) as f64 / 1_000.0);
        let (what, to) = match dice.below(11) {
            0 => (What::Cut(Whom::All), for_up_to(dice, 4 * SECOND)),
            1 => (What::Cut(some), for_up_to(dice, 4 * SECOND)),
            2 => (What::Lose(part), for_up_to(dice, 2 * SECOND)),
            3 | 4 => (What::LoseAnswers(part), for_up_to(dice, 2 * SECOND)),
            5 => (What::LoseNews(part), for_up_to(dice, 4 * SECOND)),
            6 => (
                What::Slow(dice.below(400 * MS)),
                for_up_to(dice, 2 * SECOND),
            ),
            7 => (What::Hang, for_up_to(dice, 2 * SECOND)),
            8 => {
                let restart = match dice.chance(0.5) {
                    true => Restart::Empty,
                    false => Restart::Kept,
                };
                (What::Restart(restart), for_up_to(dice, 2 * SECOND))
            }
            9 => (
                What::Failover(dice.below(2 * SECOND)),
                for_up_to(dice, 3 * SECOND),
            ),
            _ => (What::Pause(1), for_up_to(dice, 2 * SECOND)),
        };
        faults.push(Fault { at, to, what });
    }
    faults
}

impl World<'_> {
    /// What goes wrong now.
    pub(super) fn fault(&mut self, number: usize) {
        let Fault { at, to, what } = self.faults[number].clone();
        let (until, lasts) = (self.before + to, to.saturating_sub(at));
        let weather = &mut self.network.weather;
        match what {
            What::Cut(Whom::All) => weather.all_cut_until = until.max(weather.all_cut_until),
            What::Cut(Whom::Some(pods)) => {
                for pod in self.some(pods) {
                    self.network.cut(pod, until);
                }
            }
            What::Lose(part) => weather.lose = (part, until),
            What::LoseAnswers(part) => weather.lose_answers = (part, until),
            What::LoseNews(part) => weather.lose_news = (part, until),
            What::Slow(by) => weather.slow = (by, until),
            What::Hang => weather.hung_until = until.max(weather.hung_until),
            What::Restart(restart) => {
                weather.down_until = until.max(weather.down_until);
                self.store.restart(restart);
            }
            What::Failover(unheard) => {
                weather.down_until = until.max(weather.down_until);
                self.store.fail_over(self.now.saturating_sub(unheard));
            }
            What::Join(pods) => {
                for nth in 0..pods as u64 {
                    self.join(self.now + lasts * nth / (pods as u64).max(1));
                }
            }
            What::Leave(pods) => {
                for pod in self.some(pods) {
                    self.leave(pod);
                }
            }
            What::Crash(pods) => {
                for pod in self.some(pods) {
                    self.stop(pod);
                }
            }
            What::Pause(pods) => {
                for pod in self.some(pods) {
                    self.pause(pod, until);
                }
            }
            What::Roll(each) => {
                for (nth, pod) in (0..).zip(self.alive.clone()) {
                    self.plan(self.now + each * nth, Event::Replace { pod });
                }
            }
            What::StoreClock(by) => self.store_clock += by,
            What::Calendars(by) => self.calendar += by,
            What::Reload(rules) => {
                for pod in self.pods.iter().flatten() {
                    pod.engine.reload((*rules).clone());
                }
                self.rules = *rules;
            }
            What::Reset(key) => self.reset(key),
            What::Forge(forged, key) => {
                self.forge(forged, key);
                let next = self.now + FORGED_EVERY;
                if next < until {
                    self.plan(next, Event::Fault { number });
                }
            }
        }
    }

    /// So many of the pods alive, drawn by lot.
    fn some(&mut self, pods: usize) -> Vec<usize> {
        let mut alive = self.alive.clone();
        let mut drawn = Vec::new();
        while drawn.len() < pods && !alive.is_empty() {
            let nth = self.dice.below(alive.len() as u64) as usize;
            drawn.push(alive.swap_remove(nth));
        }
        drawn
    }

    /// A pod stands still: nothing happens in it, and it is asked nothing.
    fn pause(&mut self, number: usize, until: u64) {
        if let Some(pod) = &mut self.pods[number] {
            pod.paused_until = until;
            self.alive.retain(|alive| *alive != number);
            self.plan(until, Event::Start { pod: number });
        }
    }

    /// Somebody resets a key of the first load.
    fn reset(&mut self, key: u32) {
        for key in self.keys_of(key) {
            let news = self.store.reset(key);
            self.publish(vec![news]);
        }
    }

    /// Somebody says something of a key of the first load that is not true.
    fn forge(&mut self, forged: Forged, key: u32) {
        let kind = match forged {
            Forged::Full => NewsKind::Full(Span::seconds(3_600)),
            Forged::Live => NewsKind::Live(Span::seconds(3_600)),
            Forged::Reset => NewsKind::Reset,
        };
        for key in self.keys_of(key) {
            self.publish(vec![News { key, kind }]);
        }
    }

    /// What the store calls a key of the first load.
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
