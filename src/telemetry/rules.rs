//! The counters of each rule: decisions by source, the fewest cells that a key had left, and the most denied keys.
//!
//! A rule's meter is made when the rule is put in force; a later rule with the same label reuses it. A check finds the
//! meter by the rule's index; only during a swap of the rules does it look the meter up by label.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use metrics::{Counter, Gauge};

use super::Telemetry;
use super::metric::{DEBT_CAPPED, DECISIONS, DENIED, FAILOPEN, REMAINING};
use super::top::{DeniedKeys, RecentDenials};
use tidegate_core::engine::{Answer, CallerRule, Hit, Question, Snapshot, Source};
use tidegate_core::pure::{Cells, KeyDisplay, Rule};

/// The meters of all rules since the start, by label. Only the configuration adds labels, never a client.
#[derive(Default)]
pub(super) struct Meters(Mutex<BTreeMap<String, Arc<RuleMeter>>>);

impl Meters {
    fn get(&self, telemetry: &Telemetry, label: &str) -> Arc<RuleMeter> {
        let mut meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let meter = meters.get(label).map(Arc::clone);
        meter.unwrap_or_else(|| {
            let meter = Arc::new(RuleMeter::new(telemetry, label));
            meters.insert(label.to_owned(), Arc::clone(&meter));
            meter
        })
    }

    fn known(&self, label: &str) -> Option<Arc<RuleMeter>> {
        let meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        meters.get(label).map(Arc::clone)
    }

    /// All meters. The lock is released before the caller walks through them, so that no check waits.
    pub(super) fn all(&self) -> Vec<Arc<RuleMeter>> {
        let meters = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        meters.values().map(Arc::clone).collect()
    }
}

/// The meters of the rules in force, by the rules' indices.
#[derive(Default)]
pub(super) struct ActiveMeters {
    version: u64,
    rules: Vec<Arc<RuleMeter>>,
    remaining: Vec<Gauge>,
    /// The meters of caller-supplied limits, which follow the rules: each is made at its first check.
    caller_meters: [OnceLock<Arc<RuleMeter>>; CallerRule::ALL.len()],
}

impl ActiveMeters {
    /// The meters for `snapshot`. A rule that stays keeps its meter.
    pub(super) fn of(snapshot: &Snapshot, telemetry: &Telemetry) -> Self {
        let rules = snapshot.rules().all().iter();
        let meter = |rule: &Rule| telemetry.meters.get(telemetry, &rule.label);
        let remaining = |rule: &Rule| telemetry.gauge(REMAINING, &[&rule.label]);
        let caller_meters =
            CallerRule::ALL.map(|by| &snapshot.rule(snapshot.caller_rule(by)).0.label);
        Self {
            version: snapshot.version(),
            rules: rules.clone().map(meter).collect(),
            remaining: rules.map(remaining).collect(),
            caller_meters: caller_meters.map(|label| match telemetry.meters.known(label) {
                Some(meter) => meter.into(),
                None => OnceLock::new(),
            }),
        }
    }

    /// Counts a decided check under each rule it hit.
    pub(super) fn count(&self, answer: &Answer, question: Question<'_>, telemetry: &Telemetry) {
        for hit in answer.hits() {
            let rule = answer.rule(hit);
            let meter = || telemetry.meters.get(telemetry, &rule.label);
            let count =
                |meter: &RuleMeter| meter.count(answer, hit, question, telemetry.keys_shown);
            if self.version != answer.version() {
                // The rules are being swapped: count under the same label, only slower.
                count(&meter());
            } else if let Some(meter) = self.rules.get(hit.rule) {
                count(meter);
                if rule.spec.limit.is_some() {
                    meter.lowest.note(hit.standing.remaining.get());
                }
            } else if let Some(caller_meters) = self.caller_meters.get(hit.rule - self.rules.len())
            {
                count(caller_meters.get_or_init(meter));
            }
        }
    }

    /// Sets [`REMAINING`] of every rule, unless the rules are being swapped.
    pub(super) fn show_remaining(&self, snapshot: &Snapshot) {
        if self.version == snapshot.version() {
            let rules = self.rules.iter().zip(snapshot.rules().all());
            for ((meter, rule), gauge) in rules.zip(&self.remaining) {
                let remaining = meter.lowest.get().unwrap_or_else(|| full(rule));
                gauge.set(remaining as f64);
            }
        }
    }

    /// The meters of all rules, and of the caller-supplied limits that were checked.
    pub(super) fn meters(&self) -> impl Iterator<Item = &Arc<RuleMeter>> {
        self.rules
            .iter()
            .chain(self.caller_meters.iter().filter_map(OnceLock::get))
    }
}

/// The counters of one rule.
pub struct RuleMeter {
    /// The rule's label.
    pub label: String,
    allowed: [AtomicU64; Source::ALL.len()],
    denied: [AtomicU64; Source::ALL.len()],
    shadow_denied: [AtomicU64; Source::ALL.len()],
    failed_open: AtomicU64,
    lowest: Lowest,
    denied_keys: DeniedKeys,
    series: RuleSeries,
}

/// The rule's series on the metrics page.
struct RuleSeries {
    decisions: [[Counter; Source::ALL.len()]; 3],
    denied: Counter,
    failed_open: Counter,
    /// Merges that cut debt also count here.
    debt_capped: Counter,
}

