//! Server reflection: what can be called here, for tools such as `grpcurl`.
//!
//! `tonic-reflection` has such a service, but its answers leave out the imports and it ends the call at the first name
//! that it does not find.

use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};
use tonic::codegen::BoxStream;
use tonic::codegen::tokio_stream::StreamExt;
use tonic::{Code, Request, Response, Status, Streaming};

use super::drained_stream::until_drain;
use crate::net::drain::Drain;
use crate::protocol::envoy::proto::DESCRIPTORS;
use crate::protocol::envoy::proto::reflection::v1::server_reflection_request::MessageRequest;
use crate::protocol::envoy::proto::reflection::v1::server_reflection_response::MessageResponse;
use crate::protocol::envoy::proto::reflection::v1::server_reflection_server::{
    ServerReflection, ServerReflectionServer,
};
use crate::protocol::envoy::proto::reflection::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

/// Bytes of one question.
const QUESTION_BYTES_MAX: usize = 4096;

/// Answers each question until the call or the server ends.
#[derive(Debug)]
pub struct Reflection(Drain);

/// The service, until `drain` begins.
pub fn server(drain: Drain) -> ServerReflectionServer<Reflection> {
    ServerReflectionServer::new(Reflection(drain)).max_decoding_message_size(QUESTION_BYTES_MAX)
}

#[tonic::async_trait]
impl ServerReflection for Reflection {
    type ServerReflectionInfoStream = BoxStream<ServerReflectionResponse>;

    async fn server_reflection_info(
        &self,
        request: Request<Streaming<ServerReflectionRequest>>,
    ) -> Result<Response<Self::ServerReflectionInfoStream>, Status> {
        let questions = request.into_inner();
        let answers = questions.map(|question| question.and_then(reply));
        Ok(Response::new(until_drain(
            Box::pin(answers),
            self.0.clone(),
        )))
    }
}

fn reply(request: ServerReflectionRequest) -> Result<ServerReflectionResponse, Status> {
    // Decoded for each question: questions are rare, and this keeps no memory.
    let set = FileDescriptorSet::decode(DESCRIPTORS)
        .map_err(|error| Status::unavailable(error.to_string()))?;
    let response = match &request.message_request {
        Some(MessageRequest::ListServices(_)) => list(&set),
        Some(MessageRequest::FileByFilename(name)) => files(&set, |file| file.name() == name),
        Some(MessageRequest::FileContainingSymbol(symbol)) => {
            files(&set, |file| defines(file, symbol))
        }
        Some(MessageRequest::AllExtensionNumbersOfType(name)) => {
            // Nothing here is extended.
            MessageResponse::AllExtensionNumbersResponse(ExtensionNumberResponse {
                base_type_name: name.clone(),
                extension_number: Vec::new(),
            })
        }
        Some(MessageRequest::FileContainingExtension(_)) | None => not_found(),
    };
    Ok(ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    })
}

fn list(set: &FileDescriptorSet) -> MessageResponse {
    let services = set.file.iter().flat_map(|file| {
        let name = |name: &str| format!("{}.{name}", file.package());
        let names = file.service.iter().map(move |service| name(service.name()));
        names.map(|name| ServiceResponse { name })
    });
    MessageResponse::ListServicesResponse(ListServiceResponse {
        service: services.collect(),
    })
}

/// The file that is `wanted`, and those that it imports.
fn files(
    set: &FileDescriptorSet,
    wanted: impl Fn(&FileDescriptorProto) -> bool,
) -> MessageResponse {
    let Some(first) = set.file.iter().find(|file| wanted(file)) else {
        return not_found();
    };
    let mut found = vec![first];
    let mut next = 0;
    while let Some(file) = found.get(next).copied() {
        for name in &file.dependency {
            let import = set.file.iter().find(|file| file.name() == name);
            found.extend(import.filter(|import| !found.contains(import)));
        }
        next += 1;
    }
    MessageResponse::FileDescriptorResponse(FileDescriptorResponse {
        file_descriptor_proto: found.iter().map(|file| file.encode_to_vec()).collect(),
    })
}

fn not_found() -> MessageResponse {
    MessageResponse::ErrorResponse(ErrorResponse {
        error_code: Code::NotFound as i32,
        error_message: "not found".to_owned(),
    })
}

/// Whether a service, method, message or enum of that whole name is in `file`.
fn defines(file: &FileDescriptorProto, symbol: &str) -> bool {
    let within = symbol
        .strip_prefix(file.package())
        .and_then(|rest| rest.strip_prefix('.'));
    within.is_some_and(|name| {
        let (first, rest) = name
            .split_once('.')
            .map_or((name, None), |(a, b)| (a, Some(b)));
        file.service.iter().any(|service| {
            let has = |method: &str| service.method.iter().any(|known| known.name() == method);
            service.name() == first && rest.is_none_or(has)
        }) || file.enum_type.iter().any(|known| known.name() == name)
            || declares(&file.message_type, first, rest)
    })
}

/// Whether one of `messages` is `first`, and holds `rest` if there is more. It recurses as deep as our own files nest.
fn declares(messages: &[DescriptorProto], first: &str, rest: Option<&str>) -> bool {
    messages
        .iter()
        .filter(|message| message.name() == first)
        .any(|message| match rest {
            None => true,
            Some(name) => {
                let (first, rest) = name
                    .split_once('.')
                    .map_or((name, None), |(a, b)| (a, Some(b)));
                message.enum_type.iter().any(|known| known.name() == name)
                    || declares(&message.nested_type, first, rest)
            }
        })
}
