//! The two commands that ask whether something may pass.
//!
//! `CL.THROTTLE` answers as redis-cell 0.2.2 does: a capacity of `max_burst + 1`, whole seconds rounded down, -1 where
//! there is nothing to wait for. What redis-cell has no sound answer to is refused by the parameter's name.

use smallvec::SmallVec;

use super::frame::{self, Arguments};
use super::reply::Replies;
use crate::telemetry::About;
use crate::wire::decode::{self, Refused, Words};
use tidegate_config::Bounds;
use tidegate_core::engine::{Answer, CheckStep, Engine, Question, Throttle};
use tidegate_core::pure::time::SECOND;
use tidegate_core::pure::{Cells, Limit, LimitFault, Moment, Span};

const MILLISECOND: u64 = SECOND / 1_000;
/// How far this pod's clock and a client's may run apart until ours is next put right (`clock.rs`). Who waits as long as
/// it is told must have waited enough by our clock, too.
const CLOCK_ERROR_MAX: Span = Span::nanos(SECOND / 5_000);

/// What is asked.
#[derive(Debug)]
pub enum Asked<'a> {
    /// A key, by a limit that the caller carries.
    Throttle(Throttle<'a>),
    /// Entries, under the rules.
    Check(Words<'a>),
}

impl<'a> Asked<'a> {
    /// `CL.THROTTLE key max_burst count period [quantity]`.
    pub fn throttle(arguments: &Arguments<'a>) -> Result<Self, Refused> {
        let words = arguments.get(1..).unwrap_or_default();
        let (key, max_burst, count, period, quantity) = match words {
            [key, max_burst, count, period] => (key, max_burst, count, period, &b"1"[..]),
            [key, max_burst, count, period, quantity] => (key, max_burst, count, period, *quantity),
            _ => {
                return Err(Refused::Malformed(
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
            limit: Limit::from_caller(burst, count, period).map_err(unsound)?,
            cost: Cells::new(quantity.unsigned_abs()),
            refund: quantity < 0,
        }))
    }

    /// `TG.CHECK domain entry value [entry value ...] [COST n] [PEEK]`.
    pub fn check(arguments: &Arguments<'a>, bounds: Bounds) -> Result<Self, Refused> {
        let words = arguments.get(1..).unwrap_or_default();
        decode::from_words(words, bounds.key_bytes_max).map(Self::Check)
    }

    /// Asks the engine.
    pub fn begin(&self, engine: &Engine, moment: Moment) -> CheckStep {
        match self {
            Self::Throttle(throttle) => engine.begin(Question::Throttle(&throttle), moment),
            Self::Check(words) => words.check(|check| engine.begin(Question::Check(check), moment)),
        }
    }

    /// Says what it is about.
    pub fn about<R>(&self, then: impl FnOnce(About<'_>) -> R) -> R {
        match self {
            Self::Throttle(throttle) => then(About::Throttle(throttle.key)),
            Self::Check(words) => words.check(|check| then(About::Check(check))),
        }
    }

    /// Tells what was decided.
    pub fn tell(&self, answer: &Answer, replies: &mut Replies) {
        match self {
            Self::Throttle(throttle) => tell_throttle(throttle, answer, replies),
            Self::Check(_) => tell_check(answer, replies),
        }
    }
}

/// Limited, limit, remaining, retry after, reset after.
fn tell_throttle(throttle: &Throttle<'_>, answer: &Answer, replies: &mut Replies) {
    let Some(standing) = answer.decisive().map(|hit| hit.standing) else {
        return replies.error("ERR nothing was decided");
    };
    let (limited, wait) = match throttle.cost {
        // Who asks for nothing is limited only by a level that is above this limit's whole capacity.
        Cells::ZERO => {
            let above = standing.reset_after.less(throttle.limit.capacity());
            (above > Span::ZERO, Some(above))
        }
        _ => (!answer.allowed(), standing.retry_after),
    };
    let wait = wait.filter(|_| limited);
    replies.array(5);
    replies.integer(i64::from(limited));
    replies.integer(signed(throttle.limit.burst().get()));
    replies.integer(signed(standing.remaining.get()));
    replies.integer(wait.map_or(-1, |wait| signed(wait.get() / SECOND)));
    replies.integer(signed(standing.reset_after.get() / SECOND));
}

/// Allowed, limit, remaining, retry after, reset after, rule. Without a limit to tell of, the numbers are -1.
fn tell_check(answer: &Answer, replies: &mut Replies) {
    let hit = answer.decisive();
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
                if answer.allowed() { 0 } else { retry },
                milliseconds(reset_after),
            ])
        }
        None => SmallVec::from([-1, -1, 0, 0]),
    };
    replies.array(6);
    replies.integer(i64::from(answer.allowed()));
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

fn integer(name: &str, word: &[u8]) -> Result<i64, Refused> {
    frame::integer(word).ok_or_else(|| {
        let word = String::from_utf8_lossy(word.get(..32).unwrap_or(word));
        Refused::Malformed(format!("{name}: must be a whole number, is {word:?}"))
    })
}

fn at_least(least: i64, name: &str, word: &[u8]) -> Result<u64, Refused> {
    let number = integer(name, word)?;
    u64::try_from(number)
        .ok()
        .filter(|_| number >= least)
        .ok_or_else(|| Refused::Malformed(format!("{name}: must be at least {least}, is {number}")))
}

/// What is wrong with parameters that are sound one by one.
fn unsound(fault: LimitFault) -> Refused {
    Refused::Malformed(match fault {
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

    fn refused(line: &str) -> String {
        let arguments = line.split(' ').map(str::as_bytes).collect();
        let asked = Asked::throttle(&arguments);
        asked
            .map(|asked| format!("{asked:?}"))
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
            assert_eq!(refused(line), expected, "{line}");
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
            let Ok(Asked::Throttle(throttle)) = Asked::throttle(&arguments) else {
                panic!("{line} is sound");
            };
            assert_eq!((throttle.cost.get(), throttle.refund), (cost, refund));
            assert_eq!(throttle.limit.burst(), Cells::new(16));
        }
    }
}
