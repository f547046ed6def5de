//! What the gRPC door serves beside checks, and what it does not: health, reflection, the drain, calls that are none.

use std::hash::Hasher;
use std::path::Path;

use prost::Message;
use prost_types::FileDescriptorProto;
use siphasher::sip::SipHasher24;
use tidegate::protocol::envoy::proto::RateLimitResponse;
use tidegate::protocol::envoy::proto::health::v1::health_check_response::ServingStatus;
use tidegate::protocol::envoy::proto::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tidegate::protocol::envoy::proto::messages;
use tidegate::protocol::envoy::proto::reflection::v1::server_reflection_request::MessageRequest;
use tidegate::protocol::envoy::proto::reflection::v1::server_reflection_response::MessageResponse;
use tidegate::protocol::envoy::proto::reflection::v1::{
    ServerReflectionRequest, ServerReflectionResponse,
};
use tidegate_testing::{Endpoint, SOON, SidecarSetup, now, until};

use super::grpc::{LISTEN, RULES, start, tcp};
use super::rls::{Rls, SHOULD_RATE_LIMIT, request};

fn health(rls: &mut Rls, service: &str) -> Result<ServingStatus, tonic::Code> {
    let request = HealthCheckRequest {
        service: service.to_owned(),
    };
    let answer: Result<HealthCheckResponse, _> = rls.call("/grpc.health.v1.Health/Check", request);
    answer
        .map(|answer| answer.status())
        .map_err(|status| status.code())
}

#[test]
fn health_is_serving_until_the_drain_begins_and_watchers_hear_of_it() {
    let mut sidecar = start();
    let mut rls = tcp(&sidecar);
    for service in ["", "envoy.service.ratelimit.v3.RateLimitService"] {
        assert_eq!(health(&mut rls, service), Ok(ServingStatus::Serving));
    }
    assert_eq!(health(&mut rls, "nobody"), Err(tonic::Code::NotFound));
    let mut watch = |service: &str| {
        let request = HealthCheckRequest {
            service: service.to_owned(),
        };
        rls.stream::<_, HealthCheckResponse>("/grpc.health.v1.Health/Watch", vec![request])
            .unwrap()
    };
    let (mut watched, mut nobody) = (watch(""), watch("nobody"));
    let told = |stream: &mut _| {
        rls.next(stream)
            .unwrap()
            .map(|answer: HealthCheckResponse| answer.status())
    };
    assert_eq!(told(&mut watched), Some(ServingStatus::Serving));
    assert_eq!(told(&mut nobody), Some(ServingStatus::ServiceUnknown));
    sidecar.signal("TERM");
    assert_eq!(told(&mut watched), Some(ServingStatus::NotServing));
    let end = rls.next(&mut watched).expect_err("the end");
    assert_eq!(end.code(), tonic::Code::Unavailable);
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
}

#[test]
fn a_drain_does_not_wait_for_who_has_said_nothing() {
    let mut sidecar = start();
    let silent: Vec<_> = sidecar
        .doors("grpc")
        .iter()
        .map(Endpoint::connect)
        .collect();
    let connected = || {
        sidecar
            .metrics()
            .of("ratelimit_connections", &[("door", "grpc")])
    };
    until("two connections", SOON, || {
        (connected() == 2.0).then_some(())
    });
    let begun = now();
    sidecar.signal("TERM");
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    drop(silent);
}

#[test]
fn connections_beyond_the_bound_are_told_to_calm_down() {
    let setup = SidecarSetup::rules(RULES)
        .listen_also(LISTEN)
        .bounds("connections_max: 1");
    let sidecar = setup.start();
    let mut rls = tcp(&sidecar);
    assert_eq!(rls.letter("client", "first"), 'a');
    let mut second = sidecar.door("grpc").unwrap().connect();
    let told = second.receive_any().unwrap();
    assert_eq!(
        told.as_bytes().last(),
        Some(&0x0b),
        "ENHANCE_YOUR_CALM: {told:?}"
    );
    assert_eq!(rls.letter("client", "first"), 'a');
}

