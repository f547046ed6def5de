//! The checks of a run: when, of which key, and at which pod. They are the same for every policy.

use rand_distr::Zipf;

use crate::random::{SeededRandom, mix};
use crate::scenario::{Arrivals, Load, LoadSource, Pick, Pods, Scenario};
use crate::trace::TraceRecord;

/// The exponent of a zipf distribution.
const ZIPF_EXPONENT: f64 = 1.0;

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds since the start.
    pub at: u64,
    /// Its pod, as a number of any size: modulo the number of live pods.
    pub pod: u64,
    /// The number of its load in the scenario.
    pub load: usize,
    /// The first load with the same descriptor, and the number of the key there.
    pub subject: usize,
    pub key: u32,
    pub cost: u64,
}

/// All arrivals of a run, in the order of their time.
#[derive(Debug)]
pub struct Workload<'a> {
    streams: Vec<LoadStream<'a>>,
}

impl<'a> Workload<'a> {
    pub fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let loads = scenario.load.iter().enumerate();
        Self {
            streams: loads
                .map(|(number, load)| LoadStream::new(number, load, seed))
                .collect(),
        }
    }
}

impl Iterator for Workload<'_> {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let streams = self
            .streams
            .iter_mut()
            .filter(|stream| stream.next.is_some());
        let soonest =
            streams.min_by_key(|stream| (stream.next.map(|next| next.at), stream.number))?;
        let arrival = soonest.next;
        soonest.advance();
        arrival
    }
}

/// The arrivals of one load.
#[derive(Debug)]
struct LoadStream<'a> {
    number: usize,
    load: &'a Load,
    random: SeededRandom,
    zipf: Option<Zipf<f64>>,
    /// The number of arrivals so far.
    count: u32,
    /// The end of the current burst.
    on_until: u64,
    at: u64,
    next: Option<Arrival>,
}

impl<'a> LoadStream<'a> {
    fn new(number: usize, load: &'a Load, seed: u64) -> Self {
        let mut stream = Self {
            number,
            load,
            random: SeededRandom::new(seed, 0x10ad + number as u64),
            zipf: Zipf::new(f64::from(load.keys), ZIPF_EXPONENT).ok(),
            count: 0,
            on_until: 0,
            at: load.from,
            next: None,
        };
        stream.advance();
        stream
    }

    fn advance(&mut self) {
        let next = match &self.load.source {
            LoadSource::Random { rate, arrivals } => self.drawn(*rate, *arrivals),
            LoadSource::Trace(records) => self.replayed(records),
        };
        self.count = self.count.wrapping_add(1);
        self.next = next.filter(|next| next.at < self.load.to);
    }

    fn drawn(&mut self, rate: f64, arrivals: Arrivals) -> Option<Arrival> {
        self.at += match arrivals {
            Arrivals::Poisson => self.random.around(1e9 / rate),
            Arrivals::Regular => (1e9 / rate) as u64,
            Arrivals::Bursts(bursts) => {
                let (on, off) = (bursts.on.nanos() as f64, bursts.off.nanos() as f64);
                let mut wait = self.random.around(1e9 / rate * on / (on + off));
                while self.at + wait >= self.on_until {
                    // The rest of the wait passes in the next burst.
                    let pause = self.random.around(off);
                    let begins = self.on_until.max(self.load.from) + pause;
                    wait = begins + (self.at + wait - self.on_until.max(self.at)) - self.at;
                    self.on_until = begins + self.random.around(on).max(1);
                }
                wait
            }
        };
        let key = self.load.first_key + self.pick();
        let pod = self.pod(key);
        Some(Arrival {
            at: self.at,
            pod,
            load: self.number,
            subject: self.load.subject,
            key,
            cost: self.load.cost,
        })
    }

    fn replayed(&self, records: &[TraceRecord]) -> Option<Arrival> {
        let one = records.get(self.count as usize)?;
        Some(Arrival {
            at: self.load.from + one.at,
            pod: one.pod,
            load: self.number,
            subject: self.load.subject,
            key: one.key,
            cost: one.cost,
        })
    }

    fn pick(&mut self) -> u32 {
        let keys = u64::from(self.load.keys);
        let number = match self.load.pick {
            Pick::Uniform => self.random.below(keys),
            Pick::Zipf => match &self.zipf {
                Some(zipf) => self.random.of(zipf) as u64 - 1,
                None => 0,
            },
            Pick::Fresh => u64::from(self.count),
            Pick::Rotate(each) => (self.at - self.load.from) / each.nanos().max(1) % keys,
        };
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    fn pod(&mut self, key: u32) -> u64 {
        match self.load.pods {
            Pods::Even => self.random.roll(),
            Pods::First(pods) => self.random.below(pods),
            Pods::Skewed(skew) => match self.random.chance(skew.part) {
                true => self.random.below(skew.to),
                false => self.random.roll(),
            },
            Pods::Sticky(each) => mix((u64::from(key) << 32) ^ (self.at / each.nanos().max(1))),
        }
    }
}
