//! An answer into headers and a body. What is said here is the contract with clients.

use std::ops::Range;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;

use super::json;
use crate::config::HeaderStyle;
use crate::engine::{Answer, Hit};
use crate::pure::{Check, Limit, Moment};
use crate::wire::Reply;

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// What an answer mostly fits in, body and headers' values.
const PAGE_BYTES: usize = 512;

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
    /// The status of a denial, if the client chose one.
    pub deny_status: Option<StatusCode>,
    /// When the check was decided.
    pub moment: Moment,
}

/// The response to a check. Its headers are put into `headers`, of which only the memory is used.
pub fn response(headers: HeaderMap, check: &Check<'_>, answer: &Answer, telling: Telling) -> Reply {
    let mut page = Page::new();
    json::write(&mut page.bytes, check, answer);
    page.body_ends();
    if let Some(hit) = answer.decisive().filter(|hit| answer.limit(hit).is_some()) {
        add_headers(&mut page, answer, hit, telling);
    }
    let mut response = page.into_reply(headers);
    if !answer.allowed() {
        *response.status_mut() = telling.deny_status.unwrap_or(match answer.unavailable() {
            true => StatusCode::SERVICE_UNAVAILABLE,
            false => StatusCode::TOO_MANY_REQUESTS,
        });
    }
    response
}

/// An answer in one piece of memory: the body, then the headers' values.
struct Page {
    bytes: Vec<u8>,
    body: usize,
    values: SmallVec<[(HeaderName, Range<usize>); 8]>,
}

impl Page {
    fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(PAGE_BYTES),
            body: 0,
            values: SmallVec::new(),
        }
    }

    fn body_ends(&mut self) {
        self.body = self.bytes.len();
    }

    fn header(&mut self, name: HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.values.push((name, start..self.bytes.len()));
    }

    fn number(&mut self, name: HeaderName, number: u64) {
        self.header(name, |value| write_number(value, number));
    }

    fn into_reply(self, mut headers: HeaderMap) -> Reply {
        let bytes = Bytes::from(self.bytes);
        headers.clear();
        headers.insert(CONTENT_TYPE, JSON);
        for (name, value) in self.values {
            if let Ok(value) = HeaderValue::from_maybe_shared(bytes.slice(value)) {
                headers.insert(name, value);
            }
        }
        let mut response = Response::new(Full::new(bytes.slice(..self.body)));
        *response.headers_mut() = headers;
        response
    }
}

fn add_headers(page: &mut Page, answer: &Answer, hit: &Hit, telling: Telling) {
    let standing = &hit.standing;
    let retry_after = standing
        .retry_after
        .filter(|_| !answer.allowed())
        .map(|wait| wait.seconds_up().max(1));
    if telling.styles.draft_11 {
        // The effective window: what is left lasts until the bucket is full, and nothing is left until the retry.
        let window = retry_after.unwrap_or_else(|| standing.reset_after.seconds_up());
        page.header(RATELIMIT_POLICY, |list| write_policies(list, answer));
        page.header(RATELIMIT, |item| {
            write_name(item, &answer.rule(hit).policy);
            write_parameter(item, b";r=", standing.remaining.get());
            write_parameter(item, b";t=", window);
        });
    }
    if telling.styles.legacy {
        let reset = match telling.styles.epoch {
            true => telling.moment.unix.plus(standing.reset_after).seconds_up(),
            false => standing.reset_after.seconds_up(),
        };
        page.number(X_LIMIT, answer.limit(hit).map_or(0, Limit::requests));
        page.number(X_REMAINING, standing.remaining.get());
        page.number(X_RESET, reset);
    }
    if let Some(seconds) = retry_after {
        page.number(RETRY_AFTER, seconds);
        if telling.styles.legacy {
            page.number(X_RETRY_AFTER, seconds);
        }
    }
}

/// Every limit that was met, once each.
fn write_policies(list: &mut Vec<u8>, answer: &Answer) {
    let mut separator: &[u8] = b"";
    for (index, hit) in answer.hits().iter().enumerate() {
        let mut earlier = answer.hits().iter().take(index);
        let Some(limit) = answer.limit(hit) else {
            continue;
        };
        if earlier.any(|earlier| earlier.rule == hit.rule) {
            continue;
        }
        list.extend_from_slice(separator);
        write_name(list, &answer.rule(hit).policy);
        write_parameter(list, b";q=", limit.requests());
        write_parameter(list, b";w=", limit.window().seconds_up());
        separator = b", ";
    }
}

/// A structured field string (RFC 9651): printable ASCII in quotes, with quotes and backslashes escaped.
fn write_name(item: &mut Vec<u8>, name: &str) {
    item.push(b'"');
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if name.as_bytes().iter().all(plain) {
        item.extend_from_slice(name.as_bytes());
    } else {
        name.chars().for_each(|character| match character {
            '"' | '\\' => item.extend_from_slice(&[b'\\', character as u8]),
            ' '..='~' => item.push(character as u8),
            _ => item.push(b'?'),
        });
    }
    item.push(b'"');
}

fn write_parameter(item: &mut Vec<u8>, name: &[u8], value: u64) {
    item.extend_from_slice(name);
    write_number(item, value);
}

fn write_number(item: &mut Vec<u8>, number: u64) {
    item.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
