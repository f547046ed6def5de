//! An answer into headers and a body. What is said here is the contract with clients.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::{Serialize, Serializer};

use crate::config::HeaderStyle;
use crate::engine::{Answer, Hit};
use crate::pure::{Check, Limit, Moment, Span};
use crate::wire::Reply;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Which headers an answer carries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyles {
    draft_11: bool,
    legacy: bool,
    /// The reset as a Unix time instead of the seconds left.
    epoch: bool,
}

impl HeaderStyles {
    /// The styles of this list.
    pub fn new(styles: &[HeaderStyle]) -> Self {
        let epoch = styles.contains(&HeaderStyle::LegacyEpoch);
        Self {
            draft_11: styles.contains(&HeaderStyle::Draft11),
            legacy: epoch || styles.contains(&HeaderStyle::Legacy),
            epoch,
        }
    }
}

/// How an answer is to be told.
#[derive(Clone, Copy, Debug)]
pub struct Telling {
    /// Which headers to send.
    pub styles: HeaderStyles,
    /// The status of a denial.
    pub deny_status: StatusCode,
    /// When the check was decided.
    pub moment: Moment,
}

/// The response to a check.
pub fn response(check: &Check<'_>, answer: &Answer, telling: Telling) -> Reply {
    let mut body = Vec::with_capacity(512);
    // Writing into memory does not fail, and nothing in the body refuses to be written.
    let _ = serde_json::to_writer(&mut body, &Body::new(check, answer));
    let mut response = Response::new(Full::new(Bytes::from(body)));
    if !answer.allowed() {
        *response.status_mut() = telling.deny_status;
    }
    let headers = response.headers_mut();
    headers.reserve(8);
    headers.insert(CONTENT_TYPE, JSON);
    if let Some(hit) = answer.decisive().filter(|hit| answer.limit(hit).is_some()) {
        add_headers(headers, answer, hit, telling);
    }
    response
}

fn add_headers(headers: &mut HeaderMap, answer: &Answer, hit: &Hit, telling: Telling) {
    let standing = &hit.standing;
    let retry_after = standing
        .retry_after
        .filter(|_| !answer.allowed())
        .map(|wait| wait.seconds_up().max(1));
    if telling.styles.draft_11 {
        // The effective window: what is left lasts until the bucket is full, and nothing is left until the retry.
        let window = retry_after.unwrap_or_else(|| standing.reset_after.seconds_up());
        if let Some(policies) = policies(answer) {
            headers.insert(RATELIMIT_POLICY, policies);
        }
        let mut item = Vec::with_capacity(64);
        write_name(&mut item, &answer.rule(hit).policy);
        write_parameter(&mut item, b";r=", standing.remaining.get());
        write_parameter(&mut item, b";t=", window);
        insert(headers, RATELIMIT, item);
    }
    if telling.styles.legacy {
        let limit = answer.limit(hit).map_or(0, Limit::requests);
        let reset = match telling.styles.epoch {
            true => telling.moment.unix.plus(standing.reset_after).seconds_up(),
            false => standing.reset_after.seconds_up(),
        };
        headers.insert(X_LIMIT, HeaderValue::from(limit));
        headers.insert(X_REMAINING, HeaderValue::from(standing.remaining.get()));
        headers.insert(X_RESET, HeaderValue::from(reset));
    }
    if let Some(seconds) = retry_after {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
        if telling.styles.legacy {
            headers.insert(X_RETRY_AFTER, HeaderValue::from(seconds));
        }
    }
}

/// Every limit that was met, once each.
fn policies(answer: &Answer) -> Option<HeaderValue> {
    let mut list = Vec::with_capacity(64);
    for (index, hit) in answer.hits().iter().enumerate() {
        let Some(limit) = answer.limit(hit) else {
            continue;
        };
        if answer
            .hits()
            .iter()
            .take(index)
            .any(|earlier| earlier.rule == hit.rule)
        {
            continue;
        }
        if !list.is_empty() {
            list.extend_from_slice(b", ");
        }
        write_name(&mut list, &answer.rule(hit).policy);
        write_parameter(&mut list, b";q=", limit.requests());
        write_parameter(&mut list, b";w=", limit.window().seconds_up());
    }
    HeaderValue::from_maybe_shared(Bytes::from(list)).ok()
}

/// A structured field string (RFC 9651): printable ASCII in quotes, with quotes and backslashes escaped.
fn write_name(item: &mut Vec<u8>, name: &str) {
    item.push(b'"');
    for character in name.chars() {
        match character {
            '"' | '\\' => item.extend_from_slice(&[b'\\', character as u8]),
            ' '..='~' => item.push(character as u8),
            _ => item.push(b'?'),
        }
    }
    item.push(b'"');
}

fn write_parameter(item: &mut Vec<u8>, name: &[u8], value: u64) {
    item.extend_from_slice(name);
    item.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn insert(headers: &mut HeaderMap, name: HeaderName, value: Vec<u8>) {
    if let Ok(value) = HeaderValue::from_maybe_shared(Bytes::from(value)) {
        headers.insert(name, value);
    }
}

#[derive(Serialize)]
struct Body<'a> {
    overall_code: Code,
    statuses: Statuses<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<Denial<'a>>,
}

