//! What is counted of each rule: decisions by what decided, and the fewest cells a key had left.
//!
//! A rule's handles are made when it is put in force; a rule of the same label takes them over. A check finds them by
//! the rule's index; only while the rules are being swapped does it look them up by name.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use metrics::{Counter, Gauge};

use super::Telemetry;
use super::metric::{DECISIONS, DENIED, FAILOPEN, REMAINING};
use crate::engine::{Answer, Carrier, Hit, Snapshot, Source};
use crate::pure::Rule;

/// The handles of the rules in force, by the rules' indices.
#[derive(Default)]
pub(super) struct Board {
    version: u64,
    rules: Vec<Arc<RuleMeter>>,
    remaining: Vec<Gauge>,
    /// Of the rules behind those: made when the first caller comes that carries its limit.
    carried: [OnceLock<RuleMeter>; Carrier::ALL.len()],
}

impl Board {
    /// The board of the rules of `snapshot`. A rule that stays keeps its handles.
    pub(super) fn next(&self, snapshot: &Snapshot, telemetry: &Telemetry) -> Self {
        let known: HashMap<&str, &Arc<RuleMeter>> = self
            .rules
            .iter()
            .map(|meter| (meter.label.as_str(), meter))
            .collect();
        let meter = |rule: &Rule| match known.get(rule.label.as_str()) {
            Some(meter) => Arc::clone(meter),
            None => Arc::new(RuleMeter::new(telemetry, &rule.label)),
        };
        let rules = snapshot.rules().all();
        let remaining = |rule: &Rule| telemetry.gauge(REMAINING, &[&rule.label]);
        Self {
            version: snapshot.version(),
            rules: rules.iter().map(meter).collect(),
            remaining: rules.iter().map(remaining).collect(),
            carried: Default::default(),
        }
    }

    /// Counts a decided check under each rule it hit.
    pub(super) fn count(&self, answer: &Answer, telemetry: &Telemetry) {
        for hit in answer.hits() {
            let rule = answer.rule(hit);
            if self.version != answer.version() {
                // The rules are being swapped: count under the same name, only not as fast.
                RuleMeter::new(telemetry, &rule.label).count(answer, hit);
            } else if let Some(meter) = self.rules.get(hit.rule) {
                meter.count(answer, hit);
                if rule.spec.limit.is_some() {
                    meter.lowest.note(hit.standing.remaining.get());
                }
            } else if let Some(meter) = self.carried.get(hit.rule - self.rules.len()) {
                let new = || RuleMeter::new(telemetry, &rule.label);
                meter.get_or_init(new).count(answer, hit);
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

    /// Begins the next half of the minute that [`REMAINING`] looks back on.
    pub(super) fn turn(&self) {
        for meter in &self.rules {
            meter.lowest.turn();
        }
    }
}

/// What is counted of one rule.
struct RuleMeter {
    label: String,
    allowed: [Counter; Source::ALL.len()],
    denied: [Counter; Source::ALL.len()],
    shadow_denied: [Counter; Source::ALL.len()],
    denied_total: Counter,
    failed_open: Counter,
    lowest: Lowest,
}

impl RuleMeter {
    fn new(telemetry: &Telemetry, label: &str) -> Self {
        let decided = |decision: &str, source: Source| {
            telemetry.counter(DECISIONS, &[label, decision, source.name()])
        };
        Self {
            label: label.to_owned(),
            allowed: Source::ALL.map(|source| match source {
                // A known level that has fallen far enough does not speak for a check: the bucket does.
                Source::Local | Source::Mitigation => decided("allow", Source::Local),
                Source::Strict | Source::Fallback => decided("allow", source),
            }),
            denied: Source::ALL.map(|source| decided("deny", source)),
            shadow_denied: Source::ALL.map(|source| decided("shadow_deny", source)),
            denied_total: telemetry.counter(DENIED, &[label]),
            failed_open: telemetry.counter(FAILOPEN, &[label]),
            lowest: Lowest::default(),
        }
    }

    fn count(&self, answer: &Answer, hit: &Hit) {
        let (source, shadow) = (hit.source as usize, answer.rule(hit).spec.shadow);
        match (hit.standing.allowed, shadow) {
            (true, _) => self.allowed[source].increment(1),
            (false, true) => self.shadow_denied[source].increment(1),
            (false, false) => {
                self.denied_total.increment(1);
                self.denied[source].increment(1);
            }
        }
        if hit.forgiven && !shadow && answer.allowed() {
            self.failed_open.increment(1);
        }
    }
}

/// What a key has left that nobody used: without a limit, what an answer says then.
fn full(rule: &Rule) -> u64 {
    match &rule.spec.limit {
        Some(limit) if rule.spec.algorithm.is_windowed() => limit.requests(),
        Some(limit) => limit.burst().get(),
        None => u64::from(u32::MAX),
    }
}

/// The lowest number noted in this half of the minute and in the one before.
struct Lowest([AtomicU64; 2]);

impl Default for Lowest {
    fn default() -> Self {
        Self([AtomicU64::new(u64::MAX), AtomicU64::new(u64::MAX)])
    }
}

impl Lowest {
    fn note(&self, number: u64) {
        // Ordering: Relaxed. A number for people. Read first: it is rarely the lowest, and reading is not contended.
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
