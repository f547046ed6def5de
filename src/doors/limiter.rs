//! What every door decides with, and what it counts of it.

use std::sync::Arc;

use metrics::Counter;

use super::strict::Strict;
use crate::clock::Clock;
use crate::telemetry::{REQUESTS_MALFORMED, Telemetry};
use tidegate_config::Bounds;
use tidegate_core::engine::{Answer, Engine, Question};
use tidegate_core::pure::Moment;

/// One door's way to the engine.
#[derive(Clone, Debug)]
pub struct Limiter {
    pub(super) engine: Arc<Engine>,
    pub(super) clock: Clock,
    pub(super) bounds: Bounds,
    pub(super) strict: Strict,
    telemetry: Arc<Telemetry>,
    malformed: Counter,
}

impl Limiter {
    /// A way to `engine` for the door of that name, which asks the store as `strict` says.
    pub fn new(
        door: &str,
        (engine, telemetry): (Arc<Engine>, Arc<Telemetry>),
        bounds: Bounds,
        strict: Strict,
    ) -> Self {
        Self {
            engine,
            clock: Clock::get(),
            bounds,
            strict,
            malformed: telemetry.counter(REQUESTS_MALFORMED, &[door]),
            telemetry,
        }
    }

    /// Counts what was decided of a check that began then.
    pub(super) fn decided(&self, answer: &Answer, question: Question<'_>, began: Moment) {
        let taken = self.clock.since(began.now);
        self.telemetry.check_duration.record(taken);
        self.telemetry.decided(answer, question);
    }

    /// Counts a request that is no valid check.
    pub(super) fn malformed(&self) {
        self.malformed.increment(1);
    }
}
