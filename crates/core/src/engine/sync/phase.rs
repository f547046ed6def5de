//! The phases of a key in the sync: silent, loud, queued, in flight.
//!
//! A phase carries what only it has. [`KeyPhase::after`] is the one place that changes it, and has an arm for every pair of
//! phase and event; docs/key-phases.md is the table, printed by the test below.

use super::figures::Reason;
use super::queue::QueuePlace;
use crate::engine::buckets::{BucketAddress, FrozenCells};
use crate::pure::sync::Terms;
use crate::pure::{Cells, Nanos};

/// A silent key is loud until then: never. An `Option` would take eight bytes more of each tracked key.
const NOT_LOUD: Nanos = Nanos::new(0);

/// Where a key is on its way to the store.
#[derive(Clone, Debug)]
pub(super) enum KeyPhase {
    /// This pod uses the key within its even share and reports nothing of it.
    Silent,
    /// This pod reports every cell of it. Nothing is queued or in flight.
    Loud {
        until: Nanos,
        /// Why it wants a round, while its last round is too recent.
        postponed: Option<Reason>,
    },
    /// It waits in the send queue. A silent key does so only to ask the store.
    Queued {
        /// [`NOT_LOUD`] for a silent key.
        loud_until: Nanos,
        place: QueuePlace,
    },
    /// It is in a batch.
    InFlight {
        /// [`NOT_LOUD`] for a silent key.
        loud_until: Nanos,
        /// Boxed: few of the tracked keys are in flight at a time.
        flight: Box<Flight>,
    },
}

/// A key on its way to the store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flight {
    pub(super) frozen: FrozenCells,
    pub(super) terms: Terms,
    /// Cells in the flight that were charged although they were denied.
    pub(super) charged: Cells,
    /// Where its bucket is.
    pub(super) address: BucketAddress,
    /// Whether the key was reset meanwhile: the answer is about the key before the reset.
    pub(super) stale: bool,
}

/// What happens to a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum PhaseEvent {
    /// It is contested: this pod reports it until then at least.
    Contend(Nanos),
    /// It has been loud for long enough.
    Calm,
    /// It wants a round too soon after its last one.
    Postpone(Reason),
    /// It gets a place in the send queue, or a better one.
    Enqueue(QueuePlace),
    /// It leaves the queue with nothing to report.
    Dequeue,
    /// It leaves the queue in a batch.
    Send(Flight),
    /// Its batch was answered, or its answer is of no use.
    Land,
}

impl KeyPhase {
    /// The phase after `event`.
    pub(super) fn after(self, event: PhaseEvent) -> Self {
        use PhaseEvent::{Calm, Contend, Dequeue, Enqueue, Land, Postpone, Send};
        match (self, event) {
            (Self::Silent, Contend(until)) => Self::resting(until),
            (Self::Silent, Calm | Postpone(_) | Dequeue | Send(_) | Land) => Self::Silent,
            (Self::Silent, Enqueue(place)) => Self::Queued {
                loud_until: NOT_LOUD,
                place,
            },

            (Self::Loud { until, postponed }, Contend(longer)) => Self::Loud {
                until: until.max(longer),
                postponed,
            },
            (Self::Loud { .. }, Calm) => Self::Silent,
            (Self::Loud { until, .. }, Postpone(reason)) => Self::Loud {
                until,
                postponed: Some(reason),
            },
            (Self::Loud { until, .. }, Enqueue(place)) => Self::Queued {
                loud_until: until,
                place,
            },
            (loud @ Self::Loud { .. }, Dequeue | Send(_) | Land) => loud,

            (Self::Queued { loud_until, place }, Contend(until)) => Self::Queued {
                loud_until: loud_until.max(until),
                place,
            },
            (Self::Queued { place, .. }, Calm) => Self::Queued {
                loud_until: NOT_LOUD,
                place,
            },
            (Self::Queued { loud_until, .. }, Enqueue(place)) => Self::Queued { loud_until, place },
            (Self::Queued { loud_until, .. }, Dequeue) => Self::resting(loud_until),
            (Self::Queued { loud_until, .. }, Send(flight)) => Self::InFlight {
                loud_until,
                flight: Box::new(flight),
            },
            (queued @ Self::Queued { .. }, Postpone(_) | Land) => queued,

            (Self::InFlight { loud_until, flight }, Contend(until)) => Self::InFlight {
                loud_until: loud_until.max(until),
                flight,
            },
            (Self::InFlight { flight, .. }, Calm) => Self::InFlight {
                loud_until: NOT_LOUD,
                flight,
            },
            (Self::InFlight { loud_until, .. }, Land) => Self::resting(loud_until),
            (flying @ Self::InFlight { .. }, Postpone(_) | Enqueue(_) | Dequeue | Send(_)) => {
                flying
            }
        }
    }

    fn resting(loud_until: Nanos) -> Self {
        match loud_until {
            NOT_LOUD => Self::Silent,
            until => Self::Loud {
                until,
                postponed: None,
            },
        }
    }

    /// Until when this pod reports every cell; `None` while it is silent.
    pub(super) fn loud_until(&self) -> Option<Nanos> {
        match self {
            Self::Silent => None,
            Self::Loud { until, .. } => Some(*until),
            Self::Queued { loud_until, .. } | Self::InFlight { loud_until, .. } => {
                Some(*loud_until).filter(|until| *until > NOT_LOUD)
            }
        }
    }

