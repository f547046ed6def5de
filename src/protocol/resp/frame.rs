//! Commands out of bytes: an array of strings, or a line of words.
//!
//! It copies nothing and keeps nothing between two calls: an incomplete command is parsed again once there is more of
//! it. Every count is compared with its bound before anything is made of it.

use smallvec::SmallVec;

/// Arguments of one command, its name among them.
pub const ARGUMENTS_MAX: usize = 128;
/// Bytes of a line that says how many or how long, without its end.
const COUNT_BYTES_MAX: usize = 32;

/// How HTTP begins. A page that makes a browser send it to us wants to reach a Redis behind its user's back.
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

/// A word and the rest.
type WordAndRest<'a> = (&'a [u8], &'a [u8]);

/// Why the bytes are no command. Nothing says where the next command begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolFault {
    /// The number of arguments is not a number.
    #[error("invalid multibulk length")]
    Count,
    /// The length of an argument is not a number.
    #[error("invalid bulk length")]
    Length,
    /// An argument is not a string.
    #[error("expected '$', got '{}'", .0.escape_ascii())]
    Kind(u8),
    /// A string does not end where its length says.
    #[error("expected CRLF after a bulk string")]
    NoEnd,
    /// A quote is not closed, or no space follows it.
    #[error("unbalanced quotes in request")]
    Quotes,
    /// A command begins with this byte: TLS, most likely.
    #[error("expected '*' or a line of words, got '{}'", .0.escape_ascii())]
    Start(u8),
    /// There are more arguments than allowed.
    #[error("a command may have at most {ARGUMENTS_MAX} arguments")]
    TooMany,
    /// There are more bytes than allowed.
    #[error("a command may have at most {0} bytes")]
    TooLarge(usize),
    /// The client speaks HTTP.
    #[error("HTTP is not spoken here")]
    Http,
}

/// Parses the command at the beginning of `input` into `arguments`. It returns how many bytes the command takes, `None`
/// while its end is not there. A command without arguments is an empty line to skip.
pub fn next<'a>(
    input: &'a [u8],
    bytes_max: usize,
    arguments: &mut Arguments<'a>,
) -> Result<Option<usize>, ProtocolFault> {
    arguments.clear();
    match input.first() {
        None => Ok(None),
        Some(b'*') => array(input, bytes_max, arguments),
        Some(b'\n' | b'\r' | b'\t' | b' '..=b'~') => line(input, bytes_max, arguments),
        Some(other) => Err(ProtocolFault::Start(*other)),
    }
}

fn array<'a>(
    input: &'a [u8],
    bytes_max: usize,
    arguments: &mut Arguments<'a>,
) -> Result<Option<usize>, ProtocolFault> {
    let Some((count, mut at)) = count(input, 1, ProtocolFault::Count)? else {
        return Ok(None);
    };
    // As in Redis: an array of zero or fewer arguments is skipped.
    let count_of = usize::try_from(count).unwrap_or(0);
    if count_of > ARGUMENTS_MAX {
        return Err(ProtocolFault::TooMany);
    }
    for _ in 0..count_of {
        match input.get(at) {
            None => return Ok(None),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolFault::Kind(*other)),
        }
        let Some((length, start)) = self::count(input, at + 1, ProtocolFault::Length)? else {
            return Ok(None);
        };
        let length = usize::try_from(length).map_err(|_| ProtocolFault::Length)?;
        let end = start.saturating_add(length);
        if end.saturating_add(2) > bytes_max {
            return Err(ProtocolFault::TooLarge(bytes_max));
        }
        let (Some(argument), Some(after)) = (input.get(start..end), input.get(end..end + 2)) else {
            return Ok(None);
        };
        if after != b"\r\n" {
            return Err(ProtocolFault::NoEnd);
        }
        arguments.push(argument);
        at = end + 2;
    }
    Ok(Some(at))
}

/// The number that begins at `from` and ends with its line, and where the next line begins.
fn count(
    input: &[u8],
    from: usize,
    wrong: ProtocolFault,
) -> Result<Option<(i64, usize)>, ProtocolFault> {
    let line = input.get(from..).unwrap_or_default();
    let line = line.get(..COUNT_BYTES_MAX + 2).unwrap_or(line);
    // The end may come right after the last digit allowed, no later.
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
    // Negative numbers have room for one more than positive ones.
    let number = digits.iter().try_fold(0_i64, |number, digit| {
        let digit = digit.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_sub(i64::from(digit))
    })?;
    match negative {
        true => Some(number),
        false => number.checked_neg(),
    }
}

/// Words between spaces. A quoted word may hold spaces; there are no escapes.
fn line<'a>(
    input: &'a [u8],
    bytes_max: usize,
    arguments: &mut Arguments<'a>,
) -> Result<Option<usize>, ProtocolFault> {
    if HTTP.iter().any(|start| input.starts_with(start)) {
        return Err(ProtocolFault::Http);
    }
    let bounded = input.get(..bytes_max).unwrap_or(input);
    let Some(end) = bounded.iter().position(|byte| *byte == b'\n') else {
        return match input.len() >= bytes_max {
            true => Err(ProtocolFault::TooLarge(bytes_max)),
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
            return Err(ProtocolFault::TooMany);
        }
        arguments.push(word);
        rest = after;
    }
}

