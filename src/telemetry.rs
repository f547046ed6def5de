//! Every metric, declared once.
//!
//! A label's values are known before the first request: rules, decisions, reasons. What a client sends is never a
//! label. The handles of a rule are made when its rules are put in force; a check only counts.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::engine::{Answer, Engine, Hit, Snapshot, Source, Stat};
use crate::pure::Rule;

/// A metric as it is documented.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The labels its series have.
    pub labels: &'static [&'static str],
    /// What it tells.
    pub help: &'static str,
}

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only ever counts up.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $id: Metric =
            Metric { name: $name, kind: Kind::$kind, labels: &[$($label),*], help: $help };)*
        /// Every metric, in the order of the documentation.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    DECISIONS = Counter "ratelimit_decisions_total" ["rule", "decision", "source"]
        "Rules asked, by rule, by decision (allow, deny, shadow_deny) and by what decided (local, mitigation, strict, fallback).";
    DENIED = Counter "ratelimit_denied_total" ["rule"]
        "Checks a rule denied.";
    FAILOPEN = Counter "ratelimit_failopen_total" ["rule"]
        "Checks allowed above a rule's limit because the store cannot be reached and on_store_error is allow.";
    UNMATCHED = Counter "ratelimit_unmatched_total" ["reason"]
        "Checks allowed because nothing limits them: the domain is not configured (domain), or no rule of it matched (rule).";
    CHECK_DURATION = Histogram "ratelimit_check_duration_seconds" []
        "Time from a check's bytes to its decision.";
    REMAINING = Gauge "ratelimit_remaining" ["rule"]
        "The fewest cells any key of the rule had left in the last 60 seconds; all of them if none was asked for.";
    KEYS = Gauge "ratelimit_keys" []
        "Keys held in memory.";
    EVICTED = Counter "ratelimit_keys_evicted_total" ["reason"]
        "Keys that made room for others: settled (as good as new), netted (full again, cells unreported), in_use.";
    KEPT_OUT = Counter "ratelimit_keys_kept_out_total" []
        "Checks of keys that were not let into a nearly full table.";
    CELLS_LOST = Counter "ratelimit_cells_lost_total" ["reason"]
        "Admitted cells that no store will hear of.";
    RACES = Counter "ratelimit_races_total" []
        "Denied checks that stayed charged on a rule, because its bucket changed while the cells were given back.";
    RELOADS = Counter "ratelimit_config_reloads_total" ["outcome"]
        "Attempts to reload the configuration: applied, unchanged or refused.";
    CONNECTIONS = Gauge "ratelimit_connections" ["door"]
        "Connections open, by door (http, metrics, admin).";
    CONNECTIONS_REFUSED = Counter "ratelimit_connections_refused_total" ["door"]
        "Connections refused because as many as allowed were open.";
    REQUESTS_MALFORMED = Counter "ratelimit_requests_malformed_total" ["door"]
        "Requests that were no valid check.";
}

/// The buckets of the check's duration: a check takes microseconds, and what takes a millisecond is a fault.
const CHECK_DURATION_NANOS: [u64; 11] = [
    500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000, 10_000_000,
];

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// Where everything is counted.
pub struct Telemetry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// How long checks took.
    pub check_duration: Durations,
    /// How long rounds took.
    pub sync_round: Durations,
    /// Requests that were no valid check.
    pub requests_malformed: Counter,
    unmatched_domain: Counter,
    unmatched_rule: Counter,
    board: ArcSwap<Board>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telemetry")
    }
}

/// The handles of the rules in force, by the rules' indices.
struct Board {
    version: u64,
    rules: Vec<Arc<RuleMeter>>,
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
    remaining: Gauge,
}