/// The list of services, a service, an enum within a message, a file, and a method that is not.
fn questions() -> Vec<ServerReflectionRequest> {
    let symbol = |name: &str| {
        MessageRequest::FileContainingSymbol(format!("envoy.service.ratelimit.v3.{name}"))
    };
    let questions = [
        MessageRequest::ListServices("*".to_owned()),
        symbol("RateLimitService"),
        symbol("RateLimitResponse.RateLimit.Unit"),
        MessageRequest::FileByFilename("grpc/health/v1/health.proto".to_owned()),
        symbol("RateLimitService.Other"),
    ];
    let ask = |question| ServerReflectionRequest {
        host: "here".to_owned(),
        message_request: Some(question),
    };
    questions.map(ask).to_vec()
}

#[test]
fn reflection_tells_every_service_and_file() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    for method in [
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    ] {
        let mut stream = rls.stream(method, questions()).unwrap();
        let mut next = || {
            let answer: ServerReflectionResponse =
                rls.next(&mut stream).unwrap().expect("an answer");
            assert_eq!(answer.valid_host, "here");
            answer.message_response.unwrap()
        };
        let MessageResponse::ListServicesResponse(services) = next() else {
            panic!("no list")
        };
        let names: Vec<_> = services
            .service
            .iter()
            .map(|service| service.name.as_str())
            .collect();
        for name in [
            "envoy.service.ratelimit.v3.RateLimitService",
            "grpc.health.v1.Health",
            "grpc.reflection.v1.ServerReflection",
        ] {
            assert!(names.contains(&name), "{names:?}");
        }
        let mut files = || {
            let MessageResponse::FileDescriptorResponse(files) = next() else {
                panic!("no files")
            };
            let files = files.file_descriptor_proto.iter();
            let name = |file: &Vec<u8>| {
                FileDescriptorProto::decode(file.as_slice())
                    .unwrap()
                    .name()
                    .to_owned()
            };
            files.map(name).collect::<Vec<_>>()
        };
        let rls_files = files();
        assert_eq!(rls_files[0], "envoy/service/ratelimit/v3/rls.proto");
        assert!(
            rls_files.contains(&"google/protobuf/struct.proto".to_owned()),
            "{rls_files:?}"
        );
        assert_eq!(files(), rls_files);
        assert_eq!(files(), ["grpc/health/v1/health.proto"]);
        let MessageResponse::ErrorResponse(error) = next() else {
            panic!("found")
        };
        assert_eq!(error.error_code, 5);
        assert!(rls.next(&mut stream).unwrap().is_none());
    }
}

#[test]
fn the_messages_are_printed_from_the_proto_files() {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let mut hasher = SipHasher24::new();
    for file in [
        "envoy/config/core/v3/base.proto",
        "envoy/extensions/common/ratelimit/v3/ratelimit.proto",
        "envoy/service/ratelimit/v3/rls.proto",
        "envoy/type/v3/ratelimit_unit.proto",
        "grpc/health/v1/health.proto",
        "grpc/reflection/v1/reflection.proto",
    ] {
        hasher.write(&std::fs::read(protos.join(file)).expect(file));
    }
    assert_eq!(hasher.finish(), messages::DIGEST, "run `make proto`");
}

#[test]
fn what_is_not_served_is_unimplemented() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    for method in [
        "/envoy.service.ratelimit.v3.RateLimitService/Other",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/",
    ] {
        let status = rls
            .call::<_, RateLimitResponse>(method, request([]))
            .expect_err(method);
        assert_eq!(status.code(), tonic::Code::Unimplemented, "{status:?}");
    }
    assert_eq!(rls.letter("client", "after"), 'a');
}

/// A call that is not as gRPC has it, over plain HTTP/2.
#[test]
fn what_is_no_call_is_told_so_in_the_words_of_http() {
    let sidecar = start();
    let mut rls = tcp(&sidecar);
    let Some(Endpoint::Tcp(address)) = sidecar.door("grpc") else {
        panic!("no TCP")
    };
    let curl = |arguments: &str| {
        let line = format!(
            "curl -s --http2-prior-knowledge -o /dev/null -w '%{{http_code}}' {arguments} http://{address}{SHOULD_RATE_LIMIT}"
        );
        sidecar.folder().shell(&line).stdout
    };
    assert_eq!(curl(""), "405");
    assert_eq!(curl("-d '{}'"), "415");
    assert_eq!(curl("-H 'content-type: application/grpc-web' -d ''"), "415");
    assert_eq!(
        curl("-H 'content-type: application/grpc' --data-binary ''"),
        "200"
    );
    assert_eq!(rls.letter("client", "after"), 'a');
}
