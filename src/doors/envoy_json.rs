//! A `RateLimitResponse` as protobuf's JSON has it: names in camel case, and what has its default left out.

use prost_types::{Struct, value::Kind};
use serde_json::{Map, Value, json};

use crate::wire::proto::RateLimitResponse;
use crate::wire::proto::rate_limit_response::{DescriptorStatus, RateLimit};

/// Writes `response` to `out`.
pub fn write(out: &mut Vec<u8>, response: &RateLimitResponse) {
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

/// Those of the members that do not have the default of their type.
fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    let said = |value: &Value| match value {
        Value::Null => false,
        Value::Bool(flag) => *flag,
        Value::Number(number) => number.as_u64() != Some(0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(_) => true,
    };
    let members = members.into_iter().filter(|(_, value)| said(value));
    members
        .map(|(name, value)| (name.to_owned(), value))
        .collect::<Map<_, _>>()
        .into()
}

/// A struct of texts and numbers, all of them said.
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
