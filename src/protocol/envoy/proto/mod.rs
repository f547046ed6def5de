//! The protobuf messages and services that the gRPC door speaks: Envoy's rate limit service, health and reflection.
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
    RateLimitRequest, RateLimitResponse, rate_limit_response, rate_limit_service_server,
};
pub use messages::envoy::r#type::v3::RateLimitUnit;

/// Package `grpc.health`.
pub mod health {
    pub use tonic_health::pb as v1;
}

/// Package `grpc.reflection`.
pub mod reflection {
    pub use tonic_reflection::pb::v1;
}
