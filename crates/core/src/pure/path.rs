//! Paths in their normal form, so that one path has one spelling.
//!
//! An application serves `/lo%67in`, `//login`, `/login/`, `/./login` and `/x/../login` like `/login`, so a rule for
//! `/login` has to match all of them. The normal form has no query and no fragment, no empty segment, no `.` and no
//! `..`, no slash at its end, and no escape of an ordinary character. `%2F`, `%3F`, `%23`, `%25` and the escapes of
//! control characters stay, in capitals: decoded, they would change the meaning of the path.
//!
//! Escapes are decoded once, as servers do. A percent sign that begins no escape stands for itself and becomes `%25`,
//! so that it forms no new escape with the characters decoded after it. `/%%36%37` is `/%2567`, a name with a percent
//! sign, and not `/g`. Lenient servers find `/%67` under that name; nginx, Apache and Go refuse it.

use std::borrow::Cow;

use super::check::{Entry, ValueKind};

/// Which entries hold paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paths {
    keys: Vec<String>,
    forward_keys: Vec<String>,
}

impl Default for Paths {
    fn default() -> Self {
        Self::new(Vec::new(), vec!["path".to_owned()])
    }
}

impl Paths {
    /// The entries named in `keys` hold paths at every door, those named in `forward_keys` only at `/v1/forward`.
    pub const fn new(keys: Vec<String>, forward_keys: Vec<String>) -> Self {
        Self { keys, forward_keys }
    }

    /// Whether the values of `key` are paths at every door.
    pub fn are_everywhere(&self, key: &str) -> bool {
        self.keys.iter().any(|known| known == key)
    }

    /// Whether the values of `key` are paths at any door.
    pub fn are_anywhere(&self, key: &str) -> bool {
        self.are_everywhere(key) || self.forward_keys.iter().any(|known| known == key)
    }

    /// The normal form of the entry's value, if it holds a path.
    ///
    /// ```
    /// use tidegate_core::pure::{Entry, Paths};
    /// let paths = Paths::new(vec!["path".to_owned()], vec![]);
    /// assert_eq!(paths.normal(&Entry::new("path", "//lo%67in/?a")).as_deref(), Some(&b"/login"[..]));
    /// assert_eq!(paths.normal(&Entry::new("user", "//lo%67in/?a")), None);
    /// ```
    #[inline]
    pub fn normal<'a>(&self, entry: &Entry<'a>) -> Option<Cow<'a, [u8]>> {
        self.hold(entry).then(|| normal(entry.value))
    }

    /// Whether the entry's value is a path.
    ///
    /// ```
    /// use tidegate_core::pure::{Entry, Paths};
    /// let paths = Paths::new(vec!["path".to_owned()], vec![]);
    /// assert!(paths.hold(&Entry::new("path", "/login")));
    /// assert!(!paths.hold(&Entry::new("user", "/login")));
    /// ```
    #[inline]
    pub fn hold(&self, entry: &Entry<'_>) -> bool {
        let named = |keys: &[String]| keys.iter().any(|known| known.as_bytes() == entry.key);
        let forwarded = entry.kind == ValueKind::Forwarded;
        named(&self.keys) || (forwarded && named(&self.forward_keys))
    }
}

/// The normal form of a path. A word before the path (`GET /login`) stays as it is; a scheme and a host are removed.
///
/// ```
/// use tidegate_core::pure::path::normal;
/// assert_eq!(&*normal(b"GET /x/../login"), b"GET /login");
/// assert_eq!(&*normal(b"https://api.example/login"), b"/login");
/// ```
pub fn normal(value: &[u8]) -> Cow<'_, [u8]> {
    let (before, path) = parted(value);
    let path = until(path, |byte| matches!(byte, b'?' | b'#'));
    if before.len().saturating_add(path.len()) == value.len() && is_normal(path) {
        return Cow::Borrowed(value);
    }
    let mut out = Vec::with_capacity(value.len());
    out.extend_from_slice(before);
    let root = out.len();
    let path = decoded(path);
    for segment in path.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => {
                let last = out.iter().skip(root).rposition(|byte| *byte == b'/');
                out.truncate(root.saturating_add(last.unwrap_or(0)));
            }
            segment => {
                // A value that does not begin with a slash is not a path, and gets none.
                if out.len() > root || path.first() == Some(&b'/') {
                    out.push(b'/');
                }
                out.extend_from_slice(segment);
            }
        }
    }
    if out.len() == root && path.first() == Some(&b'/') {
        out.push(b'/');
    }
    Cow::Owned(out)
}

