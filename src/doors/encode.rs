//! An answer into headers and a body. What is said here is the contract with clients.

use std::ops::Range;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;

use super::headers::{HeaderStyles, Sink};
use super::{envoy, envoy_json, json};
use crate::net::HttpReply;
use tidegate_core::engine::{Answer, Verdict};
use tidegate_core::pure::{Check, Moment};

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// What an answer mostly fits in, body and headers' values.
const PAGE_BYTES: usize = 512;

/// What a body looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// As `/v1/check` has it.
    Own,
    /// As envoyproxy/ratelimit's `/json` has it.
    Envoy,
}

/// How an answer is to be told.
#[derive(Clone, Copy, Debug)]
pub struct ResponseStyle {
    /// What the body looks like.
    pub form: Form,
    /// Which headers to send.
    pub styles: HeaderStyles,
    /// The status of a denial, if the client chose one.
    pub deny_status: Option<StatusCode>,
    /// When the check was decided.
    pub moment: Moment,
    /// Bytes of a value that are shown.
    pub shown_bytes_max: usize,
}

/// The response to a check of Envoy's that is over a bound, and why.
pub fn over_bound(why: &str) -> HttpReply {
    let mut body = Vec::with_capacity(PAGE_BYTES);
    envoy_json::write(&mut body, &envoy::over_bound(why, 0));
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    response.headers_mut().insert(CONTENT_TYPE, JSON);
    response
}

/// The response to a check. Its headers are put into `headers`, of which only the memory is used.
pub fn response(
    headers: HeaderMap,
    check: &Check<'_>,
    answer: &Answer,
    telling: ResponseStyle,
) -> HttpReply {
    let mut page = Page::new();
    match telling.form {
        Form::Own => json::write(&mut page.bytes, check, answer, telling.shown_bytes_max),
        Form::Envoy => {
            let response = envoy::response(check, answer, (telling.styles, telling.moment));
            envoy_json::write(&mut page.bytes, &response);
        }
    }
    page.body_ends();
    telling.styles.tell(&mut page, answer, telling.moment);
    let mut response = page.into_reply(headers);
    if !answer.allowed() {
        let unavailable =
            answer.verdict() == Verdict::StoreUnavailable && telling.form == Form::Own;
        *response.status_mut() = telling.deny_status.unwrap_or(match unavailable {
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

    fn into_reply(self, mut headers: HeaderMap) -> HttpReply {
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

impl Sink for Page {
    fn header(&mut self, name: HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.values.push((name, start..self.bytes.len()));
    }
}
