//! The protobuf messages that the gRPC door speaks: Envoy's rate limit service, health and reflection.
//!
//! `make proto` prints them from the files in `proto`, which have Envoy's names and numbers. No build needs `protoc`.

pub mod messages;

/// Every message and service, for reflection: a `google.protobuf.FileDescriptorSet`.
pub const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");

pub use messages::envoy::config::core::v3::HeaderValue;
pub use messages::envoy::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor,
};
pub use messages::envoy::service::ratelimit::v3::{
    RateLimitRequest, RateLimitResponse, rate_limit_response,
};
pub use messages::envoy::r#type::v3::RateLimitUnit;
pub use messages::grpc::{health, reflection};
