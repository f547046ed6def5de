//! Checks that the store decides: look here, take there, commit here.
//!
//! [`Engine::begin`] looks at every rule of a check. What memory denies is denied at once and costs the store nothing.
//! Otherwise it says which cells to take in the store; whoever asked comes back with the answers, and
//! [`Engine::finish`] commits on the other rules, or says what to give back. Nothing here waits.
//!
//! Cells that the store took are in the store: they are never pending. The bucket of their key only follows what the
//! store said, so that a key without room is denied from memory, and so that a fallback knows where it stood.

use smallvec::SmallVec;

use super::admit::Asked;
use super::answer::{Answer, Hit, Hits, Source};
use super::check::{allows, matched};
use super::collect::window_index;
use super::errand::Undone;
use super::shards::Room;
use super::snapshot::Snapshot;
use super::table::Touched;
use super::windows::Mirrored;
use super::{Engine, InForce, Stale};
use crate::pure::rule::Consistency;
use crate::pure::rules::Lookup;
use crate::pure::sync::{Family, Take, Taken, Told};
use crate::pure::{Cells, Check, Moment, Nanos, Span, Standing};

/// A check that has begun.
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every check is decided at once, and that must not allocate"
)]
#[derive(Debug)]
pub enum Begun {
    /// It is decided already.
    Decided(Answer),
    /// The store is to be asked.
    Asking(Box<Plan>),
}

/// A check that waits for the store.
#[derive(Debug)]
pub struct Plan {
    snapshot: InForce,
    hits: Hits,
    domain_known: bool,
    began: Moment,
    asks: SmallVec<[Ask; 2]>,
}

/// What one hit asks of the store.
#[derive(Clone, Copy, Debug)]
struct Ask {
    hit: usize,
    take: Take,
    result: Result<Taken, Undone>,
}

impl Ask {
    const fn is_taken(&self) -> bool {
        matches!(self.result, Ok(Taken { taken: true, .. }))
    }
}

/// A check that has come to its end.
#[derive(Debug)]
pub struct Finished {
    /// The answer. `None` if the rules were swapped meanwhile: the check begins again.
    pub answer: Option<Answer>,
    /// What was taken and is not needed.
    pub give_back: Vec<Take>,
}

impl Plan {
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
    /// Decides `check` at `moment`, or says what has to be taken in the store first. Never waits.
    #[inline]
    pub fn begin(&self, check: &Check<'_>, moment: Moment) -> Begun {
        self.begin_with(|rules| matched(rules, check), moment)
    }

    /// The same for whatever meets these hits under the rules.
    #[inline]
    pub(super) fn begin_with(
        &self,
        met: impl Fn(&Snapshot) -> (Hits, Lookup),
        moment: Moment,
    ) -> Begun {
        let snapshot = self.in_force();
        match snapshot.asks() {
            false => Begun::Decided(self.decided(snapshot, met, moment)),
            true => self.begin_strict(snapshot, met, moment),
        }
    }

    fn begin_strict(
        &self,
        mut snapshot: InForce,
        met: impl Fn(&Snapshot) -> (Hits, Lookup),
        moment: Moment,
    ) -> Begun {
        loop {
            let (hits, lookup) = met(&snapshot);
            let mut plan = Plan {
                snapshot,
                hits,
                domain_known: lookup == Lookup::Walked,
                began: moment,
                asks: SmallVec::new(),
            };
            match self.look_first(&mut plan) {
                Ok(Some(allowed)) => return Begun::Decided(plan.into_answer(allowed)),
                Ok(None) => return Begun::Asking(Box::new(plan)),
                Err(Stale) => snapshot = self.in_force(),
            }
        }
    }

