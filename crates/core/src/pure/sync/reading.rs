//! The store's state of a key, read under the limit that holds for the key.

use super::call::StoreState;
use crate::pure::{Cells, Limit, Span};

/// How full a key is fleet-wide.
///
/// ```
/// use tidegate_core::pure::sync::{StoreReading, StoreState};
/// use tidegate_core::pure::{Cells, Limit, Span, Unit};
/// let limit = Limit::new(10, Unit::Second, 1, None).expect("sound");
/// let state = StoreState::Level { level: Span::nanos(600_000_000), demand: 7, capped: false };
/// let reading = StoreReading::new(&limit, state);
/// assert_eq!((reading.whole, reading.room), (Cells::new(10), Cells::new(4)));
/// assert_eq!((reading.full_for, reading.is_half_used, reading.demand), (None, true, 7));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreReading {
    /// The cells of the whole limit.
    pub whole: Cells,
    /// The cells that still fit.
    pub room: Cells,
    /// The level of a full key, or the time until its window ends; `None` if one more cell fits.
    pub full_for: Option<Span>,
    /// Whether more than half of a level is in use. Always false for windows: their keys are never silent, so nobody
    /// asks.
    pub is_half_used: bool,
    /// The demand of all pods as the store measures it, in thousandths of cells; 0 for windows.
    pub demand: u64,
}

impl StoreReading {
    /// Reads `state` under `limit`.
    pub fn new(limit: &Limit, state: StoreState) -> Self {
        match state {
            StoreState::Level { level, demand, .. } => {
                let (interval, capacity) = (limit.interval(), limit.capacity());
                Self {
                    whole: limit.burst(),
                    room: capacity.less(level).whole(interval),
                    full_for: (level.plus(interval) > capacity).then_some(level),
                    is_half_used: level.plus(level) > capacity,
                    demand,
                }
            }
            StoreState::Window { current, left, .. } => {
                let requests = Cells::new(limit.requests());
                Self {
                    whole: requests,
                    room: requests.less(current),
                    full_for: (current >= requests).then_some(left),
                    is_half_used: false,
                    demand: 0,
                }
            }
        }
    }
}