    pub(super) const fn place(&self) -> Option<QueuePlace> {
        match self {
            Self::Queued { place, .. } => Some(*place),
            Self::Silent | Self::Loud { .. } | Self::InFlight { .. } => None,
        }
    }

    pub(super) fn flight(&self) -> Option<&Flight> {
        match self {
            Self::InFlight { flight, .. } => Some(flight),
            Self::Silent | Self::Loud { .. } | Self::Queued { .. } => None,
        }
    }

    /// The answer to the key's flight, if it is in one, is of no use: the key was reset meanwhile.
    pub(super) fn spoil_answer(&mut self) {
        if let Self::InFlight { flight, .. } = self {
            flight.stale = true;
        }
    }

    /// Takes out the reason of a round that was postponed.
    pub(super) const fn take_postponed(&mut self) -> Option<Reason> {
        match self {
            Self::Loud { postponed, .. } => postponed.take(),
            Self::Silent | Self::Queued { .. } | Self::InFlight { .. } => None,
        }
    }

    /// Whether nothing of the key is queued or in flight.
    pub(super) const fn is_resting(&self) -> bool {
        matches!(self, Self::Silent | Self::Loud { .. })
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use super::*;
    use crate::engine::sync::queue::Urgency;
    use crate::pure::{Limit, Unit};

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/key-phases.md");
    const NOW: Nanos = Nanos::new(5);

    fn name(phase: &KeyPhase) -> &'static str {
        match (phase, phase.loud_until().is_some()) {
            (KeyPhase::Silent, _) => "silent",
            (
                KeyPhase::Loud {
                    postponed: None, ..
                },
                _,
            ) => "loud",
            (KeyPhase::Loud { .. }, _) => "loud, postponed",
            (KeyPhase::Queued { .. }, true) => "queued",
            (KeyPhase::Queued { .. }, false) => "queued, silent",
            (KeyPhase::InFlight { .. }, true) => "in flight",
            (KeyPhase::InFlight { .. }, false) => "in flight, silent",
        }
    }

    fn flight() -> Flight {
        let limit = Limit::new(1, Unit::Second, 1, None).unwrap();
        Flight {
            frozen: FrozenCells::nothing(NOW),
            terms: Terms::level(&limit),
            charged: Cells::ZERO,
            address: BucketAddress::None,
            stale: false,
        }
    }

    fn table() -> String {
        let urgency = Urgency::Ordinary;
        let place = QueuePlace {
            urgency,
            since: NOW,
        };
        let events = [
            ("contend", PhaseEvent::Contend(NOW)),
            ("calm", PhaseEvent::Calm),
            ("postpone", PhaseEvent::Postpone(Reason::Trigger)),
            ("enqueue", PhaseEvent::Enqueue(place)),
            ("dequeue", PhaseEvent::Dequeue),
            ("send", PhaseEvent::Send(flight())),
            ("land", PhaseEvent::Land),
        ];
        let loud = KeyPhase::Silent.after(PhaseEvent::Contend(NOW));
        let phases = [KeyPhase::Silent, loud].map(|resting| {
            let queued = resting.clone().after(PhaseEvent::Enqueue(place));
            let flying = queued.clone().after(PhaseEvent::Send(flight()));
            [resting, queued, flying]
        });
        let mut page = "# Phases of a key in the sync\n\nPrinted from `crates/core/src/engine/sync/phase.rs` by \
            `make docs`. A row is the phase of a key, a column an event, and the cell the phase after it. A dash: the \
            event changes nothing.\n\n| phase |"
            .to_owned();
        for (name, _) in events {
            let _ = write!(page, " {name} |");
        }
        let _ = write!(page, "\n|---|{}\n", "---|".repeat(events.len()));
        for phase in phases.into_iter().flatten() {
            let _ = write!(page, "| {} |", name(&phase));
            for (_, event) in events {
                let after = name(&phase.clone().after(event));
                let changed = if after == name(&phase) { "-" } else { after };
                let _ = write!(page, " {changed} |");
            }
            page.push('\n');
        }
        page + EVENTS
    }

    const EVENTS: &str = "
- **contend**: this pod used more than its even share, another pod did, or the key is more than half full. The key stays
  loud for a hold time at least.
- **calm**: the hold time is over, and this pod uses the key within its even share again.
- **postpone**: the key wants a round too soon after its last one.
- **enqueue**: the key gets a place in the pod's send queue, or a better one. A silent key is queued only to ask the store
  whether news of it is true.
- **dequeue**: its turn came and there was nothing to report.
- **send**: its cells are frozen into a batch.
- **land**: the store answered the batch, or the answer is of no use.
";

    /// `UPDATE=1` prints the page.
    #[test]
    fn the_page_has_every_transition() {
        let table = table();
        if std::env::var_os("UPDATE").is_some() {
            std::fs::write(PAGE, &table).unwrap();
        }
        let page = std::fs::read_to_string(PAGE).unwrap_or_default();
        assert_eq!(page, table, "run `make docs`");
    }

    #[test]
    fn a_key_stays_loud_for_the_longest_hold() {
        let at = |nanos| PhaseEvent::Contend(Nanos::new(nanos));
        let loud = KeyPhase::Silent.after(at(7)).after(at(9)).after(at(8));
        assert_eq!(loud.loud_until(), Some(Nanos::new(9)));
        let flying = loud.after(PhaseEvent::Send(flight()));
        assert!(flying.flight().is_none(), "only what is queued is sent");
    }
}
