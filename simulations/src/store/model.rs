//! The store, in memory: what `apply.lua` does, and `take.lua` with cells that are given back, said once more, in
//! integers and without Redis.
//!
//! Values are exactly what Redis would hold, so that both can be spoilt in the same way and compared afterwards.

use std::collections::BTreeMap;

use tidegate_core::pure::sync::{
    BucketKind, Call, Delta, KnownUsage, Lane, News, NewsKind, Refund, StoreKey, StoreReply,
    StoreState, Terms,
};
use tidegate_core::pure::{Cells, Span};

const NUMBER_MAX: u64 = 1 << 52;
const LENGTH_MAX: u64 = 1 << 51;
/// What a pod sends at most.
const SENT_MAX: u64 = (1 << 49) - 1;
const DEMAND_MAX: u64 = 1 << 39;
const DEMAND_HALVES_MS: u64 = 10_000;
const LIVE_HOLD_US: u64 = 10_000_000;
const DEBT_HEARD_US: u64 = 2_000_000;
/// What a level must have grown by to be news, where the call does not say it.
const NEWS_STEP_US: u64 = 20_000;

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
    pub published: u64,
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

/// A bucket as it stands at one instant.
struct Aged {
    level: u64,
    demand: u64,
    demand_at: u64,
    published: u64,
    live_until: u64,
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
    pub fn apply(&mut self, incarnation: u128, call: &Call, now_us: u64) -> StoreReply {
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
        let store_state = call
            .deltas
            .iter()
            .map(|delta| self.delta(delta, &mut round));
        let store_state: Vec<StoreState> = store_state.collect();
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
        StoreReply {
            applied: round.applied,
            sequence: after.sequence,
            gross: Cells::new(after.gross),
            states: store_state,
            repaired: if round.applied { round.repaired } else { 0 },
        }
    }

    /// What `take.lua` does at `now_us` with cells that are given back.
    pub fn give_back(&mut self, refund: &Refund, now_us: u64) -> StoreState {
        let mut round = Round {
            now: now_us,
            news_step: NEWS_STEP_US,
            applied: true,
            repaired: 0,
            news: Vec::new(),
        };
        let kept = self.keys.get(&refund.key).copied();
        let (store_state, after) = match refund.terms {
            Terms::Level {
                interval,
                capacity,
                debt_max,
            } => {
                let terms = [micros(interval), micros(capacity), micros(debt_max)];
                round.emptier_level(refund, kept, terms)
            }
            Terms::Window {
                window, requests, ..
            } => round.emptier_windows(refund, kept, micros(window).max(1), requests.get()),
        };
        self.keys.insert(refund.key, after);
        self.news.append(&mut round.news);
        store_state
    }

    fn delta(&mut self, delta: &Delta, round: &mut Round) -> StoreState {
        let kept = self.keys.get(&delta.key).copied();
        let (store_state, after) = match delta.terms {
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
        store_state
    }
}

impl Round {
    fn level(&mut self, delta: &Delta, kept: Option<Kept>, terms: [u64; 3]) -> (StoreState, Kept) {
        let [interval, capacity, debt_max] = terms;
        let Aged {
            mut level,
            mut demand,
            demand_at,
            mut published,
            mut live_until,
        } = self.aged(delta.key.kind, (kept, delta.known), terms);
        let mut capped = false;
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
            published = self.told_full(delta.key, level, published, (interval, capacity));
        }
        let store_state = StoreState::Level {
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
        (store_state, Kept::Level(after))
    }

