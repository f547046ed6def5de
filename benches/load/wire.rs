//! Checks and answers as bytes of each protocol. Checks are encoded before the run; of an answer the load reads no more
//! than it takes to find its end.

use std::sync::Arc;

use prost::Message;
use tidegate::protocol::envoy::proto::rate_limit_descriptor::Entry;
use tidegate::protocol::envoy::proto::{RateLimitDescriptor, RateLimitRequest};

/// How many keys are checked.
pub const KEYS: usize = 1_000;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// Bytes in front of a frame's payload.
const FRAME_HEAD: usize = 9;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Http1,
    Grpc,
}

/// Checks of a thousand keys, as they go over the wire.
#[derive(Clone)]
pub struct Requests {
    protocol: Protocol,
    hello: Arc<[u8]>,
    checks: Arc<[Vec<u8>]>,
}

impl Requests {
    /// Over HTTP/1.1.
    pub fn http() -> Self {
        let request = |key| {
            let body = format!(
                r#"{{"domain":"bench","descriptors":[{{"entries":[{{"key":"client","value":"client-{key:017}"}}]}}]}}"#
            );
            let head = format!(
                "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            (head + &body).into_bytes()
        };
        Self {
            protocol: Protocol::Http1,
            hello: Arc::default(),
            checks: (0..KEYS).map(request).collect(),
        }
    }

    /// Over gRPC.
    pub fn grpc() -> Self {
        let mut hello = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        hello.extend(frame(SETTINGS, 0, &[]));
        // Nothing has to be asked for again during a run.
        hello.extend(frame(WINDOW_UPDATE, 0, &0x7fff_0000_u32.to_be_bytes()));
        Self {
            protocol: Protocol::Grpc,
            hello: hello.into(),
            checks: (0..KEYS).map(call).collect(),
        }
    }

    /// What a connection begins with.
    pub fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Appends the check of a key, which is the so-manieth of its connection.
    pub fn write(&self, key: usize, sequence: u32, out: &mut Vec<u8>) {
        let check = &self.checks[key];
        out.extend_from_slice(check);
        if self.protocol == Protocol::Grpc {
            let stream = (2 * sequence + 1).to_be_bytes();
            let mut at = 0;
            while at < out.len() {
                let length = payload_bytes(&out[at..]);
                out[at + 5..at + FRAME_HEAD].copy_from_slice(&stream);
                at += FRAME_HEAD + length;
            }
        }
    }

    /// How long the answer is that begins these bytes, once its end can be seen.
    pub fn answer_bytes(&self, bytes: &[u8]) -> Option<usize> {
        match self.protocol {
            Protocol::Http1 => http_bytes(bytes),
            Protocol::Grpc => {
                let (at, head) = frames(bytes)
                    .find(|(_, head)| head[3] == HEADERS && head[4] & END_STREAM != 0)?;
                Some(at + FRAME_HEAD + payload_bytes(head))
            }
        }
    }
}

/// The message in an answer over gRPC.
pub fn message(answer: &[u8]) -> &[u8] {
    let data = frames(answer).find(|(_, head)| head[3] == DATA);
    let (_, frame) = data.expect("an answer with a message");
    &frame[FRAME_HEAD + 5..FRAME_HEAD + payload_bytes(frame)]
}

fn call(key: usize) -> Vec<u8> {
    let request = RateLimitRequest {
        domain: "bench".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry {
                key: "client".into(),
                value: format!("client-{key:017}").into(),
            }],
            ..RateLimitDescriptor::default()
        }],
        hits_addend: 0,
    };
    let headers = [
        // POST, http.
        vec![0x83, 0x86],
        literal(
            ":path",
            "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
        ),
        literal(":authority", "localhost"),
        literal("content-type", "application/grpc"),
        literal("te", "trailers"),
    ];
    let length = u32::try_from(request.encoded_len()).expect("a short message");
    let mut message = vec![0];
    message.extend(length.to_be_bytes());
    message.extend(request.encode_to_vec());
    let mut call = frame(HEADERS, END_HEADERS, &headers.concat());
    call.extend(frame(DATA, END_STREAM, &message));
    call
}

/// A header, spelled out.
fn literal(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = vec![0];
    for text in [name, value] {
        bytes.push(u8::try_from(text.len()).expect("a short text"));
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// A frame of no stream yet.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len())
        .expect("a short frame")
        .to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags, 0, 0, 0, 0]);
    frame.extend(payload);
    frame
}

fn payload_bytes(head: &[u8]) -> usize {
    usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])
}

/// Where each frame begins whose head is there, and the bytes from there on.
fn frames(bytes: &[u8]) -> impl Iterator<Item = (usize, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let begins = at;
        let rest = bytes
            .get(begins..)
            .filter(|rest| rest.len() >= FRAME_HEAD)?;
        at += FRAME_HEAD + payload_bytes(rest);
        Some((begins, rest))
    })
}

fn http_bytes(bytes: &[u8]) -> Option<usize> {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n")? + 4;
    let name = b"content-length: ";
    let at = bytes.windows(name.len()).position(|part| part == name)? + name.len();
    let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    Some(head + length)
}