/// The prefix of `value` that stays as it is, and the rest, which begins with the path.
fn parted(value: &[u8]) -> (&[u8], &[u8]) {
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| {
        let start = value.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    if let Some(scheme) = scheme {
        let rest = value.get(scheme.len()..).unwrap_or_default();
        let host = until(rest, |byte| matches!(byte, b'/' | b'?' | b'#')).len();
        return (&[], rest.get(host..).unwrap_or_default());
    }
    let word = value.iter().position(|byte| matches!(byte, b' ' | b'/'));
    match word.and_then(|at| value.split_at_checked(at.saturating_add(1))) {
        Some((before, path)) if before.ends_with(b" ") && path.starts_with(b"/") => (before, path),
        Some(_) | None => (&[], value),
    }
}

fn until(value: &[u8], ends: impl Fn(u8) -> bool) -> &[u8] {
    let end = value.iter().position(|byte| ends(*byte));
    value.get(..end.unwrap_or(value.len())).unwrap_or_default()
}

/// Whether the path is certainly in its normal form. It may say no although nothing would change.
fn is_normal(path: &[u8]) -> bool {
    let ends_well = path.len() <= 1 || !path.ends_with(b"/");
    let mut pairs = path.iter().zip(path.iter().skip(1));
    ends_well
        && !path.contains(&b'%')
        && !pairs.any(|pair| matches!(pair, (b'/', b'/' | b'.')))
        && !path.starts_with(b".")
}

/// Decodes the escapes of ordinary characters, and escapes every percent sign that begins no escape.
fn decoded(path: &[u8]) -> Cow<'_, [u8]> {
    if !path.contains(&b'%') {
        return Cow::Borrowed(path);
    }
    let mut out = Vec::with_capacity(path.len());
    let mut left = path;
    while let [first, rest @ ..] = left {
        left = rest;
        let escape = match (first, rest) {
            (b'%', [high, low, after @ ..]) => hex(*high, *low).map(|byte| (byte, after)),
            _ => None,
        };
        match (escape, rest) {
            (Some((b'/' | b'?' | b'#' | b'%' | 0..=0x1f | 0x7f, after)), [high, low, ..]) => {
                let kept = [b'%', high.to_ascii_uppercase(), low.to_ascii_uppercase()];
                out.extend_from_slice(&kept);
                left = after;
            }
            (Some((byte, after)), _) => {
                out.push(byte);
                left = after;
            }
            (None, _) if *first == b'%' => out.extend_from_slice(b"%25"),
            (None, _) => out.push(*first),
        }
    }
    Cow::Owned(out)
}

