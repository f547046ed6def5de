//! Commands out of bytes: an array of strings, or a line of words.
//!
//! Nothing is copied, and nothing is kept between two looks: what is not whole yet is looked at again once there is
//! more of it. Every count is held against its bound before anything is made of it.

use smallvec::SmallVec;

/// Arguments of one command, its name among them.
pub const ARGUMENTS_MAX: usize = 128;
/// Bytes of a line that says how many or how long, without its end.
const COUNT_BYTES_MAX: usize = 32;

/// How HTTP begins. Who lets a browser send it to us wants to reach a Redis behind its user's back.
const HTTP: [&[u8]; 11] = [
    b"GET ",
    b"HEAD ",
    b"POST ",
    b"PUT ",
    b"PATCH ",
    b"DELETE ",
    b"OPTIONS ",
    b"TRACE ",
    b"CONNECT ",
    b"PRI ",
    b"Host:",
];

/// The arguments of a command, its name first. Few have more than fit here.
pub type Arguments<'a> = SmallVec<[&'a [u8]; 16]>;

/// A part and the rest.
type Parted<'a> = (&'a [u8], &'a [u8]);

/// Why the bytes are no command. After it nobody knows where the next one begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Garbled {
    /// A number of arguments that is none.
    #[error("invalid multibulk length")]
    Count,
    /// A length that is none.
    #[error("invalid bulk length")]
    Length,
    /// An argument that is not a string.
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    Kind(u8),
    /// A string that goes on where it should end.
    #[error("expected CRLF after a bulk string")]
    NoEnd,
    /// A quote that is never closed, or goes on after it is.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// A byte that begins nothing: TLS, most likely.
    #[error("expected '*' or a line of words, got '{}'", .0.escape_ascii())]
    Start(u8),
    /// More arguments than allowed.
    #[error("a command may have at most {ARGUMENTS_MAX} arguments")]
    TooMany,
    /// More bytes than allowed.
    #[error("a command may have at most {0} bytes")]
    TooLarge(usize),
    /// Somebody speaks HTTP.
    #[error("HTTP is not spoken here")]
    Http,
}

/// How many bytes the command takes that begins `input`, `None` while its end is not there. Its words are left in
/// `arguments`; none at all is a line to be passed over.
pub fn next<'a>(
    input: &'a [u8],
    bytes_max: usize,
    arguments: &mut Arguments<'a>,
) -> Result<Option<usize>, Garbled> {
    arguments.clear();
    match input.first() {
        None => Ok(None),
        Some(b'*') => array(input, bytes_max, arguments),
        Some(b'\n' | b'\r' | b'\t' | b' '..=b'~') => line(input, bytes_max, arguments),
        Some(other) => Err(Garbled::Start(*other)),
    }
}

fn array<'a>(
    input: &'a [u8],
    bytes_max: usize,
    arguments: &mut Arguments<'a>,
) -> Result<Option<usize>, Garbled> {
    let Some((count, mut at)) = count(input, 1, Garbled::Count)? else {
        return Ok(None);
    };
    // As Redis has it: an array of nothing, or of less, says nothing.
    let count_of = usize::try_from(count).unwrap_or(0);
    if count_of > ARGUMENTS_MAX {
        return Err(Garbled::TooMany);
    }
    for _ in 0..count_of {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(Garbled::Kind(*other)),
        }
        let Some((length, start)) = self::count(input, at + 1, Garbled::Length)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| Garbled::Length)?;
        let end = start.saturating_add(length);
        if end.saturating_add(2) > bytes_max {
            return Err(Garbled::TooLarge(bytes_max));
        }
        let (Some(argument), Some(after)) = (input.get(start..end), input.get(end..end + 2)) else {
            return Ok(None);
        };
        if after != b"\r\n" {
            return Err(Garbled::NoEnd);
        }
        arguments.push(argument);
        at = end + 2;
    }
    Ok(Some(at))
}

/// The number that begins at `from` and ends with its line, and where the next line begins.
fn count(input: &[u8], from: usize, wrong: Garbled) -> Result<Option<(i64, usize)>, Garbled> {
    let line = input.get(from..).unwrap_or_default();
    let line = line.get(..COUNT_BYTES_MAX + 2).unwrap_or(line);
    // Its end is looked for where it may be: behind the bound, what follows it would never be seen.
    let number = line.get(..=COUNT_BYTES_MAX).unwrap_or(line);
    let Some(end) = number.iter().position(|byte| *byte == b'\r') else {
        return match line.len() > COUNT_BYTES_MAX {
            true => Err(wrong),
            false => Ok(None),
        };
    };
    let (digits, after) = line.split_at(end);
    match after.get(1) {
        None => Ok(None),
        Some(b'\n') => match integer(digits) {
            Some(count) => Ok(Some((count, from + end + 2))),
            None => Err(wrong),
        },
        Some(_) => Err(wrong),
    }
}

