//! HTTP responses of ours, and the JSON of a refusal: `{"error": {"code": ..., "message": ...}}`.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::json;

/// Any response of ours: it is all in memory when it is sent.
pub type HttpReply = Response<Full<Bytes>>;

/// A response with a JSON body.
pub fn json(status: StatusCode, body: &serde_json::Value) -> HttpReply {
    reply(status, "application/json", body.to_string())
}

/// A response that says what is wrong with the request.
pub fn refusal(status: StatusCode, code: &str, message: &str) -> HttpReply {
    json(
        status,
        &json!({ "error": { "code": code, "message": message } }),
    )
}

/// A response to a method that the page does not know; `allowed` are those that it does.
pub fn method_refusal(allowed: &'static str) -> HttpReply {
    let what = format!("ask with {}", allowed.replace(", ", " or "));
    let mut response = refusal(StatusCode::METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED", &what);
    response
        .headers_mut()
        .insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// A response with a body of the given type.
pub fn reply(status: StatusCode, content_type: &'static str, body: String) -> HttpReply {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
