//! `/admin/v1/top`: what is asked of each rule and who is denied most, for people who look on.
//!
//! It tells totals and when they were read: whoever asks twice knows the rates. What is recent is that of the last half
//! to whole minute.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::api::{Api, limit_json};
use crate::clock::Clock;
use crate::telemetry::{Decisions, Entries, RuleMeter};
use crate::wire::{Reply, json, refusal};
use tidegate_core::pure::heavy_hitters::OFFENDERS_MAX;
use tidegate_core::pure::{HeavyHitter, KeysShown, Rule, Span};

/// Keys that are told of each rule, if nothing else is asked for.
const KEYS: usize = 10;
/// Rules that are told, if nothing else is asked for.
const RULES: usize = 100;
const RULES_MAX: usize = 10_000;

/// How much is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    rules: usize,
    keys: usize,
}

impl Api {
    /// `GET /admin/v1/top`.
    pub(super) fn top(&self, query: &str) -> Reply {
        match wanted(query) {
            Ok(wanted) => json(StatusCode::OK, &self.top_json(wanted)),
            Err(what) => refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", &what),
        }
    }

    fn top_json(&self, wanted: Wanted) -> Value {
        let now = Clock::get().moment().now;
        let (snapshot, telemetry) = (self.engine.snapshot(), &self.telemetry);
        let configured = snapshot.rules().all().iter();
        let configured: BTreeMap<&str, &Rule> =
            configured.map(|rule| (rule.label.as_str(), rule)).collect();
        let meters = telemetry.meters();
        let figures = self.engine.figures();
        let overshoot = figures.overshoot.iter().map(|over| over.cells.get());
        let recent = |part| telemetry.check_duration.recent(part).map(length);
        json!({
            "pod": self.status.pod_id(),
            "at": Span::nanos(now.get()).to_string(),
            "recent": telemetry.recent_span(now).to_string(),
            "keys": match telemetry.keys_shown() {
                KeysShown::Plain => "plain",
                KeysShown::Hashed => "hashed",
            },
            "checks": {
                "decided": telemetry.check_duration.total(),
                "recent": { "p50": recent(0.5), "p99": recent(0.01) },
            },
            "decisions": decisions_json(telemetry.decisions()),
            "overshoot": overshoot.sum::<u64>(),
            "rules_left_out": meters.len().saturating_sub(wanted.rules),
            "rules": most_denied(meters, wanted.rules)
                .iter()
                .map(|meter| rule_json(meter, &configured, wanted.keys))
                .collect::<Vec<_>>(),
        })
    }
}

/// The rules that denied most lately, then those that decided most.
fn most_denied(mut meters: Vec<Arc<RuleMeter>>, most: usize) -> Vec<Arc<RuleMeter>> {
    // Stable: rules that nobody asks stay in the order of the configuration.
    meters
        .sort_by_cached_key(|meter| Reverse((meter.recently_denied(), meter.decisions().total())));
    meters.truncate(most);
    meters
}

fn rule_json(meter: &RuleMeter, configured: &BTreeMap<&str, &Rule>, keys: usize) -> Value {
    let recent = meter.recent();
    let spec = configured.get(meter.label.as_str()).map(|rule| &rule.spec);
    let limit = spec.and_then(|spec| spec.limit.as_ref());
    json!({
        "rule": meter.label,
        "limit": limit.map(limit_json),
        "shadow_mode": spec.is_some_and(|spec| spec.shadow),
        "decisions": decisions_json(meter.decisions()),
        "remaining": meter.lowest(),
        "recent": { "denied": recent.denied, "missed": recent.missed },
        "keys": recent.keys.iter().take(keys).map(key_json).collect::<Vec<_>>(),
    })
}

fn key_json(offender: &HeavyHitter<Entries>) -> Value {
    let entry = |(key, value): &(Box<str>, Box<str>)| json!({ "key": key, "value": value });
    let entries = offender.about.as_ref();
    json!({
        "key": format!("{:032x}", offender.name),
        "entries": entries.map(|entries| entries.iter().map(entry).collect::<Vec<_>>()),
        "denied": offender.count,
        "error": offender.error,
    })
}

fn decisions_json(decisions: Decisions) -> Value {
    json!({
        "allow": decisions.allowed,
        "deny": decisions.denied,
        "shadow_deny": decisions.shadow_denied,
    })
}

fn length(duration: Duration) -> String {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    Span::nanos(nanos).to_string()
}

/// What `rules=N&keys=N` ask for.
fn wanted(query: &str) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        rules: RULES,
        keys: KEYS,
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (field, most) = match name {
            "rules" => (&mut wanted.rules, RULES_MAX),
            "keys" => (&mut wanted.keys, OFFENDERS_MAX),
            _ => return Err("ask with rules=N and keys=N, or with nothing".to_owned()),
        };
        let number = value.parse().ok().filter(|number| *number <= most);
        *field = number.ok_or_else(|| format!("{name}: must be a number from 0 to {most}"))?;
    }
    Ok(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_is_asked_for_is_bounded() {
        let found = |query| wanted(query).map(|found| (found.rules, found.keys));
        assert_eq!(found(""), Ok((RULES, KEYS)));
        assert_eq!(found("keys=32"), Ok((RULES, 32)));
        assert_eq!(found("rules=1&keys=0"), Ok((1, 0)));
        for query in [
            "keys=33",
            "keys=",
            "keys",
            "rules=10001",
            "keys=-1",
            "limit=3",
        ] {
            assert!(wanted(query).is_err(), "{query}");
        }
    }
}