/// The first word and what follows it.
fn word(text: &[u8]) -> Result<Option<WordAndRest<'_>>, ProtocolFault> {
    match text.split_first() {
        None => Ok(None),
        Some((quote @ (b'"' | b'\''), quoted)) => {
            let end = quoted.iter().position(|byte| byte == quote);
            let (word, after) = end
                .map(|end| quoted.split_at(end))
                .ok_or(ProtocolFault::Quotes)?;
            let after = after.get(1..).unwrap_or_default();
            match after.first().is_none_or(u8::is_ascii_whitespace) {
                true => Ok(Some((word, after))),
                false => Err(ProtocolFault::Quotes),
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
    fn read(mut input: &[u8]) -> (Vec<String>, Option<ProtocolFault>) {
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
                Err(fault) => return (commands, Some(fault)),
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

    fn check_fault(input: &[u8], fault: ProtocolFault) {
        let shown = input.escape_ascii().to_string();
        assert_eq!(read(input), (Vec::new(), Some(fault)), "{shown}");
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
    fn bytes_that_are_no_command_are_refused_by_name() {
        check_fault(b"*x\r\n", ProtocolFault::Count);
        check_fault(b"*1\rx", ProtocolFault::Count);
        check_fault(b"*\r\n", ProtocolFault::Count);
        check_fault(&[b'*'; 40], ProtocolFault::Count);
        // One digit more than a count has, and all of its line is there.
        let long = format!("*{}\r\n", "1".repeat(COUNT_BYTES_MAX + 1));
        check_fault(long.as_bytes(), ProtocolFault::Count);
        check_fault(b"*1000000000\r\n", ProtocolFault::TooMany);
        check_fault(b"*99999999999999999999\r\n", ProtocolFault::Count);
        check_fault(b"*1\r\n:1\r\n", ProtocolFault::Kind(b':'));
        check_fault(b"*1\r\n$-1\r\n", ProtocolFault::Length);
        check_fault(b"*1\r\n$1x\r\n", ProtocolFault::Length);
        check_fault(b"*1\r\n$1\r\nab\r\n", ProtocolFault::NoEnd);
        check_fault(b"*1\r\n$300\r\n", ProtocolFault::TooLarge(BYTES_MAX));
        check_fault(
            b"*1\r\n$9223372036854775807\r\n",
            ProtocolFault::TooLarge(BYTES_MAX),
        );
        check_fault(&[b'x'; 300], ProtocolFault::TooLarge(BYTES_MAX));
        check_fault(("x ".repeat(129) + "\n").as_bytes(), ProtocolFault::TooMany);
        check_fault(b"ECHO \"a\n", ProtocolFault::Quotes);
        check_fault(b"ECHO \"a\"b\n", ProtocolFault::Quotes);
        check_fault(b"\x16\x03\x01", ProtocolFault::Start(0x16));
    }

    #[test]
    fn http_is_recognised_by_its_first_word() {
        for start in [
            "GET / HTTP/1.1",
            "POST / HTTP/1.1\r\n",
            "PRI * HTTP/2.0",
            "Host: x",
        ] {
            check_fault(start.as_bytes(), ProtocolFault::Http);
        }
        check("GETX a\r\n", &["GETX|a"]);
    }

    #[test]
    fn a_command_of_the_most_bytes_fits_and_one_more_does_not() {
        let whole = |length: usize| format!("*1\r\n${length}\r\n{}\r\n", "x".repeat(length));
        let fits = BYTES_MAX - "*1\r\n$000\r\n\r\n".len();
        check(&whole(fits), &[&"x".repeat(fits)]);
        check_fault(
            whole(fits + 1).as_bytes(),
            ProtocolFault::TooLarge(BYTES_MAX),
        );
    }

    #[test]
    fn a_cut_anywhere_changes_nothing() {
        let whole = b"*3\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n$0\r\n\r\nPING 'a b'\r\n*0\r\n\r\n*1\r\n$4\r\nQUIT\r\n";
        let (commands, fault) = read(whole);
        assert_eq!((commands.len(), fault), (5, None));
        for cut in 0..whole.len() {
            let (before, fault) = read(whole.split_at(cut).0);
            assert_eq!(fault, None, "cut at {cut}");
            assert!(commands.starts_with(&before), "cut at {cut}: {before:?}");
        }
    }

    proptest! {
        /// A number is read as the standard library reads it, and so is text that is no number.
        #[test]
        fn integers_are_read_as_the_standard_library_reads_them(number in any::<i64>(), text in "[-+0-9x]{0,21}") {
            prop_assert_eq!(integer(number.to_string().as_bytes()), Some(number));
            prop_assert_eq!(integer(text.as_bytes()), text.parse().ok());
        }

        /// Whatever the input, a command takes no more bytes than there are and stays within its bounds.
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
                // It waits for more only while the input is within the bound.
                Ok(None) => prop_assert!(input.len() < BYTES_MAX + COUNT_BYTES_MAX),
                Err(_) => {}
            }
        }
    }
}
