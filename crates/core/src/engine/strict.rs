//! Checks that the store decides: look in memory, take cells in the store, commit in memory.
//!
//! [`Engine::begin`] looks at every rule of a check. If memory denies the check, it is denied at once and costs the store
//! nothing. Otherwise the engine says which cells to take in the store. The door comes back with the answers, and
//! [`Engine::finish`] commits on the other rules, or says what to give back. Nothing here waits.
//!
//! Cells that the store took are in the store: they are never pending. The bucket of their key only follows the store's
//! state, so that memory denies a key without room, and a fallback starts from the last state.

use smallvec::SmallVec;

use super::answer::{Answer, Hit, Hits, Source};
use super::buckets::{KeyBucket, Stale, Subject};
use super::check::{CheckStep, Question, allows};
use super::snapshot::Snapshot;
use super::store_request::StoreFailure;
use super::{Engine, InForce};
use crate::pure::rule::Consistency;
use crate::pure::rules::Lookup;
use crate::pure::sync::{StoreState, Take, TakeReply};
use crate::pure::{Cells, Moment, Span, Standing};

/// A check that waits for the store.
#[derive(Debug)]
pub struct StorePlan {
    snapshot: InForce,
    hits: Hits,
    domain_known: bool,
    began: Moment,
    asks: SmallVec<[Ask; 2]>,
}

/// The cells that one hit asks the store for.
#[derive(Clone, Copy, Debug)]
struct Ask {
    hit: usize,
    take: Take,
    result: Result<TakeReply, StoreFailure>,
}

impl Ask {
    const fn is_taken(&self) -> bool {
        matches!(self.result, Ok(TakeReply { taken: true, .. }))
    }
}

/// A check that has come to its end.
#[derive(Debug)]
pub struct CheckEnd {
    /// The answer. `None` if the rules were swapped meanwhile: the check begins again.
    pub answer: Option<Answer>,
    /// Cells that the store took and the check does not need.
    pub give_back: Vec<Take>,
}

impl StorePlan {
    /// What is to be taken in the store, all at the same time.
    pub fn takes(&self) -> impl ExactSizeIterator<Item = Take> + '_ {
        self.asks.iter().map(|ask| ask.take)
    }

    fn into_answer(self, allowed: bool) -> Answer {
        Answer {
            snapshot: self.snapshot,
            hits: self.hits,
            allowed,
            domain_known: self.domain_known,
        }
    }
}

impl Engine {
    pub(super) fn begin_strict(
        &self,
        mut snapshot: InForce,
        question: Question<'_>,
        moment: Moment,
    ) -> CheckStep {
        loop {
            let (hits, lookup) = question.hits(&snapshot);
            let mut plan = StorePlan {
                snapshot,
                hits,
                domain_known: lookup == Lookup::Walked,
                began: moment,
                asks: SmallVec::new(),
            };
            match self.look_first(&mut plan) {
                Ok(Some(allowed)) => return CheckStep::Decided(plan.into_answer(allowed)),
                Ok(None) => return CheckStep::NeedsStore(Box::new(plan)),
                Err(Stale) => snapshot = self.in_force(),
            }
        }
    }

    /// Decides what needs no store, and otherwise plans what to take there.
    fn look_first(&self, plan: &mut StorePlan) -> Result<Option<bool>, Stale> {
        let (snapshot, hits, moment) = (&*plan.snapshot, &mut plan.hits, plan.began);
        // While its lane is cut off, a rule decides without the store.
        let asks = |hit: &Hit| {
            hit.cost > Cells::ZERO
                && !hit.refund
                && is_strict(snapshot, hit)
                && !self.fallback.is_cut_off(hit.name)
        };
        if hits.iter().any(asks) {
            for hit in hits.iter_mut() {
                self.look_into(snapshot, hit, moment);
                // Memory knows the state of such a key from the store; but a cost that never fits needs no store.
                if !hit.standing.allowed && hit.standing.retry_after.is_some() && asks(hit) {
                    hit.source = Source::Mitigation;
                }
            }
            if !allows(snapshot, hits) {
                self.show_unconsumed(snapshot, hits, moment);
                if snapshot.charges() {
                    self.charge_denied(snapshot, hits, moment, |_| false);
                }
                return Ok(Some(false));
            }
            let asking = hits.iter().enumerate();
            let asking = asking.filter(|(_, hit)| hit.standing.allowed && asks(hit));
            plan.asks = asking
                .filter_map(|(index, hit)| {
                    let subject = self.subject(snapshot, hit, moment)?;
                    Some(Ask {
                        hit: index,
                        take: Take {
                            key: subject.store_key(),
                            terms: subject.terms(),
                            cost: hit.cost,
                            charge: subject.rule.spec.count_rejected,
                        },
                        result: Err(StoreFailure),
                    })
                })
                .collect();
            if !plan.asks.is_empty() {
                return Ok(None);
            }
        }
        self.decide(snapshot, hits, moment).map(Some)
    }

