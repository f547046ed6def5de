//! One check, decided: find its rules, look at all, then admit on all or on none.
//!
//! A check that meets one rule is a single change of one bucket. One that meets several looks first and then admits,
//! the scarcest first; when another thread took the last cell in between, what was admitted so far is given back.

use smallvec::SmallVec;

use super::answer::{Answer, Hit, Hits, Source};
use super::snapshot::{RuleState, Snapshot};
use super::table::{TableKey, Taken, Tenancy, Touched};
use super::windows::{Room, WindowKey};
use super::{Engine, stats::Stat};
use crate::pure::algorithm::{gcra, leaky_bucket, token_bucket};
use crate::pure::rules::{Lookup, RuleIndex};
use crate::pure::{Algorithm, Cells, Check, Entry, Limit, Moment, Nanos, Rule, Span, Standing};

/// The rules were swapped while a key was about to enter under the old ones: decide again under the new ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale;

/// A key of one rule, encoded as `pure::key` does it.
#[derive(Clone, Copy, Debug)]
pub struct RuleBytes<'a> {
    /// The rule.
    pub rule: RuleIndex,
    /// Its key.
    pub bytes: &'a [u8],
}

/// An admission, as long as it may have to be given back.
#[derive(Debug)]
struct Admission<'a> {
    standing: Standing,
    source: Source,
    trace: Trace<'a>,
}

#[derive(Debug)]
enum Trace<'a> {
    /// Nothing was changed.
    None,
    /// The key is not held: it was counted where nothing can be given back.
    KeptOut,
    Level {
        tenancy: Tenancy<'a>,
        before: Nanos,
        after: Nanos,
    },
    Window,
}

/// What a hit needs to be decided.
struct Asked<'a> {
    rule: &'a Rule,
    state: &'a RuleState,
    limit: &'a Limit,
    name: u128,
    moment: Moment,
    /// Of the rules it is decided by.
    version: u64,
}

impl Asked<'_> {
    fn window(&self) -> WindowKey<'_> {
        WindowKey {
            name: self.name,
            rule: self.rule,
            limit: self.limit,
            unix: self.moment.unix,
        }
    }

    /// The next TAT if there is room, and the TAT it was decided on.
    #[inline(always)]
    fn step(&self, tat: Nanos, cost: Cells) -> (Option<Nanos>, Nanos) {
        (gcra::admit(self.limit, tat, self.moment.now, cost), tat)
    }

    fn decide(&self, tat: Nanos, cost: Cells) -> (Nanos, Standing) {
        decide_level(
            self.rule.spec.algorithm,
            self.limit,
            tat,
            self.moment.now,
            cost,
        )
    }

    /// A level above capacity did not come from this pod's own admissions.
    fn source(&self, tat: Nanos) -> Source {
        match gcra::level(tat, self.moment.now) > self.limit.capacity() {
            true => Source::Mitigation,
            false => Source::Local,
        }
    }
}

impl Engine {
    /// Decides `check` at `moment`. Never waits.
    pub fn check(&self, check: &Check<'_>, moment: Moment) -> Answer {
        loop {
            let snapshot = self.in_force();
            let (mut hits, lookup) = matched(&snapshot, check);
            if let Ok(allowed) = self.decide(&snapshot, &mut hits, moment) {
                return Answer {
                    snapshot,
                    hits,
                    allowed,
                    domain_known: lookup == Lookup::Walked,
                };
            }
        }
    }

    /// Decides for a caller that knows its rule and has the rules at hand, such as one that asks many times in a row.
    #[inline]
    pub fn check_key(
        &self,
        rules: &Snapshot,
        key: RuleBytes<'_>,
        cost: Cells,
        moment: Moment,
    ) -> Result<Standing, Stale> {
        let (rule, state) = rules.rule(key.rule);
        let Some(limit) = &rule.spec.limit else {
            return Ok(UNLIMITED);
        };
        let name = state.key.name_of(key.bytes);
        if !rule.spec.algorithm.is_windowed() {
            let key = self.table.key(name, state.variant);
            let step = |tat| (gcra::admit(limit, tat, moment.now, cost), tat);
            if let Touched::Held(before, tenancy) = self.table.touch(&key, step) {
                let (_, standing) =
                    decide_level(rule.spec.algorithm, limit, before, moment.now, cost);
                if standing.allowed && state.reported {
                    self.report(&tenancy, cost);
                }
                return Ok(standing);
            }
        }
        self.check_new_key(
            &Asked {
                rule,
                state,
                limit,
                name,
                moment,
                version: rules.version(),
            },
            cost,
        )
    }