fn hex(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| {
        char::from(byte)
            .to_digit(16)
            .and_then(|digit| u8::try_from(digit).ok())
    };
    digit(high)?.checked_mul(16)?.checked_add(digit(low)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(value: &str, expected: &str) {
        let found = normal(value.as_bytes());
        let found = String::from_utf8_lossy(&found);
        assert_eq!(found, expected, "{value}");
    }

    #[test]
    fn every_spelling_of_a_path_is_one() {
        for spelling in [
            "/login",
            "/lo%67in",
            "/%6c%6F%67in",
            "//login",
            "///login//",
            "/login/",
            "/./login",
            "/login/.",
            "/%2e/login",
            "/x/../login",
            "/x/%2E%2e/login",
            "/../login",
            "/x/y/../../login",
            "/login?next=/x",
            "/login/?a",
            "/login#top",
            "http://host/login",
            "HTTPS://host:8443//login",
        ] {
            check(spelling, "/login");
        }
    }

    #[test]
    fn what_says_something_else_stays() {
        for path in [
            "/",
            "",
            "/login.php",
            "/.well-known/x",
            "/a..b",
            "/Login",
            "/login;a=b",
            "/a b",
            "/a%2Fb",
            "/a%3Fb",
            "/a%23b",
            "/a%25b",
            "/a%00b",
            "/a%25zz",
            "/%2567",
            "/lo%2567in",
            "*",
            "login",
        ] {
            check(path, path);
        }
        check("/a%2fb%3f", "/a%2Fb%3F");
        check("/%C3%A9", "/\u{e9}");
        check("/a%00%7f%1b", "/a%00%7F%1B");
        check("/x/..", "/");
        check("/..", "/");
        check("http://host", "");
        check("login/../x", "x");
    }

    #[test]
    fn a_percent_sign_that_begins_no_escape_is_one() {
        for (path, expected) in [
            ("/a%", "/a%25"),
            ("/a%4", "/a%254"),
            ("/a%zz", "/a%25zz"),
            ("/%%36%37", "/%2567"),
            ("/%%367", "/%2567"),
            ("/%6%37", "/%2567"),
            ("/lo%%36%37in", "/lo%2567in"),
            ("/%2%35", "/%2525"),
            ("/%%%32%65", "/%25%252e"),
            ("/x/%%32e%%32e/y", "/x/%252e%252e/y"),
        ] {
            check(path, expected);
        }
    }

    #[test]
    fn a_method_before_the_path_stays() {
        check("GET //lo%67in/", "GET /login");
        check("POST /", "POST /");
        check("GET /..", "GET /");
        check("a b", "a b");
    }

    /// A path of pieces, many of which are or become parts of an escape.
    fn paths() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            4 => Just("%".to_owned()),
            2 => "[0-9a-fA-F]",
            2 => "%[0-9a-fA-F]{2}",
            2 => "[/.? #]",
            1 => "[a-z]",
            1 => Just("http://".to_owned()),
        ];
        proptest::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
    }

    /// The path with the `chosen` letters as escapes.
    fn escaped(path: &str, chosen: &[bool]) -> String {
        let letters = path
            .chars()
            .zip(chosen.iter().chain(std::iter::repeat(&false)));
        let spelled = letters.map(|(letter, chosen)| match *chosen && letter != '/' {
            true => format!("%{:02x}", u32::from(letter)),
            false => letter.to_string(),
        });
        spelled.collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4_096))]

        /// For any value, the normal form of a normal form is itself.
        #[test]
        fn a_normal_form_stays_as_it_is(value in paths()) {
            let once = normal(value.as_bytes());
            prop_assert_eq!(&normal(&once), &once);
        }

        /// Only percent signs that begin no escape make the normal form longer than the value.
        #[test]
        fn a_normal_form_is_hardly_longer(value in paths()) {
            let signs = value.bytes().filter(|byte| *byte == b'%').count();
            prop_assert!(normal(value.as_bytes()).len() <= value.len() + 2 * signs);
        }

        /// Every escaping of a path has the same normal form.
        #[test]
        fn every_escaping_of_a_path_is_one(
            path in "(/[a-z.]{1,4}){1,4}",
            chosen in proptest::collection::vec(any::<bool>(), 20),
        ) {
            let spelling = escaped(&path, &chosen);
            prop_assert_eq!(normal(spelling.as_bytes()), normal(path.as_bytes()));
        }

        /// A path that was escaped twice is not decoded twice.
        #[test]
        fn what_is_escaped_twice_stays_so(
            path in "(/[a-z]{1,4}){1,4}",
            chosen in proptest::collection::vec(any::<bool>(), 20),
        ) {
            let once = escaped(&path, &chosen);
            let twice = once.replace('%', "%25");
            prop_assert_eq!(&*normal(twice.as_bytes()), twice.as_bytes());
        }
    }
}