    /// A bucket as it stands now, seen on the scale of these terms.
    fn aged(
        &mut self,
        kind: BucketKind,
        (kept, known): (Option<Kept>, KnownUsage),
        terms: [u64; 3],
    ) -> Aged {
        let [_, capacity, debt_max] = terms;
        let stored = match kept {
            Some(Kept::Level(level)) => level,
            Some(Kept::Poison | Kept::Windows(_)) => {
                self.repaired += 1;
                Level {
                    tat: self.now + micros(known.level).min(capacity),
                    capacity,
                    ..Level::default()
                }
            }
            None => Level::default(),
        };
        let mut level = stored.tat.saturating_sub(self.now);
        let mut published = stored.published_until;
        let rescaled = stored.capacity != capacity && stored.capacity > 0;
        if rescaled && !kind.has_limits_of_callers() {
            level = rescale(level, stored.capacity, capacity);
            let published_for = published.saturating_sub(self.now);
            published = self.now + rescale(published_for, stored.capacity, capacity);
        }
        let most = capacity + debt_max.max(DEBT_HEARD_US);
        if !kind.has_limits_of_callers() {
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
        Aged {
            level,
            demand,
            demand_at,
            published,
            live_until: stored.live_until,
        }
    }

    /// Tells that a bucket is full, if that is news, and answers until when it is published.
    fn told_full(
        &mut self,
        key: StoreKey,
        level: u64,
        published: u64,
        (interval, capacity): (u64, u64),
    ) -> u64 {
        let grown = (self.now + level).saturating_sub(published);
        let full_for = (level + interval).saturating_sub(capacity);
        if full_for > 0 && grown * 4 > full_for.max(self.news_step * 4) {
            self.tell(key, NewsKind::Full(span(level)));
            return self.now + level;
        }
        published
    }

    /// What `take.lua` makes of a bucket that cells are given back to.
    fn emptier_level(
        &mut self,
        refund: &Refund,
        kept: Option<Kept>,
        terms: [u64; 3],
    ) -> (StoreState, Kept) {
        let [interval, capacity, _] = terms;
        let known = KnownUsage::assumed(&refund.terms);
        let aged = self.aged(refund.key.kind, (kept, known), terms);
        // What is less than a microsecond stays used.
        let price = (refund.price.get() / 1_000).min(SENT_MAX);
        let level = aged.level.saturating_sub(price);
        let cells = refund.cells.get();
        let demand = aged.demand.saturating_sub(cells * 1_000);
        let published = aged.published.min(self.now + level);
        let published_until = self.told_full(refund.key, level, published, (interval, capacity));
        let store_state = StoreState::Level {
            level: span(level),
            demand,
            capped: false,
        };
        let after = Level {
            tat: self.now + level,
            capacity,
            demand,
            demand_at: aged.demand_at,
            published_until,
            live_until: aged.live_until,
        };
        (store_state, Kept::Level(after))
    }

    /// What it makes of windows.
    fn emptier_windows(
        &mut self,
        refund: &Refund,
        kept: Option<Kept>,
        window: u64,
        most: u64,
    ) -> (StoreState, Kept) {
        let assumed = KnownUsage::assumed(&refund.terms)
            .cells
            .min(Cells::new(most));
        let (mut after, at) = self.windows_at(kept, window, assumed);
        let left = (after.index + 1) * window - at;
        let cells = refund.cells.get();
        match at.checked_sub(micros(refund.age)).map(|then| then / window) {
            Some(then) if then == after.index => {
                after.current = after.current.saturating_sub(cells);
            }
            Some(then) if then + 1 == after.index => {
                after.previous = after.previous.saturating_sub(cells);
            }
            Some(_) | None => {}
        }
        if after.current < most {
            after.published = 0;
        } else if after.published == 0 {
            self.tell(refund.key, NewsKind::Full(span(left)));
            after.published = 1;
        }
        let store_state = StoreState::Window {
            current: Cells::new(after.current),
            previous: Cells::new(after.previous),
            left: span(left),
        };
        (store_state, Kept::Windows(after))
    }

    /// Windows as they stand, and where in time that is. A value that is not ours counts as `assumed` cells.
    fn windows_at(&mut self, kept: Option<Kept>, window: u64, assumed: Cells) -> (Windows, u64) {
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
            Some(Kept::Level(_) | Kept::Poison) => {
                self.repaired += 1;
                after.current = assumed.get();
            }
        }
        (after, at)
    }

    fn windows(
        &mut self,
        delta: &Delta,
        kept: Option<Kept>,
        window: u64,
        most: u64,
    ) -> (StoreState, Kept) {
        let assumed = delta.known.cells.min(Cells::new(most));
        let (mut after, at) = self.windows_at(kept, window, assumed);
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
            if after.current >= most && after.published == 0 {
                self.tell(delta.key, NewsKind::Full(span(left)));
                after.published = 1;
            }
        }
        let store_state = StoreState::Window {
            current: Cells::new(after.current),
            previous: Cells::new(after.previous),
            left: span(left),
        };
        (store_state, Kept::Windows(after))
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
    /// What these bytes are under a key of this kind.
    pub fn of_bytes(kind: BucketKind, bytes: &[u8]) -> Self {
        match kind.is_windowed() {
            false => match numbers(bytes) {
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
            true => match numbers(bytes) {
                Some([window, index, current, previous, published]) => Self::Windows(Windows {
                    window,
                    index,
                    current,
                    previous,
                    published,
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