/// The decisions of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Decisions {
    /// Allowed checks.
    pub allowed: u64,
    /// Denied checks.
    pub denied: u64,
    /// Checks that were allowed only because the rule is in shadow mode.
    pub shadow_denied: u64,
}

impl Decisions {
    /// All decisions.
    pub const fn total(self) -> u64 {
        self.allowed + self.denied + self.shadow_denied
    }

    /// The sum of both.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            allowed: self.allowed + other.allowed,
            denied: self.denied + other.denied,
            shadow_denied: self.shadow_denied + other.shadow_denied,
        }
    }
}

impl RuleMeter {
    fn new(telemetry: &Telemetry, label: &str) -> Self {
        let decided = |decision: &str, source: Source| {
            telemetry.counter(DECISIONS, &[label, decision, source.name()])
        };
        Self {
            label: label.to_owned(),
            allowed: Default::default(),
            denied: Default::default(),
            shadow_denied: Default::default(),
            failed_open: AtomicU64::new(0),
            lowest: Lowest::default(),
            denied_keys: DeniedKeys::default(),
            series: RuleSeries {
                decisions: ["allow", "deny", "shadow_deny"].map(|decision| {
                    Source::ALL.map(|source| match (decision, source) {
                        // A mitigation never allows: once the known level has fallen far enough, the bucket decides.
                        ("allow", Source::Mitigation) => Counter::noop(),
                        _ => decided(decision, source),
                    })
                }),
                denied: telemetry.counter(DENIED, &[label]),
                failed_open: telemetry.counter(FAILOPEN, &[label]),
                debt_capped: telemetry.counter(DEBT_CAPPED, &[label]),
            },
        }
    }

    fn count(&self, answer: &Answer, hit: &Hit, question: Question<'_>, shown: KeyDisplay) {
        let shadow = answer.rule(hit).spec.shadow;
        let counted = match (hit.standing.allowed, shadow) {
            (true, _) => &self.allowed,
            (false, true) => &self.shadow_denied,
            (false, false) => &self.denied,
        };
        let source = match (hit.standing.allowed, hit.source) {
            (true, Source::Mitigation) => Source::Local,
            (_, source) => source,
        };
        // Ordering: Relaxed, here and below. Figures for people; no counter depends on another.
        counted[source as usize].fetch_add(1, Ordering::Relaxed);
        // A peek is not a denial, and neither is a quota rule that denies while another quota rule allows.
        if !hit.standing.allowed && hit.cost > Cells::ZERO && (shadow || !answer.allowed()) {
            self.denied_keys.note(question, answer, hit, shown);
        }
        if hit.forgiven && !shadow && answer.allowed() {
            self.failed_open.fetch_add(1, Ordering::Relaxed);
        }
        if hit.capped {
            self.series.debt_capped.increment(1);
        }
    }

    /// Copies the counters to their series.
    pub(super) fn show(&self) {
        let counted = [&self.allowed, &self.denied, &self.shadow_denied];
        for (series, counted) in self.series.decisions.iter().zip(counted) {
            for (series, counted) in series.iter().zip(counted) {
                series.absolute(counted.load(Ordering::Relaxed));
            }
        }
        self.series.denied.absolute(sum(&self.denied));
        let failed_open = self.failed_open.load(Ordering::Relaxed);
        self.series.failed_open.absolute(failed_open);
    }

    /// Its decisions since the start.
    pub fn decisions(&self) -> Decisions {
        Decisions {
            allowed: sum(&self.allowed),
            denied: sum(&self.denied),
            shadow_denied: sum(&self.shadow_denied),
        }
    }

    /// The fewest cells that any key had left in the last minute; `None` without checks.
    pub fn lowest(&self) -> Option<u64> {
        self.lowest.get()
    }

    /// The number of recently denied checks.
    pub fn recently_denied(&self) -> u64 {
        self.denied_keys.denied()
    }

    /// The recent denials and their keys.
    pub fn recent(&self) -> RecentDenials {
        self.denied_keys.recent()
    }

    /// Starts the next half minute.
    pub(super) fn turn(&self) {
        self.lowest.turn();
        self.denied_keys.turn();
    }
}

fn sum(counted: &[AtomicU64]) -> u64 {
    let counted = counted
        .iter()
        .map(|counted| counted.load(Ordering::Relaxed));
    counted.sum()
}

/// The cells left of an unused key; for a rule without a limit, the number that an answer shows.
fn full(rule: &Rule) -> u64 {
    match &rule.spec.limit {
        Some(limit) if rule.spec.algorithm.is_windowed() => limit.requests(),
        Some(limit) => limit.burst().get(),
        None => u64::from(u32::MAX),
    }
}

/// The lowest number of the current half minute and of the one before.
struct Lowest([AtomicU64; 2]);

impl Default for Lowest {
    fn default() -> Self {
        Self([AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)])
    }
}

impl Lowest {
    fn note(&self, number: u64) {
        // Load first: the number is rarely the lowest, and loads do not contend.
        if number < self.0[0].load(Ordering::Relaxed) {
            self.0[0].fetch_min(number, Ordering::Relaxed);
        }
    }

    fn turn(&self) {
        let lowest = self.0[0].swap(u64::MAX, Ordering::Relaxed);
        self.0[1].store(lowest, Ordering::Relaxed);
    }

    fn get(&self) -> Option<u64> {
        let lowest = self.0[0]
            .load(Ordering::Relaxed)
            .min(self.0[1].load(Ordering::Relaxed));
        (lowest != u64::MAX).then_some(lowest)
    }
}
