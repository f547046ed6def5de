//! Limits the length of a server's answers before the library collects them.
//!
//! The `redis` crate gathers a whole answer in memory, whatever length the server announces. [`BoundedStream`] follows
//! the frames of the protocol as they arrive, keeps nothing of them, and ends the connection with an error at the
//! first answer that is longer than any of ours.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The most values in one answer. The map of a cluster that is split into single slots has about as many.
const VALUES_MAX: u64 = 1 << 19;
/// How the error of an answer that is too long begins.
pub(super) const TOO_LONG: &str = "an answer is longer than";

/// A stream on which every answer has at most `reply_bytes_max` bytes.
#[derive(Debug)]
pub(super) struct BoundedStream<S> {
    stream: S,
    frames: FrameScanner,
}

impl<S> BoundedStream<S> {
    pub(super) const fn new(stream: S, reply_bytes_max: usize) -> Self {
        Self {
            stream,
            frames: FrameScanner {
                reply_bytes_max,
                bytes: 0,
                values: 0,
                wanted: 0,
                position: FramePosition::Kind,
            },
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for BoundedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        match read {
            Poll::Ready(Ok(())) => {
                let new = buffer.filled().get(before..).unwrap_or_default();
                let bound = self.frames.reply_bytes_max;
                let within = self.frames.follow(new);
                Poll::Ready(within.map_err(|AnswerTooLong| {
                    let words = format!("{TOO_LONG} {bound} bytes");
                    io::Error::new(io::ErrorKind::InvalidData, words)
                }))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for BoundedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// An answer is longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AnswerTooLong;

/// Follows the frames of the protocol.
#[derive(Clone, Debug)]
struct FrameScanner {
    reply_bytes_max: usize,
    /// Bytes of the current answer so far, and the values that it has announced.
    bytes: usize,
    values: u64,
    /// Values that are missing until the answer is complete.
    wanted: u64,
    position: FramePosition,
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum FramePosition {
    /// The byte that says which kind of value follows.
    Kind,
    /// The line after that byte, and the number read from it so far.
    Line {
        kind: u8,
        number: u64,
        is_none: bool,
    },
    /// The rest of a string with its line end: so many bytes.
    Body(usize),
}

impl FrameScanner {
    /// Reads on over `bytes`.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), AnswerTooLong> {
        while let Some((first, rest)) = bytes.split_first() {
            let used = match self.position {
                FramePosition::Body(left) => {
                    let used = left.min(bytes.len());
                    self.position = FramePosition::Body(left - used);
                    bytes = bytes.get(used..).unwrap_or_default();
                    used
                }
                FramePosition::Kind | FramePosition::Line { .. } => {
                    bytes = rest;
                    1
                }
            };
            self.bytes = self.bytes.saturating_add(used);
            if self.bytes > self.reply_bytes_max {
                return Err(AnswerTooLong);
            }
            match self.position {
                FramePosition::Kind => {
                    self.wanted = self.wanted.max(1);
                    self.position = FramePosition::Line {
                        kind: *first,
                        number: 0,
                        is_none: false,
                    };
                }
                FramePosition::Line { kind, .. } if *first == b'\n' => self.line_ended(kind)?,
                FramePosition::Line {
                    kind,
                    number,
                    is_none,
                } => {
                    let digit = u64::from(first.wrapping_sub(b'0'));
                    self.position = FramePosition::Line {
                        kind,
                        number: match first.is_ascii_digit() {
                            true => number.saturating_mul(10).saturating_add(digit),
                            false => number,
                        },
                        is_none: is_none || *first == b'-',
                    };
                }
                FramePosition::Body(0) => self.value_ended(),
                FramePosition::Body(_) => {}
            }
        }
        Ok(())
    }

    fn line_ended(&mut self, kind: u8) -> Result<(), AnswerTooLong> {
        let number = match self.position {
            FramePosition::Line {
                number,
                is_none: false,
                ..
            } => Some(number),
            FramePosition::Line { .. } | FramePosition::Kind | FramePosition::Body(_) => None,
        };
        let parts = match (kind, number) {
            (b'$' | b'!' | b'=', Some(length)) => {
                let length = usize::try_from(length).map_err(|_| AnswerTooLong)?;
                if length > self.reply_bytes_max {
                    return Err(AnswerTooLong);
                }
                self.position = FramePosition::Body(length.saturating_add(2));
                return Ok(());
            }
            (b'*' | b'~' | b'>', Some(parts)) => parts,
            (b'%', Some(pairs)) => pairs.saturating_mul(2),
            // The value that the attributes belong to follows them.
            (b'|', Some(pairs)) => pairs.saturating_mul(2).saturating_add(1),
            (_, _) => 0,
        };
        self.values = self.values.saturating_add(parts);
        if self.values > VALUES_MAX {
            return Err(AnswerTooLong);
        }
        self.wanted = self.wanted.saturating_add(parts);
        self.value_ended();
        Ok(())
    }

    fn value_ended(&mut self) {
        self.position = FramePosition::Kind;
        self.wanted = self.wanted.saturating_sub(1);
        if self.wanted == 0 {
            (self.bytes, self.values) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether these answers pass a limit of 64 bytes, read at once and byte by byte.
    fn passes(bytes: &[u8]) -> bool {
        let whole = BoundedStream::new((), 64).frames.follow(bytes);
        let mut frames = BoundedStream::new((), 64).frames;
        let by_one = bytes.chunks(1).try_for_each(|byte| frames.follow(byte));
        assert_eq!(whole, by_one, "{}", bytes.escape_ascii());
        whole.is_ok()
    }

    #[test]
    fn many_short_answers_pass() {
        let answers: &[&[u8]] = &[
            b"+OK\r\n",
            b":-12\r\n",
            b"$-1\r\n",
            b"$5\r\nab\r\nc\r\n",
            b"*2\r\n$0\r\n\r\n*1\r\n:1\r\n",
            b"*0\r\n",
            b"%1\r\n+a\r\n,1.5\r\n",
            b"|1\r\n+a\r\n:1\r\n+OK\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n",
            b"=7\r\ntxt:abc\r\n_\r\n#t\r\n",
        ];
        for answer in answers {
            assert!(passes(&answer.repeat(40)), "{}", answer.escape_ascii());
        }
    }

    #[test]
    fn an_answer_that_announces_too_much_is_refused_at_once() {
        assert!(passes(b"$50\r\n"));
        assert!(!passes(b"$65\r\n"));
        assert!(!passes(
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5000000000\r\n"
        ));
        assert!(!passes(b"*99999999999999999999999\r\n"));
        assert!(!passes(b"%300000\r\n"));
    }

    #[test]
    fn an_answer_that_grows_too_long_is_refused_when_it_does() {
        assert!(passes(&[b"+", &b"x".repeat(63)[..]].concat()));
        assert!(!passes(&[b"+", &b"x".repeat(64)[..]].concat()));
        assert!(!passes(&[b"*99\r\n", &b":1\r\n".repeat(15)[..]].concat()));
        assert!(!passes(&b"*1\r\n".repeat(17)));
        assert!(!passes(
            b"*2\r\n$28\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$28\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"
        ));
    }
}
