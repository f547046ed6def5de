//! Answers in the Redis protocol. RESP3 differs where a type says more than RESP2 can.

use std::fmt::{Display, Write};

/// Memory that is kept between answers.
const KEPT_BYTES_MAX: usize = 16 * 1024;

/// Answers that wait to be sent.
#[derive(Debug, Default)]
pub struct Replies {
    bytes: Vec<u8>,
    /// Whether the client asked for RESP3.
    pub resp3: bool,
}

impl Replies {
    /// What is to be sent.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// They were sent.
    pub fn clear(&mut self) {
        match self.bytes.capacity() > KEPT_BYTES_MAX {
            true => self.bytes = Vec::new(),
            false => self.bytes.clear(),
        }
    }

    /// A word.
    pub fn simple(&mut self, word: &str) {
        self.line(b'+', word.as_bytes());
    }

    /// What is wrong, with its code first. It stays on one line, whatever a client made it say.
    pub fn error(&mut self, what: impl Display) {
        self.bytes.push(b'-');
        let start = self.bytes.len();
        let _ = write!(Text(&mut self.bytes), "{what}");
        let said = self.bytes.iter_mut().skip(start);
        said.filter(|byte| byte.is_ascii_control())
            .for_each(|byte| *byte = b' ');
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A number.
    pub fn integer(&mut self, number: i64) {
        self.line(b':', itoa::Buffer::new().format(number).as_bytes());
    }

    /// A string of any bytes.
    pub fn bulk(&mut self, string: &[u8]) {
        self.count(b'$', string.len());
        self.bytes.extend_from_slice(string);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Nothing.
    pub fn nil(&mut self) {
        self.bytes.extend_from_slice(match self.resp3 {
            true => b"_\r\n",
            false => b"$-1\r\n",
        });
    }

    /// So many answers follow, as one.
    pub fn array(&mut self, length: usize) {
        self.count(b'*', length);
    }

    /// So many pairs follow, as one.
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

/// Bytes that text is written to.
struct Text<'a>(&'a mut Vec<u8>);

impl Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
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
