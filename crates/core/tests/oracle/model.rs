//! The models: each algorithm written straight from its definition, in integers wide enough for any result, without a
//! bound on memory and without optimisation.

use std::collections::BTreeMap;

use tidegate_core::pure::Limit;

/// The time that one cell costs.
fn interval(limit: &Limit) -> u128 {
    let (window, requests) = (window(limit), u128::from(limit.requests()));
    let short = window / requests.max(1);
    if short * requests.max(1) == window {
        short
    } else {
        short + 1
    }
}

fn window(limit: &Limit) -> u128 {
    u128::from(limit.unit().seconds()) * u128::from(limit.unit_multiplier()) * 1_000_000_000
}

fn burst(limit: &Limit) -> u128 {
    u128::from(limit.burst().get())
}

fn requests(limit: &Limit) -> u128 {
    u128::from(limit.requests())
}

/// A model's answer: whether the check fits, and the cells that fit before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    pub allowed: bool,
    pub room: u128,
}

/// A model of one algorithm.
pub trait Model: Default {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer;
    fn book(&mut self, limit: &Limit, at: u64, cost: u64);
}

/// GCRA: water in a vessel of `burst` intervals, which drains one nanosecond's worth per nanosecond.
#[derive(Clone, Debug, Default)]
pub struct Water {
    at: u128,
    level: u128,
}

impl Water {
    /// The level at `at`, which may be a little before the last booking.
    pub fn level(&self, at: u64) -> u128 {
        let at = u128::from(at);
        if at >= self.at {
            self.level.saturating_sub(at - self.at)
        } else {
            self.level + (self.at - at)
        }
    }
}

impl Model for Water {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer {
        let (level, brim) = (self.level(at), burst(limit) * interval(limit));
        Answer {
            allowed: level + u128::from(cost) * interval(limit) <= brim,
            room: brim.saturating_sub(level) / interval(limit),
        }
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        self.level = self.level(at) + u128::from(cost) * interval(limit);
        self.at = u128::from(at);
    }
}

/// Token bucket: tokens in nanoseconds of an interval. It counts the missing ones, so that it starts full. Before the
/// time of the last booking there may be fewer than zero tokens.
#[derive(Clone, Debug, Default)]
pub struct Tokens {
    at: u64,
    taken: u128,
}

impl Tokens {
    fn present(&self, limit: &Limit, at: u64) -> i128 {
        let whole = |parts: u128| i128::try_from(parts).expect("fits");
        let full = whole(burst(limit) * interval(limit));
        let refilled = i128::from(at) - i128::from(self.at);
        (full - whole(self.taken) + refilled).min(full)
    }
}

impl Model for Tokens {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer {
        let present = self.present(limit, at);
        let parts = u128::try_from(present).unwrap_or(0);
        Answer {
            allowed: present >= 0 && parts >= u128::from(cost) * interval(limit),
            room: parts / interval(limit),
        }
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        let parts = u128::try_from(self.present(limit, at)).unwrap_or(0);
        let left = parts - u128::from(cost) * interval(limit);
        self.taken = burst(limit) * interval(limit) - left;
        self.at = at;
    }
}

/// Leaky bucket: every queued batch, with the turn of its first cell. Time does not go back.
#[derive(Clone, Debug, Default)]
pub struct Queue {
    batches: Vec<(u128, u128)>,
}

impl Queue {
    /// The turn of the next batch.
    pub fn turn(&self, limit: &Limit, at: u64) -> u128 {
        let (first, cells) = self.batches.last().copied().unwrap_or_default();
        u128::from(at).max(first + cells * interval(limit))
    }

    /// What has not left yet, in nanoseconds.
    fn waiting(&self, limit: &Limit, at: u64) -> u128 {
        let batch = |&(first, cells): &(u128, u128)| {
            let whole = cells * interval(limit);
            (first + whole).saturating_sub(u128::from(at)).min(whole)
        };
        self.batches.iter().map(batch).sum()
    }
}