    /// Decides what needs no store, and otherwise plans what to take there.
    fn look_first(&self, plan: &mut Plan) -> Result<Option<bool>, Stale> {
        let (snapshot, hits, moment) = (&*plan.snapshot, &mut plan.hits, plan.began);
        // While its lane is cut off, a rule goes its way without the store.
        let asks = |hit: &Hit| {
            hit.cost > Cells::ZERO
                && !hit.refund
                && is_strict(snapshot, hit)
                && !self.fallback.is_cut_off(hit.name)
        };
        if hits.iter().any(asks) {
            for hit in hits.iter_mut() {
                self.look_into(snapshot, hit, moment);
                // What memory knows of such a key it knows from the store; but a cost that never fits needs no store.
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
                    let asked = self.asked(snapshot, hit, moment)?;
                    Some(Ask {
                        hit: index,
                        take: Take {
                            key: asked.store_key(),
                            terms: asked.terms(),
                            cost: hit.cost,
                            charge: asked.rule.spec.count_rejected,
                        },
                        result: Err(Undone),
                    })
                })
                .collect();
            if !plan.asks.is_empty() {
                return Ok(None);
            }
        }
        self.decide(snapshot, hits, moment).map(Some)
    }

    /// Ends a check with what the store said to each of [`Plan::takes`], in their order. What it did not say counts as
    /// not done.
    pub fn finish(
        &self,
        mut plan: Box<Plan>,
        results: &[Result<Taken, Undone>],
        moment: Moment,
    ) -> Finished {
        for (ask, result) in plan.asks.iter_mut().zip(results) {
            ask.result = *result;
        }
        let settled = self.settle(&mut plan, moment);
        let taken = plan.asks.iter().filter(|ask| ask.is_taken());
        let give_back = match settled {
            Ok(true) => Vec::new(),
            // What is charged all the same stays there.
            Ok(false) => {
                let unneeded = taken.filter(|ask| !ask.take.charge);
                unneeded.map(|ask| ask.take).collect()
            }
            Err(Stale) => taken.map(|ask| ask.take).collect(),
        };
        Finished {
            answer: settled.ok().map(|allowed| plan.into_answer(allowed)),
            give_back,
        }
    }

    /// Commits on all rules, or on none.
    fn settle(&self, plan: &mut Plan, moment: Moment) -> Result<bool, Stale> {
        let (snapshot, hits, asks) = (&*plan.snapshot, &mut plan.hits, &plan.asks);
        for ask in asks {
            let hit = &mut hits[ask.hit];
            match (self.asked(snapshot, hit, moment), ask.result) {
                (Some(asked), Err(Undone)) => {
                    let alone = true;
                    (hit.standing, hit.source) = self.look(&Asked { alone, ..asked }, hit.cost);
                }
                (Some(asked), Ok(Taken { taken: false, told })) => {
                    self.follow(&asked, told, plan.began);
                    hit.standing = self.refused(&asked, told, hit.cost);
                    hit.source = Source::Strict;
                    hit.capped = matches!(told, Told::Level { capped: true, .. });
                }
                (_, Ok(Taken { taken: true, .. })) | (None, _) => {}
            }
        }
        if allows(snapshot, hits) {
            self.admit_all(snapshot, hits, moment, |index, hit| {
                let asked = self.asked(snapshot, hit, moment)?;
                match asks.iter().find(|ask| ask.hit == index) {
                    None => Some(asked),
                    Some(Ask { result: Ok(_), .. }) => None,
                    Some(_) => Some(Asked {
                        alone: true,
                        ..asked
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
            if let Ok(Taken { taken: true, told }) = ask.result
                && let Some(asked) = self.asked(snapshot, hit, moment)
            {
                self.follow(&asked, told, plan.began);
                hit.standing = self.taken(&asked, told, hit.cost);
                hit.source = Source::Strict;
            }
        }
        Ok(allowed)
    }

    /// Brings the key's bucket to what the store said when it was asked at `began`. That is the earliest it can hold
    /// for: a bucket that is behind the store asks once more, one that is ahead of it would deny what the store has.
    fn follow(&self, asked: &Asked<'_>, told: Told, began: Moment) {
        let asked = &Asked {
            moment: began,
            ..*asked
        };
        let now = began.now;
        match told {
            Told::Level { level, .. } => {
                let level = level.min(asked.terms().level_max());
                let full = level.plus(asked.limit.interval()) > asked.limit.capacity();
                if !self.set_or_enter(asked, now.after(level), full) && full {
                    self.mitigations.put(asked.name, now.after(level), now);
                }
            }
            Told::Window {
                current,
                previous,
                left,
            } => {
                let ends = began.unix.plus(left);
                let room = self.windows.mirror(
                    &asked.window(),
                    Mirrored {
                        index: window_index(ends, asked.limit.window()),
                        current,
                        previous,
                    },
                );
                self.stats.room(room);
                if room == Room::Nowhere && current >= Cells::new(asked.limit.requests()) {
                    self.mitigations.put(asked.name, now.after(left), now);
                }
            }
        }
    }

    /// Sets the key's TAT to `ends`, and lets the key enter for that. `false` if there is no place for it. An answer that
    /// was overtaken by a later one sets it too low: the store is then asked once more.
    fn set_or_enter(&self, asked: &Asked<'_>, ends: Nanos, full: bool) -> bool {
        let key = self.table_key(asked);
        let ends = ends.max(Nanos::new(1));
        let set = || match asked.state.family {
            Family::Carried => self.carried.set(asked.name, &asked.limit, ends, full),
            Family::Level | Family::Window => match self.table.touch(&key, |_| (Some(ends), ())) {
                Touched::Held((), _) => {
                    self.table.mitigate(&key, full);
                    true
                }
                Touched::Missing => false,
            },
        };
        // Under rules that were swapped meanwhile it cannot enter, and need not.
        set() || (self.admit_in_step(asked, Cells::ZERO).is_ok() && set())
    }

    /// What to say of a key whose cells the store has taken.
    fn taken(&self, asked: &Asked<'_>, told: Told, cost: Cells) -> Standing {
        let standing = self.told(asked, told, Cells::ZERO);
        Standing {
            allowed: true,
            retry_after: None,
            // In a queue one waits for those ahead, not for oneself.
            delay: standing.delay.less(asked.limit.interval().times(cost)),
            ..standing
        }
    }

    /// What to say of a key that the store has refused cells of.
    fn refused(&self, asked: &Asked<'_>, told: Told, cost: Cells) -> Standing {
        let standing = self.told(asked, told, cost);
        if !standing.allowed {
            return standing;
        }
        // There is room again by now, or memory knows less than the store.
        let wait = match told {
            Told::Level { .. } => Span::nanos(1),
            Told::Window { left, .. } => left,
        };
        Standing {
            allowed: false,
            retry_after: Some(wait),
            delay: Span::ZERO,
            ..self.told(asked, told, Cells::ZERO)
        }
    }

    fn told(&self, asked: &Asked<'_>, told: Told, cost: Cells) -> Standing {
        match told {
            Told::Level { level, .. } => asked.decide(asked.moment.now.after(level), cost).1,
            Told::Window { .. } => self.look_in_step(asked, cost).0,
        }
    }
}

fn is_strict(snapshot: &Snapshot, hit: &Hit) -> bool {
    let (rule, state) = snapshot.rule(hit.rule);
    let is_limited = hit.limit(snapshot).is_some();
    state.reported && rule.spec.consistency == Consistency::Strict && is_limited
}
