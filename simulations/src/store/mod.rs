//! The store: what the scripts do, at what cost in time, and what is left after a restart or a failover.
//!
//! `model.rs` is `apply.lua` and what `take.lua` does with refunds once more; `tests/store/histories.rs` shows that both
//! answer alike. `heartbeats.rs` is
//! `heartbeat.lua` and `reset.lua`.

mod heartbeats;
#[expect(
    dead_code,
    reason = "the histories compare every value with the real one"
)]
mod model;

use std::collections::VecDeque;

use tidegate_core::pure::Cells;
use tidegate_core::pure::sync::{
    Call, Delta, Heartbeat, HeartbeatReply, News, NewsKind, Refund, StoreKey, StoreReply,
    StoreState, Terms,
};

use crate::scenario::{RawRedis, Restart};
use heartbeats::Beats;
use model::{KeptRecord, Model};

/// A part of the algorithm that is left out, to see what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Without {
    /// The script books a batch whatever number it has.
    SequenceCheck,
    /// What was collected while the store was gone is billed as if it were new.
    NetBilling,
    /// Pods tell each other nothing.
    News,
    /// What was admitted too much is forgotten.
    Debt,
}

impl Without {
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

/// Something that was applied, as long as a failover might lose it.
#[derive(Debug)]
struct Written {
    at: u64,
    what: Write,
    now_us: u64,
}

/// What was applied.
#[derive(Debug)]
enum Write {
    Call(u128, Call),
    Refund(Refund),
}

/// The store of a simulated fleet.
#[derive(Debug)]
pub struct Store {
    primary: Model,
    heartbeats: Beats,
    /// What a failover would find, and what it has not heard of yet; only kept where there are failovers.
    replica: Option<(Model, VecDeque<Written>)>,
    cost: RawRedis,
    without: Option<Without>,
    busy_until: u64,
}

impl Store {
    pub fn new(cost: RawRedis, without: Option<Without>, fails_over: bool) -> Self {
        Self {
            primary: Model::default(),
            heartbeats: Beats::default(),
            replica: fails_over.then(Default::default),
            cost,
            without,
            busy_until: 0,
        }
    }

    /// When a call of so many keys that comes at `now` is done, if the store is not ready before `ready`.
    pub fn served(&mut self, keys: usize, now: u64, ready: u64) -> u64 {
        let takes = self.cost.call.nanos() + self.cost.key.nanos() * keys as u64;
        self.busy_until = self.busy_until.max(now).max(ready) + takes;
        self.busy_until
    }

    /// Books a call at `now`, which the store's clock shows as `now_us`. Answers it, and what there is to tell.
    pub fn apply(
        &mut self,
        incarnation: u128,
        mut call: Call,
        now: u64,
        now_us: u64,
    ) -> (StoreReply, Vec<News>) {
        match self.without {
            Some(Without::SequenceCheck) => {
                let record = self.record(incarnation, &call);
                if call.sequence != call.previous {
                    call.previous = record;
                }
            }
            Some(Without::NetBilling) => call.deltas.iter_mut().for_each(bill_in_full),
            Some(Without::Debt) => call.deltas.iter_mut().for_each(forget_debt),
            Some(Without::News) | None => {}
        }
        let reply = self.primary.apply(incarnation, &call, now_us);
        let news = std::mem::take(&mut self.primary.news);
        if reply.applied
            && let Some((_, written)) = &mut self.replica
        {
            written.push_back(Written {
                at: now,
                what: Write::Call(incarnation, call),
                now_us,
            });
        }
        match self.without {
            Some(Without::News) => (reply, Vec::new()),
            Some(Without::SequenceCheck | Without::NetBilling | Without::Debt) | None => {
                (reply, news)
            }
        }
    }

    /// Gives cells back at `now`, and says how their key stands since, and what there is to tell.
    pub fn give_back(&mut self, refund: Refund, now: u64, now_us: u64) -> (StoreState, Vec<News>) {
        let store_state = self.primary.give_back(&refund, now_us);
        let news = std::mem::take(&mut self.primary.news);
        if let Some((_, written)) = &mut self.replica {
            written.push_back(Written {
                at: now,
                what: Write::Refund(refund),
                now_us,
            });
        }
        match self.without {
            Some(Without::News) => (store_state, Vec::new()),
            Some(Without::SequenceCheck | Without::NetBilling | Without::Debt) | None => {
                (store_state, news)
            }
        }
    }

    /// What telling so many pods takes the store.
    pub fn note_pods(&mut self, pods: usize, now: u64) {
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

    /// Somebody resets `key`.
    pub fn reset(&mut self, key: StoreKey) -> News {
        self.primary.keys.remove(&key);
        if let Some((replica, written)) = &mut self.replica {
            // A failover that forgets a reset is not simulated.
            replica.keys.remove(&key);
            written.retain_mut(|one| match &mut one.what {
                Write::Call(_, call) => {
                    call.deltas.retain(|delta| delta.key != key);
                    true
                }
                Write::Refund(refund) => refund.key != key,
            });
        }
        self.heartbeats.reset(key);
        News {
            key,
            kind: NewsKind::Reset,
        }
    }

    /// It was restarted.
    pub fn restart(&mut self, restart: Restart) {
        self.busy_until = 0;
        if restart == Restart::Empty {
            self.primary = Model::default();
            self.heartbeats = Beats::default();
            self.replica = self.replica.take().map(|_| Default::default());
        }
    }

    /// Another server takes over, which has not heard of what was written after `heard_until`.
    pub fn fail_over(&mut self, heard_until: u64) {
        self.busy_until = 0;
        let Some((replica, written)) = &mut self.replica else {
            return;
        };
        for one in written.drain(..) {
            if one.at <= heard_until {
                match one.what {
                    Write::Call(incarnation, call) => {
                        replica.apply(incarnation, &call, one.now_us);
                    }
                    Write::Refund(refund) => {
                        replica.give_back(&refund, one.now_us);
                    }
                }
                replica.news.clear();
            }
        }
        self.primary = replica.clone();
    }

    /// The cells it has booked for a pod, in all lanes.
    pub fn gross(&self, incarnation: u128) -> Cells {
        let of_pod = self
            .primary
            .records
            .iter()
            .filter(|((_, pod), _)| *pod == incarnation);
        let gross = of_pod.map(|(_, kept)| match kept {
            KeptRecord::Record(record) => Cells::new(record.gross),
            KeptRecord::Poison => Cells::ZERO,
        });
        gross.fold(Cells::ZERO, Cells::plus)
    }

    fn record(&self, incarnation: u128, call: &Call) -> u64 {
        match self.primary.records.get(&(call.lane, incarnation)) {
            Some(KeptRecord::Record(record)) => record.sequence,
            Some(KeptRecord::Poison) | None => 0,
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
