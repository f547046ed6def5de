//! An answer as Envoy reads it, a `RateLimitResponse`. Its bounds are smaller than ours: what does not fit is cut.

use std::collections::BTreeMap;

use hyper::header::HeaderName;
use prost_types::{Duration, Struct, Value, value::Kind};

use super::headers::{HeaderStyles, Sink};
use crate::wire::decode::DESCRIPTORS_MAX;
use crate::wire::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit, rate_limit};
use crate::wire::proto::{HeaderValue, RateLimitResponse};
use tidegate_core::engine::{Answer, Hit};
use tidegate_core::pure::{Check, Limit, Moment, Span, Unit};

/// The answer to `check`, decided at `moment`, with headers in those styles.
pub fn response(
    check: &Check<'_>,
    answer: &Answer,
    (styles, moment): (HeaderStyles, Moment),
) -> RateLimitResponse {
    let mut headers = Vec::with_capacity(8);
    styles.tell(&mut headers, answer, moment);
    let statuses = 0..check.descriptors.len();
    RateLimitResponse {
        overall_code: code(answer.allowed()).into(),
        statuses: statuses
            .map(|index| status(answer, answer.hit_of(index)))
            .collect(),
        response_headers_to_add: headers,
        request_headers_to_add: Vec::new(),
        raw_body: Vec::new(),
        dynamic_metadata: answer.decisive().map(|hit| metadata(answer, hit)),
    }
}

/// The answer to a check of so many descriptors that is over a bound, and why. Of too many it says nothing one by one.
pub fn over_bound(why: &str, descriptors: usize) -> RateLimitResponse {
    let status = DescriptorStatus {
        code: Code::OverLimit.into(),
        ..DescriptorStatus::default()
    };
    let told = if descriptors > DESCRIPTORS_MAX {
        0
    } else {
        descriptors
    };
    let reason = Value {
        kind: Some(Kind::StringValue(why.to_owned())),
    };
    RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![status; told],
        dynamic_metadata: Some(Struct {
            fields: BTreeMap::from([("reason".to_owned(), reason)]),
        }),
        ..RateLimitResponse::default()
    }
}

impl Sink for Vec<HeaderValue> {
    fn header(&mut self, name: HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let mut value = Vec::with_capacity(16);
        write(&mut value);
        self.push(HeaderValue {
            key: name.as_str().to_owned(),
            value: String::from_utf8(value).unwrap_or_default(),
        });
    }
}

const fn code(allowed: bool) -> Code {
    if allowed { Code::Ok } else { Code::OverLimit }
}

fn status(answer: &Answer, hit: Option<&Hit>) -> DescriptorStatus {
    let Some(hit) = hit else {
        // No rule: allowed, and nothing to say.
        return DescriptorStatus {
            code: Code::Ok.into(),
            ..DescriptorStatus::default()
        };
    };
    let code = code(!answer.denies(hit)).into();
    let Some(limit) = answer.limit(hit) else {
        // A rule without a limit says so in these words.
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
        limit_remaining: cut(hit.standing.remaining.get()),
        duration_until_reset: Some(seconds(answer.reset_after(hit))),
    }
}

fn rate_limit(limit: &Limit, name: Option<&String>) -> RateLimit {
    RateLimit {
        name: name.cloned().unwrap_or_default(),
        requests_per_unit: cut(limit.requests()),
        unit: unit(limit.unit()).into(),
        unit_multiplier: match limit.unit_multiplier() {
            1 => None,
            units => Some(cut(units)),
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

fn cut(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// In whole seconds, rounded up: Envoy's own headers would cut off the rest, and tell a client to come too early.
fn seconds(span: Span) -> Duration {
    Duration {
        seconds: i64::try_from(span.seconds_up()).unwrap_or(i64::MAX),
        nanos: 0,
    }
}

/// What decided.
fn metadata(answer: &Answer, hit: &Hit) -> Struct {
    let value = |kind| Value { kind: Some(kind) };
    let mut fields = BTreeMap::new();
    let mut put = |name: &str, kind| fields.insert(name.to_owned(), value(kind));
    put("rule", Kind::StringValue(answer.rule(hit).label.clone()));
    put("source", Kind::StringValue(hit.source.name().to_owned()));
    put(
        "descriptor",
        Kind::NumberValue(f64::from(cut(hit.descriptor as u64))),
    );
    if let Some(wait) = hit.standing.retry_after.filter(|_| answer.denies(hit)) {
        let seconds = std::time::Duration::from_nanos(wait.get()).as_secs_f64();
        put("retry_after", Kind::NumberValue(seconds));
    }
    Struct { fields }
}