impl Model for Queue {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer {
        let free = (burst(limit) * interval(limit)).checked_sub(self.waiting(limit, at));
        Answer {
            allowed: free.is_some_and(|free| free >= u128::from(cost) * interval(limit)),
            room: free.unwrap_or(0) / interval(limit),
        }
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        let turn = self.turn(limit, at);
        self.batches.push((turn, u128::from(cost)));
    }
}

/// The counts of all windows, and the last window with a count.
#[derive(Clone, Debug, Default)]
struct Calendar {
    counts: BTreeMap<u128, u128>,
    last: u128,
}

impl Calendar {
    /// The window in which a check counts, and the time since it began; `None` if somebody has set the calendar back.
    fn place(&self, limit: &Limit, at: u64) -> Option<(u128, u128)> {
        let start = self.last * window(limit);
        if u128::from(at) + window(limit) < start {
            return None;
        }
        let at = u128::from(at).max(start);
        Some((at / window(limit), at % window(limit)))
    }

    fn count(&self, index: u128) -> u128 {
        self.counts.get(&index).copied().unwrap_or(0)
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        if self.place(limit, at).is_none() {
            *self = Self::default();
        }
        let (index, _) = self.place(limit, at).expect("afresh");
        let count = self.counts.entry(index).or_insert(0);
        *count = (*count + u128::from(cost)).min(u128::from(u64::MAX));
        self.last = index;
    }
}

fn fits(limit: &Limit, used: u128, cost: u64) -> Answer {
    Answer {
        allowed: used + u128::from(cost) <= requests(limit),
        room: requests(limit).saturating_sub(used),
    }
}

/// Fixed window.
#[derive(Clone, Debug, Default)]
pub struct Fixed(Calendar);

impl Model for Fixed {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer {
        let place = self.0.place(limit, at);
        fits(
            limit,
            place.map_or(0, |(index, _)| self.0.count(index)),
            cost,
        )
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        self.0.book(limit, at, cost);
    }
}

/// Sliding window: the estimate as a fraction over the window.
#[derive(Clone, Debug, Default)]
pub struct Sliding(Calendar);

impl Model for Sliding {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer {
        let window = window(limit);
        let fraction = self.0.place(limit, at).map_or(0, |(index, elapsed)| {
            let previous = index
                .checked_sub(1)
                .map_or(0, |before| self.0.count(before));
            self.0.count(index) * window + previous * (window - elapsed)
        });
        fits(limit, fraction / window, cost)
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        self.0.book(limit, at, cost);
    }
}

/// Sliding log: all bookings.
#[derive(Clone, Debug, Default)]
pub struct Log {
    booked: Vec<(u128, u128)>,
}

impl Log {
    /// The time at which a check is decided; `None` if somebody has set the calendar back.
    fn at(&self, limit: &Limit, at: u64) -> Option<u128> {
        let last = self.booked.last().map_or(0, |&(last, _)| last);
        (u128::from(at) + window(limit) >= last).then(|| u128::from(at).max(last))
    }

    /// The cells that are younger than a window plus `late`.
    pub fn used(&self, limit: &Limit, at: u64, late: u128) -> u128 {
        let Some(at) = self.at(limit, at) else {
            return 0;
        };
        self.booked
            .iter()
            .filter(|&&(booked, _)| at - booked < window(limit) + late)
            .map(|&(_, cells)| cells)
            .sum()
    }
}

impl Model for Log {
    fn ask(&self, limit: &Limit, at: u64, cost: u64) -> Answer {
        fits(limit, self.used(limit, at, 0), cost)
    }

    fn book(&mut self, limit: &Limit, at: u64, cost: u64) {
        if cost == 0 {
            return;
        }
        if self.at(limit, at).is_none() {
            self.booked.clear();
        }
        let at = self.at(limit, at).expect("afresh");
        self.booked.push((at, u128::from(cost)));
    }
}
