//! A check out of the words of a command: `CL.THROTTLE` and `TG.CHECK`.
//!
//! `CL.THROTTLE` takes what redis-cell 0.2.2 takes. A parameter to which redis-cell has no sound answer is refused by
//! its name.

use smallvec::SmallVec;

use super::frame::{self, Arguments};
use crate::protocol::raw_check::{
    ENTRIES_MAX, PartFault, Refusal, ensure_word, excerpt, whole_number,
};
use tidegate_core::engine::{Question, Throttle};
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Limit, LimitFault};

/// A check that a command asks for.
#[derive(Debug)]
pub enum RespCheck<'a> {
    /// `CL.THROTTLE`: a key, under a caller-supplied limit.
    Throttle(Throttle<'a>),
    /// `TG.CHECK`: entries, under the rules.
    Rules(CommandCheck<'a>),
}

impl<'a> RespCheck<'a> {
    /// `CL.THROTTLE key max_burst count period [quantity]`.
    pub fn throttle(arguments: &Arguments<'a>) -> Result<Self, Refusal> {
        let words = arguments.get(1..).unwrap_or_default();
        let (key, max_burst, count, period, quantity) = match words {
            [key, max_burst, count, period] => (key, max_burst, count, period, &b"1"[..]),
            [key, max_burst, count, period, quantity] => (key, max_burst, count, period, *quantity),
            _ => {
                return Err(Refusal::Malformed(
                    "must be key max_burst count period [quantity]".to_owned(),
                ));
            }
        };
        let burst = at_least(0, "max_burst", max_burst)?.saturating_add(1);
        let count = at_least(1, "count", count)?;
        let period = at_least(1, "period", period)?;
        let quantity = integer("quantity", quantity)?;
        Ok(Self::Throttle(Throttle {
            key,
            limit: Limit::from_caller(burst, count, period).map_err(limit_refusal)?,
            cost: Cells::new(quantity.unsigned_abs()),
            refund: quantity < 0,
        }))
    }

    /// `TG.CHECK domain entry value [entry value ...] [COST n] [PEEK]`.
    pub fn rules(arguments: &Arguments<'a>, key_bytes_max: usize) -> Result<Self, Refusal> {
        let words = arguments.get(1..).unwrap_or_default();
        CommandCheck::parse(words, key_bytes_max).map(Self::Rules)
    }

    /// Hands the question for the engine to `then`.
    pub fn with_question<R>(&self, then: impl FnOnce(Question<'_>) -> R) -> R {
        match self {
            Self::Throttle(throttle) => then(Question::Throttle(throttle)),
            Self::Rules(check) => check.with_check(|check| then(Question::Check(check))),
        }
    }
}

/// A check of one descriptor, in the words of a command.
#[derive(Debug)]
pub struct CommandCheck<'a> {
    domain: &'a str,
    entries: SmallVec<[Entry<'a>; 4]>,
    cost: u64,
    peek: bool,
}

impl<'a> CommandCheck<'a> {
    /// The domain, pairs of entry and value, then `COST n` and `PEEK` in any case.
    ///
    /// The first entry may be called `cost` or `peek`; a later one would be taken for an option.
    fn parse(words: &[&'a [u8]], key_bytes_max: usize) -> Result<Self, Refusal> {
        let domain_text = |word| {
            ensure_word(word, key_bytes_max)?;
            utf8(word)
        };
        let domain = words.first().copied().unwrap_or_default();
        let mut rest = words.get(1..).unwrap_or_default();
        let mut check = Self {
            domain: domain_text(domain).map_err(|fault| fault.at("domain"))?,
            entries: SmallVec::new(),
            cost: 1,
            peek: false,
        };
        let mut options = false;
        while let [word, after @ ..] = rest {
            let nth = check.entries.len();
            let is = |name: &[u8]| nth > 0 && word.eq_ignore_ascii_case(name);
            rest = match after {
                [given, after @ ..] if is(b"COST") => {
                    check.cost = whole_number("COST", given)?;
                    options = true;
                    after
                }
                after if is(b"PEEK") => {
                    check.peek = true;
                    options = true;
                    after
                }
                [value, after @ ..] if !options && nth < ENTRIES_MAX => {
                    let bounded = ensure_word(word, key_bytes_max);
                    bounded.map_err(|fault| fault.at(&format!("entries[{nth}].key")))?;
                    check.entries.push(Entry::new(*word, *value));
                    after
                }
                _ => {
                    let word = excerpt(word);
                    return Err(Refusal::Malformed(format!(
                        "{word:?}: expected up to {ENTRIES_MAX} pairs of entry and value, then COST n or PEEK"
                    )));
                }
            };
        }
        Ok(check)
    }

    /// Hands the check to `then`. A check whose cost is zero looks and uses nothing.
    fn with_check<R>(&self, then: impl FnOnce(&Check<'_>) -> R) -> R {
        then(&Check {
            domain: self.domain,
            descriptors: &[Descriptor::of(&self.entries)],
            cost: Cells::new(self.cost),
            peek: self.peek,
        })
    }
}

fn utf8(bytes: &[u8]) -> Result<&str, PartFault> {
    str::from_utf8(bytes).map_err(|_| PartFault::Malformed("must be UTF-8".to_owned()))
}

fn integer(name: &str, word: &[u8]) -> Result<i64, Refusal> {
    frame::integer(word).ok_or_else(|| {
        let word = excerpt(word);
        Refusal::Malformed(format!("{name}: must be a whole number, is {word:?}"))
    })
}

fn at_least(least: i64, name: &str, word: &[u8]) -> Result<u64, Refusal> {
    let number = integer(name, word)?;
    u64::try_from(number)
        .ok()
        .filter(|_| number >= least)
        .ok_or_else(|| Refusal::Malformed(format!("{name}: must be at least {least}, is {number}")))
}

/// Parameters that are sound one by one and make no sound limit together.
fn limit_refusal(fault: LimitFault) -> Refusal {
    Refusal::Malformed(match fault {
        LimitFault::TooFast => format!("count: {fault}"),
        LimitFault::NoWindow => format!("period: {fault}"),
        LimitFault::NoBurst => format!("max_burst: {fault}"),
        LimitFault::TooLong => {
            "period: count, period and max_burst make a bucket that takes over 100 years to empty"
                .to_owned()
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &str) -> String {
        let arguments = line.split(' ').map(str::as_bytes).collect();
        let check = RespCheck::throttle(&arguments);
        check
            .map(|check| format!("{check:?}"))
            .unwrap_err()
            .to_string()
    }

    #[test]
    fn parameters_without_a_sound_answer_are_refused_by_name() {
        for (line, expected) in [
            ("T k -1 1 1", "max_burst: must be at least 0, is -1"),
            ("T k x 1 1", "max_burst: must be a whole number, is \"x\""),
            ("T k 1 0 1", "count: must be at least 1, is 0"),
            ("T k 1 1 0", "period: must be at least 1, is 0"),
            ("T k 1 1 -5", "period: must be at least 1, is -5"),
            (
                "T k 1 1 1 1.5",
                "quantity: must be a whole number, is \"1.5\"",
            ),
            (
                "T k 1 1 1 9223372036854775808",
                "quantity: must be a whole number, is \"9223372036854775808\"",
            ),
            (
                "T k 1 1000000001 1",
                "count: must be at most 1000000000 per second",
            ),
            (
                "T k 9223372036854775807 1 1",
                "period: count, period and max_burst make a bucket that takes over 100 years to empty",
            ),
            (
                "T k 0 1 9223372036854775807",
                "period: count, period and max_burst make a bucket that takes over 100 years to empty",
            ),
            (
                "T k 9223372036854775807 9223372036854775807 1",
                "count: must be at most 1000000000 per second",
            ),
        ] {
            assert_eq!(refusal(line), expected, "{line}");
        }
    }

    #[test]
    fn the_sign_of_a_quantity_says_which_way_cells_go() {
        for (quantity, cost, refund) in [
            ("0", 0, false),
            ("3", 3, false),
            ("-3", 3, true),
            ("-9223372036854775808", 1 << 63, true),
        ] {
            let line = format!("T k 15 30 60 {quantity}");
            let arguments = line.split(' ').map(str::as_bytes).collect();
            let Ok(RespCheck::Throttle(throttle)) = RespCheck::throttle(&arguments) else {
                panic!("{line} is sound");
            };
            assert_eq!((throttle.cost.get(), throttle.refund), (cost, refund));
            assert_eq!(throttle.limit.burst(), Cells::new(16));
        }
    }
}
