//! The declaration of every metric: its name, its labels, its help text.
//!
//! Nothing is counted here. `docs/metrics.md` is printed from [`ALL`].

/// The declaration of a metric.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Its name.
    pub name: &'static str,
    /// Its kind.
    pub kind: MetricKind,
    /// The labels of its series.
    pub labels: &'static [&'static str],
    /// Its help text.
    pub help: &'static str,
}

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows.
    Counter,
    /// Goes up and down.
    Gauge,
    /// A distribution.
    Histogram,
}

macro_rules! metrics {
    ($($id:ident = $kind:ident $name:literal [$($label:literal),*] $help:literal;)*) => {
        $(#[doc = $help] pub const $id: Metric =
            Metric { name: $name, kind: MetricKind::$kind, labels: &[$($label),*], help: $help };)*
        /// Every metric, in the order of the documentation.
        pub const ALL: &[Metric] = &[$($id),*];
    };
}

metrics! {
    DECISIONS = Counter "ratelimit_decisions_total" ["rule", "decision", "source"]
        "Decisions of rules, by rule, by decision (allow, deny, shadow_deny) and by what decided (local, mitigation, strict, fallback).";
    DENIED = Counter "ratelimit_denied_total" ["rule"]
        "Checks that the rule denied.";
    FAILOPEN = Counter "ratelimit_failopen_total" ["rule"]
        "Checks that the rule allowed above its limit, because the store is unreachable and on_store_error is allow.";
    UNMATCHED = Counter "ratelimit_unmatched_total" ["reason"]
        "Checks allowed because no rule limits them: the domain is not configured (domain), or none of its rules matched (rule).";
    CHECK_DURATION = Histogram "ratelimit_check_duration_seconds" []
        "Time from the bytes of a check to its decision.";
    REMAINING = Gauge "ratelimit_remaining" ["rule"]
        "The fewest cells that any key of the rule had left in the last 60 seconds; the whole limit if no key was checked.";
    KEYS = Gauge "ratelimit_keys" []
        "Keys held in memory.";
    TABLE_KEYS = Gauge "ratelimit_table_keys" ["table"]
        "Keys held in memory, by table: level rules (level), windowed rules (windowed), caller-supplied limits (carried). A key stays until another key needs its place.";
    TABLE_KEYS_MAX = Gauge "ratelimit_table_keys_max" ["table"]
        "The most keys that the table can hold: bounds.keys_max.";
    EVICTED = Counter "ratelimit_keys_evicted_total" ["reason"]
        "Keys evicted to make room for others: settled (same as a new key), netted (full again, with unreported cells), in_use (what they used is remembered). forgotten: remembered keys that were dropped while still of use, to make room.";
    KEPT_OUT = Counter "ratelimit_keys_kept_out_total" []
        "Checks of new keys that got no place because the table was full. The key gets a place at its next check.";
    CELLS_LOST = Counter "ratelimit_cells_lost_total" ["reason"]
        "Admitted cells that are never reported to the store: evicted, netted (drained before their key was evicted), kept_out, refunded (refunded before they were reported), reset, store (the store lost them), rule (the rule was removed), crowd (more keys to report than the pod tracks).";
    CELLS_FOUND = Counter "ratelimit_cells_found_total" []
        "Cells that were counted as lost by the store and that the store has after all.";
    CELLS_SILENT = Counter "ratelimit_cells_silent_total" []
        "Admitted cells that the pod does not report, because it uses their key within its even share.";
    DELTAS_PENDING = Gauge "ratelimit_deltas_pending" []
        "Admitted cells that the store has not confirmed yet: waiting for their report, or in flight.";
    CIRCUIT_STATE = Gauge "ratelimit_circuit_state" ["shard"]
        "The circuit breaker of a shard of the store: 0 closed, 1 half-open, 2 open. Absent without a store.";
    REDIS_ERRORS = Counter "ratelimit_redis_errors_total" ["kind"]
        "Calls to the store that failed or got an unexpected answer, by kind.";
    SYNC_ROUNDS = Counter "ratelimit_sync_rounds_total" ["end"]
        "Exchanges with the store: settled, returned (no answer), replayed (the store had lost cells, or got them back).";
    SYNC_ROUND = Histogram "ratelimit_sync_round_seconds" []
        "Time from sending a batch to its answer.";
    SYNC_REASON = Counter "ratelimit_sync_reason_total" ["reason"]
        "Keys reported to the store, by reason: trigger, interval, share, live, mitigation, drain, confirm (a check was denied on unconfirmed news), ride_along (a call left for another key).";
    SYNC_KEYS = Counter "ratelimit_sync_keys_total" []
        "Keys reported to the store.";
    SYNC_OVERDUE = Gauge "ratelimit_sync_overdue_keys" []
        "Keys that the pod cannot report in time, because its part of the store's budget is used up. For these keys it grants its share.";
    SYNC_STALENESS = Gauge "ratelimit_sync_staleness_seconds" []
        "Time since the last answer of the shard that has been silent longest; since the start if it never answered. Absent without a store.";
    VALUES_REPAIRED = Counter "ratelimit_store_values_repaired_total" []
        "Values in the store that tidegate could not read and replaced.";
    OVERSHOOT = Counter "ratelimit_overshoot_cells_total" ["rule"]
        "Admitted cells by which merging put buckets above capacity.";
    DEBT_CAPPED = Counter "ratelimit_debt_capped_total" ["rule"]
        "Merges and charges (count_rejected) whose debt was cut, because the bucket was too far above capacity.";
    MITIGATIONS = Gauge "ratelimit_mitigations" []
        "Keys that the pod denies from memory, because the fleet has used up their limit.";
    PODS = Gauge "ratelimit_pods" []
        "Live pods, this one included; 1 without a store.";
    RACES = Counter "ratelimit_races_total" []
        "Denied checks that stayed charged on a rule, because its bucket changed during the refund.";
    RELOADS = Counter "ratelimit_config_reloads_total" ["outcome"]
        "Attempts to reload the configuration: applied, unchanged or refused.";
    CONFIG_REFUSED = Gauge "ratelimit_config_reload_refused" []
        "1 while the configuration in force differs from the files, because the last reload was refused; else 0.";
    CONFIG_INFO = Gauge "ratelimit_config_info" ["hash"]
        "Always 1. The configuration in force, by the hash that /admin/v1/status shows; pods with the same files have the same hash.";
    BUILD_INFO = Gauge "ratelimit_build_info" ["version"]
        "Always 1. The running version.";
    CONNECTIONS = Gauge "ratelimit_connections" ["door"]
        "Open connections, by door (http, grpc, resp, metrics, admin).";
    CONNECTIONS_REFUSED = Counter "ratelimit_connections_refused_total" ["door"]
        "Connections refused because the most allowed were open.";
    ACCEPT_ERRORS = Counter "ratelimit_accept_errors_total" ["door"]
        "Connections that the system did not let this pod accept, most often because file descriptors ran out. The pod retries.";
    CONNECTIONS_GAVE_WAY = Counter "ratelimit_connections_gave_way_total" ["door"]
        "Connections to the metrics or admin listener that were closed for a new one, because the most allowed were open. The one that was silent longest is closed, first among those that have sent nothing, then among the others.";
    REQUESTS_MALFORMED = Counter "ratelimit_requests_malformed_total" ["door"]
        "Requests that were not a valid check, or that exceeded a bound.";
    LOG_LINES_LOST = Counter "ratelimit_log_lines_lost_total" ["reason"]
        "Lost log lines: they could not be written (write), or the queue was full because nobody read the log (queue).";
    PANICS = Counter "ratelimit_panics_total" []
        "Panics: bugs in tidegate that ended a task or a connection. The log says where.";
    TASK_RESTARTS = Counter "ratelimit_task_restarts_total" ["task"]
        "Tasks that were restarted after a panic: accept, housekeeping, news, reload.";
}

/// The tasks of [`TASK_RESTARTS`]: those that are restarted after a panic.
pub const TASKS: [&str; 4] = ["accept", "housekeeping", "news", "reload"];

/// The kinds of [`REDIS_ERRORS`]. The last stands for every other failure.
pub const REDIS_ERROR_KINDS: [&str; 18] = [
    "noscript",
    "loading",
    "oom",
    "readonly",
    "moved",
    "ask",
    "tryagain",
    "crossslot",
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
