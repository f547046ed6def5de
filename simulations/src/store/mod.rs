//! The simulated store: the scripts, the time they take, and the data that survives a restart or a failover.
//!
//! `model` does what `apply.lua` does, and `take.lua` with refunds; `tests/store/histories.rs` shows that both answer
//! alike. `heartbeats.rs` does what `heartbeat.lua` and `reset.lua` do.

mod heartbeats;
pub mod model;

use std::collections::VecDeque;

use tidegate_core::pure::Cells;
use tidegate_core::pure::sync::{
    Call, Delta, Heartbeat, HeartbeatReply, News, NewsKind, Refund, StoreKey, StoreReply,
    StoreState, Terms,
};

use crate::scenario::{RawRedis, Restart};
use heartbeats::LivePods;
use model::{StoreModel, StoredRecord};

/// A part of the algorithm that a run leaves out, to show its effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ablation {
    /// The script books a batch whatever its number.
    SequenceCheck,
    /// Cells that were collected while the store was unreachable are billed as if they were new.
    NetBilling,
    /// The store publishes no news.
    News,
    /// Overshoot is forgotten.
    Debt,
}

impl Ablation {
    pub const ALL: [Self; 4] = [
        Self::SequenceCheck,
        Self::NetBilling,
        Self::News,
        Self::Debt,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Self::SequenceCheck => "sequence-check",
            Self::NetBilling => "net-billing",
            Self::News => "news",
            Self::Debt => "debt",
        }
    }
}

/// A write that a failover might still lose.
#[derive(Debug)]
struct UnreplicatedWrite {
    at: u64,
    what: StoreWrite,
    now_us: u64,
}

/// A write to the store.
#[derive(Debug)]
enum StoreWrite {
    Call(u128, Call),
    Refund(Refund),
}

/// The store of a simulated fleet.
#[derive(Debug)]
pub(crate) struct SimulatedStore {
    primary: StoreModel,
    heartbeats: LivePods,
    /// The replica, and the writes that have not reached it; only in scenarios with failovers.
    replica: Option<(StoreModel, VecDeque<UnreplicatedWrite>)>,
    cost: RawRedis,
    without: Option<Ablation>,
    busy_until: u64,
}

impl SimulatedStore {
    pub fn new(cost: RawRedis, without: Option<Ablation>, fails_over: bool) -> Self {
        Self {
            primary: StoreModel::default(),
            heartbeats: LivePods::default(),
            replica: fails_over.then(Default::default),
            cost,
            without,
            busy_until: 0,
        }
    }

    /// The time at which the store finishes a call of so many keys that comes at `now`, if it is not ready before `ready`.
    pub fn served(&mut self, keys: usize, now: u64, ready: u64) -> u64 {
        let takes = self.cost.call.nanos() + self.cost.key.nanos() * keys as u64;
        self.busy_until = self.busy_until.max(now).max(ready) + takes;
        self.busy_until
    }

    /// Applies a call at `now`, which is `now_us` on the store's clock. Returns the reply and the news to publish.
    pub fn apply(
        &mut self,
        incarnation: u128,
        mut call: Call,
        now: u64,
        now_us: u64,
    ) -> (StoreReply, Vec<News>) {
        match self.without {
            Some(Ablation::SequenceCheck) => {
                let record = self.record(incarnation, &call);
                if call.sequence != call.previous {
                    call.previous = record;
                }
            }
            Some(Ablation::NetBilling) => call.deltas.iter_mut().for_each(bill_in_full),
            Some(Ablation::Debt) => call.deltas.iter_mut().for_each(forget_debt),
            Some(Ablation::News) | None => {}
        }
        let reply = self.primary.apply(incarnation, &call, now_us);
        let news = std::mem::take(&mut self.primary.news);
        if reply.applied
            && let Some((_, written)) = &mut self.replica
        {
            written.push_back(UnreplicatedWrite {
                at: now,
                what: StoreWrite::Call(incarnation, call),
                now_us,
            });
        }
        match self.without {
            Some(Ablation::News) => (reply, Vec::new()),
            Some(Ablation::SequenceCheck | Ablation::NetBilling | Ablation::Debt) | None => {
                (reply, news)
            }
        }
    }

