//! Answers in the Redis protocol: what each reply type looks like, and what a check is answered.
//!
//! RESP3 differs where a type says more than RESP2 can. `CL.THROTTLE` is answered as redis-cell 0.2.2 does: a capacity
//! of `max_burst + 1`, whole seconds rounded down, -1 where there is nothing to wait for.

use std::fmt::{Display, Write};

use smallvec::SmallVec;

use super::decode::RespCheck;
use tidegate_core::engine::{Answer, Throttle, Verdict};
use tidegate_core::pure::time::SECOND;
use tidegate_core::pure::{Cells, Span};

const MILLISECOND: u64 = SECOND / 1_000;
/// How far this pod's clock and a client's may run apart until `clock.rs` next aligns ours. A client that waits as long
/// as it is told must have waited long enough by our clock, too.
const CLOCK_ERROR_MAX: Span = Span::nanos(SECOND / 5_000);

/// Bytes of memory that a connection keeps between answers.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// Replies that wait to be sent.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// Whether the client asked for RESP3.
    pub resp3: bool,
}

impl Replies {
    /// The bytes to send.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Forgets the replies, because they were sent.
    pub fn clear(&mut self) {
        match self.bytes.capacity() > KEPT_BYTES_MAX {
            true => self.bytes = Vec::new(),
            false => self.bytes.clear(),
        }
    }

    /// Writes a simple string.
    pub fn simple(&mut self, word: &str) {
        self.line(b'+', word.as_bytes());
    }

    /// Writes an error, which begins with its code. It stays on one line, whatever a client's words in it.
    pub fn error(&mut self, what: impl Display) {
        self.bytes.push(b'-');
        let start = self.bytes.len();
        let _ = write!(ByteWriter(&mut self.bytes), "{what}");
        let text = self.bytes.iter_mut().skip(start);
        text.filter(|byte| byte.is_ascii_control())
            .for_each(|byte| *byte = b' ');
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a number.
    pub fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// Writes a string of any bytes.
    pub fn bulk(&mut self, string: &[u8]) {
        self.count(b'$', string.len());
        self.bytes.extend_from_slice(string);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Writes a null.
    pub fn nil(&mut self) {
        self.bytes.extend_from_slice(match self.resp3 {
            true => b"_\r\n",
            false => b"$-1\r\n",
        });
    }

    /// Begins an array of that many replies.
    pub fn array(&mut self, length: usize) {
        self.count(b'*', length);
    }

    /// Begins a map of that many pairs.
    pub fn map(&mut self, pairs: usize) {
        match self.resp3 {
            true => self.count(b'%', pairs),
            false => self.count(b'*', pairs * 2),
        }
    }

    fn count(&mut self, kind: u8, count: usize) {
        self.line(kind, itoa::Buffer::new().format(count).as_bytes());
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// Writes text to bytes.
struct ByteWriter<'a>(&'a mut Vec<u8>);

impl Write for ByteWriter<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

/// Whether the protocol says 1, for allowed, or 0.
const fn is_allowed(verdict: Verdict) -> bool {
    match verdict {
        Verdict::Allow | Verdict::AllowLate(_) => true,
        Verdict::Limited | Verdict::StoreUnavailable => false,
    }
}

/// Writes the answer to `check`.
pub fn write_answer(replies: &mut Replies, check: &RespCheck<'_>, answer: &Answer) {
    match check {
        RespCheck::Throttle(throttle) => write_throttle(replies, throttle, answer),
        RespCheck::Rules(_) => write_check(replies, answer),
    }
}

/// Limited, limit, remaining, retry after, reset after.
fn write_throttle(replies: &mut Replies, throttle: &Throttle<'_>, answer: &Answer) {
    let Some(standing) = answer.decisive().map(|hit| hit.standing) else {
        return replies.error("ERR nothing was decided");
    };
    let (limited, wait) = match throttle.cost {
        // A look is limited only by a level above this limit's whole capacity.
        Cells::ZERO => {
            let above = standing.reset_after.less(throttle.limit.capacity());
            (above > Span::ZERO, Some(above))
        }
        _ => (!is_allowed(answer.verdict()), standing.retry_after),
    };
    let wait = wait.filter(|_| limited);
    replies.array(5);
    replies.integer(i64::from(limited));
    replies.integer(signed(throttle.limit.burst().get()));
    replies.integer(signed(standing.remaining.get()));
    replies.integer(wait.map_or(-1, |wait| signed(wait.get() / SECOND)));
    replies.integer(signed(standing.reset_after.get() / SECOND));
}

/// Allowed, limit, remaining, retry after, reset after, rule. Without a limit, the first two numbers are -1.
fn write_check(replies: &mut Replies, answer: &Answer) {
    let hit = answer.decisive();
    let allowed = is_allowed(answer.verdict());
    let limited = hit.and_then(|hit| {
        let limit = answer.limit(hit)?;
        Some((hit.standing, answer.reset_after(hit), limit))
    });
    let milliseconds = |span: Span| signed(span.get().div_ceil(MILLISECOND));
    let numbers: SmallVec<[i64; 4]> = match limited {
        Some((standing, reset_after, limit)) => {
            let retry = standing.retry_after.map(|wait| wait.plus(CLOCK_ERROR_MAX));
            let retry = retry.map_or(-1, milliseconds);
            SmallVec::from([
                signed(limit.requests()),
                signed(standing.remaining.get()),
                if allowed { 0 } else { retry },
                milliseconds(reset_after),
            ])
        }
        None => SmallVec::from([-1, -1, 0, 0]),
    };
    replies.array(6);
    replies.integer(i64::from(allowed));
    numbers
        .into_iter()
        .for_each(|number| replies.integer(number));
    match hit {
        Some(hit) => replies.bulk(answer.rule(hit).label.as_bytes()),
        None => replies.nil(),
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(resp3: bool, write: fn(&mut Replies), expected: &str) {
        let mut replies = Replies {
            resp3,
            ..Replies::default()
        };
        write(&mut replies);
        assert_eq!(String::from_utf8_lossy(replies.bytes()), expected);
    }

    #[test]
    fn each_kind_is_written_as_the_protocol_has_it() {
        check(false, |replies| replies.simple("OK"), "+OK\r\n");
        check(false, |replies| replies.integer(-1), ":-1\r\n");
        check(false, |replies| replies.bulk(b"a\r\nb"), "$4\r\na\r\nb\r\n");
        check(false, |replies| replies.array(3), "*3\r\n");
        check(false, |replies| replies.map(3), "*6\r\n");
        check(false, Replies::nil, "$-1\r\n");
        check(true, |replies| replies.map(3), "%3\r\n");
        check(true, Replies::nil, "_\r\n");
    }

    #[test]
    fn an_error_stays_on_its_line() {
        check(
            false,
            |replies| replies.error("ERR a\r\n+OK\r\n\0"),
            "-ERR a  +OK   \r\n",
        );
    }
}