/// A whole number in decimal.
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Counted below zero, where there is room for one more.
    let number = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_sub(i64::from(digit))
    })?;
    match negative {
        true => Some(number),
        false => number.checked_neg(),
    }
}

/// Words between spaces. Quotes hold words with spaces together; nothing is escaped in them.
fn line<'a>(
    input: &'a [u8],
    bytes_max: usize,
    arguments: &mut Arguments<'a>,
) -> Result<Option<usize>, Garbled> {
    if HTTP.iter().any(|start| input.starts_with(start)) {
        return Err(Garbled::Http);
    }
    let bounded = input.get(..bytes_max).unwrap_or(input);
    let Some(end) = bounded.iter().position(|byte| *byte == b'\n') else {
        return match input.len() >= bytes_max {
            true => Err(Garbled::TooLarge(bytes_max)),
            false => Ok(None),
        };
    };
    let (mut rest, _) = bounded.split_at(end);
    loop {
        rest = rest.trim_ascii_start();
        let Some((word, after)) = word(rest)? else {
            return Ok(Some(end + 1));
        };
        if arguments.len() == ARGUMENTS_MAX {
            return Err(Garbled::TooMany);
        }
        arguments.push(word);
        rest = after;
    }
}

/// The first word and what follows it.
fn word(text: &[u8]) -> Result<Option<Parted<'_>>, Garbled> {
    match text.split_first() {
        None => Ok(None),
        Some((quote @ (b'"' | b'\''), quoted)) => {
            let end = quoted.iter().position(|byte| byte == quote);
            let (word, after) = end.map(|end| quoted.split_at(end)).ok_or(Garbled::Quotes)?;
            let after = after.get(1..).unwrap_or_default();
            match after.first().is_none_or(u8::is_ascii_whitespace) {
                true => Ok(Some((word, after))),
                false => Err(Garbled::Quotes),
            }
        }
        Some(_) => {
            let end = text.iter().position(u8::is_ascii_whitespace);
            Ok(Some(text.split_at(end.unwrap_or(text.len()))))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BYTES_MAX: usize = 300;

    /// Every command in `input`, as its words with bars between them, and what ended it.
    fn read(mut input: &[u8]) -> (Vec<String>, Option<Garbled>) {
        let mut commands = Vec::new();
        let mut arguments = Arguments::new();
        loop {
            match next(input, BYTES_MAX, &mut arguments) {
                Ok(Some(length)) => {
                    let words = arguments.iter();
                    let words: Vec<_> = words.map(|word| String::from_utf8_lossy(word)).collect();
                    commands.push(words.join("|"));
                    input = input.split_at(length).1;
                }
                Ok(None) => return (commands, None),
                Err(garbled) => return (commands, Some(garbled)),
            }
        }
    }

    fn check(input: &str, commands: &[&str]) {
        assert_eq!(
            read(input.as_bytes()),
            (to_strings(commands), None),
            "{input:?}"
        );
    }

    fn check_garbled(input: &[u8], garbled: Garbled) {
        let shown = input.escape_ascii().to_string();
        assert_eq!(read(input), (Vec::new(), Some(garbled)), "{shown}");
    }

    fn to_strings(commands: &[&str]) -> Vec<String> {
        commands.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn arrays_of_strings_are_commands() {
        check("*1\r\n$4\r\nPING\r\n", &["PING"]);
        check("*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", &["ECHO|"]);
        check("*2\r\n$4\r\nECHO\r\n$4\r\n\r\n\r\n\r\n", &["ECHO|\r\n\r\n"]);
        check("*1\r\n$1\r\na\r\n*1\r\n$1\r\nb\r\n", &["a", "b"]);
        check("*0\r\n*-1\r\n*1\r\n$1\r\na\r\n", &["", "", "a"]);
    }

    #[test]
    fn lines_of_words_are_commands() {
        check("PING\r\n", &["PING"]);
        check("PING\n", &["PING"]);
        check("  CL.THROTTLE  a 1\t2 3  \r\n", &["CL.THROTTLE|a|1|2|3"]);
        check("\r\n\nPING\r\n", &["", "", "PING"]);
        check("ECHO \"a b\" 'c \"d' \"\"\r\n", &["ECHO|a b|c \"d|"]);
    }

    #[test]
    fn what_is_no_command_is_named() {
        check_garbled(b"*x\r\n", Garbled::Count);
        check_garbled(b"*1\rx", Garbled::Count);
        check_garbled(b"*\r\n", Garbled::Count);
        check_garbled(&[b'*'; 40], Garbled::Count);
        // One digit more than a count has, and all of its line is there.
        let long = format!("*{}\r\n", "1".repeat(COUNT_BYTES_MAX + 1));
        check_garbled(long.as_bytes(), Garbled::Count);
        check_garbled(b"*1000000000\r\n", Garbled::TooMany);
        check_garbled(b"*99999999999999999999\r\n", Garbled::Count);
        check_garbled(b"*1\r\n:1\r\n", Garbled::Kind(b':'));
        check_garbled(b"*1\r\n$-1\r\n", Garbled::Length);
        check_garbled(b"*1\r\n$1x\r\n", Garbled::Length);
        check_garbled(b"*1\r\n$1\r\nab\r\n", Garbled::NoEnd);
        check_garbled(b"*1\r\n$300\r\n", Garbled::TooLarge(BYTES_MAX));
        check_garbled(
            b"*1\r\n$9223372036854775807\r\n",
            Garbled::TooLarge(BYTES_MAX),
        );
        check_garbled(&[b'x'; 300], Garbled::TooLarge(BYTES_MAX));
        check_garbled(("x ".repeat(129) + "\n").as_bytes(), Garbled::TooMany);
        check_garbled(b"ECHO \"a\n", Garbled::Quotes);
        check_garbled(b"ECHO \"a\"b\n", Garbled::Quotes);
        check_garbled(b"\x16\x03\x01", Garbled::Start(0x16));
    }

    #[test]
    fn http_is_known_by_its_first_word() {
        for start in [
            "GET / HTTP/1.1",
            "POST / HTTP/1.1\r\n",
            "PRI * HTTP/2.0",
            "Host: x",
        ] {
            check_garbled(start.as_bytes(), Garbled::Http);
        }
        check("GETX a\r\n", &["GETX|a"]);
    }

    #[test]
    fn a_command_of_the_most_bytes_fits_and_one_more_does_not() {
        let whole = |length: usize| format!("*1\r\n${length}\r\n{}\r\n", "x".repeat(length));
        let fits = BYTES_MAX - "*1\r\n$000\r\n\r\n".len();
        check(&whole(fits), &[&"x".repeat(fits)]);
        check_garbled(whole(fits + 1).as_bytes(), Garbled::TooLarge(BYTES_MAX));
    }

    #[test]
    fn wherever_it_is_cut_it_says_the_same() {
        let whole = b"*3\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n$0\r\n\r\nPING 'a b'\r\n*0\r\n\r\n*1\r\n$4\r\nQUIT\r\n";
        let (commands, garbled) = read(whole);
        assert_eq!((commands.len(), garbled), (5, None));
        for cut in 0..whole.len() {
            let (before, garbled) = read(whole.split_at(cut).0);
            assert_eq!(garbled, None, "cut at {cut}");
            assert!(commands.starts_with(&before), "cut at {cut}: {before:?}");
        }
    }

    proptest! {
        /// A number is read as the standard library reads it, and so is what is none.
        #[test]
        fn integers_are_read_as_ever(number in any::<i64>(), text in "[-+0-9x]{0,21}") {
            prop_assert_eq!(integer(number.to_string().as_bytes()), Some(number));
            prop_assert_eq!(integer(text.as_bytes()), text.parse().ok());
        }

        /// Whatever comes, no more is taken than is there, and what is taken stays within its bounds.
        #[test]
        fn garbage_is_bounded(input in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), Just(b' '), any::<u8>()],
            0..600,
        )) {
            let mut arguments = Arguments::new();
            match next(&input, BYTES_MAX, &mut arguments) {
                Ok(Some(length)) => {
                    prop_assert!(length <= input.len().min(BYTES_MAX));
                    prop_assert!(arguments.len() <= ARGUMENTS_MAX);
                }
                // It waits only while what is there is within the bound.
                Ok(None) => prop_assert!(input.len() < BYTES_MAX + COUNT_BYTES_MAX),
                Err(_) => {}
            }
        }
    }
}
