//! The metrics and the log.
//!
//! Each metric is declared once. The values of a label are known before the first request: rules, decisions, reasons.
//! Values that a client sends are never labels. The handles of a rule are made when the rule is put in force; a check
//! only counts.
//!
//! [`Telemetry`] counts and renders the Prometheus page. `metric` declares the metrics, `rules` counts by rule, `top`
//! finds the keys that are denied most, `durations` is the histogram, `log` writes the log.

mod durations;
mod log;
mod metric;
mod rules;
mod top;

use std::collections::HashMap;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use metrics::{Counter, Gauge, Key, KeyName, Label, Level, Metadata, Recorder, SharedString};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

pub use durations::Durations;
pub use log::{LogQueue, panicked};
pub use metric::*;
pub use rules::{Decisions, RuleMeter};
pub use top::{Entries, RecentDenials};

use durations::{CHECK_DURATION_NANOS, SYNC_ROUND_NANOS, seconds};
use rules::{ActiveMeters, Meters};
use tidegate_core::engine::sync::{Figures, Reason, RuleOvershoot, ShardState};
use tidegate_core::engine::{Answer, Engine, Question, Snapshot, Stat};
use tidegate_core::pure::{KeyDisplay, Nanos, Span};

static METADATA: Metadata<'static> =
    Metadata::new(module_path!(), Level::INFO, Some(module_path!()));

/// All metrics of this process.
pub struct Telemetry {
    recorder: PrometheusRecorder,
    handle: PrometheusHandle,
    /// The duration of checks.
    pub check_duration: Durations,
    /// The duration of sync rounds.
    pub sync_round: Durations,
    unmatched_domain: Counter,
    unmatched_rule: Counter,
    keys_shown: KeyDisplay,
    meters: Meters,
    active: ArcSwap<ActiveMeters>,
    /// The start of the current half minute, and of the one before, in nanoseconds.
    halves: [AtomicU64; 2],
    redis_errors: [Counter; REDIS_ERROR_KINDS.len()],
    shards: ArcSwap<Vec<String>>,
    /// The hash of the configuration in force.
    configuration: AtomicU64,
    /// By the rule's id in the store: the overshoot and the forgiven debt that have been counted so far.
    overshoot: Mutex<HashMap<u64, (u64, u64)>>,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Telemetry")
    }
}

