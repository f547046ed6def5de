//! The events of a run, in one heap.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;

use tidegate_core::pure::sync::{
    Call, CallId, Heartbeat, HeartbeatReply, News, Refund, StoreReply, StoreState,
};

#[derive(Debug)]
pub(super) enum Event {
    Start {
        pod: usize,
    },
    Turn {
        pod: usize,
    },
    AtStore {
        pod: usize,
        sent: u64,
        call: Box<Call>,
    },
    Served {
        pod: usize,
        sent: u64,
        call: Box<Call>,
    },
    Answer {
        pod: usize,
        id: CallId,
        sent: u64,
        reply: Option<Box<StoreReply>>,
    },
    HeartbeatAtStore {
        pod: usize,
        sent: u64,
        heartbeat: Heartbeat,
    },
    HeartbeatReply {
        pod: usize,
        heartbeat_answered: Option<Box<HeartbeatReply>>,
    },
    RefundAtStore {
        pod: usize,
        sent: u64,
        refund: Refund,
    },
    RefundServed {
        pod: usize,
        sent: u64,
        refund: Refund,
    },
    GivenBack {
        pod: usize,
        sent: u64,
        refund: Refund,
        store_state: Option<StoreState>,
    },
    News {
        group: usize,
        news: Rc<[News]>,
    },
    Fault {
        number: usize,
    },
    Replace {
        pod: usize,
    },
    Stop {
        pod: usize,
    },
}

/// An event and its time. The soonest comes first; of events at one time, the one that was planned first.
#[derive(Debug)]
pub(super) struct PlannedEvent {
    pub(super) at: u64,
    number: u64,
    pub(super) event: Event,
}

impl PartialEq for PlannedEvent {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PlannedEvent {}

impl PartialOrd for PlannedEvent {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for PlannedEvent {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// All future events.
#[derive(Debug, Default)]
pub(super) struct EventQueue {
    number: u64,
    heap: BinaryHeap<Reverse<PlannedEvent>>,
}

impl EventQueue {
    pub(super) fn plan(&mut self, at: u64, event: Event) {
        self.number += 1;
        let number = self.number;
        self.heap.push(Reverse(PlannedEvent { at, number, event }));
    }

    /// The next event, if it is not after `end`.
    pub(super) fn next(&mut self, end: u64) -> Option<PlannedEvent> {
        let due = self.heap.peek().is_some_and(|Reverse(next)| next.at <= end);
        match due {
            true => self.heap.pop().map(|Reverse(next)| next),
            false => None,
        }
    }
}
