//! A model of the store in memory: what `apply.lua` does, and `take.lua` with refunds, in integers and without Redis.
//!
//! `values.rs` has the values exactly as Redis would hold them, so that a test can damage both in the same way and compare
//! them afterwards.

mod values;

use std::collections::BTreeMap;

use tidegate_core::pure::sync::{
    BucketKind, Call, Delta, Group, KnownUsage, News, NewsKind, Refund, StoreKey, StoreReply,
    StoreState, Terms,
};
use tidegate_core::pure::{Cells, Span};

pub use values::{LaneRecord, StoredLevel, StoredRecord, StoredValue, StoredWindows};

const LENGTH_MAX: u64 = 1 << 51;
/// The largest number that a pod sends.
const SENT_MAX: u64 = (1 << 49) - 1;
const DEMAND_MAX: u64 = 1 << 39;
const DEMAND_HALVES_MS: u64 = 10_000;
/// A window carries at most this part of its limit (one in so many) into the next one.
const CARRY_PART: u64 = 10;
const LIVE_HOLD_US: u64 = 10_000_000;
const DEBT_HEARD_US: u64 = 2_000_000;
/// How much a level must have grown to be news, if the call does not say it.
const NEWS_STEP_US: u64 = 20_000;

/// The store in memory.
#[derive(Clone, Debug, Default)]
pub struct StoreModel {
    /// The value of each key.
    pub keys: BTreeMap<StoreKey, StoredValue>,
    /// The record of each group and pod.
    pub records: BTreeMap<(Group, u128), StoredRecord>,
    /// The published news, in order.
    pub news: Vec<News>,
}

/// A bucket at one instant.
struct AgedLevel {
    level: u64,
    demand: u64,
    demand_at: u64,
    published: u64,
    live_until: u64,
}

/// The terms of a windowed key, as the scripts receive them.
#[derive(Clone, Copy)]
struct WindowTerms {
    /// The length of a window.
    window: u64,
    /// The cells that one window admits.
    most: u64,
    /// Whether a window carries cells above the limit into the next one.
    carries_over: bool,
}

/// One call in progress.
struct ModelCall {
    now: u64,
    news_step: u64,
    applied: bool,
    repaired: u64,
    news: Vec<News>,
}

