//! Server reflection: what can be asked here, for tools such as `grpcurl`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body, Incoming};
use prost::Message;
use prost_types::{DescriptorProto, FileDescriptorProto, FileDescriptorSet};

use crate::wire::grpc::{self, Code, Failure, PREFIX_BYTES, Source};
use crate::wire::listen::Drain;
use crate::wire::proto::DESCRIPTORS;
use crate::wire::proto::reflection::v1::server_reflection_request::MessageRequest;
use crate::wire::proto::reflection::v1::server_reflection_response::MessageResponse;
use crate::wire::proto::reflection::v1::{
    ErrorResponse, ExtensionNumberResponse, FileDescriptorResponse, ListServiceResponse,
    ServerReflectionRequest, ServerReflectionResponse, ServiceResponse,
};

/// Bytes of one question.
const QUESTION_BYTES_MAX: usize = 4096;

/// Answers each question in `body`, until it or the server ends.
pub fn answer(body: Incoming, mut drain: Drain) -> grpc::Answer {
    grpc::answer_many(Reflecting {
        body,
        read: Bytes::new(),
        begins: Box::pin(async move { drain.begins().await }),
    })
}

/// Questions on their way.
struct Reflecting {
    body: Incoming,
    /// Read and not yet answered.
    read: Bytes,
    begins: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for Reflecting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reflecting").finish_non_exhaustive()
    }
}

impl Source for Reflecting {
    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Bytes, Option<Failure>>> {
        loop {
            if let Some(question) = grpc::take_message(&mut self.read, QUESTION_BYTES_MAX)? {
                return Poll::Ready(reply(&question).map_err(Some));
            }
            if self.begins.as_mut().poll(context).is_ready() {
                let what = "the server is about to end";
                return Poll::Ready(Err(Some(Failure::new(Code::Unavailable, what))));
            }
            let Some(Ok(frame)) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
                return Poll::Ready(Err(None));
            };
            if let Ok(piece) = frame.into_data() {
                self.read = joined(std::mem::take(&mut self.read), piece);
            }
        }
    }
}

/// What is left of a question is shorter than one, and a piece is no longer than a frame: this stays small.
fn joined(before: Bytes, piece: Bytes) -> Bytes {
    debug_assert!(before.len() < QUESTION_BYTES_MAX + PREFIX_BYTES);
    if before.is_empty() {
        return piece;
    }
    let mut joined = BytesMut::from(before);
    joined.extend_from_slice(&piece);
    joined.freeze()
}

fn reply(question: &[u8]) -> Result<Bytes, Failure> {
    let invalid =
        |error: prost::DecodeError| Failure::new(Code::InvalidArgument, error.to_string());
    let request = ServerReflectionRequest::decode(question).map_err(invalid)?;
    let set = FileDescriptorSet::decode(DESCRIPTORS)
        .map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
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
    Ok(grpc::frame(&ServerReflectionResponse {
        valid_host: request.host.clone(),
        original_request: Some(request),
        message_response: Some(response),
    }))
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

/// Whether one of `messages` is `first`, and holds `rest` if there is more. As deep as our own files nest.
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
