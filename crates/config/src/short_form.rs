//! Parses the short form of a limit: `20/minute`, `5/30s`, `100/minute burst 20`.

use tidegate_core::pure::Unit;

/// The numbers of a limit before they are checked together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UncheckedLimit {
    /// Requests per window.
    pub requests: u64,
    /// Unit of the window.
    pub unit: Unit,
    /// Units in the window.
    pub unit_multiplier: u64,
    /// Size of the bucket.
    pub burst: Option<u64>,
}

/// Parses `text`.
pub fn parse(text: &str) -> Option<UncheckedLimit> {
    let mut words = text.split_whitespace();
    let (requests, window) = words.next()?.split_once('/')?;
    let burst = match (words.next(), words.next(), words.next()) {
        (None, _, _) => None,
        (Some("burst"), Some(burst), None) => Some(number(burst)?),
        _ => return None,
    };
    let (unit, unit_multiplier) = window_of(window)?;
    Some(UncheckedLimit {
        requests: number(requests)?,
        unit,
        unit_multiplier,
        burst,
    })
}

fn window_of(text: &str) -> Option<(Unit, u64)> {
    if let Some(unit) = Unit::named(text) {
        return Some((unit, 1));
    }
    let unit = match text.chars().next_back()? {
        's' => Unit::Second,
        'm' => Unit::Minute,
        'h' => Unit::Hour,
        'd' => Unit::Day,
        _ => return None,
    };
    Some((unit, number(text.get(..text.len().checked_sub(1)?)?)?))
}

/// Digits only: `parse` alone would take a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| text.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<(u64, Unit, u64, Option<u64>)>) {
        let expected = expected.map(|(requests, unit, unit_multiplier, burst)| UncheckedLimit {
            requests,
            unit,
            unit_multiplier,
            burst,
        });
        assert_eq!(parse(text), expected, "{text}");
    }

    #[test]
    fn a_number_and_a_window() {
        check("20/minute", Some((20, Unit::Minute, 1, None)));
        check("20/MINUTE", Some((20, Unit::Minute, 1, None)));
        check("0/day", Some((0, Unit::Day, 1, None)));
        check("20/30s", Some((20, Unit::Second, 30, None)));
        check("20/5m", Some((20, Unit::Minute, 5, None)));
        check("20/7d", Some((20, Unit::Day, 7, None)));
    }

    #[test]
    fn a_burst_may_follow() {
        check(
            "100/minute burst 20",
            Some((100, Unit::Minute, 1, Some(20))),
        );
        check(" 5/30s  burst 1 ", Some((5, Unit::Second, 30, Some(1))));
    }

    #[test]
    fn anything_else_is_none() {
        for text in [
            "",
            "20",
            "20/",
            "/minute",
            "20/m",
            "20/s",
            "20/30",
            "20/500ms",
            "-1/minute",
            "+1/minute",
            "1.5/minute",
            "20/minute burst",
            "20/minute burst x",
            "20/minute burst 5 5",
            "20/minute 5",
            "20 per minute",
            "20/é",
            "99999999999999999999/minute",
        ] {
            check(text, None);
        }
    }
}
