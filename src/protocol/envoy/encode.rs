//! An answer into a `RateLimitResponse`. Its numbers are smaller than ours: a number that does not fit becomes the
//! largest.

use std::collections::BTreeMap;

use hyper::header::HeaderName;
use prost_types::{Duration, Struct, Value, value::Kind};

use super::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit};
use super::proto::{HeaderValue, RateLimitResponse};
use crate::protocol::headers::{HeaderSink, HeaderStyles};
use crate::protocol::raw_check::DESCRIPTORS_MAX;
use tidegate_core::engine::{Answer, Hit, Verdict};
use tidegate_core::pure::{Check, Limit, Moment, Span, Unit};

/// What Envoy calls a verdict.
const fn overall_code(verdict: Verdict) -> Code {
    match verdict {
        Verdict::Allow | Verdict::AllowLate(_) => Code::Ok,
        Verdict::Limited | Verdict::StoreUnavailable => Code::OverLimit,
    }
}

/// The response to `check`, decided at `moment`, with headers in those styles.
pub fn response(
    check: &Check<'_>,
    answer: &Answer,
    styles: HeaderStyles,
    moment: Moment,
) -> RateLimitResponse {
    let mut headers = Vec::with_capacity(8);
    styles.write(&mut headers, answer, moment);
    let statuses = 0..check.descriptors.len();
    RateLimitResponse {
        overall_code: overall_code(answer.verdict()).into(),
        statuses: statuses
            .map(|index| status(answer, answer.hit_of(index)))
            .collect(),
        response_headers_to_add: headers,
        request_headers_to_add: Vec::new(),
        raw_body: Vec::new(),
        dynamic_metadata: answer.decisive().map(|hit| metadata(answer, hit)),
    }
}

/// The response to a check of so many descriptors that is over a bound, and why. Too many descriptors get no status
/// each.
pub fn over_bound(why: &str, descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::OverLimit.into(),
        ..DescriptorStatus::default()
    };
    let statuses = match descriptors > DESCRIPTORS_MAX {
        true => 0,
        false => descriptors,
    };
    let reason = Value {
        kind: Some(Kind::StringValue(why.to_owned())),
    };
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![status; statuses],
        dynamic_metadata: Some(Struct {
            fields: BTreeMap::from([("reason".to_owned(), reason)]),
        }),
        ..RateLimitResponse::default()
    }
}

impl HeaderSink for Vec<HeaderValue> {
    fn header(&mut self, name: HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let mut value = Vec::with_capacity(16);
        write(&mut value);
        self.push(HeaderValue {
            key: name.as_str().to_owned(),
            value: String::from_utf8(value).unwrap_or_default(),
        });
    }
}

fn status(answer: &Answer, hit: Option<&Hit>) -> DescriptorStatus {
    let Some(hit) = hit else {
        // No rule matched.
        return DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        };
    };
    let code = match answer.denies(hit) {
        true => Code::OverLimit.into(),
        false => Code::Ok.into(),
    };
    let Some(limit) = answer.limit(hit) else {
        // This is how Envoy's protocol says that a rule has no limit.
        return DescriptorStatus {
            code,
            limit_remaining: u32::MAX,
            ..DescriptorStatus::default()
        };
    };
    let name = answer.rule(hit).spec.name.as_ref();
    DescriptorStatus {
        code,
        current_limit: Some(rate_limit(limit, name)),
        limit_remaining: saturated(hit.standing.remaining.get()),
        duration_until_reset: Some(seconds(answer.reset_after(hit))),
    }
}

fn rate_limit(limit: &Limit, name: Option<&String>) -> RateLimit {
    RateLimit {
        name: name.cloned().unwrap_or_default(),
        requests_per_unit: saturated(limit.requests()),
        unit: unit(limit.unit()).into(),
        unit_multiplier: match limit.unit_multiplier() {
            1 => None,
            units => Some(saturated(units)),
        },
    }
}

const fn unit(unit: Unit) -> rate_limit::Unit {
    match unit {
        Unit::Second => rate_limit::Unit::Second,
        Unit::Minute => rate_limit::Unit::Minute,
        Unit::Hour => rate_limit::Unit::Hour,
        Unit::Day => rate_limit::Unit::Day,
        Unit::Week => rate_limit::Unit::Week,
        Unit::Month => rate_limit::Unit::Month,
        Unit::Year => rate_limit::Unit::Year,
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// In whole seconds, rounded up: Envoy's own headers cut off the rest and would make a client come back too early.
fn seconds(span: Span) -> Duration {
    Duration {
        seconds: i64::try_from(span.seconds_up()).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

/// The rule that decided, for Envoy's access log.
fn metadata(answer: &Answer, hit: &Hit) -> Struct {
    let value = |kind| Value { kind: Some(kind) };
    let mut fields = BTreeMap::new();
    let mut put = |name: &str, kind| fields.insert(name.to_owned(), value(kind));
    put("rule", Kind::StringValue(answer.rule(hit).label.clone()));
    put("source", Kind::StringValue(hit.source.name().to_owned()));
    put(
        "descriptor",
        Kind::NumberValue(f64::from(saturated(hit.descriptor as u64))),
    );
    if let Some(wait) = hit.standing.retry_after.filter(|_| answer.denies(hit)) {
        let seconds = std::time::Duration::from_nanos(wait.get()).as_secs_f64();
        put("retry_after", Kind::NumberValue(seconds));
    }
    Struct { fields }
}