    #[cold]
    fn check_new_key(&self, asked: &Asked<'_>, cost: Cells) -> Result<Standing, Stale> {
        let admission = self.admit(asked, cost)?;
        self.report_admission(asked, &admission, cost);
        Ok(admission.standing)
    }

    fn decide(&self, snapshot: &Snapshot, hits: &mut Hits, moment: Moment) -> Result<bool, Stale> {
        match hits.as_mut_slice() {
            [] => return Ok(true),
            [hit] if hit.cost > Cells::ZERO => {
                let Some(asked) = asked(snapshot, hit, moment) else {
                    return Ok(true);
                };
                let admission = self.admit(&asked, hit.cost)?;
                self.report_admission(&asked, &admission, hit.cost);
                hit.set(&admission);
            }
            many => {
                for hit in many.iter_mut() {
                    self.look_into(snapshot, hit, moment);
                }
                if allows(snapshot, many) {
                    self.admit_all(snapshot, many, moment)?;
                } else {
                    self.show_unconsumed(snapshot, many, moment);
                }
            }
        }
        let allowed = allows(snapshot, hits);
        if !allowed {
            self.charge_rejected(snapshot, hits, moment);
        }
        Ok(allowed)
    }

    /// Admits on every rule that has room, the scarcest first, or on none.
    fn admit_all(
        &self,
        snapshot: &Snapshot,
        hits: &mut [Hit],
        moment: Moment,
    ) -> Result<(), Stale> {
        let mut order: SmallVec<[usize; 4]> = (0..hits.len()).collect();
        order.sort_by_key(|&index| hits[index].standing.remaining);
        let mut admitted: SmallVec<[(usize, Asked<'_>, Admission<'_>); 4]> = SmallVec::new();
        for index in order {
            let hit = &hits[index];
            if hit.cost == Cells::ZERO || !hit.standing.allowed {
                continue;
            }
            let Some(asked) = asked(snapshot, hit, moment) else {
                continue;
            };
            let admission = match self.admit(&asked, hit.cost) {
                Ok(admission) => admission,
                Err(stale) => {
                    self.give_back(hits, &admitted);
                    return Err(stale);
                }
            };
            hits[index].set(&admission);
            if admission.standing.allowed {
                admitted.push((index, asked, admission));
            } else if !allows(snapshot, hits) {
                self.give_back(hits, &admitted);
                self.show_unconsumed(snapshot, hits, moment);
                return Ok(());
            }
        }
        for (index, asked, admission) in &admitted {
            self.report_admission(asked, admission, hits[*index].cost);
        }
        Ok(())
    }

    fn give_back(&self, hits: &[Hit], admitted: &[(usize, Asked<'_>, Admission<'_>)]) {
        // The last first: of two admissions on one key, only the later one's TAT is the bucket's.
        for (index, asked, admission) in admitted.iter().rev() {
            let cost = hits[*index].cost;
            let given_back = match admission.trace {
                Trace::None => true,
                Trace::KeptOut => false,
                Trace::Window => {
                    self.windows.give_back(&asked.window(), cost);
                    true
                }
                // An empty bucket is as empty now as it was then, and `now` is a TAT nobody else has had.
                Trace::Level {
                    tenancy,
                    before,
                    after,
                } => self
                    .table
                    .give_back(&tenancy, after, before.max(asked.moment.now)),
            };
            if !given_back {
                self.stats.count(Stat::KeptAfterRace, cost.get());
            }
        }
    }

