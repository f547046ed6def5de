//! What happens, and when: one heap.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::rc::Rc;

use tidegate_core::pure::sync::{
    Call, Heartbeat, HeartbeatReply, Lane, News, Refund, StoreReply, StoreState,
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
        lane: Lane,
        sent: u64,
        reply: Option<Box<StoreReply>>,
    },
    BeatAtStore {
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

/// What happens when; in a heap, the soonest first, and what was planned first first.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) at: u64,
    number: u64,
    pub(super) event: Event,
}

impl PartialEq for Planned {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Planned {}

impl PartialOrd for Planned {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Planned {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

/// Everything that is yet to happen.
#[derive(Debug, Default)]
pub(super) struct Agenda {
    number: u64,
    heap: BinaryHeap<Reverse<Planned>>,
}

impl Agenda {
    pub(super) fn plan(&mut self, at: u64, event: Event) {
        self.number += 1;
        let number = self.number;
        self.heap.push(Reverse(Planned { at, number, event }));
    }

    /// What happens next, if that is not after `end`.
    pub(super) fn next(&mut self, end: u64) -> Option<Planned> {
        let due = self.heap.peek().is_some_and(|Reverse(next)| next.at <= end);
        match due {
            true => self.heap.pop().map(|Reverse(next)| next),
            false => None,
        }
    }
}
