//! Every metric, declared once.
//!
//! A label's values are known before the first request: rules, decisions, reasons. What a client sends is never a
//! label. The handles of a rule are made when its rules are put in force; a check only counts.

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::engine::rounds::{Figures, Reason, ShardState};
use crate::engine::{Answer, Engine, Hit, Snapshot, Source, Stat, Stats};
use crate::pure::{Nanos, Rule, Span};

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
        "Admitted cells that no store will hear of: evicted, netted (drained before their key left), kept_out, reset, store (it lost them), rule (it is gone), crowd (more keys than are kept in mind).";
    CELLS_FOUND = Counter "ratelimit_cells_found_total" []
        "Cells counted as lost by the store that it has after all.";
    CELLS_SILENT = Counter "ratelimit_cells_silent_total" []
        "Admitted cells that the store is not told of, because this pod uses their key within its even share.";
    DELTAS_PENDING = Gauge "ratelimit_deltas_pending" []
        "Admitted cells that the store has not confirmed yet: waiting to be told, or on their way.";
    CIRCUIT_STATE = Gauge "ratelimit_circuit_state" ["shard"]
        "The circuit breaker of a shard of the store: 0 closed, 1 half-open, 2 open. Absent without a store.";
    REDIS_ERRORS = Counter "ratelimit_redis_errors_total" ["kind"]
        "Calls that the store did not answer, or not as asked, by kind.";
    SYNC_ROUNDS = Counter "ratelimit_sync_rounds_total" ["end"]
        "Exchanges with the store: settled, returned (no answer), replayed (the store had lost something, or has it again).";
    SYNC_ROUND = Histogram "ratelimit_sync_round_seconds" []
        "Time from sending a batch to its answer.";
    SYNC_REASON = Counter "ratelimit_sync_reason_total" ["reason"]
        "Keys told to the store, by why: trigger, interval, share, live, mitigation, drain.";
    SYNC_KEYS = Counter "ratelimit_sync_keys_total" []
        "Keys told to the store.";
    SYNC_STALENESS = Gauge "ratelimit_sync_staleness_seconds" []
        "Time since the shard that is silent longest last answered; since the start if it never did. Absent without a store.";
    VALUES_REPAIRED = Counter "ratelimit_store_values_repaired_total" []
        "Values in the store that were not ours and were replaced.";
    OVERSHOOT = Counter "ratelimit_overshoot_cells_total" ["rule"]
        "Cells that a merge put above capacity.";
    DEBT_CAPPED = Counter "ratelimit_debt_capped_total" ["rule"]
        "Merges that forgave debt, because a bucket was too far above capacity.";
    MITIGATIONS = Gauge "ratelimit_mitigations" []
        "Keys that the fleet denies.";
    PODS = Gauge "ratelimit_pods" []
        "Pods alive, this one included; 1 without a store.";
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

/// The buckets of a round's duration: a quarter of a millisecond to a second. What takes longer has timed out.
const SYNC_ROUND_NANOS: [u64; 12] = [
    250_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    25_000_000,
    50_000_000,
    100_000_000,
    250_000_000,
    500_000_000,
    1_000_000_000,
];

