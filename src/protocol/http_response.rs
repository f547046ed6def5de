//! An HTTP response in one piece of memory: the body, then the values of its rate-limit headers.

use std::ops::Range;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use smallvec::SmallVec;

use super::headers::HeaderSink;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Bytes that mostly hold a body and the headers' values.
const PAGE_BYTES: usize = 512;

/// A JSON response that is being written: the body first, then [`HeaderSink::header`] for each header.
pub(super) struct ResponsePage {
    bytes: Vec<u8>,
    body_length: usize,
    values: SmallVec<[(HeaderName, Range<usize>); 8]>,
}

impl ResponsePage {
    /// A page with the body that `write_body` writes.
    pub(super) fn new(write_body: impl FnOnce(&mut Vec<u8>)) -> Self {
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        write_body(&mut bytes);
        Self {
            body_length: bytes.len(),
            bytes,
            values: SmallVec::new(),
        }
    }

    /// The response. Its headers go into `headers`, of which only the memory is used.
    pub(super) fn into_response(
        self,
        status: StatusCode,
        mut headers: HeaderMap,
    ) -> Response<Full<Bytes>> {
        let bytes = Bytes::from(self.bytes);
        headers.clear();
        headers.insert(CONTENT_TYPE, JSON);
        for (name, value) in self.values {
            if let Ok(value) = HeaderValue::from_maybe_shared(bytes.slice(value)) {
                headers.insert(name, value);
            }
        }
        let mut response = Response::new(Full::new(bytes.slice(..self.body_length)));
        *response.status_mut() = status;
        *response.headers_mut() = headers;
        response
    }
}

impl HeaderSink for ResponsePage {
    fn header(&mut self, name: HeaderName, write: impl FnOnce(&mut Vec<u8>)) {
        let start = self.bytes.len();
        write(&mut self.bytes);
        self.values.push((name, start..self.bytes.len()));
    }
}
