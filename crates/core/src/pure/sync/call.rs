//! The messages between a pod and the store. The scripts in `src/sync/lua` are the other end.
//!
//! No message contains an absolute time: a pod sends cells and prices, and the store answers levels. All of them are
//! lengths. `store_key.rs` names the keys, `terms.rs` says how the store counts them.

use super::{Group, KnownUsage, Share, StoreKey, Terms};
use crate::pure::{Cells, Span};

/// The most keys of one call: about a millisecond of Redis.
pub const BATCH_MAX: usize = 100;
/// The least growth of a level that the store publishes, while there is not too much news.
pub const NEWS_STEP: Span = Span::nanos(20_000_000);

/// What a pod reports of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The key.
    pub key: StoreKey,
    /// The terms under which the store counts the key.
    pub terms: Terms,
    /// The cells that the pod admitted.
    pub gross: Cells,
    /// For a level: the price of those of them that have not drained yet.
    pub price: Span,
    /// For windows: those of them that the store adds to the count.
    pub billed: Cells,
    /// How long ago the pod admitted them. The store picks their window by it.
    pub age: Span,
    /// This pod's part of the key's demand, and so of its refill. While the pod cannot report the delta, it subtracts
    /// this part of what drains. Only a pod that is alone in the fleet may take the whole: otherwise every pod would
    /// subtract the same refill.
    pub share: Share,
    /// Whether the other pods are to report this key too.
    pub live: bool,
    /// How full the key is without this delta, as far as this pod knows. Where the store finds a value that is not
    /// ours, it starts again from there.
    pub known: KnownUsage,
}

impl Delta {
    /// The same delta, reported `elapsed` later: a level has drained by the pod's share of that time, and windows have
    /// moved on. Admitted cells stay admitted: `gross` and `billed` do not change.
    ///
    /// ```
    /// use tidegate_core::pure::sync::{Delta, KnownUsage, Share, StoreKey, Terms};
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
    ///     known: KnownUsage::default(),
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

    /// The overshoot that this delta caused, by the store's answer. Denied cells that were `charged` all the same are
    /// debt, not overshoot. Windows have no overshoot.
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

/// The part of a delta that is above the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overshoot {
    /// The admitted cells above the capacity.
    pub cells: Cells,
    /// Whether the store forgave the debt above `debt_max`.
    pub capped: bool,
}

/// One request to the store: a pod reports deltas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The book group that all of its keys are in.
    pub group: Group,
    /// The sequence number that the store must have to apply this call.
    pub previous: u64,
    /// The sequence number that the store has afterwards.
    pub sequence: u64,
    /// At most [`BATCH_MAX`], each key once.
    pub deltas: Vec<Delta>,
    /// The least growth of a level that the store publishes again.
    pub news_step: Span,
}

impl Call {
    /// Which call it is.
    pub const fn id(&self) -> CallId {
        CallId {
            group: self.group,
            sequence: self.sequence,
            is_probe: self.sequence == self.previous,
        }
    }
}

/// Which call an answer, or its absence, is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallId {
    /// Its book group.
    pub group: Group,
    /// Its sequence number.
    pub sequence: u64,
    /// Whether it only asks what the store has.
    pub is_probe: bool,
}

/// The store's answer to a [`Call`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreReply {
    /// Whether the store applied this call now. Otherwise it changed nothing.
    pub applied: bool,
    /// The sequence number that the store has now; 0 if it has no record of this pod.
    pub sequence: u64,
    /// All cells that the store has ever booked for this pod in this group.
    pub gross: Cells,
    /// The state of each key, in the order of the call.
    pub states: Vec<StoreState>,
    /// How many values were not ours, so that the store replaced them.
    pub repaired: u64,
}

/// The fleet-wide state of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreState {
    /// The state of a bucket.
    Level {
        /// How full the bucket is.
        level: Span,
        /// The fading sum of what all pods reported, in thousandths of cells.
        demand: u64,
        /// Whether the store forgave debt.
        capped: bool,
    },
    /// The state of windows.
    Window {
        /// The cells of the current window.
        current: Cells,
        /// The cells of the window before.
        previous: Cells,
        /// The time until the current window ends.
        left: Span,
    },
}

impl StoreState {
    /// The least wait of a check that the store refused although this state has room: the key has changed since, or the
    /// pod knows less than the store.
    pub const fn least_wait(&self) -> Span {
        match self {
            Self::Level { .. } => Span::nanos(1),
            Self::Window { left, .. } => *left,
        }
    }
}

/// What the store publishes about a key to all pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct News {
    /// The key.
    pub key: StoreKey,
    /// What happened to it.
    pub kind: NewsKind,
}

/// What happened to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewsKind {
    /// The key has no room. The length is its level, or the time until its window ends.
    Full(Span),
    /// The pods are to report every cell of the key for so long.
    Live(Span),
    /// Somebody reset the key.
    Reset,
}

/// A pod's heartbeat: the pod counts as alive until it expires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The time without another heartbeat after which the store stops counting the pod.
    pub expiry: Span,
    /// The number of resets that the pod knows of.
    pub resets_seen: u64,
    /// Whether this is the pod's last heartbeat.
    pub leaving: bool,
}

/// The store's answer to a [`Heartbeat`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeartbeatReply {
    /// The number of pods alive.
    pub pods: u64,
    /// The number of resets so far.
    pub resets: u64,
    /// The keys of the resets that the pod did not know of, oldest first, as far as the store remembers them.
    pub reset_keys: Vec<StoreKey>,
}

/// A check of a strict rule. The store decides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// The key.
    pub key: StoreKey,
    /// The terms under which the store counts the key.
    pub terms: Terms,
    /// The cells that the check costs.
    pub cost: Cells,
    /// Whether the store charges a denied check too, as debt.
    pub charge: bool,
}

impl Take {
    /// The price of its cells; zero for windows, which count cells.
    pub const fn price(&self) -> Span {
        match self.terms {
            Terms::Level { interval, .. } => interval.times(self.cost),
            Terms::Window { .. } => Span::ZERO,
        }
    }
}

/// The store's answer to a [`Take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakeReply {
    /// Whether the cells fitted, so that the store took them.
    pub taken: bool,
    /// The state of the key after that.
    pub state: StoreState,
}

/// Cells that callers gave back, for the store to subtract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refund {
    /// The key.
    pub key: StoreKey,
    /// The terms under which the store counts the key.
    pub terms: Terms,
    /// The cells to refund.
    pub cells: Cells,
    /// The length by which a level falls. It is less than the price of the cells if a part of them had drained.
    pub price: Span,
    /// How long ago the caller refunded them. The store picks their window by it.
    pub age: Span,
}

impl From<&Take> for Refund {
    /// Refunds all cells of a take that was made just now.
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
