//! The network between pods and the store: its latency, and the messages that it loses.

use crate::random::SeededRandom;
use crate::scenario::RawNetwork;

/// The present faults, each until some point in time.
#[derive(Debug, Default)]
pub struct NetworkFaults {
    pub all_cut_until: u64,
    /// By pod.
    pub cut_until: Vec<u64>,
    pub lose: (f64, u64),
    pub lose_answers: (f64, u64),
    pub lose_news: (f64, u64),
    /// The extra time that the store takes.
    pub slow: (u64, u64),
    /// The store hangs.
    pub hung_until: u64,
    /// The store is down.
    pub down_until: u64,
}

/// The network.
#[derive(Debug)]
pub struct Network {
    pub settings: RawNetwork,
    pub faults: NetworkFaults,
    pub random: SeededRandom,
}

impl Network {
    /// The latency of one way.
    pub fn hop(&mut self) -> u64 {
        let way = self.settings.rtt.nanos() / 2;
        let jitter = way as f64 * self.settings.jitter;
        way + if jitter > 0.0 {
            self.random.around(jitter)
        } else {
            0
        }
    }

    /// Whether a request of `pod` is lost.
    pub fn loses_request(&mut self, pod: usize, now: u64) -> bool {
        self.is_cut(pod, now) || self.loses_some(self.faults.lose, now)
    }

    /// Whether an answer to `pod` is lost.
    pub fn loses_answer(&mut self, pod: usize, now: u64) -> bool {
        self.is_cut(pod, now)
            || self.loses_some(self.faults.lose, now)
            || self.chance_until(self.faults.lose_answers, now)
    }

    /// Whether news for `pod` is lost.
    pub fn loses_news(&mut self, pod: usize, now: u64) -> bool {
        self.is_cut(pod, now)
            || now < self.faults.down_until
            || self.random.chance(self.settings.news_lost)
            || self.chance_until(self.faults.lose_news, now)
    }

    pub fn is_cut(&self, pod: usize, now: u64) -> bool {
        let own = self.faults.cut_until.get(pod).copied().unwrap_or(0);
        now < self.faults.all_cut_until || now < own
    }

    pub fn cut(&mut self, pod: usize, until: u64) {
        if self.faults.cut_until.len() <= pod {
            self.faults.cut_until.resize(pod + 1, 0);
        }
        self.faults.cut_until[pod] = until.max(self.faults.cut_until[pod]);
    }

    /// The extra time that the store takes at `now`.
    pub const fn slowness(&self, now: u64) -> u64 {
        let (by, until) = self.faults.slow;
        if now < until { by } else { 0 }
    }

    fn loses_some(&mut self, fault: (f64, u64), now: u64) -> bool {
        self.random.chance(self.settings.lost) || self.chance_until(fault, now)
    }

    fn chance_until(&mut self, (part, until): (f64, u64), now: u64) -> bool {
        now < until && self.random.chance(part)
    }
}