#[derive(Clone, Copy, Serialize)]
enum Code {
    #[serde(rename = "OK")]
    Ok,
    #[serde(rename = "OVER_LIMIT")]
    OverLimit,
}

impl Code {
    const fn new(allowed: bool) -> Self {
        if allowed { Self::Ok } else { Self::OverLimit }
    }
}

impl<'a> Body<'a> {
    fn new(check: &'a Check<'a>, answer: &'a Answer) -> Self {
        let denial = || {
            let hit = answer.decisive().filter(|hit| answer.denies(hit))?;
            Some(Denial::new(check, answer, hit))
        };
        Self {
            overall_code: Code::new(answer.allowed()),
            statuses: Statuses { check, answer },
            error: if answer.allowed() { None } else { denial() },
        }
    }
}

/// One status per descriptor, in order.
struct Statuses<'a> {
    check: &'a Check<'a>,
    answer: &'a Answer,
}

impl Serialize for Statuses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((0..self.check.descriptors.len()).map(|descriptor| {
            self.answer
                .hit_of(descriptor)
                .map_or_else(Status::unmatched, |hit| Status::new(self.answer, hit))
        }))
    }
}

#[derive(Serialize)]
struct Status<'a> {
    code: Code,
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<CurrentLimit>,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_remaining: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'static str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    shadow: bool,
}

impl<'a> Status<'a> {
    /// No rule: allowed, and nothing to say.
    const fn unmatched() -> Self {
        Self {
            code: Code::Ok,
            rule: None,
            current_limit: None,
            limit_remaining: None,
            duration_until_reset: None,
            retry_after: None,
            delay: None,
            source: None,
            shadow: false,
        }
    }

    fn new(answer: &'a Answer, hit: &Hit) -> Self {
        let rule = answer.rule(hit);
        let standing = hit.standing;
        Self {
            code: Code::new(standing.allowed || rule.spec.shadow),
            rule: Some(&rule.label),
            current_limit: rule.spec.limit.as_ref().map(CurrentLimit::new),
            limit_remaining: Some(standing.remaining.get()),
            duration_until_reset: rule.spec.limit.map(|_| Duration(standing.reset_after)),
            retry_after: standing
                .retry_after
                .filter(|_| !rule.spec.shadow)
                .map(Duration),
            delay: Some(standing.delay)
                .filter(|delay| *delay > Span::ZERO)
                .map(Duration),
            source: Some(hit.source.name()),
            // A shadow rule that would have denied says so.
            shadow: rule.spec.shadow && !standing.allowed,
        }
    }
}

#[derive(Serialize)]
struct CurrentLimit {
    requests_per_unit: u64,
    unit: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    unit_multiplier: Option<u64>,
}

impl CurrentLimit {
    fn new(limit: &Limit) -> Self {
        Self {
            requests_per_unit: limit.requests(),
            unit: limit.unit().name(),
            unit_multiplier: Some(limit.unit_multiplier()).filter(|multiplier| *multiplier != 1),
        }
    }
}

/// A length of time as protobuf's JSON has it, rounded up to the millisecond: who waits that long has waited enough.
struct Duration(Span);

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let millis = self.0.get().div_ceil(1_000_000);
        serializer.collect_str(&Span::nanos(millis.saturating_mul(1_000_000)))
    }
}

#[derive(Serialize)]
struct Denial<'a> {
    code: &'static str,
    message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after: Option<u64>,
    limit: u64,
    window: String,
    scope: Scope<'a>,
}

impl<'a> Denial<'a> {
    fn new(check: &'a Check<'a>, answer: &'a Answer, hit: &Hit) -> Self {
        let label = &answer.rule(hit).label;
        let limit = answer.limit(hit);
        let retry_after = hit
            .standing
            .retry_after
            .map(|wait| wait.seconds_up().max(1));
        let advice = match retry_after {
            Some(1) => "retry after 1 second".to_owned(),
            Some(seconds) => format!("retry after {seconds} seconds"),
            None => "no wait will let it pass".to_owned(),
        };
        Self {
            code: "RATE_LIMITED",
            message: match limit {
                Some(limit) => format!("rate limit {limit} of {label} exceeded: {advice}"),
                None => advice,
            },
            retry_after,
            limit: limit.map_or(0, Limit::requests),
            window: limit.map(Limit::window_text).unwrap_or_default(),
            scope: Scope {
                check,
                descriptor: hit.descriptor,
            },
        }
    }
}

/// What was limited: the entries of the descriptor, `key:value` after `key:value`.
struct Scope<'a> {
    check: &'a Check<'a>,
    descriptor: usize,
}

impl std::fmt::Display for Scope<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries = self
            .check
            .descriptors
            .get(self.descriptor)
            .map_or(&[][..], |descriptor| descriptor.entries);
        for (index, entry) in entries.iter().enumerate() {
            let separator = if index > 0 { ":" } else { "" };
            write!(f, "{separator}{}:{}", entry.key, entry.value)?;
        }
        Ok(())
    }
}

impl Serialize for Scope<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