impl Telemetry {
    /// Metrics for an engine with these rules. `keys_shown` says what it may store of denied keys.
    pub fn new(rules: &Snapshot, keys_shown: KeyDisplay) -> Self {
        let recorder = PrometheusBuilder::new().build_recorder();
        for metric in ALL {
            let (name, help) = (
                KeyName::from_const_str(metric.name),
                SharedString::const_str(metric.help),
            );
            match metric.kind {
                MetricKind::Counter => recorder.describe_counter(name, None, help),
                MetricKind::Gauge => recorder.describe_gauge(name, None, help),
                // `Durations` writes these.
                MetricKind::Histogram => {}
            }
        }
        let telemetry = Self {
            handle: recorder.handle(),
            check_duration: Durations::new(CHECK_DURATION, &CHECK_DURATION_NANOS),
            sync_round: Durations::new(SYNC_ROUND, &SYNC_ROUND_NANOS),
            redis_errors: REDIS_ERROR_KINDS
                .map(|kind| recorder.register_counter(&key(REDIS_ERRORS, &[kind]), &METADATA)),
            shards: ArcSwap::default(),
            configuration: AtomicU64::default(),
            overshoot: Mutex::default(),
            unmatched_domain: recorder.register_counter(&key(UNMATCHED, &["domain"]), &METADATA),
            unmatched_rule: recorder.register_counter(&key(UNMATCHED, &["rule"]), &METADATA),
            recorder,
            keys_shown,
            meters: Meters::default(),
            active: ArcSwap::default(),
            halves: Default::default(),
        };
        for outcome in ["applied", "unchanged", "refused"] {
            let _ = telemetry.counter(RELOADS, &[outcome]);
        }
        for task in TASKS {
            let _ = telemetry.counter(TASK_RESTARTS, &[task]);
        }
        telemetry.gauge(CONFIG_REFUSED, &[]).set(0.0);
        telemetry
            .gauge(BUILD_INFO, &[env!("CARGO_PKG_VERSION")])
            .set(1.0);
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

    /// Makes the meters of new rules. A rule that stays keeps its own.
    pub fn rules_changed(&self, snapshot: &Snapshot) {
        self.active
            .store(Arc::new(ActiveMeters::of(snapshot, self)));
    }

    /// How keys are shown to operators.
    pub const fn keys_shown(&self) -> KeyDisplay {
        self.keys_shown
    }

    /// The meters of the rules in force, in their order, and of caller-supplied limits.
    pub fn meters(&self) -> Vec<Arc<RuleMeter>> {
        self.active.load().meters().map(Arc::clone).collect()
    }

    /// The decisions of all rules since the start, removed rules included.
    pub fn decisions(&self) -> Decisions {
        let meters = self.meters.all();
        let decisions = meters.iter().map(|meter| meter.decisions());
        decisions.fold(Decisions::default(), Decisions::plus)
    }

    /// The time that recent figures cover at `now`.
    pub fn recent_span(&self, now: Nanos) -> Span {
        now.since(Nanos::new(self.halves[1].load(Ordering::Relaxed)))
    }

    /// Counts a decided check.
    pub fn decided(&self, answer: &Answer, question: Question<'_>) {
        if answer.hits().is_empty() {
            let unmatched = if answer.domain_known() {
                &self.unmatched_rule
            } else {
                &self.unmatched_domain
            };
            unmatched.increment(1);
            return;
        }
        self.active.load().count(answer, question, self);
    }

    /// Counts a call to the store that failed: one of [`REDIS_ERROR_KINDS`].
    pub fn redis_error(&self, kind: &'static str) {
        let kinds = REDIS_ERROR_KINDS.iter().zip(&self.redis_errors);
        let found = kinds.filter(|(name, _)| **name == kind).map(|(_, it)| it);
        if let Some(counter) = found.chain(self.redis_errors.last()).next() {
            counter.increment(1);
        }
    }

    /// Records that the configuration with this hash is in force and matches the files.
    pub fn configured(&self, hash: u64) {
        // Ordering: Relaxed. Only a figure for people.
        self.configuration.store(hash, Ordering::Relaxed);
        self.gauge(CONFIG_REFUSED, &[]).set(0.0);
    }

    /// Counts a refused reload: the configuration in force now differs from the files.
    pub fn refused(&self) {
        self.counter(RELOADS, &["refused"]).increment(1);
        self.gauge(CONFIG_REFUSED, &[]).set(1.0);
    }

    /// Counts a restart of a task, one of [`TASKS`], after a panic.
    pub fn restarted(&self, task: &'static str) {
        self.counter(TASK_RESTARTS, &[task]).increment(1);
    }

    /// Sets the names of the store's shards, in the order of the sync's shards.
    pub fn set_shards(&self, names: Vec<String>) {
        self.shards.store(Arc::new(names));
    }

    /// The name of a shard: its number, if it has no name that no other shard has.
    pub fn shard_name(&self, shard: usize) -> String {
        let names = self.shards.load();
        let name = names.get(shard);
        name.filter(|name| !names.iter().take(shard).any(|other| other == *name))
            .map_or_else(|| shard.to_string(), Clone::clone)
    }

    /// Renders the page for Prometheus, with the figures of `engine` at `now`.
    pub fn render(&self, engine: &Engine, now: Nanos) -> String {
        let (stats, figures) = (engine.stats(), engine.figures());
        self.gauge(KEYS, &[]).set(engine.keys_held() as f64);
        for (table, held) in engine.keys_by_table() {
            let (keys, max) = (TABLE_KEYS, TABLE_KEYS_MAX);
            self.gauge(keys, &[table]).set(held as f64);
            self.gauge(max, &[table]).set(engine.keys_max() as f64);
        }
        for (reason, stat) in [
            ("settled", Stat::EvictedSettled),
            ("netted", Stat::EvictedNetted),
            ("in_use", Stat::EvictedInUse),
        ] {
            self.counter(EVICTED, &[reason]).absolute(stats.total(stat));
        }
        self.counter(EVICTED, &["forgotten"])
            .absolute(engine.keys_forgotten());
        for (reason, lines) in log::lost() {
            self.counter(LOG_LINES_LOST, &[reason]).absolute(lines);
        }
        self.counter(PANICS, &[]).absolute(log::panics());
        self.counter(KEPT_OUT, &[])
            .absolute(stats.total(Stat::Unheld));
        self.counter(RACES, &[])
            .absolute(stats.total(Stat::KeptAfterRace));
        let (active, snapshot) = (self.active.load(), engine.snapshot());
        active.show_remaining(&snapshot);
        self.meters.all().iter().for_each(|meter| meter.show());
        for (reason, cells) in figures.lost.by_reason(stats) {
            self.counter(CELLS_LOST, &[reason]).absolute(cells);
        }
        self.show_rounds(&figures, now);
        self.count_overshoot(&figures, &snapshot);
        let mut page = self.handle.render();
        // Writing into memory does not fail.
        let _ = self.check_duration.write(&mut page);
        let _ = self.sync_round.write(&mut page);
        let _ = self.write_circuits(&mut page, &figures);
        let _ = self.write_configuration(&mut page);
        page
    }

    fn show_rounds(&self, figures: &Figures, now: Nanos) {
        let unsettled = figures.books.pending.plus(figures.books.in_flight);
        for (metric, number) in [
            (DELTAS_PENDING, unsettled.get()),
            (MITIGATIONS, figures.mitigations),
            (SYNC_OVERDUE, figures.overdue),
            (PODS, figures.pods.max(1)),
        ] {
            self.gauge(metric, &[]).set(number as f64);
        }
        for (metric, total) in [
            (CELLS_FOUND, figures.found.get()),
            (CELLS_SILENT, figures.silent.get()),
            (SYNC_KEYS, figures.keys_reported),
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

    /// Adds each rule's overshoot since the last call. A rule with a new id in the store starts at zero there, while the
    /// series of its label goes on.
    fn count_overshoot(&self, figures: &Figures, snapshot: &Snapshot) {
        for (rule, _) in snapshot.all() {
            let _ = self.counter(OVERSHOOT, &[&rule.label]);
            let _ = self.counter(DEBT_CAPPED, &[&rule.label]);
        }
        let mut counted = self
            .overshoot
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for RuleOvershoot {
            rule: id,
            cells,
            forgiven,
        } in &figures.overshoot
        {
            let Some(index) = snapshot.rule_of_id(*id) else {
                continue;
            };
            let label = &snapshot.rule(index).0.label;
            let (cells_before, forgiven_before) = counted.entry(*id).or_default();
            // Of two pages that are rendered at once, one may have older figures.
            self.counter(OVERSHOOT, &[label])
                .increment(cells.get().saturating_sub(*cells_before));
            self.counter(DEBT_CAPPED, &[label])
                .increment(forgiven.saturating_sub(*forgiven_before));
            *cells_before = cells.get().max(*cells_before);
            *forgiven_before = (*forgiven).max(*forgiven_before);
        }
    }

    /// Writes [`CIRCUIT_STATE`] without the recorder, which would keep the series of removed shards.
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

    /// Writes [`CONFIG_INFO`] without the recorder, because only one configuration is in force.
    fn write_configuration(&self, page: &mut String) -> fmt::Result {
        let Metric { name, help, .. } = CONFIG_INFO;
        let hash = self.configuration.load(Ordering::Relaxed);
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} gauge")?;
        writeln!(page, "{name}{{hash=\"{hash:016x}\"}} 1")
    }

    /// Housekeeping: call it every few seconds.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }

    /// Starts the next half minute for [`REMAINING`] and all recent figures: call it every 30 seconds.
    pub fn half_minute(&self, now: Nanos) {
        // Ordering: Relaxed. Figures for people: a page that is rendered meanwhile may show a little more or less.
        let before = self.halves[0].swap(now.get(), Ordering::Relaxed);
        self.halves[1].store(before, Ordering::Relaxed);
        self.meters.all().iter().for_each(|meter| meter.turn());
        self.check_duration.turn();
    }
}

/// The time since the last answer of the shard that has been silent longest; since the start, if it never answered.
/// `None` without shards.
fn staleness(shards: &[ShardState], now: Nanos) -> Option<Span> {
    let silent = |shard: &ShardState| now.since(shard.last_success.unwrap_or_default());
    shards.iter().map(silent).max()
}

/// Escapes a label's value for the page.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
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
mod tests;
