//! This pod's membership of the fleet: its heartbeats, and how many pods they count.

use crate::pure::sync::{Heartbeat, HeartbeatReply};
use crate::pure::{Cells, Nanos, Span};

/// How often a pod sends a heartbeat, in a fleet of up to [`PODS_PER_SECOND`]; in a larger one less often.
const HEARTBEAT: Span = Span::seconds(1);
const PODS_PER_SECOND: u64 = 200;
/// The store drops a pod that has missed three heartbeats.
const HEARTBEATS_MISSED_MAX: u64 = 3;
/// News of a reset asks for a heartbeat before its time, at most once in this time; in a large fleet less often.
const PROMPTED_EVERY: Span = Span::nanos(100_000_000);
const PROMPTED_EVERY_PER_POD: Span = Span::nanos(1_000_000);
/// After so many answers with the same number of pods, the pod trusts that number.
const HEARTBEATS_STEADY: u32 = 2;

/// Whether this pod is a member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Presence {
    #[default]
    Member,
    /// The next heartbeat is the last.
    Leaving,
    /// The last heartbeat was sent.
    Left,
}

/// What a pod knows of its fleet from its heartbeats.
#[derive(Debug, Default)]
pub(super) struct Membership {
    pods: u64,
    presence: Presence,
    /// Answers in a row with the same number of pods.
    steady_heartbeats: u32,
    /// When the next heartbeat is due; `None`: at once.
    next_heartbeat: Option<Nanos>,
    is_in_flight: bool,
    /// Whether news asks for a heartbeat before its time.
    is_wanted: bool,
    /// From when on news may have its next one; `None`: it has had none yet.
    prompted_from: Option<Nanos>,
    /// Whether news asked for the last heartbeat.
    is_prompted: bool,
    resets_seen: u64,
    heartbeats: usize,
}

impl Membership {
    /// Pods alive, as the store counted them last; 0 before its first answer.
    pub(super) const fn pods(&self) -> u64 {
        self.pods
    }

    pub(super) fn heartbeat_interval(&self) -> Span {
        HEARTBEAT.times(Cells::new(self.pods.div_ceil(PODS_PER_SECOND).max(1)))
    }

    /// When the next heartbeat is due.
    pub(super) fn heartbeat_due(&self, now: Nanos) -> Nanos {
        if self.is_in_flight || self.presence == Presence::Left {
            return now.after(HEARTBEAT);
        }
        let due = self.next_heartbeat.unwrap_or(now);
        match self.is_wanted {
            true => due.min(self.prompted_from.unwrap_or(now)).max(now),
            false => due.max(now),
        }
    }

    /// News says that a key was reset: the pod sends the next heartbeat, whose answer has the resets, early.
    pub(super) const fn prompt_heartbeat(&mut self) {
        self.is_wanted = true;
    }

    /// Whether news asked for the last heartbeat.
    pub(super) const fn is_prompted(&self) -> bool {
        self.is_prompted
    }

    /// The next heartbeat, if it is time.
    pub(super) fn heartbeat(&mut self, now: Nanos) -> Option<Heartbeat> {
        let is_time = self.next_heartbeat.is_none_or(|at| now >= at);
        let is_prompted = self.is_wanted && self.prompted_from.is_none_or(|from| now >= from);
        let may_send = !self.is_in_flight && self.presence != Presence::Left;
        if !may_send || !(is_time || is_prompted) {
            return None;
        }
        self.is_in_flight = true;
        self.is_wanted = false;
        self.is_prompted = !is_time;
        match is_time {
            true => self.next_heartbeat = Some(now.after(self.heartbeat_interval())),
            false => {
                let per_pod = PROMPTED_EVERY_PER_POD.times(Cells::new(self.pods));
                self.prompted_from = Some(now.after(PROMPTED_EVERY.max(per_pod)));
            }
        }
        let leaving = self.presence == Presence::Leaving;
        if leaving {
            self.presence = Presence::Left;
        }
        Some(Heartbeat {
            expiry: self
                .heartbeat_interval()
                .times(Cells::new(HEARTBEATS_MISSED_MAX))
                .plus(HEARTBEAT),
            resets_seen: self.resets_seen,
            leaving,
        })
    }

    /// The next heartbeat is the last, and is sent at once.
    pub(super) fn leave(&mut self) {
        if self.presence == Presence::Member {
            self.presence = Presence::Leaving;
        }
        self.next_heartbeat = None;
    }

    /// The store answered a heartbeat.
    pub(super) fn heartbeat_answered(&mut self, reply: &HeartbeatReply) {
        self.is_in_flight = false;
        self.resets_seen = reply.resets;
        let changed = self.pods != reply.pods;
        self.pods = reply.pods;
        // Heartbeats that news asks for may follow each other closely, and do not show that the number is steady.
        self.steady_heartbeats = match (changed, self.is_prompted) {
            (true, _) => 0,
            (false, true) => self.steady_heartbeats,
            (false, false) => self.steady_heartbeats.saturating_add(1),
        };
    }

    /// The store did not answer a heartbeat. The pod keeps the number of pods that it knows.
    pub(super) fn heartbeat_failed(&mut self) {
        self.is_in_flight = false;
        self.steady_heartbeats = 0;
    }

    /// Whether the store counts this pod, and the number of pods is steady.
    pub(super) fn is_steady(&self) -> bool {
        self.steady_heartbeats >= HEARTBEATS_STEADY && !self.is_leaving()
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.presence != Presence::Member
    }

    /// Counts the heartbeats that were due by the clock.
    pub(super) const fn count_heartbeat(&mut self) -> usize {
        self.heartbeats = self.heartbeats.wrapping_add(1);
        self.heartbeats
    }
}
