//! The text of a bounded length that people see of a value.
//!
//! A value may have any length, and need not be text. If it is cut, or is not text, it gets a tag with its length and a
//! hash of all its bytes: `/login/aaaa…[1100 bytes, 0f1e2d3c4b5a6978]`. A value that contains the beginning of a tag
//! gets one too. So no value that is shown whole looks like one that was cut.

use std::fmt;
use std::hash::{DefaultHasher, Hasher};

/// The beginning of a tag.
const TAG: &str = "…[";

/// A value in the form that people see.
///
/// ```
/// use tidegate_core::pure::DisplayText;
/// assert_eq!(DisplayText::new(b"abc", 3).to_string(), "abc");
/// assert!(DisplayText::new(b"abcd", 3).to_string().starts_with("abc…[4 bytes, "));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct DisplayText<'a> {
    bytes: &'a [u8],
    bytes_max: usize,
}

impl<'a> DisplayText<'a> {
    /// At most `bytes_max` bytes of `bytes`, and a tag if that is not all.
    pub const fn new(bytes: &'a [u8], bytes_max: usize) -> Self {
        Self { bytes, bytes_max }
    }

    /// The whole value, if it is text that needs no tag.
    pub fn whole(&self) -> Option<&'a str> {
        let text = std::str::from_utf8(self.bytes).ok()?;
        (text.len() <= self.bytes_max && !text.contains(TAG)).then_some(text)
    }
}

impl fmt::Display for DisplayText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(text) = self.whole() {
            return f.write_str(text);
        }
        let end = self.bytes.len().min(self.bytes_max);
        let mut shown = self.bytes.get(..end).unwrap_or_default();
        if std::str::from_utf8(self.bytes).is_ok() {
            // The cut must not divide a character.
            while std::str::from_utf8(shown).is_err() {
                shown = shown.split_last().map_or(&[], |(_, before)| before);
            }
        }
        for chunk in shown.utf8_chunks() {
            f.write_str(chunk.valid())?;
            if !chunk.invalid().is_empty() {
                write!(f, "{}", char::REPLACEMENT_CHARACTER)?;
            }
        }
        let mut hasher = DefaultHasher::new();
        hasher.write(self.bytes);
        let (length, hash) = (self.bytes.len(), hasher.finish());
        write!(f, "{TAG}{length} bytes, {hash:016x}]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(bytes: &[u8], bytes_max: usize) -> String {
        DisplayText::new(bytes, bytes_max).to_string()
    }

    #[test]
    fn text_within_the_bound_is_shown_as_it_is() {
        for text in ["", "a", "abcd", "\u{e9}\u{e9}", "a…", "[x]"] {
            assert_eq!(shown(text.as_bytes(), 4), text);
        }
    }

    #[test]
    fn what_is_cut_is_tagged_and_no_letter_is_cut_in_two() {
        for (bytes, start) in [
            (&b"abcde"[..], "abcd…[5 bytes, "),
            ("abc\u{e9}".as_bytes(), "abc…[5 bytes, "),
            ("\u{e9}\u{e9}\u{e9}".as_bytes(), "\u{e9}\u{e9}…[6 bytes, "),
            (b"a\xff", "a\u{fffd}…[2 bytes, "),
            (b"abc\xffefg", "abc\u{fffd}…[7 bytes, "),
        ] {
            let shown = shown(bytes, 4);
            assert!(shown.starts_with(start) && shown.ends_with(']'), "{shown}");
        }
        assert_ne!(shown(b"abcdx", 4), shown(b"abcdy", 4));
    }

    #[test]
    fn no_value_looks_like_one_that_was_cut() {
        let cut = shown(b"a\xff", 1_000);
        assert_ne!(shown(cut.as_bytes(), 1_000), cut);
        let cut = shown(&[b'a'; 1_100], 1_024);
        assert_ne!(shown(cut.as_bytes(), 2_000), cut);
    }
}