    /// Refunds cells at `now`. Returns the new state of their key and the news to publish.
    pub fn give_back(&mut self, refund: Refund, now: u64, now_us: u64) -> (StoreState, Vec<News>) {
        let store_state = self.primary.give_back(&refund, now_us);
        let news = std::mem::take(&mut self.primary.news);
        if let Some((_, written)) = &mut self.replica {
            written.push_back(UnreplicatedWrite {
                at: now,
                what: StoreWrite::Refund(refund),
                now_us,
            });
        }
        match self.without {
            Some(Ablation::News) => (store_state, Vec::new()),
            Some(Ablation::SequenceCheck | Ablation::NetBilling | Ablation::Debt) | None => {
                (store_state, news)
            }
        }
    }

    /// Adds the time that the store takes to send news to so many pods.
    pub fn add_deliveries(&mut self, pods: usize, now: u64) {
        self.busy_until = self.busy_until.max(now) + self.cost.message.nanos() * pods as u64;
    }

    pub fn heartbeat(
        &mut self,
        incarnation: u128,
        heartbeat: &Heartbeat,
        now_us: u64,
    ) -> HeartbeatReply {
        self.heartbeats.heartbeat(incarnation, heartbeat, now_us)
    }

    /// Resets `key`.
    pub fn reset(&mut self, key: StoreKey) -> News {
        self.primary.keys.remove(&key);
        if let Some((replica, written)) = &mut self.replica {
            // A failover that forgets a reset is not simulated.
            replica.keys.remove(&key);
            written.retain_mut(|one| match &mut one.what {
                StoreWrite::Call(_, call) => {
                    call.deltas.retain(|delta| delta.key != key);
                    true
                }
                StoreWrite::Refund(refund) => refund.key != key,
            });
        }
        self.heartbeats.reset(key);
        News {
            key,
            kind: NewsKind::Reset,
        }
    }

    /// Restarts the store.
    pub fn restart(&mut self, restart: Restart) {
        self.busy_until = 0;
        if restart == Restart::Empty {
            self.primary = StoreModel::default();
            self.heartbeats = LivePods::default();
            self.replica = self.replica.take().map(|_| Default::default());
        }
    }

    /// The replica takes over. It does not have the writes after `replicated_until`.
    pub fn fail_over(&mut self, replicated_until: u64) {
        self.busy_until = 0;
        let Some((replica, written)) = &mut self.replica else {
            return;
        };
        for one in written.drain(..) {
            if one.at <= replicated_until {
                match one.what {
                    StoreWrite::Call(incarnation, call) => {
                        replica.apply(incarnation, &call, one.now_us);
                    }
                    StoreWrite::Refund(refund) => {
                        replica.give_back(&refund, one.now_us);
                    }
                }
                replica.news.clear();
            }
        }
        self.primary = replica.clone();
    }

    /// The cells that it has booked for a pod, in all groups.
    pub fn gross(&self, incarnation: u128) -> Cells {
        let of_pod = self
            .primary
            .records
            .iter()
            .filter(|((_, pod), _)| *pod == incarnation);
        let gross = of_pod.map(|(_, stored)| match stored {
            StoredRecord::Record(record) => Cells::new(record.gross),
            StoredRecord::Poison => Cells::ZERO,
        });
        gross.fold(Cells::ZERO, Cells::plus)
    }

    fn record(&self, incarnation: u128, call: &Call) -> u64 {
        match self.primary.records.get(&(call.group, incarnation)) {
            Some(StoredRecord::Record(record)) => record.sequence,
            Some(StoredRecord::Poison) | None => 0,
        }
    }
}

fn bill_in_full(delta: &mut Delta) {
    if let Terms::Level { interval, .. } = delta.terms {
        delta.price = interval.times(delta.gross);
    }
}

fn forget_debt(delta: &mut Delta) {
    if let Terms::Level { debt_max, .. } = &mut delta.terms {
        *debt_max = tidegate_core::pure::Span::ZERO;
    }
}
