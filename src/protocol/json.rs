//! JSON from a client: parsed, or refused with the place where it goes wrong.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Visitor};

use super::raw_check::Refusal;

/// The value in a JSON body.
pub(super) fn parse<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refusal> {
    // UTF-8 is checked once for the whole body: from bytes, serde_json would check every string that has to be text.
    let parsed = match str::from_utf8(body) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(body),
    };
    parsed.map_err(|_| {
        // Only a faulty body is parsed a second time, to learn where it goes wrong.
        let mut again = serde_json::Deserializer::from_slice(body);
        match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(error) if error.path().iter().next().is_some() => {
                Refusal::Malformed(format!("{}: {}", error.path(), error.inner()))
            }
            Err(error) => Refusal::Malformed(error.into_inner().to_string()),
            Ok(_) => Refusal::Malformed("trailing characters after the check".to_owned()),
        }
    })
}

/// The bytes of a JSON string, which need not be text: a lone surrogate (`"\ud800"`) is none, and JavaScript sends it.
pub(super) fn bytes<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Cow<'a, [u8]>, D::Error> {
    struct Bytes;

    impl<'de> Visitor<'de> for Bytes {
        type Value = Cow<'de, [u8]>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_borrowed_bytes<E>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
            Ok(Cow::Borrowed(bytes))
        }

        fn visit_bytes<E>(self, bytes: &[u8]) -> Result<Self::Value, E> {
            Ok(Cow::Owned(bytes.to_owned()))
        }
    }

    deserializer.deserialize_bytes(Bytes)
}
