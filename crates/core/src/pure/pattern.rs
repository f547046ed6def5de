//! Values with a `*` in them. They match bytes, because what a client sends need not be text.

/// A value in which each `*` stands for any bytes, also for none.
///
/// ```
/// use tidegate_core::pure::pattern::Pattern;
/// assert!(Pattern::parse("GET /files/*").is_some_and(|pattern| pattern.matches(b"GET /files/a.pdf")));
/// assert!(Pattern::parse("no star").is_none());
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    first: String,
    rest: Vec<String>,
}

impl Pattern {
    /// The pattern in `value`; `None` if `value` has no `*`.
    pub fn parse(value: &str) -> Option<Self> {
        let (first, rest) = value.split_once('*')?;
        Some(Self {
            first: first.to_owned(),
            rest: rest.split('*').map(str::to_owned).collect(),
        })
    }

    /// Whether `value` matches. Walks it once: each middle part matches where it first occurs, and the last part must
    /// end the value.
    pub fn matches(&self, value: &[u8]) -> bool {
        let Some(mut left) = value.strip_prefix(self.first.as_bytes()) else {
            return false;
        };
        let Some((last, middle)) = self.rest.split_last() else {
            return left.is_empty();
        };
        for part in middle {
            match after(left, part.as_bytes()) {
                Some(after) => left = after,
                None => return false,
            }
        }
        left.ends_with(last.as_bytes())
    }
}

/// The bytes after the first `part` in `value`.
fn after<'a>(value: &'a [u8], part: &[u8]) -> Option<&'a [u8]> {
    if part.is_empty() {
        return Some(value);
    }
    let at = value
        .windows(part.len())
        .position(|window| window == part)?;
    value.get(at.saturating_add(part.len())..)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, value: &str, expected: bool) {
        let matched =
            Pattern::parse(pattern).is_some_and(|pattern| pattern.matches(value.as_bytes()));
        assert_eq!(matched, expected, "{pattern} against {value}");
    }

    #[test]
    fn a_star_at_the_end_is_a_prefix() {
        check("foo*", "foo", true);
        check("foo*", "foobar", true);
        check("foo*", "fo", false);
    }

    #[test]
    fn stars_stand_anywhere() {
        check("*", "", true);
        check("*.pdf", "a.pdf", true);
        check("*.pdf", "a.pdf.exe", false);
        check("/v*/users/*/posts", "/v1/users/42/posts", true);
        check("/v*/users/*/posts", "/v1/users/42/posts/7", false);
    }

    #[test]
    fn parts_do_not_overlap() {
        check("ab*ba", "aba", false);
        check("ab*ba", "abba", true);
        check("a*b*c", "abc", true);
        check("a*b*c", "acb", false);
    }

    #[test]
    fn a_value_need_not_be_text() {
        let login = Pattern::parse("/login*").unwrap();
        assert!(login.matches(b"/login\xff\xfe"));
        assert!(!login.matches(b"/log\xffin"));
        let middle = Pattern::parse("/a*b*\u{e9}").unwrap();
        assert!(middle.matches(b"/a\xffb\xff\xc3\xa9"));
        assert!(!middle.matches(b"/a\xffb\xff\xa9"));
    }
}
