//! What everything that speaks HTTP shares: listening, reading a check out of a request, refusing one.
//!
//! It decides nothing and knows neither the doors nor the admin pages.
#![deny(clippy::indexing_slicing)]

pub mod decode;
pub mod envoy;
mod heads;
pub mod http1;
pub mod http2;
pub mod listen;
pub mod proto;
pub mod seats;

use std::hash::{BuildHasher, Hasher, RandomState};

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

/// Any response of ours: it is all in memory when it is sent.
pub type Reply = Response<Full<Bytes>>;

/// Whether `given` is the secret. All of it is compared, so that the time taken does not tell how much was right.
pub fn is_secret(given: &[u8], secret: &[u8]) -> bool {
    let differing = given
        .iter()
        .zip(secret)
        .fold(0, |differing, (a, b)| differing | (a ^ b));
    given.len() == secret.len() && differing == 0
}

/// A number that nobody can guess: the standard library seeds every hash map with fresh ones.
pub fn unguessable() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A response with a JSON body.
pub fn json(status: StatusCode, body: &serde_json::Value) -> Reply {
    reply(status, "application/json", body.to_string())
}

/// A response that says what is wrong with the request.
pub fn refusal(status: StatusCode, code: &str, message: &str) -> Reply {
    json(
        status,
        &json!({ "error": { "code": code, "message": message } }),
    )
}

/// A response to a method that the page does not know; `allowed` are those it does.
pub fn method_refusal(allowed: &'static str) -> Reply {
    let what = format!("ask with {}", allowed.replace(", ", " or "));
    let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", &what);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// A response with a body of the given type.
pub fn reply(status: StatusCode, content_type: &'static str, body: String) -> Reply {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
