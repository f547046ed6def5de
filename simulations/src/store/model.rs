//! The store, in memory: what `apply.lua` does, said once more, in integers and without Redis.
//!
//! Values are exactly what Redis would hold, so that both can be spoilt in the same way and compared afterwards.

use std::collections::BTreeMap;

use tidegate::pure::sync::{
    Call, Delta, Family, Lane, News, NewsKind, Reply, StoreKey, Terms, Told,
};
use tidegate::pure::{Cells, Span};

const NUMBER_MAX: u64 = 1 << 52;
const LENGTH_MAX: u64 = 1 << 51;
/// What a pod sends at most.
const SENT_MAX: u64 = (1 << 49) - 1;
const DEMAND_MAX: u64 = 1 << 39;
const DEMAND_HALVES_MS: u64 = 10_000;
const LIVE_HOLD_US: u64 = 10_000_000;
const DEBT_HEARD_US: u64 = 2_000_000;

/// A bucket as it is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    pub tat: u64,
    pub capacity: u64,
    pub demand: u64,
    pub demand_at: u64,
    pub published_until: u64,
    pub live_until: u64,
}

/// Windows as they are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    pub window: u64,
    pub index: u64,
    pub current: u64,
    pub previous: u64,
    pub told: u64,
}

/// A pod's books in one lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    pub sequence: u64,
    pub gross: u64,
}

/// What stands under a key's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Level(Level),
    Windows(Windows),
    /// No value of ours.
    Poison,
}

/// What stands under a record's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptRecord {
    Record(Record),
    /// No value of ours.
    Poison,
}

/// The store.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub keys: BTreeMap<StoreKey, Kept>,
    pub records: BTreeMap<(Lane, u128), KeptRecord>,
    /// News told so far, in order.
    pub news: Vec<News>,
}

/// One call under way.
struct Round {
    now: u64,
    news_step: u64,
    applied: bool,
    repaired: u64,
    news: Vec<News>,
}

impl Model {
    /// What `apply.lua` does at `now_us` for the pod of this incarnation.
    pub fn apply(&mut self, incarnation: u128, call: &Call, now_us: u64) -> Reply {
        let place = (call.lane, incarnation);
        let (record, poisoned) = match self.records.get(&place) {
            Some(KeptRecord::Record(record)) => (*record, 0),
            Some(KeptRecord::Poison) => (Record::default(), 1),
            None => (Record::default(), 0),
        };
        let mut round = Round {
            now: now_us,
            news_step: micros(call.news_step),
            applied: call.sequence > 0 && record.sequence == call.previous,
            repaired: poisoned,
            news: Vec::new(),
        };
        let told = call
            .deltas
            .iter()
            .map(|delta| self.delta(delta, &mut round));
        let told: Vec<Told> = told.collect();
        let mut after = record;
        if round.applied {
            let gross: u64 = call.deltas.iter().map(|delta| delta.gross.get()).sum();
            after = Record {
                sequence: call.sequence,
                gross: record.gross + gross,
            };
            self.records.insert(place, KeptRecord::Record(after));
            self.news.append(&mut round.news);
        }
        Reply {
            applied: round.applied,
            sequence: after.sequence,
            gross: Cells::new(after.gross),
            told,
            repaired: if round.applied { round.repaired } else { 0 },
        }
    }

    fn delta(&mut self, delta: &Delta, round: &mut Round) -> Told {
        let kept = self.keys.get(&delta.key).copied();
        let (told, after) = match delta.terms {
            Terms::Level {
                interval,
                capacity,
                debt_max,
            } => {
                let terms = [micros(interval), micros(capacity), micros(debt_max)];
                round.level(delta, kept, terms)
            }
            Terms::Window {
                window, requests, ..
            } => round.windows(delta, kept, micros(window).max(1), requests.get()),
        };
        if round.applied {
            self.keys.insert(delta.key, after);
        }
        told
    }
}