impl Telemetry {
    /// Metrics for an engine with these rules.
    pub fn new(rules: &Snapshot) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for metric in ALL {
            let (name, help) = (
                KeyName::from_const_str(metric.name),
                SharedString::const_str(metric.help),
            );
            match metric.kind {
                Kind::Counter => recorder.describe_counter(name, None, help),
                Kind::Gauge => recorder.describe_gauge(name, None, help),
                // Written by `Durations`.
                Kind::Histogram => {}
            }
        }
        let telemetry = Self {
            handle: recorder.handle(),
            check_duration: Durations::default(),
            sync_round: Durations::default(),
            requests_malformed: recorder
                .register_counter(&key(REQUESTS_MALFORMED, &["http"]), &METADATA),
            unmatched_domain: recorder.register_counter(&key(UNMATCHED, &["domain"]), &METADATA),
            unmatched_rule: recorder.register_counter(&key(UNMATCHED, &["rule"]), &METADATA),
            recorder,
            board: ArcSwap::from_pointee(Board {
                version: 0,
                rules: Vec::new(),
            }),
        };
        for outcome in ["applied", "unchanged", "refused"] {
            let _ = telemetry.counter(RELOADS, &[outcome]);
        }
        telemetry.rules_changed(rules);
        telemetry
    }

    /// A counter of `metric` with these label values.
    pub fn counter(&self, metric: Metric, values: &[&str]) -> Counter {
        self.recorder
            .register_counter(&key(metric, values), &METADATA)
    }

    /// A gauge of `metric` with these label values.
    pub fn gauge(&self, metric: Metric, values: &[&str]) -> Gauge {
        self.recorder
            .register_gauge(&key(metric, values), &METADATA)
    }

    /// Makes the handles of new rules. A rule that stays keeps its own.
    pub fn rules_changed(&self, snapshot: &Snapshot) {
        let before = self.board.load();
        let known: HashMap<&str, &Arc<RuleMeter>> = before
            .rules
            .iter()
            .map(|meter| (meter.label.as_str(), meter))
            .collect();
        let meter = |rule: &Rule| match known.get(rule.label.as_str()) {
            Some(meter) => Arc::clone(meter),
            None => Arc::new(self.meter(&rule.label)),
        };
        let rules = snapshot.rules().all().iter().map(meter).collect();
        self.board.store(Arc::new(Board {
            version: snapshot.version(),
            rules,
        }));
    }

    /// Counts a decided check.
    pub fn decided(&self, answer: &Answer) {
        if answer.hits().is_empty() {
            let unmatched = if answer.domain_known() {
                &self.unmatched_rule
            } else {
                &self.unmatched_domain
            };
            unmatched.increment(1);
            return;
        }
        let board = self.board.load();
        for hit in answer.hits() {
            let rule = answer.rule(hit);
            match board
                .rules
                .get(hit.rule)
                .filter(|_| board.version == answer.version())
            {
                Some(meter) => {
                    meter.count(answer, hit);
                    if rule.spec.limit.is_some() {
                        meter.lowest.note(hit.standing.remaining.get());
                    }
                }
                // The rules are being swapped: count under the same name, only not as fast.
                None => self.meter(&rule.label).count(answer, hit),
            }
        }
    }

    /// The page for Prometheus, with what `engine` says now.
    pub fn render(&self, engine: &Engine) -> String {
        let stats = engine.stats();
        self.gauge(KEYS, &[]).set(engine.keys_held() as f64);
        for (reason, stat) in [
            ("settled", Stat::EvictedSettled),
            ("netted", Stat::EvictedNetted),
            ("in_use", Stat::EvictedInUse),
        ] {
            self.counter(EVICTED, &[reason]).absolute(stats.total(stat));
        }
        self.counter(KEPT_OUT, &[])
            .absolute(stats.total(Stat::KeptOut));
        self.counter(CELLS_LOST, &["evicted"])
            .absolute(stats.total(Stat::CellsLost));
        self.counter(RACES, &[])
            .absolute(stats.total(Stat::KeptAfterRace));
        let (board, snapshot) = (self.board.load(), engine.snapshot());
        if board.version == snapshot.version() {
            for (meter, rule) in board.rules.iter().zip(snapshot.rules().all()) {
                let remaining = meter.lowest.get().unwrap_or_else(|| full(rule));
                meter.remaining.set(remaining as f64);
            }
        }
        let mut page = self.handle.render();
        // Writing into memory does not fail.
        let _ = self.check_duration.write(&mut page);
        page
    }

    /// tmp
    pub fn redis_error(&self, _kind: &'static str) {}
    /// tmp
    pub fn set_shards(&self, _shards: Vec<String>) {}

    /// Housekeeping: to be called every few seconds.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Begins the next half of the minute that [`REMAINING`] looks back on: to be called every 30 seconds.
    pub fn half_minute(&self) {
        for meter in &self.board.load().rules {
            meter.lowest.turn();
        }
    }

    fn meter(&self, label: &str) -> RuleMeter {
        let decided = |decision: &str, source: Source| {
            self.counter(DECISIONS, &[label, decision, source.name()])
        };
        RuleMeter {
            label: label.to_owned(),
            allowed: Source::ALL.map(|source| match source {
                // A known level that has fallen far enough does not speak for a check: the bucket does.
                Source::Local | Source::Mitigation => decided("allow", Source::Local),
                Source::Strict | Source::Fallback => decided("allow", source),
            }),
            denied: Source::ALL.map(|source| decided("deny", source)),
            shadow_denied: Source::ALL.map(|source| decided("shadow_deny", source)),
            denied_total: self.counter(DENIED, &[label]),
            failed_open: self.counter(FAILOPEN, &[label]),
            lowest: Lowest::default(),
            remaining: self.gauge(REMAINING, &[label]),
        }
    }
}

