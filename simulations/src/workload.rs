//! Checks as they arrive: when, of which key, and at which pod. The same for every policy that is compared.

use rand_distr::Zipf;

use crate::dice::{Dice, mix};
use crate::scenario::{Arrivals, Load, Pick, Pods, Scenario, Source};
use crate::trace::Recorded;

/// How steep a zipf is.
const ZIPF_EXPONENT: f64 = 1.0;

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Nanoseconds since the start.
    pub at: u64,
    /// Which pod it is asked of, as a number of any size: of the pods alive it is this one, counted round and round.
    pub pod: u64,
    /// Which of the scenario's loads it is of.
    pub load: usize,
    /// Its key: the first load with the same descriptor, and the number of the key there.
    pub subject: usize,
    pub key: u32,
    pub cost: u64,
}

/// All arrivals of a run, in the order of their time.
#[derive(Debug)]
pub struct Workload<'a> {
    streams: Vec<Stream<'a>>,
}

impl<'a> Workload<'a> {
    pub fn new(scenario: &'a Scenario, seed: u64) -> Self {
        let loads = scenario.load.iter().enumerate();
        Self {
            streams: loads
                .map(|(number, load)| Stream::new(number, load, seed))
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
struct Stream<'a> {
    number: usize,
    load: &'a Load,
    dice: Dice,
    zipf: Option<Zipf<f64>>,
    /// How many there were.
    count: u32,
    /// Until when arrivals come before there is a pause.
    on_until: u64,
    at: u64,
    next: Option<Arrival>,
}

impl<'a> Stream<'a> {
    fn new(number: usize, load: &'a Load, seed: u64) -> Self {
        let mut stream = Self {
            number,
            load,
            dice: Dice::new(seed, 0x10ad + number as u64),
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
            Source::Random { rate, arrivals } => self.drawn(*rate, *arrivals),
            Source::Trace(recorded) => self.replayed(recorded),
        };
        self.count = self.count.wrapping_add(1);
        self.next = next.filter(|next| next.at < self.load.to);
    }

    fn drawn(&mut self, rate: f64, arrivals: Arrivals) -> Option<Arrival> {
        self.at += match arrivals {
            Arrivals::Poisson => self.dice.around(1e9 / rate),
            Arrivals::Regular => (1e9 / rate) as u64,
            Arrivals::Bursts(bursts) => {
                let (on, off) = (bursts.on.nanos() as f64, bursts.off.nanos() as f64);
                let mut wait = self.dice.around(1e9 / rate * on / (on + off));
                while self.at + wait >= self.on_until {
                    // What is left of the wait is spent in the next burst.
                    let pause = self.dice.around(off);
                    let begins = self.on_until.max(self.load.from) + pause;
                    wait = begins + (self.at + wait - self.on_until.max(self.at)) - self.at;
                    self.on_until = begins + self.dice.around(on).max(1);
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

    fn replayed(&self, recorded: &[Recorded]) -> Option<Arrival> {
        let one = recorded.get(self.count as usize)?;
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
            Pick::Uniform => self.dice.below(keys),
            Pick::Zipf => match &self.zipf {
                Some(zipf) => self.dice.of(zipf) as u64 - 1,
                None => 0,
            },
            Pick::Fresh => u64::from(self.count),
            Pick::Rotate(each) => (self.at - self.load.from) / each.nanos().max(1) % keys,
        };
        u32::try_from(number).unwrap_or(u32::MAX)
    }

    fn pod(&mut self, key: u32) -> u64 {
        match self.load.pods {
            Pods::Even => self.dice.roll(),
            Pods::First(pods) => self.dice.below(pods),
            Pods::Skewed(skew) => match self.dice.chance(skew.part) {
                true => self.dice.below(skew.to),
                false => self.dice.roll(),
            },
            Pods::Sticky(each) => mix((u64::from(key) << 32) ^ (self.at / each.nanos().max(1))),
        }
    }
}
