//! What passes between a pod and the store. `sync/apply.lua` is the other end of it.
//!
//! No absolute time is among it: a pod sends cells and prices and is answered levels, all of them lengths.

use super::Share;
use crate::pure::{Cells, Limit, Span};

/// The parts of the store. A lane is a Redis hash tag: what is in one lane is in one slot of a cluster.
pub const LANES: u8 = 64;
/// Keys of one call, at most: about a millisecond of Redis.
pub const BATCH_MAX: usize = 100;
/// The longest debt, whatever the limit.
const DEBT_MAX: Span = Span::seconds(60);
/// The longest debt that rare news is a reason for.
const DEBT_HEARD_MAX: Span = Span::seconds(2);
/// Of a key that a pod knows nothing of, so much of its limit is taken for used where its value in the store is spoilt.
const ASSUMED_MAX: Span = Span::seconds(60);
/// What a level must have grown by to be news, as long as there is not too much of it.
pub const NEWS_STEP: Span = Span::nanos(20_000_000);

/// One part of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

impl Lane {
    /// The lane of that number, wrapped into the range.
    pub const fn new(number: u8) -> Self {
        Self(number & 63)
    }

    /// The lane of the key `name`.
    pub const fn of(name: u128) -> Self {
        let [.., low] = name.to_be_bytes();
        Self::new(low)
    }

    /// Its number, below [`LANES`].
    pub const fn number(self) -> u8 {
        self.0
    }

    /// Every lane.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..LANES).map(Self)
    }
}

/// How a key is counted in the store. Part of the key's name there: what is counted differently is another key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BucketKind {
    /// A level under a rule's limit.
    Level,
    /// A level under limits that callers carry: a time line that no rule gives a scale.
    Caller,
    /// Counts per window.
    Window,
}

/// What names a key in the store, alike on every pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreKey {
    /// How it is counted.
    pub kind: BucketKind,
    /// Its rule.
    pub rule: u64,
    /// Its name.
    pub name: u128,
}

impl BucketKind {
    /// Whether callers supply the limit, which may be another one every time.
    pub const fn has_limits_of_callers(self) -> bool {
        matches!(self, Self::Caller)
    }
}

impl StoreKey {
    /// A key of a level rule.
    pub const fn level(rule: u64, name: u128) -> Self {
        let kind = BucketKind::Level;
        Self { kind, rule, name }
    }

    /// A key with a caller-supplied limit.
    pub const fn caller(rule: u64, name: u128) -> Self {
        let kind = BucketKind::Caller;
        Self { kind, rule, name }
    }

    /// A key of a windowed rule.
    pub const fn window(rule: u64, name: u128) -> Self {
        let kind = BucketKind::Window;
        Self { kind, rule, name }
    }

    /// Whether the store counts it in windows.
    pub const fn is_windowed(&self) -> bool {
        matches!(self.kind, BucketKind::Window)
    }

    /// The lane it lives in.
    pub const fn lane(&self) -> Lane {
        Lane::of(self.name)
    }
}

/// What a key is counted under.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terms {
    /// A bucket.
    Level {
        /// What one cell costs.
        interval: Span,
        /// The level it may reach.
        capacity: Span,
        /// How far above that overshoot is booked.
        debt_max: Span,
    },
    /// Windows aligned to the epoch.
    Window {
        /// How long one is.
        window: Span,
        /// The cells of one.
        requests: Cells,
        /// Whether the window before counts too, by how much of it is still in sight. Only a [`Take`] needs to know.
        sliding: bool,
    },
}

impl Terms {
    /// A bucket of `limit`. Its debt is at most one burst and at most a minute, but at least one cell.
    pub fn level(limit: &Limit) -> Self {
        Self::Level {
            interval: limit.interval(),
            capacity: limit.capacity(),
            debt_max: limit.capacity().min(DEBT_MAX).max(limit.interval()),
        }
    }

    /// A bucket of `limit` whose rule charges what it denies. Its debt is at most one burst, however long that takes to
    /// drain: a day's budget is repaid in days.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Terms;
    /// use tidegate_core::pure::{Limit, LimitFault, Span, Unit};
    /// let limit = Limit::new(1_000_000, Unit::Day, 1, None)?;
    /// assert_eq!(Terms::charging(&limit).level_max(), Span::seconds(2 * 86_400));
    /// assert_eq!(Terms::level(&limit).level_max(), Span::seconds(86_400 + 60));
    /// # Ok::<(), LimitFault>(())
    /// ```
    pub fn charging(limit: &Limit) -> Self {
        Self::Level {
            interval: limit.interval(),
            capacity: limit.capacity(),
            debt_max: limit.capacity().max(limit.interval()),
        }
    }