    /// Ends a check with the store's answers to [`StorePlan::takes`], in their order. A missing answer counts as a failure.
    pub fn finish(
        &self,
        mut plan: Box<StorePlan>,
        results: &[Result<TakeReply, StoreFailure>],
        moment: Moment,
    ) -> CheckEnd {
        for (ask, result) in plan.asks.iter_mut().zip(results) {
            ask.result = *result;
        }
        let settled = self.settle(&mut plan, moment);
        let taken = plan.asks.iter().filter(|ask| ask.is_taken());
        let give_back = match settled {
            Ok(true) => Vec::new(),
            // Cells of a rule that charges denied checks stay in the store.
            Ok(false) => {
                let unneeded = taken.filter(|ask| !ask.take.charge);
                unneeded.map(|ask| ask.take).collect()
            }
            Err(Stale) => taken.map(|ask| ask.take).collect(),
        };
        CheckEnd {
            answer: settled.ok().map(|allowed| plan.into_answer(allowed)),
            give_back,
        }
    }

    /// Commits on all rules, or on none.
    fn settle(&self, plan: &mut StorePlan, moment: Moment) -> Result<bool, Stale> {
        let (snapshot, hits, asks) = (&*plan.snapshot, &mut plan.hits, &plan.asks);
        for ask in asks {
            let hit = &mut hits[ask.hit];
            match (self.subject(snapshot, hit, moment), ask.result) {
                (Some(subject), Err(StoreFailure)) => {
                    let detached = true;
                    (hit.standing, hit.source) = self.look(
                        &Subject {
                            detached,
                            ..subject
                        },
                        hit.cost,
                    );
                }
                (
                    Some(subject),
                    Ok(TakeReply {
                        taken: false,
                        state,
                    }),
                ) => {
                    self.follow(&subject, state, plan.began);
                    hit.standing = self.refused(&subject, state, hit.cost);
                    hit.source = Source::Strict;
                    hit.capped = matches!(state, StoreState::Level { capped: true, .. });
                }
                (_, Ok(TakeReply { taken: true, .. })) | (None, _) => {}
            }
        }
        if allows(snapshot, hits) {
            self.admit_all(snapshot, hits, moment, |index, hit| {
                let subject = self.subject(snapshot, hit, moment)?;
                match asks.iter().find(|ask| ask.hit == index) {
                    None => Some(subject),
                    Some(Ask { result: Ok(_), .. }) => None,
                    Some(_) => Some(Subject {
                        detached: true,
                        ..subject
                    }),
                }
            })?;
        } else {
            self.show_unconsumed(snapshot, hits, moment);
        }
        let allowed = allows(snapshot, hits);
        if snapshot.charges() {
            let in_store = |hit| asks.iter().any(|ask| ask.hit == hit && ask.result.is_ok());
            self.charge_denied(snapshot, hits, moment, in_store);
        }
        if allowed {
            self.refund_all(snapshot, hits, moment);
        }
        for ask in asks.iter().filter(|ask| allowed || ask.take.charge) {
            let hit = &mut hits[ask.hit];
            if let Ok(TakeReply { taken: true, state }) = ask.result
                && let Some(subject) = self.subject(snapshot, hit, moment)
            {
                self.follow(&subject, state, plan.began);
                hit.standing = self.taken(&subject, state, hit.cost);
                hit.source = Source::Strict;
            }
        }
        Ok(allowed)
    }

    /// Moves the key's bucket to the state that the store answered to the request of `began`. That is the earliest moment
    /// the answer can hold for: a bucket that is behind the store asks once more, one that is ahead of it would deny cells
    /// that the store has.
    fn follow(&self, subject: &Subject<'_>, state: StoreState, began: Moment) {
        let subject = &Subject {
            moment: began,
            ..*subject
        };
        self.buckets.of(subject).follow(state);
    }

    /// The standing of a check whose cells the store has taken.
    fn taken(&self, subject: &Subject<'_>, state: StoreState, cost: Cells) -> Standing {
        let standing = self
            .buckets
            .of(subject)
            .standing_in_store(state, Cells::ZERO);
        Standing {
            allowed: true,
            retry_after: None,
            // A check waits for those ahead of it in the queue, not for itself.
            delay: standing.delay.less(subject.limit.interval().times(cost)),
            ..standing
        }
    }

    /// The standing of a check whose cells the store has refused.
    fn refused(&self, subject: &Subject<'_>, state: StoreState, cost: Cells) -> Standing {
        let standing = self.buckets.of(subject).standing_in_store(state, cost);
        if !standing.allowed {
            return standing;
        }
        // Either there is room again by now, or memory knows less than the store.
        Standing {
            allowed: false,
            retry_after: Some(state.least_wait()),
            delay: Span::ZERO,
            ..self
                .buckets
                .of(subject)
                .standing_in_store(state, Cells::ZERO)
        }
    }
}

fn is_strict(snapshot: &Snapshot, hit: &Hit) -> bool {
    let (rule, state) = snapshot.rule(hit.rule);
    let is_limited = hit.limit(snapshot).is_some();
    state.reported && rule.spec.consistency == Consistency::Strict && is_limited
}
