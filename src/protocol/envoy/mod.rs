//! Envoy's rate limit service: `RateLimitRequest` in, `RateLimitResponse` out, in protobuf or in protobuf's JSON.

pub mod decode;
pub mod encode;
pub mod encode_json;
pub mod proto;