    /// Takes `cost` cells of the key if they are there.
    fn admit<'a>(&'a self, asked: &Asked<'_>, cost: Cells) -> Result<Admission<'a>, Stale> {
        if asked.rule.spec.algorithm.is_windowed() {
            return Ok(self.admit_window(asked, cost));
        }
        let key = self.table.key(asked.name, asked.state.variant);
        match self.table.touch(&key, |tat| asked.step(tat, cost)) {
            Touched::Held(before, tenancy) => {
                let (after, standing) = asked.decide(before, cost);
                let trace = if standing.allowed {
                    Trace::Level {
                        tenancy,
                        before,
                        after,
                    }
                } else {
                    Trace::None
                };
                Ok(Admission {
                    standing,
                    source: asked.source(before),
                    trace,
                })
            }
            Touched::Missing => self.admit_new(asked, &key, cost),
        }
    }

    /// The same for a key that is not held.
    #[cold]
    fn admit_new<'a>(
        &'a self,
        asked: &Asked<'_>,
        key: &TableKey,
        cost: Cells,
    ) -> Result<Admission<'a>, Stale> {
        let permit = self.table.permit(key);
        if self.table.tat(key).is_some() {
            drop(permit);
            return self.admit(asked, cost); // another thread let it enter first
        }
        self.announce(asked.version);
        if self.version() != asked.version {
            return Err(Stale);
        }
        let now = asked.moment.now;
        let carried = asked.state.former.iter().find_map(|former| {
            let taken = self
                .table
                .take(&permit, &self.table.key(asked.name, former.variant))?;
            Some(Taken {
                tat: former.rescaled(taken.tat, now, asked.limit),
                pending: taken.pending,
            })
        });
        let unheld = self.unheld(asked);
        let opening = carried.unwrap_or(Taken {
            tat: unheld,
            pending: Cells::ZERO,
        });
        let (after, standing) = asked.decide(opening.tat, cost);
        let first_sight = carried.is_none() && unheld <= now && self.crowded();
        let enters = carried.is_some() || (standing.allowed && !first_sight);
        let tat = if standing.allowed { after } else { opening.tat };
        let entrance = enters.then(|| {
            self.table
                .enter(&permit, key, Taken { tat, ..opening }, now)
        });
        if enters || standing.allowed {
            self.stats.entered(entrance.map(|entrance| entrance.how));
        }
        let held = entrance.and_then(|entrance| entrance.held);
        if held.is_none() {
            self.stats.count(Stat::CellsLost, opening.pending.get());
        }
        let trace = match held {
            _ if !standing.allowed => Trace::None,
            Some((after, tenancy)) => Trace::Level {
                tenancy,
                before: opening.tat,
                after,
            },
            None => {
                self.doorkeeper.add(asked.name, cost, now);
                Trace::KeptOut
            }
        };
        Ok(Admission {
            standing,
            source: asked.source(opening.tat),
            trace,
        })
    }

    fn admit_window(&self, asked: &Asked<'_>, cost: Cells) -> Admission<'_> {
        let key = asked.window();
        let opening = self.doorkeeper.count(asked.name, asked.moment.now);
        let crowded = self.windows.held() * 10 >= self.windows.keys_max() * 9;
        if crowded && opening == Cells::ZERO && !self.windows.holds(&key) {
            let standing = self.windows.look(&key, opening, cost);
            if standing.allowed {
                self.doorkeeper.add(asked.name, cost, asked.moment.now);
                self.stats.count(Stat::KeptOut, 1);
            }
            return Admission {
                standing,
                source: Source::Local,
                trace: if standing.allowed {
                    Trace::KeptOut
                } else {
                    Trace::None
                },
            };
        }
        let (standing, room) = self.windows.admit(&key, opening, cost);
        self.stats.room(room);
        let trace = match room {
            _ if !standing.allowed => Trace::None,
            Room::Free | Room::Settled | Room::InUse => Trace::Window,
            Room::Nowhere => {
                self.doorkeeper.add(asked.name, cost, asked.moment.now);
                Trace::KeptOut
            }
        };
        Admission {
            standing,
            source: Source::Local,
            trace,
        }
    }

    /// The TAT that a key which is not held has to be assumed to have.
    fn unheld(&self, asked: &Asked<'_>) -> Nanos {
        let counted = self
            .doorkeeper
            .count(asked.name, asked.moment.now)
            .min(asked.limit.burst());
        asked
            .moment
            .now
            .after(asked.limit.interval().times(counted))
    }

    /// Whether the table is so full that a key has to come twice to be let in.
    fn crowded(&self) -> bool {
        self.table.held() * 10 >= self.table.keys_max() * 9
    }

    fn report_admission(&self, asked: &Asked<'_>, admission: &Admission<'_>, cost: Cells) {
        if let Trace::Level { tenancy, .. } = &admission.trace
            && asked.state.reported
        {
            self.report(tenancy, cost);
        }
    }

    /// Notes admitted cells for the store.
    #[inline(always)]
    fn report(&self, tenancy: &Tenancy<'_>, cost: Cells) {
        if !self.table.book(tenancy, cost) {
            self.stats.count(Stat::CellsLost, cost.get());
        }
    }

    /// Fills in how a hit would stand. Changes nothing. A look that finds no cell left is a denial.
    fn look_into(&self, snapshot: &Snapshot, hit: &mut Hit, moment: Moment) {
        let Some(asked) = asked(snapshot, hit, moment) else {
            return;
        };
        (hit.standing, hit.source) = self.look(&asked, hit.cost);
        if hit.cost == Cells::ZERO && hit.standing.remaining == Cells::ZERO {
            let (next, _) = self.look(&asked, Cells::ONE);
            hit.standing = Standing {
                allowed: false,
                retry_after: next.retry_after,
                ..hit.standing
            };
        }
    }

    fn look(&self, asked: &Asked<'_>, cost: Cells) -> (Standing, Source) {
        if asked.rule.spec.algorithm.is_windowed() {
            let opening = self.doorkeeper.count(asked.name, asked.moment.now);
            return (
                self.windows.look(&asked.window(), opening, cost),
                Source::Local,
            );
        }
        let now = asked.moment.now;
        let tat = self
            .table
            .tat(&self.table.key(asked.name, asked.state.variant))
            .or_else(|| {
                asked.state.former.iter().find_map(|former| {
                    let tat = self
                        .table
                        .tat(&self.table.key(asked.name, former.variant))?;
                    Some(former.rescaled(tat, now, asked.limit))
                })
            });
        let tat = tat.unwrap_or_else(|| self.unheld(asked));
        (asked.decide(tat, cost).1, asked.source(tat))
    }

    /// A denied check consumes nothing: rules that had room show all of it.
    fn show_unconsumed(&self, snapshot: &Snapshot, hits: &mut [Hit], moment: Moment) {
        for hit in hits
            .iter_mut()
            .filter(|hit| hit.standing.allowed && hit.cost > Cells::ZERO)
        {
            if let Some(asked) = asked(snapshot, hit, moment) {
                (hit.standing, hit.source) = self.look(&asked, Cells::ZERO);
            }
        }
    }

    /// Rules that count what was denied do so.
    fn charge_rejected(&self, snapshot: &Snapshot, hits: &[Hit], moment: Moment) {
        for hit in hits.iter().filter(|hit| hit.cost > Cells::ZERO) {
            match asked(snapshot, hit, moment) {
                Some(asked) if asked.rule.spec.count_rejected => {
                    let room = self.windows.charge(&asked.window(), hit.cost);
                    self.stats.room(room);
                }
                Some(_) | None => {}
            }
        }
    }
}

