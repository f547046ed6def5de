//! The bytes that a server sends, bounded before anybody collects them.
//!
//! The library gathers a whole answer in memory, whatever length the server announces. [`Bounded`] follows the frames
//! of the protocol as they come, without keeping any of it, and breaks the connection off at the first one that is
//! longer than anything a store of ours says.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Values of one answer, at most: a cluster that is split into single slots lists about as many.
const VALUES_MAX: u64 = 1 << 19;
/// How the error begins that an answer beyond its bound is met with.
pub(super) const TOO_LONG: &str = "an answer is longer than";

/// A connection whose every answer is at most so many bytes.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    frames: Frames,
}

impl<S> Bounded<S> {
    pub(super) const fn new(stream: S, reply_bytes_max: usize) -> Self {
        Self {
            stream,
            frames: Frames {
                reply_bytes_max,
                bytes: 0,
                values: 0,
                wanted: 0,
                at: At::Kind,
            },
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
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
                Poll::Ready(within.map_err(|TooLong| {
                    let words = format!("{TOO_LONG} {bound} bytes");
                    io::Error::new(io::ErrorKind::InvalidData, words)
                }))
            }
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
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

/// An answer passes its bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct TooLong;

/// Where in the stream of frames we are.
#[derive(Clone, Debug)]
struct Frames {
    reply_bytes_max: usize,
    /// Bytes of the present answer, and values of it that were announced.
    bytes: usize,
    values: u64,
    /// Values that are still to come until it is complete.
    wanted: u64,
    at: At,
}

#[derive(Clone, Copy, Debug)]
enum At {
    /// The byte that says what comes.
    Kind,
    /// The line after it, and the number in it so far.
    Line {
        kind: u8,
        number: u64,
        is_none: bool,
    },
    /// So many bytes of a string and the end of its line.
    Body(usize),
}

impl Frames {
    /// Goes on by `bytes`.
    fn follow(&mut self, mut bytes: &[u8]) -> Result<(), TooLong> {
        while let Some((first, rest)) = bytes.split_first() {
            let used = match self.at {
                At::Body(left) => {
                    let used = left.min(bytes.len());
                    self.at = At::Body(left - used);
                    bytes = bytes.get(used..).unwrap_or_default();
                    used
                }
                At::Kind | At::Line { .. } => {
                    bytes = rest;
                    1
                }
            };
            self.bytes = self.bytes.saturating_add(used);
            if self.bytes > self.reply_bytes_max {
                return Err(TooLong);
            }
            match self.at {
                At::Kind => {
                    self.wanted = self.wanted.max(1);
                    self.at = At::Line {
                        kind: *first,
                        number: 0,
                        is_none: false,
                    };
                }
                At::Line { kind, .. } if *first == b'\n' => self.line_ended(kind)?,
                At::Line {
                    kind,
                    number,
                    is_none,
                } => {
                    let digit = u64::from(first.wrapping_sub(b'0'));
                    self.at = At::Line {
                        kind,
                        number: match first.is_ascii_digit() {
                            true => number.saturating_mul(10).saturating_add(digit),
                            false => number,
                        },
                        is_none: is_none || *first == b'-',
                    };
                }
                At::Body(0) => self.value_ended(),
                At::Body(_) => {}
            }
        }
        Ok(())
    }

    fn line_ended(&mut self, kind: u8) -> Result<(), TooLong> {
        let number = match self.at {
            At::Line {
                number,
                is_none: false,
                ..
            } => Some(number),
            At::Line { .. } | At::Kind | At::Body(_) => None,
        };
        let parts = match (kind, number) {
            (b'$' | b'!' | b'=', Some(length)) => {
                let length = usize::try_from(length).map_err(|_| TooLong)?;
                if length > self.reply_bytes_max {
                    return Err(TooLong);
                }
                self.at = At::Body(length.saturating_add(2));
                return Ok(());
            }
            (b'*' | b'~' | b'>', Some(parts)) => parts,
            (b'%', Some(pairs)) => pairs.saturating_mul(2),
            // What it is an attribute of comes after it.
            (b'|', Some(pairs)) => pairs.saturating_mul(2).saturating_add(1),
            (_, _) => 0,
        };
        self.values = self.values.saturating_add(parts);
        if self.values > VALUES_MAX {
            return Err(TooLong);
        }
        self.wanted = self.wanted.saturating_add(parts);
        self.value_ended();
        Ok(())
    }

    fn value_ended(&mut self) {
        self.at = At::Kind;
        self.wanted = self.wanted.saturating_sub(1);
        if self.wanted == 0 {
            (self.bytes, self.values) = (0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether answers of at most 64 bytes pass, whatever they are cut into.
    fn passes(bytes: &[u8]) -> bool {
        let whole = Bounded::new((), 64).frames.follow(bytes);
        let mut frames = Bounded::new((), 64).frames;
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
    fn what_is_announced_too_long_is_refused_at_once() {
        assert!(passes(b"$50\r\n"));
        assert!(!passes(b"$65\r\n"));
        assert!(!passes(
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5000000000\r\n"
        ));
        assert!(!passes(b"*99999999999999999999999\r\n"));
        assert!(!passes(b"%300000\r\n"));
    }

    #[test]
    fn what_grows_too_long_is_refused_when_it_does() {
        assert!(passes(&[b"+", &b"x".repeat(63)[..]].concat()));
        assert!(!passes(&[b"+", &b"x".repeat(64)[..]].concat()));
        assert!(!passes(&[b"*99\r\n", &b":1\r\n".repeat(15)[..]].concat()));
        assert!(!passes(&b"*1\r\n".repeat(17)));
        assert!(!passes(
            b"*2\r\n$28\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n$28\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxx\r\n"
        ));
    }
}