    /// These terms where pods hear of a level only every `news_step`: what they admit meanwhile is booked too.
    ///
    /// ```
    /// use tidegate_core::pure::sync::Terms;
    /// use tidegate_core::pure::{Limit, Span, Unit};
    /// let terms = Terms::level(&Limit::new(30, Unit::Second, 1, None).expect("sound"));
    /// assert_eq!(terms.heard_every(Span::nanos(20_000_000)), terms);
    /// let debt_max = |terms| match terms { Terms::Level { debt_max, .. } => debt_max, Terms::Window { .. } => Span::ZERO };
    /// assert_eq!(debt_max(terms.heard_every(Span::nanos(700_000_000))), Span::nanos(1_400_000_000));
    /// assert_eq!(debt_max(terms.heard_every(Span::seconds(5))), Span::seconds(2));
    /// ```
    #[must_use]
    pub fn heard_every(self, news_step: Span) -> Self {
        match self {
            Self::Level {
                interval,
                capacity,
                debt_max,
            } => Self::Level {
                interval,
                capacity,
                debt_max: debt_max.max(news_step.plus(news_step).min(DEBT_HEARD_MAX)),
            },
            Self::Window { .. } => self,
        }
    }

    /// The highest level a bucket has.
    pub const fn level_max(&self) -> Span {
        match self {
            Self::Level {
                capacity, debt_max, ..
            } => capacity.plus(*debt_max),
            Self::Window { window, .. } => *window,
        }
    }

    /// Windows of `limit`, each by itself.
    pub const fn window(limit: &Limit) -> Self {
        Self::Window {
            window: limit.window(),
            requests: Cells::new(limit.requests()),
            sliding: false,
        }
    }

    /// Windows of `limit` that slide.
    pub const fn sliding(limit: &Limit) -> Self {
        Self::Window {
            window: limit.window(),
            requests: Cells::new(limit.requests()),
            sliding: true,
        }
    }
}

/// What a pod has to tell of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Which.
    pub key: StoreKey,
    /// What it is counted under.
    pub terms: Terms,
    /// Cells admitted.
    pub gross: Cells,
    /// Those of them that have not drained yet, as a price (a level) ...
    pub price: Span,
    /// ... or as cells (windows).
    pub billed: Cells,
    /// How long ago they were admitted; the store picks their window by it.
    pub age: Span,
    /// This pod's part of the key's demand, and so of its refill: what of it drained while the delta could not be told
    /// is not billed. The whole is wrong here unless the pod is alone: every pod would net the same refill.
    pub share: Share,
    /// Whether the other pods are to report this key too.
    pub live: bool,
    /// How full the key is without this delta, as far as this pod knows: a value that is no value of ours starts again
    /// there.
    pub known: Known,
}

/// How full a key is, as far as a pod knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// A bucket's level ...
    pub level: Span,
    /// ... or the cells of the present window.
    pub cells: Cells,
}

impl Known {
    /// What a pod that knows nothing of a key has to assume: that it is full, but no longer than a minute.
    ///
    /// ```
    /// use tidegate_core::pure::sync::{Known, Terms};
    /// use tidegate_core::pure::{Cells, Limit, Span, Unit};
    /// let limit = |unit| Limit::new(100, unit, 1, None).expect("sound");
    /// assert_eq!(Known::assumed(&Terms::level(&limit(Unit::Second))).level, Span::seconds(1));
    /// assert_eq!(Known::assumed(&Terms::level(&limit(Unit::Hour))).level, Span::seconds(60));
    /// assert_eq!(Known::assumed(&Terms::window(&limit(Unit::Minute))).cells, Cells::new(100));
    /// assert_eq!(Known::assumed(&Terms::window(&limit(Unit::Hour))).cells, Cells::new(2));
    /// ```
    pub fn assumed(terms: &Terms) -> Self {
        match terms {
            Terms::Level { capacity, .. } => Self {
                level: (*capacity).min(ASSUMED_MAX),
                cells: Cells::ZERO,
            },
            Terms::Window {
                window, requests, ..
            } => Self {
                level: Span::ZERO,
                cells: Share::of(ASSUMED_MAX.get(), window.get()).of_cells(*requests),
            },
        }
    }

    /// The same so much later.
    #[must_use]
    fn later(self, elapsed: Span, terms: &Terms) -> Self {
        match terms {
            Terms::Level { .. } => Self {
                level: self.level.less(elapsed),
                ..self
            },
            Terms::Window { window, .. } if elapsed >= *window => Self::default(),
            Terms::Window { .. } => self,
        }
    }
}

impl Delta {
    /// The same delta told `elapsed` later: a level has drained by the pod's share of that time, windows have moved on.
    /// What was admitted stays admitted: `gross` and `billed` do not change.
    ///
    /// ```
    /// use tidegate_core::pure::sync::{Delta, Known, Share, StoreKey, Terms};
    /// use tidegate_core::pure::{Cells, Span};
    /// let delta = Delta {
    ///     key: StoreKey::level(1, 2),
    ///     terms: Terms::Level { interval: Span::nanos(100), capacity: Span::nanos(900), debt_max: Span::ZERO },
    ///     gross: Cells::new(5),
    ///     price: Span::nanos(500),
    ///     billed: Cells::ZERO,
    ///     age: Span::ZERO,
    ///     share: Share::even(4),
    ///     live: false,
    ///     known: Known::default(),
    /// };
    /// let later = delta.netted(Span::nanos(400));
    /// assert_eq!((later.price, later.gross), (Span::nanos(400), Cells::new(5)));
    /// assert_eq!(delta.netted(Span::seconds(9)).price, Span::ZERO);
    /// ```
    #[must_use]
    pub fn netted(self, elapsed: Span) -> Self {
        let price = match self.terms {
            Terms::Level { .. } => self.price.less(self.share.of_span(elapsed)),
            Terms::Window { .. } => self.price,
        };
        Self {
            price,
            age: self.age.plus(elapsed),
            known: self.known.later(elapsed, &self.terms),
            ..self
        }
    }
}