impl Hit {
    fn set(&mut self, admission: &Admission<'_>) {
        self.standing = admission.standing;
        self.source = if admission.standing.allowed {
            Source::Local
        } else {
            admission.source
        };
    }
}

/// The TAT after a check of a level algorithm, and what to say.
#[inline(always)]
fn decide_level(
    algorithm: Algorithm,
    limit: &Limit,
    tat: Nanos,
    now: Nanos,
    cost: Cells,
) -> (Nanos, Standing) {
    match algorithm {
        Algorithm::TokenBucket => token_bucket::decide(limit, tat, now, cost),
        Algorithm::LeakyBucket => leaky_bucket::decide(limit, tat, now, cost),
        Algorithm::Gcra
        | Algorithm::FixedWindow
        | Algorithm::SlidingWindow
        | Algorithm::SlidingLog => gcra::decide(limit, tat, now, cost),
    }
}

/// A hit of a rule that has a limit.
fn asked<'a>(snapshot: &'a Snapshot, hit: &Hit, moment: Moment) -> Option<Asked<'a>> {
    let (rule, state) = snapshot.rule(hit.rule);
    let limit = rule.spec.limit.as_ref()?;
    Some(Asked {
        rule,
        state,
        limit,
        name: hit.name,
        moment,
        version: snapshot.version(),
    })
}

