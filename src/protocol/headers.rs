//! The rate-limit headers of an answer: the IETF draft's, the legacy ones, and `Retry-After`.
//!
//! The native protocol sends them with its response; Envoy's carries them for Envoy to add.

use hyper::header::{HeaderName, RETRY_AFTER};

use tidegate_config::HeaderStyle;
use tidegate_core::engine::{Answer, Hit, Verdict};
use tidegate_core::pure::{Limit, Moment};

const X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
const X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
const X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");
const X_RETRY_AFTER: HeaderName = HeaderName::from_static("x-ratelimit-retry-after");
const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Which headers an answer gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeaderStyles {
    draft_11: bool,
    legacy: bool,
    /// The reset as a Unix time instead of the seconds left.
    epoch: bool,
}

impl HeaderStyles {
    /// The styles of this list.
    pub fn new(styles: &[HeaderStyle]) -> Self {
        let epoch = styles.contains(&HeaderStyle::LegacyEpoch);
        Self {
            draft_11: styles.contains(&HeaderStyle::Draft11),
            legacy: epoch || styles.contains(&HeaderStyle::Legacy),
            epoch,
        }
    }

    /// Writes the headers of `answer`, decided at `moment`, into `sink`. An answer without a limit has none.
    pub fn write(self, sink: &mut impl HeaderSink, answer: &Answer, moment: Moment) {
        if let Some(hit) = answer.decisive().filter(|hit| answer.limit(hit).is_some()) {
            self.write_hit(sink, answer, hit, moment);
        }
    }

    fn write_hit(self, sink: &mut impl HeaderSink, answer: &Answer, hit: &Hit, moment: Moment) {
        let standing = &hit.standing;
        let reset_after = answer.reset_after(hit);
        let retry_after = retry_seconds(answer, hit);
        if self.draft_11 {
            // The effective window: the remaining cells last until the reset, and none remain until the retry.
            let window = retry_after.unwrap_or_else(|| reset_after.seconds_up());
            sink.header(RATELIMIT_POLICY, |list| write_policies(list, answer));
            sink.header(RATELIMIT, |item| {
                write_name(item, &answer.rule(hit).policy);
                write_parameter(item, b";r=", standing.remaining.get());
                write_parameter(item, b";t=", window);
            });
        }
        if self.legacy {
            let reset = match self.epoch {
                true => moment.unix.plus(reset_after).seconds_up(),
                false => reset_after.seconds_up(),
            };
            sink.number(X_LIMIT, answer.limit(hit).map_or(0, Limit::requests));
            sink.number(X_REMAINING, standing.remaining.get());
            sink.number(X_RESET, reset);
        }
        if let Some(seconds) = retry_after {
            sink.number(RETRY_AFTER, seconds);
            if self.legacy {
                sink.number(X_RETRY_AFTER, seconds);
            }
        }
    }
}

/// Until a client may retry, in whole seconds, if the check was denied and a wait helps.
fn retry_seconds(answer: &Answer, hit: &Hit) -> Option<u64> {
    match answer.verdict() {
        Verdict::Allow | Verdict::AllowLate(_) => None,
        Verdict::Limited | Verdict::StoreUnavailable => {
            let wait = hit.standing.retry_after?;
            Some(wait.seconds_up().max(1))
        }
    }
}

/// Where headers go.
pub trait HeaderSink {
    /// Takes a header, whose value is written by `write`.
    fn header(&mut self, name: HeaderName, write: impl FnOnce(&mut Vec<u8>));

    /// Takes a header whose value is a number.
    fn number(&mut self, name: HeaderName, number: u64) {
        self.header(name, |value| write_number(value, number));
    }
}

/// Every limit that the check met, once each.
fn write_policies(list: &mut Vec<u8>, answer: &Answer) {
    let mut separator: &[u8] = b"";
    for (index, hit) in answer.hits().iter().enumerate() {
        let mut earlier = answer.hits().iter().take(index);
        let Some(limit) = answer.limit(hit) else {
            continue;
        };
        if earlier.any(|earlier| earlier.rule == hit.rule) {
            continue;
        }
        list.extend_from_slice(separator);
        write_name(list, &answer.rule(hit).policy);
        write_parameter(list, b";q=", limit.requests());
        write_parameter(list, b";w=", limit.window().seconds_up());
        separator = b", ";
    }
}

/// A structured field string (RFC 9651): printable ASCII in quotes, with quotes and backslashes escaped.
fn write_name(item: &mut Vec<u8>, name: &str) {
    item.push(b'"');
    let plain = |byte: &u8| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\');
    if name.as_bytes().iter().all(plain) {
        item.extend_from_slice(name.as_bytes());
    } else {
        name.chars().for_each(|character| match character {
            '"' | '\\' => item.extend_from_slice(&[b'\\', character as u8]),
            ' '..='~' => item.push(character as u8),
            _ => item.push(b'?'),
        });
    }
    item.push(b'"');
}

fn write_parameter(item: &mut Vec<u8>, name: &[u8], value: u64) {
    item.extend_from_slice(name);
    write_number(item, value);
}

fn write_number(item: &mut Vec<u8>, number: u64) {
    item.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}
