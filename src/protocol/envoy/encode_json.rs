//! A `RateLimitResponse` as protobuf's JSON has it (names in camel case, defaults left out), and the HTTP response
//! around it.

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HeaderMap;
use hyper::{Response, StatusCode};
use prost_types::{Struct, value::Kind};
use serde_json::{Map, Value, json};

use super::encode;
use super::proto::RateLimitResponse;
use super::proto::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use crate::protocol::headers::HeaderStyles;
use crate::protocol::http_response::ResponsePage;
use tidegate_core::engine::Answer;
use tidegate_core::pure::{Check, Moment};

/// The HTTP response to `check`, decided at `moment`. Its headers go into `headers`, of which only the memory is used.
pub fn http_response(
    headers: HeaderMap,
    check: &Check<'_>,
    answer: &Answer,
    styles: HeaderStyles,
    moment: Moment,
) -> Response<Full<Bytes>> {
    let response = encode::response(check, answer, styles, moment);
    let mut page = ResponsePage::new(|body| write(body, &response));
    styles.write(&mut page, answer, moment);
    page.into_response(status_code(&response), headers)
}

/// The HTTP response to a check that is over a bound, and why.
pub fn over_bound(why: &str) -> Response<Full<Bytes>> {
    let response = encode::over_bound(why, 0);
    let page = ResponsePage::new(|body| write(body, &response));
    page.into_response(status_code(&response), HeaderMap::new())
}

fn status_code(response: &RateLimitResponse) -> StatusCode {
    match response.overall_code() {
        Code::Ok | Code::Unknown => StatusCode::OK,
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
    }
}

fn write(out: &mut Vec<u8>, response: &RateLimitResponse) {
    let headers = response.response_headers_to_add.iter();
    let headers = headers.map(|header| json!({ "key": header.key, "value": header.value }));
    let statuses = response.statuses.iter().map(status);
    let body = object([
        ("overallCode", json!(response.overall_code().as_str_name())),
        ("statuses", statuses.collect()),
        ("responseHeadersToAdd", headers.collect()),
        (
            "dynamicMetadata",
            response
                .dynamic_metadata
                .as_ref()
                .map_or(Value::Null, fields),
        ),
    ]);
    // Writing into memory does not fail.
    let _ = serde_json::to_writer(out, &body);
}

fn status(status: &DescriptorStatus) -> Value {
    let reset = status.duration_until_reset.as_ref();
    object([
        ("code", json!(status.code().as_str_name())),
        (
            "currentLimit",
            status.current_limit.as_ref().map_or(Value::Null, limit),
        ),
        ("limitRemaining", json!(status.limit_remaining)),
        (
            "durationUntilReset",
            json!(reset.map(|reset| format!("{}s", reset.seconds))),
        ),
    ])
}

fn limit(limit: &RateLimit) -> Value {
    object([
        ("name", json!(limit.name)),
        ("requestsPerUnit", json!(limit.requests_per_unit)),
        ("unit", json!(limit.unit().as_str_name())),
        ("unitMultiplier", json!(limit.unit_multiplier)),
    ])
}

/// The members that do not have the default of their type.
fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let is_set = |value: &Value| match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_u64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(_) => true,
    };
    let members = members.into_iter().filter(|(_, value)| is_set(value));
    members
        .map(|(name, value)| (name.to_owned(), value))
        .collect::<Map<_, _>>()
        .into()
}

/// A struct of texts and numbers, defaults included.
fn fields(fields: &Struct) -> Value {
    let value = |value: &prost_types::Value| match &value.kind {
        // A whole number is printed as one.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 => json!(*number as i64),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(flag)) => json!(flag),
        Some(Kind::NullValue(_) | Kind::StructValue(_) | Kind::ListValue(_)) | None => Value::Null,
    };
    let members = fields.fields.iter();
    members
        .map(|(name, field)| (name.clone(), value(field)))
        .collect::<Map<_, _>>()
        .into()
}
