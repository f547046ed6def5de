//! Parses and prints durations: `250ms`, `1s`, `5m`, `1h`.

use std::time::Duration;

/// The duration in `text`: a whole number and one unit.
pub fn parse(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    let number: u64 = number.parse().ok()?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        "m" => number.checked_mul(60).map(Duration::from_secs),
        "h" => number.checked_mul(3_600).map(Duration::from_secs),
        _ => None,
    }
}

/// Prints `length` in the form that [`parse`] reads.
pub fn print(length: Duration) -> String {
    let (seconds, millis) = (length.as_secs(), length.subsec_millis());
    match seconds {
        _ if millis > 0 => format!("{}ms", length.as_millis()),
        0 => "0s".to_owned(),
        _ if seconds.is_multiple_of(3_600) => format!("{}h", seconds / 3_600),
        _ if seconds.is_multiple_of(60) => format!("{}m", seconds / 60),
        _ => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_printed_again() {
        for text in ["250ms", "1s", "90s", "5m", "1h", "36h", "0s"] {
            assert_eq!(parse(text).map(print).as_deref(), Some(text));
        }
    }

    #[test]
    fn a_number_and_one_unit_and_nothing_else() {
        for text in [
            "",
            "5",
            "s",
            "-1s",
            "1.5s",
            "1h30m",
            "1 s",
            "1S",
            "1d",
            "99999999999999999999s",
            "18446744073709551615h",
            "５s",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