impl Round {
    fn level(&mut self, delta: &Delta, kept: Option<Kept>, terms: [u64; 3]) -> (Told, Kept) {
        let [interval, capacity, debt_max] = terms;
        let stored = match kept {
            Some(Kept::Level(level)) => level,
            Some(Kept::Poison | Kept::Windows(_)) => {
                self.repaired += 1;
                Level::default()
            }
            None => Level::default(),
        };
        let mut level = stored.tat.saturating_sub(self.now);
        let mut published = stored.published_until;
        let rescaled = stored.capacity != capacity && stored.capacity > 0;
        if rescaled && delta.key.family == Family::Level {
            level = rescale(level, stored.capacity, capacity);
            let published_for = published.saturating_sub(self.now);
            published = self.now + rescale(published_for, stored.capacity, capacity);
        }
        let most = capacity + debt_max.max(DEBT_HEARD_US);
        if delta.key.family == Family::Level {
            level = level.min(most);
        }
        if published > self.now + most {
            published = 0;
        }
        let (mut demand, mut demand_at) = (stored.demand, self.now);
        if demand > 0 && stored.demand_at <= self.now {
            let passed_ms = (self.now - stored.demand_at) / 1_000;
            demand = demand.min(DEMAND_MAX) * DEMAND_HALVES_MS / (DEMAND_HALVES_MS + passed_ms);
            demand_at = stored.demand_at + passed_ms * 1_000;
        }
        let mut capped = false;
        let mut live_until = stored.live_until;
        if self.applied {
            let most = level.max(capacity + debt_max);
            level += micros(delta.price);
            capped = level > most;
            level = level.min(most);
            demand = (demand + delta.gross.get() * 1_000).min(DEMAND_MAX);
            let ending = live_until < self.now + LIVE_HOLD_US / 2;
            if delta.live && (ending || live_until > self.now + LIVE_HOLD_US) {
                self.tell(delta.key, NewsKind::Live(span(LIVE_HOLD_US)));
                live_until = self.now + LIVE_HOLD_US;
            }
            let grown = (self.now + level).saturating_sub(published);
            let full_for = (level + interval).saturating_sub(capacity);
            if full_for > 0 && grown * 4 > full_for.max(self.news_step * 4) {
                self.tell(delta.key, NewsKind::Full(span(level)));
                published = self.now + level;
            }
        }
        let told = Told::Level {
            level: span(level),
            demand,
            capped,
        };
        let after = Level {
            tat: self.now + level,
            capacity,
            demand,
            demand_at,
            published_until: published,
            live_until,
        };
        (told, Kept::Level(after))
    }

    fn windows(
        &mut self,
        delta: &Delta,
        kept: Option<Kept>,
        window: u64,
        most: u64,
    ) -> (Told, Kept) {
        let index = self.now / window;
        let fresh = Windows {
            window,
            index,
            ..Windows::default()
        };
        let (mut after, mut at) = (fresh, self.now);
        match kept {
            Some(Kept::Windows(stored)) if stored.window == window => {
                if stored.index == index {
                    after = stored;
                } else if stored.index + 1 == index {
                    after.previous = stored.current;
                } else if stored.index == index + 1 {
                    // The clock was set back a little.
                    after = stored;
                    at = stored.index * window;
                }
            }
            Some(Kept::Windows(_)) | None => {}
            Some(Kept::Level(_) | Kept::Poison) => self.repaired += 1,
        }
        let left = (after.index + 1) * window - at;
        if self.applied {
            // Before the epoch is before any window.
            let counted_in = at.checked_sub(micros(delta.age)).map(|then| then / window);
            let billed = delta.billed.get();
            match counted_in {
                Some(then) if then == after.index => {
                    after.current = (after.current + billed).min(LENGTH_MAX)
                }
                Some(then) if then + 1 == after.index => {
                    after.previous = (after.previous + billed).min(LENGTH_MAX)
                }
                Some(_) | None => {}
            }
            if after.current >= most && after.told == 0 {
                self.tell(delta.key, NewsKind::Full(span(left)));
                after.told = 1;
            }
        }
        let told = Told::Window {
            current: Cells::new(after.current),
            previous: Cells::new(after.previous),
            left: span(left),
        };
        (told, Kept::Windows(after))
    }

    fn tell(&mut self, key: StoreKey, kind: NewsKind) {
        self.news.push(News { key, kind });
    }
}

/// Half full stays half full. In doubles, as Redis computes: to 53 bits, which is a microsecond in a century.
fn rescale(length: u64, from: u64, to: u64) -> u64 {
    let scaled = (length as f64 * to as f64 / from as f64).ceil();
    (scaled as u64).min(LENGTH_MAX)
}

fn micros(span: Span) -> u64 {
    span.get().div_ceil(1_000).min(SENT_MAX)
}

fn span(micros: u64) -> Span {
    Span::nanos(micros.saturating_mul(1_000))
}

impl Kept {
    /// What these bytes are under a key of this family.
    pub fn of_bytes(family: Family, bytes: &[u8]) -> Self {
        match family {
            Family::Level | Family::Carried => match numbers(bytes) {
                Some(
                    [
                        tat,
                        capacity,
                        demand,
                        demand_at,
                        published_until,
                        live_until,
                    ],
                ) => Self::Level(Level {
                    tat,
                    capacity,
                    demand,
                    demand_at,
                    published_until,
                    live_until,
                }),
                None => Self::Poison,
            },
            Family::Window => match numbers(bytes) {
                Some([window, index, current, previous, told]) => Self::Windows(Windows {
                    window,
                    index,
                    current,
                    previous,
                    told,
                }),
                None => Self::Poison,
            },
        }
    }
}

impl KeptRecord {
    /// What these bytes are under a record's name.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        match numbers(bytes) {
            Some([sequence, gross]) => Self::Record(Record { sequence, gross }),
            None => Self::Poison,
        }
    }
}

/// So many numbers, if that is what `bytes` are and each is one that Redis may hold.
fn numbers<const N: usize>(bytes: &[u8]) -> Option<[u64; N]> {
    let (numbers, rest) = bytes.as_chunks::<8>();
    let numbers: Vec<u64> = numbers
        .iter()
        .map(|number| u64::from_le_bytes(*number))
        .collect();
    let sound = rest.is_empty() && numbers.iter().all(|number| *number < NUMBER_MAX);
    numbers.try_into().ok().filter(|_| sound)
}
