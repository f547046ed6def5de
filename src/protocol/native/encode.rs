//! An answer into the native response: status, headers and JSON body. It is the contract with clients.
//!
//! The parts that every answer has are written by hand, name by name: our own names need no escaping, and a serialiser
//! would look for it in each. `serde_json` escapes any text that is not ours to choose.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use serde::{Serialize, Serializer};

use crate::protocol::headers::HeaderStyles;
use crate::protocol::http_response::ResponsePage;
use tidegate_core::engine::{Answer, Hit, Verdict};
use tidegate_core::pure::{Check, DisplayText, Limit, Moment, Span};

const OK: &str = r#""OK""#;
const OVER_LIMIT: &str = r#""OVER_LIMIT""#;

/// What a response depends on besides the answer.
#[derive(Clone, Copy, Debug)]
pub struct ResponseStyle {
    /// Which headers to send.
    pub styles: HeaderStyles,
    /// The status of a denial, if the client chose one.
    pub deny_status: Option<StatusCode>,
    /// When the check was decided.
    pub moment: Moment,
    /// Bytes of a value that a denial shows.
    pub shown_bytes_max: usize,
}

/// How the native protocol says a verdict.
struct VerdictWords {
    status: StatusCode,
    overall_code: &'static str,
    /// Of a denial.
    error_code: Option<ErrorCode>,
}

#[derive(Clone, Copy)]
enum ErrorCode {
    RateLimited,
    StoreUnavailable,
}

impl VerdictWords {
    const fn of(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Allow | Verdict::AllowLate(_) => Self {
                status: StatusCode::OK,
                overall_code: OK,
                error_code: None,
            },
            Verdict::Limited => Self {
                status: StatusCode::TOO_MANY_REQUESTS,
                overall_code: OVER_LIMIT,
                error_code: Some(ErrorCode::RateLimited),
            },
            Verdict::StoreUnavailable => Self {
                status: StatusCode::SERVICE_UNAVAILABLE,
                overall_code: OVER_LIMIT,
                error_code: Some(ErrorCode::StoreUnavailable),
            },
        }
    }
}

/// The response to `check`. Its headers go into `headers`, of which only the memory is used.
pub fn response(
    headers: HeaderMap,
    check: &Check<'_>,
    answer: &Answer,
    style: ResponseStyle,
) -> Response<Full<Bytes>> {
    let words = VerdictWords::of(answer.verdict());
    let mut page = ResponsePage::new(|out| {
        write_body(out, &words, answer, check, style.shown_bytes_max);
    });
    style.styles.write(&mut page, answer, style.moment);
    let status = match (words.error_code, style.deny_status) {
        (Some(_), Some(chosen)) => chosen,
        (Some(_), None) | (None, _) => words.status,
    };
    page.into_response(status, headers)
}

fn write_body(
    out: &mut Vec<u8>,
    words: &VerdictWords,
    answer: &Answer,
    check: &Check<'_>,
    shown_bytes_max: usize,
) {
    put(out, r#"{"overall_code":"#);
    put(out, words.overall_code);
    put(out, r#","statuses":["#);
    for descriptor in 0..check.descriptors.len() {
        if descriptor > 0 {
            put(out, ",");
        }
        match answer.hit_of(descriptor) {
            Some(hit) => write_status(out, answer, hit),
            // No rule matched.
            None => put(out, r#"{"code":"OK"}"#),
        }
    }
    put(out, "]");
    if let (Some(code), Some(hit)) = (words.error_code, answer.decisive()) {
        put(out, r#","error":"#);
        let scope = Scope {
            check,
            descriptor: hit.descriptor,
            shown_bytes_max,
        };
        write_serialised(out, &Denial::new(code, scope, answer, hit));
    }
    put(out, "}");
}

fn write_status(out: &mut Vec<u8>, answer: &Answer, hit: &Hit) {
    let rule = answer.rule(hit);
    let standing = hit.standing;
    put(out, r#"{"code":"#);
    put(
        out,
        match answer.denies(hit) {
            true => OVER_LIMIT,
            false => OK,
        },
    );
    put(out, r#","rule":"#);
    write_serialised(out, &rule.label);
    let limit = answer.limit(hit);
    if let Some(limit) = limit {
        write_limit(out, limit);
    }
    put(out, r#","limit_remaining":"#);
    write_number(out, standing.remaining.get());
    if limit.is_some() {
        put(out, r#","duration_until_reset":"#);
        write_duration(out, answer.reset_after(hit));
    }
    if let Some(wait) = standing.retry_after.filter(|_| !rule.spec.shadow) {
        put(out, r#","retry_after":"#);
        write_duration(out, wait);
    }
    if standing.delay > Span::ZERO {
        put(out, r#","delay":"#);
        write_duration(out, standing.delay);
    }
    put(out, r#","source":""#);
    put(out, hit.source.name());
    put(out, "\"");
    // A shadow rule that would have denied is marked.
    if rule.spec.shadow && !standing.allowed {
        put(out, r#","shadow":true"#);
    }
    put(out, "}");
}

fn write_limit(out: &mut Vec<u8>, limit: &Limit) {
    put(out, r#","current_limit":{"requests_per_unit":"#);
    write_number(out, limit.requests());
    put(out, r#","unit":""#);
    put(out, limit.unit().name());
    put(out, "\"");
    if limit.unit_multiplier() != 1 {
        put(out, r#","unit_multiplier":"#);
        write_number(out, limit.unit_multiplier());
    }
    put(out, "}");
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    put(out, itoa::Buffer::new().format(number));
}

/// A length of time as protobuf's JSON has it, rounded up to the millisecond: a client that waits that long has waited
/// enough.
fn write_duration(out: &mut Vec<u8>, span: Span) {
    let millis = span.get().div_ceil(1_000_000);
    put(out, "\"");
    write_number(out, millis / 1_000);
    if !millis.is_multiple_of(1_000) {
        // A one before the thousandths keeps their leading zeros; trailing ones are dropped.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(1_000 + millis % 1_000).trim_end_matches('0');
        put(out, ".");
        put(out, digits.strip_prefix('1').unwrap_or(digits));
    }
    put(out, "s\"");
}

fn write_serialised(out: &mut Vec<u8>, value: &impl Serialize) {
    // Writing into memory does not fail, and nothing written here refuses to be.
    let _ = serde_json::to_writer(out, value);
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
    fn new(error_code: ErrorCode, scope: Scope<'a>, answer: &Answer, hit: &Hit) -> Self {
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
        let (code, message) = match (error_code, limit) {
            (ErrorCode::StoreUnavailable, _) => (
                "STORE_UNAVAILABLE",
                format!("{label} denies while the store cannot be reached: {advice}"),
            ),
            (ErrorCode::RateLimited, Some(limit)) => (
                "RATE_LIMITED",
                format!("rate limit {limit} of {label} exceeded: {advice}"),
            ),
            (ErrorCode::RateLimited, None) => ("RATE_LIMITED", advice),
        };
        Self {
            code,
            message,
            retry_after,
            limit: limit.map_or(0, Limit::requests),
            window: limit.map(Limit::window_text).unwrap_or_default(),
            scope,
        }
    }
}

/// What the denial is about: the entries of the descriptor, `key:value` after `key:value`.
struct Scope<'a> {
    check: &'a Check<'a>,
    descriptor: usize,
    shown_bytes_max: usize,
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
            let shown = |bytes| DisplayText::new(bytes, self.shown_bytes_max);
            write!(f, "{separator}{}:{}", shown(entry.key), shown(entry.value))?;
        }
        Ok(())
    }
}

impl Serialize for Scope<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
