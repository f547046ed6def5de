//! gRPC over HTTP/2: messages in their frames, and how a call ends.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use hyper::body::{Body, Frame, SizeHint};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use prost::Message;

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
const GRPC_ACCEPT_ENCODING: HeaderName = HeaderName::from_static("grpc-accept-encoding");
const IDENTITY: HeaderValue = HeaderValue::from_static("identity");

/// In front of each message: whether it is compressed, and its length.
pub const PREFIX_BYTES: usize = 5;
/// What `grpc-message` cannot say as it is.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%');

/// How a call ends. Its numbers are gRPC's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// Well.
    Ok = 0,
    /// What was sent is no valid question.
    InvalidArgument = 3,
    /// There is no such thing.
    NotFound = 5,
    /// There is no such method.
    Unimplemented = 12,
    /// Not now.
    Unavailable = 14,
}

impl Code {
    fn value(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Ok => "0",
            Self::InvalidArgument => "3",
            Self::NotFound => "5",
            Self::Unimplemented => "12",
            Self::Unavailable => "14",
        })
    }
}

/// Why a call ended without an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Which kind.
    pub code: Code,
    /// In words.
    pub message: String,
}

impl Failure {
    /// A failure in these words.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }

    fn write(&self, headers: &mut HeaderMap) {
        headers.insert(GRPC_STATUS, self.code.value());
        let message = utf8_percent_encode(&self.message, ESCAPED).to_string();
        if let Ok(message) = HeaderValue::try_from(message) {
            headers.insert(GRPC_MESSAGE, message);
        }
        if self.code == Code::Unimplemented {
            headers.insert(GRPC_ACCEPT_ENCODING, IDENTITY);
        }
    }
}

/// Whether these are the headers of a call.
pub fn is_call(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = kind.and_then(|kind| kind.strip_prefix(b"application/grpc"));
    matches!(rest, Some([] | [b'+' | b';', ..]))
}

/// A message in its frame.
pub fn frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX_BYTES + length);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Memory grows: encoding into it does not fail.
    let _ = message.encode(&mut framed);
    framed.freeze()
}

/// Takes the next message out of its frame, if it is all there. No message may be longer than `bytes_max`.
pub fn take_message(bytes: &mut Bytes, bytes_max: usize) -> Result<Option<Bytes>, Failure> {
    let Some((&[compressed, a, b, c, d], _)) = bytes.split_first_chunk::<PREFIX_BYTES>() else {
        return Ok(None);
    };
    if compressed != 0 {
        let what = "compressed messages are not understood";
        return Err(Failure::new(Code::Unimplemented, what));
    }
    let length = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(too_large(bytes_max));
    }
    if bytes.len() - PREFIX_BYTES < length {
        return Ok(None);
    }
    bytes.advance(PREFIX_BYTES);
    Ok(Some(bytes.split_to(length)))
}

/// The one message of a call that has one.
pub fn only_message(mut bytes: Bytes, bytes_max: usize) -> Result<Bytes, Failure> {
    match take_message(&mut bytes, bytes_max)? {
        Some(message) if bytes.is_empty() => Ok(message),
        Some(_) | None => Err(Failure::new(
            Code::InvalidArgument,
            "the call must have exactly one message",
        )),
    }
}

/// The failure of a call whose message is longer than it may be.
pub fn too_large(bytes_max: usize) -> Failure {
    let what = format!("the message must be at most {bytes_max} bytes");
    Failure::new(Code::InvalidArgument, what)
}

/// The answer to a call.
pub type Answer = Response<Messages>;

/// What a call is answered with.
#[derive(Debug)]
pub enum Messages {
    /// Nothing: the headers have said it all.
    None,
    /// One message, and then that all is well.
    One(Bytes),
    /// That all is well.
    End,
    /// As they come.
    Many(Pin<Box<dyn Source>>),
}

/// Where messages come from, in their frames. It is asked until it ends.
pub trait Source: Send + std::fmt::Debug {
    /// The next one, or how the call ends.
    fn poll_next(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Bytes, Option<Failure>>>;
}

/// Answers with one message, or with none.
pub fn answer(answered: Result<Bytes, Failure>) -> Answer {
    match answered {
        Ok(message) => respond(Messages::One(message)),
        Err(failure) => {
            let mut response = respond(Messages::None);
            failure.write(response.headers_mut());
            response
        }
    }
}

/// Answers with the messages of `source`.
pub fn answer_many(source: impl Source + 'static) -> Answer {
    respond(Messages::Many(Box::pin(source)))
}

/// Answers what is no call.
pub fn refuse(status: StatusCode) -> Answer {
    let mut response = Response::new(Messages::None);
    *response.status_mut() = status;
    response
}

fn respond(messages: Messages) -> Answer {
    let mut response = Response::new(messages);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let (frame, next) = match &mut *self {
            Self::None => return Poll::Ready(None),
            Self::One(message) => (Frame::data(std::mem::take(message)), Self::End),
            Self::End => (Frame::trailers(trailers(None)), Self::None),
            Self::Many(source) => match source.as_mut().poll_next(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(message)) => return Poll::Ready(Some(Ok(Frame::data(message)))),
                Poll::Ready(Err(end)) => (Frame::trailers(trailers(end)), Self::None),
            },
        };
        *self = next;
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::None)
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::None | Self::End => SizeHint::with_exact(0),
            Self::One(message) => SizeHint::with_exact(message.len() as u64),
            Self::Many(_) => SizeHint::default(),
        }
    }
}

fn trailers(failure: Option<Failure>) -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    match failure {
        Some(failure) => failure.write(&mut trailers),
        None => {
            trailers.insert(GRPC_STATUS, Code::Ok.value());
        }
    }
    trailers
}