/// How a call to the store fails, in [`REDIS_ERRORS`]. The last stands for every other.
pub const REDIS_ERROR_KINDS: [&str; 17] = [
    "noscript",
    "loading",
    "oom",
    "readonly",
    "moved",
    "ask",
    "tryagain",
    "clusterdown",
    "busy",
    "noauth",
    "noperm",
    "wrongtype",
    "timeout",
    "connect",
    "cut",
    "protocol",
    "other",
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
    redis_errors: [Counter; REDIS_ERROR_KINDS.len()],
    shards: ArcSwap<Vec<String>>,
    /// By rule, as the store calls it: how much of its overshoot and of its forgiven debt has been counted.
    overshoot: Mutex<HashMap<u64, (u64, u64)>>,
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
            check_duration: Durations::new(CHECK_DURATION, &CHECK_DURATION_NANOS),
            sync_round: Durations::new(SYNC_ROUND, &SYNC_ROUND_NANOS),
            redis_errors: REDIS_ERROR_KINDS
                .map(|kind| recorder.register_counter(&key(REDIS_ERRORS, &[kind]), &METADATA)),
            shards: ArcSwap::default(),
            overshoot: Mutex::default(),
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

    /// Counts a call to the store that failed: one of [`REDIS_ERROR_KINDS`].
    pub fn redis_error(&self, kind: &'static str) {
        let kinds = REDIS_ERROR_KINDS.iter().zip(&self.redis_errors);
        let found = kinds.filter(|(name, _)| **name == kind).map(|(_, it)| it);
        if let Some(counter) = found.chain(self.redis_errors.last()).next() {
            counter.increment(1);
        }
    }

    /// Says what the store's shards are called, in the order of the rounds' shards.
    pub fn set_shards(&self, names: Vec<String>) {
        self.shards.store(Arc::new(names));
    }

    /// What a shard is called: by its number, if it has no name of its own.
    pub fn shard_name(&self, shard: usize) -> String {
        let names = self.shards.load();
        let name = names.get(shard);
        name.filter(|name| !names.iter().take(shard).any(|other| other == *name))
            .map_or_else(|| shard.to_string(), Clone::clone)
    }

    /// The page for Prometheus, with what `engine` says at `now`.
    pub fn render(&self, engine: &Engine, now: Nanos) -> String {
        let (stats, figures) = (engine.stats(), engine.figures());
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
        self.counter(RACES, &[])
            .absolute(stats.total(Stat::KeptAfterRace));
        let (board, snapshot) = (self.board.load(), engine.snapshot());
        if board.version == snapshot.version() {
            for (meter, rule) in board.rules.iter().zip(snapshot.rules().all()) {
                let remaining = meter.lowest.get().unwrap_or_else(|| full(rule));
                meter.remaining.set(remaining as f64);
            }
        }
        for (reason, cells) in cells_lost(stats, &figures) {
            self.counter(CELLS_LOST, &[reason]).absolute(cells);
        }
        self.show_rounds(&figures, now);
        self.count_overshoot(&figures, &snapshot);
        let mut page = self.handle.render();
        // Writing into memory does not fail.
        let _ = self.check_duration.write(&mut page);
        let _ = self.sync_round.write(&mut page);
        let _ = self.write_circuits(&mut page, &figures);
        page
    }

    fn show_rounds(&self, figures: &Figures, now: Nanos) {
        let unsettled = figures.pending.plus(figures.in_flight);
        for (metric, number) in [
            (DELTAS_PENDING, unsettled.get()),
            (MITIGATIONS, figures.mitigations),
            (PODS, figures.pods.max(1)),
        ] {
            self.gauge(metric, &[]).set(number as f64);
        }
        for (metric, total) in [
            (CELLS_FOUND, figures.found.get()),
            (CELLS_SILENT, figures.silent.get()),
            (SYNC_KEYS, figures.keys_told),
            (VALUES_REPAIRED, figures.repaired),
        ] {
            self.counter(metric, &[]).absolute(total);
        }
        for (end, total) in [
            ("settled", figures.rounds.settled),
            ("returned", figures.rounds.returned),
            ("replayed", figures.rounds.replayed),
        ] {
            self.counter(SYNC_ROUNDS, &[end]).absolute(total);
        }
        for (reason, total) in Reason::ALL.iter().zip(figures.reasons) {
            self.counter(SYNC_REASON, &[reason.name()]).absolute(total);
        }
        if let Some(staleness) = staleness(&figures.shards, now) {
            let gauge = self.gauge(SYNC_STALENESS, &[]);
            gauge.set(seconds(staleness.get()));
        }
    }

    /// Counts what has come to each rule's overshoot since it was last counted. A rule that is put in force under
    /// another name in the store starts at zero there, but its label goes on.
    fn count_overshoot(&self, figures: &Figures, snapshot: &Snapshot) {
        for (rule, _) in snapshot.all() {
            let _ = self.counter(OVERSHOOT, &[&rule.label]);
            let _ = self.counter(DEBT_CAPPED, &[&rule.label]);
        }
        let mut counted = self
            .overshoot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (id, cells, forgiven) in &figures.overshoot {
            let Some(index) = snapshot.rule_of_id(*id) else {
                continue;
            };
            let label = &snapshot.rule(index).0.label;
            let (cells_before, forgiven_before) = counted.entry(*id).or_default();
            // Of two pages at a time, one may have older figures.
            self.counter(OVERSHOOT, &[label])
                .increment(cells.get().saturating_sub(*cells_before));
            self.counter(DEBT_CAPPED, &[label])
                .increment(forgiven.saturating_sub(*forgiven_before));
            *cells_before = cells.get().max(*cells_before);
            *forgiven_before = (*forgiven).max(*forgiven_before);
        }
    }

    /// [`CIRCUIT_STATE`], not by the recorder: that would go on telling of shards that are gone.
    fn write_circuits(&self, page: &mut String, figures: &Figures) -> fmt::Result {
        if figures.shards.is_empty() {
            return Ok(());
        }
        let Metric { name, help, .. } = CIRCUIT_STATE;
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge")?;
        for state in &figures.shards {
            let (shard, circuit) = (self.shard_name(state.number), state.circuit.number());
            writeln!(page, "{name}{{shard=\"{}\"}} {circuit}", escaped(&shard))?;
        }
        Ok(())
    }

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

/// Admitted cells that no store will hear of, by reason.
pub fn cells_lost(stats: &Stats, figures: &Figures) -> [(&'static str, u64); 7] {
    let reset = stats.total(Stat::CellsReset);
    [
        ("evicted", stats.total(Stat::CellsLost)),
        ("netted", stats.total(Stat::CellsNetted)),
        ("kept_out", stats.total(Stat::CellsUnheld)),
        ("reset", reset.saturating_add(figures.lost.reset.get())),
        ("store", figures.lost.store.get()),
        ("rule", figures.lost.rule.get()),
        ("crowd", figures.lost.crowd.get()),
    ]
}

/// How long the shard that is silent longest has been so: since the start, if it never answered. `None` if there is
/// no shard.
fn staleness(shards: &[ShardState], now: Nanos) -> Option<Span> {
    let silent = |shard: &ShardState| now.since(shard.last_success.unwrap_or_default());
    shards.iter().map(silent).max()
}

/// A label's value as the page has it.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// A histogram: a few counters. The recorder's own would keep every duration until it is next tidied.
#[derive(Debug)]
pub struct Durations {
    metric: Metric,
    /// The most nanoseconds of each bucket but the last.
    bounds: &'static [u64],
    /// By the first bucket that a duration fits in; the last holds what fits in none.
    counts: Box<[AtomicU64]>,
    nanos: AtomicU64,
}

impl Durations {
    fn new(metric: Metric, bounds: &'static [u64]) -> Self {
        Self {
            metric,
            bounds,
            counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(),
            nanos: AtomicU64::new(0),
        }
    }

    /// Counts one more.
    pub fn record(&self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let bucket = self.bounds.partition_point(|most| *most < nanos);
        // Ordering: Relaxed. Numbers for people, each standing alone.
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    fn write(&self, page: &mut String) -> fmt::Result {
        let Metric { name, help, .. } = self.metric;
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} histogram")?;
        let mut total = 0_u64;
        let bounds = self.bounds.iter().map(|most| Some(seconds(*most)));
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
        let durations = Durations::new(CHECK_DURATION, &CHECK_DURATION_NANOS);
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

    use crate::engine::{FleetKey, Setup};
    use crate::pure::Rules;
    use crate::pure::sync::Circuit;

    fn engine() -> Engine {
        let setup = Setup {
            keys_max: 64,
            fleet: FleetKey::derived(b"test"),
            seeds: [1, 2],
            reporting: true,
        };
        Engine::new(setup, Rules::default())
    }

    fn shard(number: usize, circuit: Circuit, last_success: Option<Nanos>) -> ShardState {
        ShardState {
            number,
            circuit,
            partitioned: false,
            last_success,
        }
    }

    #[test]
    fn the_stalest_shard_counts_and_one_that_never_answered_is_stale_since_the_start() {
        let (early, late) = (Nanos::new(3), Nanos::new(8));
        for (shards, expected) in [
            (vec![], None),
            (vec![Some(late)], Some(2)),
            (vec![Some(late), Some(early)], Some(7)),
            (vec![Some(late), None], Some(10)),
        ] {
            let shards: Vec<_> = shards
                .into_iter()
                .map(|at| shard(0, Circuit::Closed, at))
                .collect();
            let found = staleness(&shards, Nanos::new(10));
            assert_eq!(found.map(Span::get), expected, "{shards:?}");
        }
    }

    #[test]
    fn every_kind_of_store_error_is_there_from_the_start_and_an_unknown_one_is_other() {
        let engine = engine();
        let telemetry = Telemetry::new(&engine.snapshot());
        for kind in ["loading", "loading", "unheard_of"] {
            telemetry.redis_error(kind);
        }
        let page = telemetry.render(&engine, Nanos::new(1));
        for kind in REDIS_ERROR_KINDS {
            let count = match kind {
                "loading" => 2,
                "other" => 1,
                _ => 0,
            };
            let line = format!("ratelimit_redis_errors_total{{kind=\"{kind}\"}} {count}");
            assert!(page.lines().any(|found| found == line), "{line}\n{page}");
        }
        assert!(!page.contains("ratelimit_circuit_state"), "{page}");
        assert!(!page.contains("ratelimit_sync_staleness_seconds"), "{page}");
        assert!(page.contains("\nratelimit_pods 1\n"), "{page}");
    }

    #[test]
    fn a_shard_goes_by_its_name_and_without_one_by_its_number() {
        let engine = engine();
        let telemetry = Telemetry::new(&engine.snapshot());
        assert_eq!(telemetry.shard_name(0), "0");
        telemetry.set_shards(vec!["a\"b".to_owned(), "a\"b".to_owned()]);
        let figures = Figures {
            shards: vec![
                shard(0, Circuit::Open, None),
                shard(1, Circuit::HalfOpen, None),
                shard(2, Circuit::Closed, None),
            ],
            ..Figures::default()
        };
        let mut page = String::new();
        telemetry.write_circuits(&mut page, &figures).unwrap();
        let series: Vec<_> = page.lines().skip(2).collect();
        assert_eq!(
            series,
            [
                r#"ratelimit_circuit_state{shard="a\"b"} 2"#,
                r#"ratelimit_circuit_state{shard="1"} 1"#,
                r#"ratelimit_circuit_state{shard="2"} 0"#,
            ]
        );
    }
}
