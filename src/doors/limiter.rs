//! The one path of a check through any door: read the clock, ask the engine, perhaps the store, record, encode.
//!
//! A door hands [`Limiter::decide`] a [`CheckRequest`] and a way to encode its answer. A check that needs no store is
//! decided and encoded at once, without a future. Only a check that needs the store goes on to
//! [`Limiter::decide_with_store`], which waits in `strict.rs`.

use std::sync::Arc;

use metrics::Counter;

use super::strict::{StrictStore, TimedAnswer};
use crate::clock::Clock;
use crate::protocol::Refusal;
use crate::telemetry::{REQUESTS_MALFORMED, Telemetry};
use tidegate_config::Bounds;
use tidegate_core::engine::{Answer, CheckStep, Engine, Question, StorePlan};
use tidegate_core::pure::Moment;

/// A request for one check.
///
/// A question borrows from its request, so it cannot wait for the store: the request is decoded again when the engine
/// has to be asked again, and when the answer is encoded.
pub trait CheckRequest {
    /// What the encoder needs of the decoded request.
    type Context<'a>;

    /// Decodes the request and hands the question to `then`.
    fn with_question<R>(
        &self,
        bounds: Bounds,
        then: impl for<'a> FnOnce(Question<'a>, Self::Context<'a>) -> R,
    ) -> Result<R, Refusal>;
}

/// A decided check, ready to be encoded.
#[derive(Debug)]
pub struct DecidedCheck<'a, C> {
    /// What the encoder needs of the request.
    pub context: C,
    /// The answer.
    pub answer: &'a Answer,
    /// When it was decided.
    pub moment: Moment,
}

/// How far a check has come.
#[derive(Debug)]
pub enum CheckProgress<R> {
    /// It is decided and encoded.
    Decided(R),
    /// It is no valid check.
    Refused(Refusal),
    /// The store has to be asked: see [`Limiter::decide_with_store`].
    NeedsStore(PendingCheck),
}

/// A check that the store has to be asked for.
#[derive(Debug)]
pub struct PendingCheck {
    plan: Box<StorePlan>,
    began: Moment,
}

/// What a limiter is made of.
#[derive(Clone, Debug)]
pub struct LimiterSetup {
    /// Decides.
    pub engine: Arc<Engine>,
    /// Counts decisions and refusals.
    pub telemetry: Arc<Telemetry>,
    /// The bounds of a request.
    pub bounds: Bounds,
    /// Asks the store.
    pub strict: StrictStore,
}

/// One door's way to the engine.
#[derive(Clone, Debug)]
pub struct Limiter {
    setup: LimiterSetup,
    clock: Clock,
    malformed: Counter,
}

impl Limiter {
    /// The limiter of the door of that name.
    pub fn new(door: &str, setup: LimiterSetup) -> Self {
        Self {
            malformed: setup.telemetry.counter(REQUESTS_MALFORMED, &[door]),
            clock: Clock::get(),
            setup,
        }
    }

    /// The bounds of a request.
    pub(super) const fn bounds(&self) -> Bounds {
        self.setup.bounds
    }

    /// Decides `request` and has `encode` encode its answer, unless the store has to be asked first.
    #[inline]
    pub(super) fn decide<Q: CheckRequest, R>(
        &self,
        request: &Q,
        encode: impl FnOnce(DecidedCheck<'_, Q::Context<'_>>) -> R,
    ) -> CheckProgress<R> {
        let began = self.clock.moment();
        let progress = request.with_question(self.setup.bounds, |question, context| {
            match self.setup.engine.begin(question, began) {
                // An answer is large: it stays where it is.
                CheckStep::Decided(ref answer) => {
                    self.record(answer, question, began);
                    CheckProgress::Decided(encode(DecidedCheck {
                        context,
                        answer,
                        moment: began,
                    }))
                }
                CheckStep::NeedsStore(plan) => {
                    CheckProgress::NeedsStore(PendingCheck { plan, began })
                }
            }
        });
        progress.unwrap_or_else(CheckProgress::Refused)
    }

    /// Asks the store for what `pending` needs, decides, and has `encode` encode the answer.
    pub(super) async fn decide_with_store<Q: CheckRequest, R>(
        &self,
        request: &Q,
        pending: PendingCheck,
        encode: impl FnOnce(DecidedCheck<'_, Q::Context<'_>>) -> R,
    ) -> Result<R, Refusal> {
        let LimiterSetup {
            engine,
            bounds,
            strict,
            ..
        } = &self.setup;
        let PendingCheck { plan, began } = pending;
        let begin_again =
            |moment| request.with_question(*bounds, |question, _| engine.begin(question, moment));
        let TimedAnswer { answer, moment } = strict.decide(engine, plan, begin_again).await?;
        request.with_question(*bounds, |question, context| {
            self.record(&answer, question, began);
            encode(DecidedCheck {
                context,
                answer: &answer,
                moment,
            })
        })
    }

    /// Counts what was decided, and how long the check took since it began.
    fn record(&self, answer: &Answer, question: Question<'_>, began: Moment) {
        let duration = self.clock.since(began.now);
        self.setup.telemetry.check_duration.record(duration);
        self.setup.telemetry.decided(answer, question);
    }

    /// Counts a request that is no valid check.
    pub(super) fn count_malformed(&self) {
        self.malformed.increment(1);
    }
}