impl StoreModel {
    /// What `apply.lua` does at `now_us` for the pod of this incarnation.
    pub fn apply(&mut self, incarnation: u128, call: &Call, now_us: u64) -> StoreReply {
        let place = (call.group, incarnation);
        let (record, poisoned) = match self.records.get(&place) {
            Some(StoredRecord::Record(record)) => (*record, 0),
            Some(StoredRecord::Poison) => (LaneRecord::default(), 1),
            None => (LaneRecord::default(), 0),
        };
        let mut round = ModelCall {
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
            after = LaneRecord {
                sequence: call.sequence,
                gross: record.gross + gross,
            };
            self.records.insert(place, StoredRecord::Record(after));
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

    /// What `take.lua` does at `now_us` with a refund.
    pub fn give_back(&mut self, refund: &Refund, now_us: u64) -> StoreState {
        let mut round = ModelCall {
            now: now_us,
            news_step: NEWS_STEP_US,
            applied: true,
            repaired: 0,
            news: Vec::new(),
        };
        let stored = self.keys.get(&refund.key).copied();
        let (store_state, after) = match refund.terms {
            Terms::Level {
                interval,
                capacity,
                debt_max,
            } => {
                let terms = [micros(interval), micros(capacity), micros(debt_max)];
                round.refund_level(refund, stored, terms)
            }
            Terms::Window {
                window,
                requests,
                carries_over,
                ..
            } => {
                let terms = WindowTerms::new(window, requests, carries_over);
                round.refund_windows(refund, stored, terms)
            }
        };
        self.keys.insert(refund.key, after);
        self.news.append(&mut round.news);
        store_state
    }

    fn delta(&mut self, delta: &Delta, round: &mut ModelCall) -> StoreState {
        let stored = self.keys.get(&delta.key).copied();
        let (store_state, after) = match delta.terms {
            Terms::Level {
                interval,
                capacity,
                debt_max,
            } => {
                let terms = [micros(interval), micros(capacity), micros(debt_max)];
                round.level(delta, stored, terms)
            }
            Terms::Window {
                window,
                requests,
                carries_over,
                ..
            } => {
                let terms = WindowTerms::new(window, requests, carries_over);
                round.windows(delta, stored, terms)
            }
        };
        if round.applied {
            self.keys.insert(delta.key, after);
        }
        store_state
    }
}

impl ModelCall {
    fn level(
        &mut self,
        delta: &Delta,
        stored: Option<StoredValue>,
        terms: [u64; 3],
    ) -> (StoreState, StoredValue) {
        let [_, capacity, debt_max] = terms;
        let AgedLevel {
            mut level,
            mut demand,
            demand_at,
            mut published,
            mut live_until,
        } = self.aged(delta.key.kind, stored, delta.known, terms);
        let mut capped = false;
        if self.applied {
            let most = level.max(capacity + debt_max);
            level += micros(delta.price);
            capped = level > most;
            level = level.min(most);
            demand = (demand + delta.gross.get() * 1_000).min(DEMAND_MAX);
            let ending = live_until < self.now + LIVE_HOLD_US / 2;
            if delta.live && (ending || live_until > self.now + LIVE_HOLD_US) {
                self.publish(delta.key, NewsKind::Live(span(LIVE_HOLD_US)));
                live_until = self.now + LIVE_HOLD_US;
            }
            published = self.publish_if_full(delta.key, level, published, terms);
        }
        let store_state = StoreState::Level {
            level: span(level),
            demand,
            capped,
        };
        let after = StoredLevel {
            tat: self.now + level,
            capacity,
            demand,
            demand_at,
            published_until: published,
            live_until,
        };
        (store_state, StoredValue::Level(after))
    }

    /// The bucket at the time of the call, on the scale of these terms.
    fn aged(
        &mut self,
        kind: BucketKind,
        stored: Option<StoredValue>,
        known: KnownUsage,
        terms: [u64; 3],
    ) -> AgedLevel {
        let [_, capacity, debt_max] = terms;
        let stored = match stored {
            Some(StoredValue::Level(level)) => level,
            Some(StoredValue::Poison | StoredValue::Windows(_)) => {
                self.repaired += 1;
                StoredLevel {
                    tat: self.now + micros(known.level).min(capacity),
                    capacity,
                    ..StoredLevel::default()
                }
            }
            None => StoredLevel::default(),
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
        AgedLevel {
            level,
            demand,
            demand_at,
            published,
            live_until: stored.live_until,
        }
    }

    /// Publishes that a bucket is full, if that is news. Returns until when it is published.
    fn publish_if_full(
        &mut self,
        key: StoreKey,
        level: u64,
        published: u64,
        [interval, capacity, _]: [u64; 3],
    ) -> u64 {
        let grown = (self.now + level).saturating_sub(published);
        let full_for = (level + interval).saturating_sub(capacity);
        if full_for > 0 && grown * 4 > full_for.max(self.news_step * 4) {
            self.publish(key, NewsKind::Full(span(level)));
            return self.now + level;
        }
        published
    }

    /// Refunds cells to a bucket, as `take.lua` does.
    fn refund_level(
        &mut self,
        refund: &Refund,
        stored: Option<StoredValue>,
        terms: [u64; 3],
    ) -> (StoreState, StoredValue) {
        let [_, capacity, _] = terms;
        let known = KnownUsage::assumed(&refund.terms);
        let aged = self.aged(refund.key.kind, stored, known, terms);
        // The price is rounded down to a microsecond; the rest stays used.
        let price = (refund.price.get() / 1_000).min(SENT_MAX);
        let level = aged.level.saturating_sub(price);
        let cells = refund.cells.get();
        let demand = aged.demand.saturating_sub(cells * 1_000);
        let published = aged.published.min(self.now + level);
        let published_until = self.publish_if_full(refund.key, level, published, terms);
        let store_state = StoreState::Level {
            level: span(level),
            demand,
            capped: false,
        };
        let after = StoredLevel {
            tat: self.now + level,
            capacity,
            demand,
            demand_at: aged.demand_at,
            published_until,
            live_until: aged.live_until,
        };
        (store_state, StoredValue::Level(after))
    }

    /// Refunds cells to windows, as `take.lua` does.
    fn refund_windows(
        &mut self,
        refund: &Refund,
        stored: Option<StoredValue>,
        terms: WindowTerms,
    ) -> (StoreState, StoredValue) {
        let WindowTerms { window, most, .. } = terms;
        let assumed = KnownUsage::assumed(&refund.terms)
            .cells
            .min(Cells::new(most));
        let (mut after, at) = self.windows_at(stored, terms, assumed);
        let left = (after.index + 1) * window - at;
        let cells = refund.cells.get();
        match at.checked_sub(micros(refund.age)).map(|then| then / window) {
            Some(then) if then == after.index => {
                after.current = after.current.saturating_sub(cells);
            }
            Some(then) if then + 1 == after.index => {
                let changed = after.previous.saturating_sub(cells);
                terms.change_previous(&mut after, changed);
            }
            Some(_) | None => {}
        }
        if after.current < most {
            after.published = 0;
        } else if after.published == 0 {
            self.publish(refund.key, NewsKind::Full(span(left)));
            after.published = 1;
        }
        let store_state = StoreState::Window {
            current: Cells::new(after.current),
            previous: Cells::new(after.previous),
            left: span(left),
        };
        (store_state, StoredValue::Windows(after))
    }

    /// The current windows, and the time within them. A value that tidegate did not write counts as `assumed` cells.
    fn windows_at(
        &mut self,
        stored: Option<StoredValue>,
        terms: WindowTerms,
        assumed: Cells,
    ) -> (StoredWindows, u64) {
        let window = terms.window;
        let index = self.now / window;
        let fresh = StoredWindows {
            window,
            index,
            ..StoredWindows::default()
        };
        let (mut after, mut at) = (fresh, self.now);
        match stored {
            Some(StoredValue::Windows(stored)) if stored.window == window => {
                if stored.index == index {
                    after = stored;
                } else if stored.index + 1 == index {
                    after.previous = stored.current;
                    after.current = terms.carried(stored.current);
                } else if stored.index == index + 1 {
                    // The clock was set back a little.
                    after = stored;
                    at = stored.index * window;
                }
            }
            Some(StoredValue::Windows(_)) | None => {}
            Some(StoredValue::Level(_) | StoredValue::Poison) => {
                self.repaired += 1;
                after.current = assumed.get();
            }
        }
        (after, at)
    }

    fn windows(
        &mut self,
        delta: &Delta,
        stored: Option<StoredValue>,
        terms: WindowTerms,
    ) -> (StoreState, StoredValue) {
        let WindowTerms { window, most, .. } = terms;
        let assumed = delta.known.cells.min(Cells::new(most));
        let (mut after, at) = self.windows_at(stored, terms, assumed);
        let left = (after.index + 1) * window - at;
        if self.applied {
            // A time before the epoch is in no window.
            let counted_in = at.checked_sub(micros(delta.age)).map(|then| then / window);
            let billed = delta.billed.get();
            match counted_in {
                Some(then) if then == after.index => {
                    after.current = (after.current + billed).min(LENGTH_MAX)
                }
                Some(then) if then + 1 == after.index => {
                    let changed = (after.previous + billed).min(LENGTH_MAX);
                    terms.change_previous(&mut after, changed);
                }
                Some(_) | None => {}
            }
            if after.current >= most && after.published == 0 {
                self.publish(delta.key, NewsKind::Full(span(left)));
                after.published = 1;
            }
        }
        let store_state = StoreState::Window {
            current: Cells::new(after.current),
            previous: Cells::new(after.previous),
            left: span(left),
        };
        (store_state, StoredValue::Windows(after))
    }

    fn publish(&mut self, key: StoreKey, kind: NewsKind) {
        self.news.push(News { key, kind });
    }
}

impl WindowTerms {
    fn new(window: Span, requests: Cells, carries_over: bool) -> Self {
        Self {
            window: micros(window).max(1),
            most: requests.get(),
            carries_over,
        }
    }

    /// The cells above the limit that a window with `count` cells carries into the next one.
    fn carried(&self, count: u64) -> u64 {
        match self.carries_over {
            true => count.saturating_sub(self.most).min(self.most / CARRY_PART),
            false => 0,
        }
    }

    /// Gives the previous window another count. What it carries over changes with it.
    fn change_previous(&self, windows: &mut StoredWindows, changed: u64) {
        windows.current = (windows.current + self.carried(changed))
            .saturating_sub(self.carried(windows.previous));
        windows.previous = changed;
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
