//! The way between pods and the store: how long it takes, and what does not arrive.

use crate::dice::Dice;
use crate::scenario::RawNetwork;

/// What is wrong with it, each until some point in time.
#[derive(Debug, Default)]
pub struct Weather {
    pub all_cut_until: u64,
    /// By pod.
    pub cut_until: Vec<u64>,
    pub lose: (f64, u64),
    pub lose_answers: (f64, u64),
    pub lose_news: (f64, u64),
    /// The store takes so much longer.
    pub slow: (u64, u64),
    /// The store stands still.
    pub hung_until: u64,
    /// There is no store.
    pub down_until: u64,
}

/// The network.
#[derive(Debug)]
pub struct Network {
    pub settings: RawNetwork,
    pub weather: Weather,
    pub dice: Dice,
}

impl Network {
    /// How long one way takes.
    pub fn hop(&mut self) -> u64 {
        let way = self.settings.rtt.nanos() / 2;
        let jitter = way as f64 * self.settings.jitter;
        way + if jitter > 0.0 {
            self.dice.around(jitter)
        } else {
            0
        }
    }

    /// Whether a request of `pod` does not arrive.
    pub fn loses_request(&mut self, pod: usize, now: u64) -> bool {
        self.is_cut(pod, now) || self.loses_some(self.weather.lose, now)
    }

    /// Whether an answer to `pod` does not.
    pub fn loses_answer(&mut self, pod: usize, now: u64) -> bool {
        self.is_cut(pod, now)
            || self.loses_some(self.weather.lose, now)
            || self.dice_below(self.weather.lose_answers, now)
    }

    /// Whether a piece of news for `pod` does not.
    pub fn loses_news(&mut self, pod: usize, now: u64) -> bool {
        self.is_cut(pod, now)
            || now < self.weather.down_until
            || self.dice.chance(self.settings.news_lost)
            || self.dice_below(self.weather.lose_news, now)
    }

    pub fn is_cut(&self, pod: usize, now: u64) -> bool {
        let own = self.weather.cut_until.get(pod).copied().unwrap_or(0);
        now < self.weather.all_cut_until || now < own
    }

    pub fn cut(&mut self, pod: usize, until: u64) {
        if self.weather.cut_until.len() <= pod {
            self.weather.cut_until.resize(pod + 1, 0);
        }
        self.weather.cut_until[pod] = until.max(self.weather.cut_until[pod]);
    }

    /// What the store takes longer at `now`.
    pub const fn slowness(&self, now: u64) -> u64 {
        let (by, until) = self.weather.slow;
        if now < until { by } else { 0 }
    }

    fn loses_some(&mut self, fault: (f64, u64), now: u64) -> bool {
        self.dice.chance(self.settings.lost) || self.dice_below(fault, now)
    }

    fn dice_below(&mut self, (part, until): (f64, u64), now: u64) -> bool {
        now < until && self.dice.chance(part)
    }
}