/// What a merge put above capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overshoot {
    /// The cells of it that were admitted.
    pub cells: Cells,
    /// Whether the store forgave debt above `debt_max`.
    pub capped: bool,
}

impl Delta {
    /// What this delta put above capacity, by the store's answer. Cells that were `charged` although they were denied are
    /// debt, and no overshoot. Windows have none.
    pub fn overshoot(&self, state: StoreState, charged: Cells) -> Overshoot {
        let (
            Terms::Level {
                interval, capacity, ..
            },
            StoreState::Level { level, capped, .. },
        ) = (self.terms, state)
        else {
            return Overshoot {
                cells: Cells::ZERO,
                capped: false,
            };
        };
        let charged = interval.times(charged);
        let over = level.less(capacity).min(self.price).less(charged);
        Overshoot {
            cells: over.whole(interval),
            capped,
        }
    }
}

/// One exchange with one lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Which lane.
    pub lane: Lane,
    /// The sequence number the store must have for this call to be applied.
    pub previous: u64,
    /// The sequence number it has afterwards.
    pub sequence: u64,
    /// At most [`BATCH_MAX`], each key once.
    pub deltas: Vec<Delta>,
    /// By how much a level must have grown to be told to the other pods once more.
    pub news_step: Span,
}

/// What the store answers to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Whether it was applied now; otherwise nothing was changed.
    pub applied: bool,
    /// The sequence number the store has now; 0 if it knows nothing of this pod.
    pub sequence: u64,
    /// The cells this lane has ever booked for this pod.
    pub gross: Cells,
    /// How each key stands, in the call's order.
    pub states: Vec<StoreState>,
    /// Values that were no values of ours and were replaced.
    pub repaired: u64,
}

/// How a key stands fleet-wide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// A bucket.
    Level {
        /// How full it is.
        level: Span,
        /// Thousandths of cells that all pods reported lately.
        demand: u64,
        /// Whether debt was forgiven.
        capped: bool,
    },
    /// Windows.
    Window {
        /// Cells of this window.
        current: Cells,
        /// Cells of the one before.
        previous: Cells,
        /// How long this one still is.
        left: Span,
    },
}

impl StoreState {
    /// The least that a refused check waits although this state has room: the key has changed since, or the pod knows
    /// less than the store.
    pub const fn least_wait(&self) -> Span {
        match self {
            Self::Level { .. } => Span::nanos(1),
            Self::Window { left, .. } => *left,
        }
    }
}

/// What pods tell each other through the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// Of which key.
    pub key: StoreKey,
    /// What.
    pub kind: NewsKind,
}

/// A piece of news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsKind {
    /// The key has no room: its level, or for windows how long its window still is.
    Full(Span),
    /// Report all of it for so long.
    Live(Span),
    /// Somebody reset it.
    Reset,
}

/// A pod's sign of life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// After how long without another one it is no longer counted.
    pub expiry: Span,
    /// Resets it knows of.
    pub resets_seen: u64,
    /// Whether this is its last.
    pub leaving: bool,
}

/// What a sign of life is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// Pods alive.
    pub pods: u64,
    /// Resets so far.
    pub resets: u64,
    /// Those it did not know of, oldest first, as far as they are remembered.
    pub reset_keys: Vec<StoreKey>,
}

/// A check of a strict rule, decided by the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Of which key.
    pub key: StoreKey,
    /// What it is counted under.
    pub terms: Terms,
    /// How many cells.
    pub cost: Cells,
    /// Whether cells that are not there are charged all the same, as debt.
    pub charge: bool,
}

/// Cells that callers gave back, to be given back in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refund {
    /// Of which key.
    pub key: StoreKey,
    /// What it is counted under.
    pub terms: Terms,
    /// How many cells.
    pub cells: Cells,
    /// By how much a level falls: less than the cells cost where a part of them had drained.
    pub price: Span,
    /// How long ago they were refunded; the store picks their window by it.
    pub age: Span,
}

impl From<&Take> for Refund {
    /// All that was taken, just now.
    fn from(take: &Take) -> Self {
        Self {
            key: take.key,
            terms: take.terms,
            cells: take.cost,
            price: take.price(),
            age: Span::ZERO,
        }
    }
}

impl Take {
    /// What its cells cost; nothing where windows count them.
    pub const fn price(&self) -> Span {
        match self.terms {
            Terms::Level { interval, .. } => interval.times(self.cost),
            Terms::Window { .. } => Span::ZERO,
        }
    }
}

/// The decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    /// Whether the cells were there, and were taken.
    pub taken: bool,
    /// How the key stands after that.
    pub state: StoreState,
}
