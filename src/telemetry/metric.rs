//! The declaration of every metric: its name, its labels, what it tells.
//!
//! Nothing is counted here. `docs/metrics.md` is printed from [`ALL`].

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
    TABLE_KEYS = Gauge "ratelimit_table_keys" ["table"]
        "The same by table: of level rules (level), of windowed rules (windowed), of limits that callers carry (carried). A key stays until another needs its room.";
    TABLE_KEYS_MAX = Gauge "ratelimit_table_keys_max" ["table"]
        "The most keys that the table holds: bounds.keys_max.";
    EVICTED = Counter "ratelimit_keys_evicted_total" ["reason"]
        "Keys that made room for others: settled (as good as new), netted (full again, cells unreported), in_use (what they used is remembered); and forgotten: of what was remembered some had to make room while it was of use.";
    KEPT_OUT = Counter "ratelimit_keys_kept_out_total" []
        "Checks of keys that came first while the table was full: they are let in when they come again.";
    CELLS_LOST = Counter "ratelimit_cells_lost_total" ["reason"]
        "Admitted cells that no store will hear of: evicted, netted (drained before their key left), kept_out, refunded (given back before they were told), reset, store (it lost them), rule (it is gone), crowd (more keys than are kept in mind).";
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
        "Keys told to the store, by why: trigger, interval, share, live, mitigation, drain, confirm (a check was denied on hearsay).";
    SYNC_KEYS = Counter "ratelimit_sync_keys_total" []
        "Keys told to the store.";
    SYNC_OVERDUE = Gauge "ratelimit_sync_overdue_keys" []
        "Keys that cannot be reported in time, because the pod's part of the store's budget is used up: it grants its share.";
    SYNC_STALENESS = Gauge "ratelimit_sync_staleness_seconds" []
        "Time since the shard that is silent longest last answered; since the start if it never did. Absent without a store.";
    VALUES_REPAIRED = Counter "ratelimit_store_values_repaired_total" []
        "Values in the store that were not ours and were replaced.";
    OVERSHOOT = Counter "ratelimit_overshoot_cells_total" ["rule"]
        "Admitted cells that a merge put above capacity.";
    DEBT_CAPPED = Counter "ratelimit_debt_capped_total" ["rule"]
        "Merges and charges (count_rejected) of which debt was forgiven, because a bucket was too far above capacity.";
    MITIGATIONS = Gauge "ratelimit_mitigations" []
        "Keys that the fleet denies.";
    PODS = Gauge "ratelimit_pods" []
        "Pods alive, this one included; 1 without a store.";
    RACES = Counter "ratelimit_races_total" []
        "Denied checks that stayed charged on a rule, because its bucket changed while the cells were given back.";
    RELOADS = Counter "ratelimit_config_reloads_total" ["outcome"]
        "Attempts to reload the configuration: applied, unchanged or refused.";
    CONFIG_REFUSED = Gauge "ratelimit_config_reload_refused" []
        "1 while the configuration in force is not what the files say, because the last reload was refused; else 0.";
    CONFIG_INFO = Gauge "ratelimit_config_info" ["hash"]
        "Always 1. The configuration in force, by the hash that /admin/v1/status tells; pods with the same files have the same.";
    BUILD_INFO = Gauge "ratelimit_build_info" ["version"]
        "Always 1. The version that runs.";
    CONNECTIONS = Gauge "ratelimit_connections" ["door"]
        "Connections open, by door (http, grpc, resp, metrics, admin).";
    CONNECTIONS_REFUSED = Counter "ratelimit_connections_refused_total" ["door"]
        "Connections refused because as many as allowed were open.";
    ACCEPT_ERRORS = Counter "ratelimit_accept_errors_total" ["door"]
        "Connections that the system did not let this pod accept, most often because file descriptors ran out; tried again.";
    CONNECTIONS_GAVE_WAY = Counter "ratelimit_connections_gave_way_total" ["door"]
        "Connections to the metrics or the admin listener that were closed for a new one, because as many as allowed were open: first of those that have sent nothing, then of the others, the one that was silent longest.";
    REQUESTS_MALFORMED = Counter "ratelimit_requests_malformed_total" ["door"]
        "Requests that were no valid check, or over a bound.";
    LOG_LINES_LOST = Counter "ratelimit_log_lines_lost_total" ["reason"]
        "Lines of the log that are lost: they could not be written (write), or nobody took them and no more could wait (queue).";
    PANICS = Counter "ratelimit_panics_total" []
        "Faults of ours that ended a task or a connection. The log tells where.";
    TASK_RESTARTS = Counter "ratelimit_task_restarts_total" ["task"]
        "Tasks that ended by a fault of ours and were started again: accept, housekeeping, news, reload.";
}

/// Tasks that are started again when they end by a fault of ours, in [`TASK_RESTARTS`].
pub const TASKS: [&str; 4] = ["accept", "housekeeping", "news", "reload"];

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