/// Whether the check passes as its hits stand: no rule denies it, and of those in quota mode not all do.
fn allows(snapshot: &Snapshot, hits: &[Hit]) -> bool {
    let (mut quotas, mut quotas_over) = (0_usize, 0_usize);
    for hit in hits {
        let spec = &snapshot.rule(hit.rule).0.spec;
        let over = !hit.standing.allowed;
        if spec.shadow {
            continue;
        }
        if spec.quota {
            quotas += 1;
            quotas_over += usize::from(over);
        } else if over {
            return false;
        }
    }
    quotas == 0 || quotas_over < quotas
}

/// The rules that `check` meets, without those that another of them replaces.
fn matched(snapshot: &Snapshot, check: &Check<'_>) -> (Hits, Lookup) {
    let rules = snapshot.rules();
    let mut hits = Hits::new();
    let mut lookup = Lookup::Walked;
    for (index, descriptor) in check.descriptors.iter().enumerate() {
        let cost = check.cost_of(descriptor);
        with_plain_addresses(snapshot, descriptor.entries, |entries| {
            lookup = rules.walk(check.domain, entries, |rule_index| {
                let (rule, state) = snapshot.rule(rule_index);
                hits.push(Hit {
                    descriptor: index,
                    rule: rule_index,
                    name: state.key.name(rule, entries),
                    cost,
                    standing: UNLIMITED,
                    source: Source::Local,
                });
            });
        });
    }
    if hits
        .iter()
        .any(|hit| !snapshot.rule(hit.rule).0.spec.replaces.is_empty())
    {
        let replaced: SmallVec<[&String; 4]> = hits
            .iter()
            .flat_map(|hit| &snapshot.rule(hit.rule).0.spec.replaces)
            .collect();
        hits.retain(|hit| {
            snapshot
                .rule(hit.rule)
                .0
                .spec
                .name
                .as_ref()
                .is_none_or(|name| !replaced.contains(&name))
        });
    }
    (hits, lookup)
}

/// How a rule without a limit stands, as envoyproxy/ratelimit says it.
const UNLIMITED: Standing = Standing {
    allowed: true,
    remaining: Cells::new(u32::MAX as u64),
    retry_after: None,
    reset_after: Span::ZERO,
    delay: Span::ZERO,
};

/// Runs `then` on `entries` with addresses in their plain form.
fn with_plain_addresses(
    snapshot: &Snapshot,
    entries: &[Entry<'_>],
    then: impl FnOnce(&[Entry<'_>]),
) {
    let addresses = snapshot.rules().addresses();
    let plain: SmallVec<[_; 2]> = entries
        .iter()
        .enumerate()
        .filter_map(|(index, entry)| {
            addresses
                .plain(entry.key, entry.value)
                .map(|plain| (index, plain))
        })
        .collect();
    if plain.is_empty() {
        return then(entries);
    }
    let mut changed: SmallVec<[Entry<'_>; 8]> = entries.into();
    for (index, plain) in &plain {
        changed[*index].value = plain.as_str();
    }
    then(&changed);
}
