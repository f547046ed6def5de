//! What the tests of this folder share: a store for any settings, keys, terms, and a runtime.

use std::future::Future;

use tidegate::sync::RedisStore;
use tidegate_config::check_text;
use tidegate_core::pure::sync::{
    Call, Delta, Grouping, KnownUsage, Lane, NEWS_STEP, Share, StoreKey, StoreState, Terms,
};
use tidegate_core::pure::{Cells, Span};

/// A store with these lines below `store:`.
pub fn store(lines: &[String], incarnation: u128) -> RedisStore {
    let mut text = "store:\n".to_owned();
    for line in lines {
        text += &format!("  {line}\n");
    }
    let config = check_text("store.yaml", &text, &|_| None);
    let config = config.unwrap_or_else(|faults| panic!("{text}{faults}"));
    let settings = config.store.expect("a store");
    RedisStore::new(&settings, incarnation).expect("settings that work")
}

/// A store at this URL with time enough for a busy machine.
pub fn store_at(url: &str, incarnation: u128) -> RedisStore {
    store(
        &[format!("url: {url}"), "timeout: 5s".to_owned()],
        incarnation,
    )
}

pub fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(future)
}

/// The rule of every key here.
pub const RULE: u64 = 7;

/// So many cells a second, with this burst and as much debt.
pub fn per_second(rate: u64, burst: u64) -> Terms {
    let interval = Span::nanos(1_000_000_000 / rate);
    let capacity = interval.times(Cells::new(burst));
    Terms::Level {
        interval,
        capacity,
        debt_max: capacity,
    }
}

/// So many cells in a window that does not end while a test runs, and that carries nothing over.
pub fn per_day(requests: u64, sliding: bool) -> Terms {
    Terms::Window {
        window: Span::seconds(86_400 * 365),
        requests: Cells::new(requests),
        sliding,
        carries_over: false,
    }
}

/// `cells` of `key` that were admitted just now.
pub fn delta(key: StoreKey, terms: Terms, cells: u64) -> Delta {
    let cells = Cells::new(cells);
    let price = match terms {
        Terms::Level { interval, .. } => interval.times(cells),
        Terms::Window { .. } => Span::ZERO,
    };
    Delta {
        key,
        terms,
        gross: cells,
        price,
        billed: cells,
        age: Span::ZERO,
        share: Share::WHOLE,
        live: false,
        known: KnownUsage::default(),
    }
}

/// The call after `previous`.
pub fn call(lane: Lane, previous: u64, deltas: Vec<Delta>) -> Call {
    Call {
        group: Grouping::PerLane.group_of(lane),
        previous,
        sequence: previous + 1,
        deltas,
        news_step: NEWS_STEP,
    }
}

/// The level in seconds, rounded to the next: some time passes in a test.
pub fn seconds(store_state: StoreState) -> u64 {
    match store_state {
        StoreState::Level { level, .. } => (level.get() + 500_000_000) / 1_000_000_000,
        StoreState::Window { .. } => panic!("{store_state:?} is no level"),
    }
}

pub fn counts(store_state: StoreState) -> (u64, u64) {
    match store_state {
        StoreState::Window {
            current, previous, ..
        } => (current.get(), previous.get()),
        StoreState::Level { .. } => panic!("{store_state:?} is no window"),
    }
}
