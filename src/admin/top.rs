//! `/admin/v1/top`: the decisions of each rule and the keys that are denied most.
//!
//! The answer has totals and the time of reading: a client that asks twice can compute rates. "Recent" figures cover the
//! last 30 to 60 seconds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde_json::{Value, json};

use super::api::{Api, limit_json};
use crate::clock::Clock;
use crate::net::{HttpReply, json, refusal};
use crate::telemetry::{Decisions, Entries, RuleMeter};
use tidegate_core::pure::heavy_hitters::HEAVY_HITTERS_MAX;
use tidegate_core::pure::{HeavyHitter, KeyDisplay, Rule, Span};

/// Keys of each rule, unless the query says otherwise.
const KEYS: usize = 10;
/// Rules, unless the query says otherwise.
const RULES: usize = 100;
const RULES_MAX: usize = 10_000;

/// How many rules and keys the client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TopQuery {
    rules: usize,
    keys: usize,
}

impl Api {
    /// `GET /admin/v1/top`.
    pub(super) fn top(&self, query: &str) -> HttpReply {
        match parse_query(query) {
            Ok(wanted) => json(StatusCode::OK, &self.top_json(wanted)),
            Err(what) => refusal(StatusCode::BAD_REQUEST, "INVALID_REQUEST", &what),
        }
    }

    fn top_json(&self, wanted: TopQuery) -> Value {
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
                KeyDisplay::Plain => "plain",
                KeyDisplay::Hashed => "hashed",
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

/// Sorts by recent denials, then by all decisions, and keeps the first `most`.
fn most_denied(mut meters: Vec<Arc<RuleMeter>>, most: usize) -> Vec<Arc<RuleMeter>> {
    // Stable: rules without checks stay in the order of the configuration.
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

fn key_json(key: &HeavyHitter<Entries>) -> Value {
    let entry = |(key, value): &(Box<str>, Box<str>)| json!({ "key": key, "value": value });
    let entries = key.about.as_ref();
    json!({
        "key": format!("{:032x}", key.name),
        "entries": entries.map(|entries| entries.iter().map(entry).collect::<Vec<_>>()),
        "denied": key.count,
        "error": key.error,
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

/// Parses `rules=N&keys=N`.
fn parse_query(query: &str) -> Result<TopQuery, String> {
    let mut wanted = TopQuery {
        rules: RULES,
        keys: KEYS,
    };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (field, most) = match name {
            "rules" => (&mut wanted.rules, RULES_MAX),
            "keys" => (&mut wanted.keys, HEAVY_HITTERS_MAX),
            _ => return Err("the query may have rules=N and keys=N only".to_owned()),
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
    fn the_query_is_bounded() {
        let found = |query| parse_query(query).map(|found| (found.rules, found.keys));
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
            assert!(parse_query(query).is_err(), "{query}");
        }
    }
}