impl RuleMeter {
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

/// [`CHECK_DURATION`]: a few counters. The recorder's own histogram would keep every duration until it is next tidied.
#[derive(Debug, Default)]
pub struct Durations {
    /// By the first bucket that a duration fits in; the last holds what fits in none.
    counts: [AtomicU64; CHECK_DURATION_NANOS.len() + 1],
    nanos: AtomicU64,
}

impl Durations {
    /// Counts one more.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = CHECK_DURATION_NANOS.partition_point(|most| *most < nanos);
        // Ordering: Relaxed. Numbers for people, each standing alone.
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn write(&self, page: &mut String) -> fmt::Result {
        let Metric { name, help, .. } = CHECK_DURATION;
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} histogram")?;
        let mut total = 0_u64;
        let bounds = CHECK_DURATION_NANOS.iter().map(|most| Some(seconds(*most)));
        for (count, bound) in self.counts.iter().zip(bounds.chain([None])) {
            total = total.saturating_add(count.load(Ordering::Relaxed));
            match bound {
                Some(bound) => writeln!(page, "{name}_bucket{{le=\"{bound}\"}} {total}")?,
                None => writeln!(page, "{name}_bucket{{le=\"+Inf\"}} {total}")?,
            }
        }
        let sum = seconds(self.nanos.load(Ordering::Relaxed));
        writeln!(page, "{name}_sum {sum}\n{name}_count {total}")
    }
}

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
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

fn key(metric: Metric, values: &[&str]) -> Key {
    let label = |(name, value): (&&'static str, &&str)| Label::new(*name, (*value).to_owned());
    Key::from_parts(
        metric.name,
        metric
            .labels
            .iter()
            .zip(values)
            .map(label)
            .collect::<Vec<_>>(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_in_every_bucket_it_fits_in() {
        let durations = Durations::default();
        for nanos in [0, 500, 501, 10_000_001] {
            durations.record(Duration::from_nanos(nanos));
        }
        let mut page = String::new();
        durations.write(&mut page).unwrap();
        for line in [
            "# TYPE ratelimit_check_duration_seconds histogram",
            "ratelimit_check_duration_seconds_bucket{le=\"0.0000005\"} 2",
            "ratelimit_check_duration_seconds_bucket{le=\"0.000001\"} 3",
            "ratelimit_check_duration_seconds_bucket{le=\"0.01\"} 3",
            "ratelimit_check_duration_seconds_bucket{le=\"+Inf\"} 4",
            "ratelimit_check_duration_seconds_sum 0.010001002",
            "ratelimit_check_duration_seconds_count 4",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
    }
}
