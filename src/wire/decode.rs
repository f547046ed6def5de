//! Bytes into a check. Bound first, then parse; whatever is wrong is named.

use std::borrow::Cow;
use std::fmt;

use percent_encoding::percent_decode;
use serde::Deserialize;
use serde::de::{Deserializer, Visitor};
use smallvec::SmallVec;

use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Limit, ValueKind};

/// Descriptors of one check.
pub const DESCRIPTORS_MAX: usize = 64;
/// Entries of one descriptor. Rules nest less deep than this.
pub const ENTRIES_MAX: usize = 32;

/// Bytes of a wrong word that its refusal repeats.
const REPEATED_BYTES_MAX: usize = 32;

/// Why a request is not looked into, in words for whoever sent it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is no check.
    #[error("{0}")]
    Malformed(String),
    /// It is a check that is over a bound. Envoy lets a request pass whose check fails, so its doors deny this one.
    #[error("{0}")]
    OverBound(String),
}

/// Whose check it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Ours: what makes no sense is told.
    #[default]
    Native,
    /// Envoy's: a descriptor without entries and an entry without a key are such that no rule meets.
    Envoy,
}

/// A check as it was sent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked<'a> {
    #[serde(borrow)]
    pub(super) domain: Cow<'a, str>,
    #[serde(default)]
    pub(super) hits_addend: u64,
    #[serde(default)]
    pub(super) peek: bool,
    #[serde(borrow)]
    pub(super) descriptors: SmallVec<[AskedDescriptor<'a>; 1]>,
    /// The status of a denial, for proxies that do not know 429.
    #[serde(skip)]
    pub deny_status: Option<u16>,
    #[serde(skip)]
    pub(super) dialect: Dialect,
    /// Whether it came by `/v1/forward`.
    #[serde(skip)]
    pub(super) forwarded: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedDescriptor<'a> {
    #[serde(borrow)]
    pub(super) entries: SmallVec<[AskedEntry<'a>; 2]>,
    pub(super) hits_addend: Option<u64>,
    /// Envoy can give back what was used.
    #[serde(skip)]
    pub(super) refund: bool,
    /// Envoy can carry a limit.
    #[serde(skip)]
    pub(super) limit: Option<Limit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AskedEntry<'a> {
    #[serde(borrow, deserialize_with = "bytes")]
    pub(super) key: Cow<'a, [u8]>,
    #[serde(borrow, default, deserialize_with = "bytes")]
    pub(super) value: Cow<'a, [u8]>,
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

/// The check in a JSON body.
pub fn from_json(body: &[u8]) -> Result<Asked<'_>, Refused> {
    parse_json(body)
}

/// What a JSON body holds, or where it goes wrong.
pub(super) fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Refused> {
    // As text if it is one: bytes would be looked through for every string in them that has to be text.
    let parsed = match str::from_utf8(body) {
        Ok(text) => serde_json::from_str(text),
        Err(_) => serde_json::from_slice(body),
    };
    parsed.map_err(|_| {
        // Parsed once more, only now, to learn where it went wrong.
        let mut again = serde_json::Deserializer::from_slice(body);
        match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(error) if error.path().iter().next().is_some() => {
                Refused::Malformed(format!("{}: {}", error.path(), error.inner()))
            }
            Err(error) => Refused::Malformed(error.into_inner().to_string()),
            Ok(_) => Refused::Malformed("trailing characters after the check".to_owned()),
        }
    })
}

/// The check in a query: one descriptor, entries in the order of the query.
pub fn from_query(query: &str) -> Result<Asked<'_>, Refused> {
    let mut asked = Asked::default();
    let mut entries: SmallVec<[AskedEntry<'_>; 2]> = SmallVec::new();
    let mut reserved: SmallVec<[&str; 4]> = SmallVec::new();
    for pair in query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(ENTRIES_MAX + 5)
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decoded(key), decoded(value));
        let name = ["domain", "hits_addend", "peek", "deny_status"]
            .into_iter()
            .find(|name| name.as_bytes() == &*key);
        if entries.iter().any(|entry| entry.key == key)
            || name.is_some_and(|name| reserved.contains(&name))
        {
            let key = String::from_utf8_lossy(&key);
            let what = format!("{key}: given twice, must be given once");
            return Err(Refused::Malformed(what));
        }
        reserved.extend(name);
        match name {
            Some("domain") => asked.domain = domain(value)?,
            Some("hits_addend") => asked.hits_addend = number("hits_addend", &value)?,
            Some("peek") => asked.peek = flag(&value)?,
            Some(_) => asked.deny_status = Some(status(&value)?),
            None => entries.push(AskedEntry { key, value }),
        }
    }
    if entries.is_empty() {
        return Err(Refused::Malformed(
            "no entry given: add one as key=value, in the order of the rules".to_owned(),
        ));
    }
    asked.descriptors.push(AskedDescriptor {
        entries,
        ..AskedDescriptor::default()
    });
    Ok(asked)
}

/// A check of one descriptor, in the words of a command.
#[derive(Debug)]
pub struct Words<'a> {
    domain: &'a str,
    entries: SmallVec<[Entry<'a>; 4]>,
    cost: u64,
    peek: bool,
}

/// The check in the words of a command: the domain, pairs of entry and value, then `COST n` and `PEEK` in any case.
///
/// A first entry may be called `cost` or `peek`; a later one would be taken for an option.
pub fn from_words<'a>(words: &[&'a [u8]], key_bytes_max: usize) -> Result<Words<'a>, Refused> {
    let domain_text = |word| {
        within(word, key_bytes_max)?;
        text(word)
    };
    let domain = words.first().copied().unwrap_or_default();
    let mut rest = words.get(1..).unwrap_or_default();
    let mut check = Words {
        domain: domain_text(domain).map_err(|wrong| wrong.at("domain"))?,
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
                check.cost = number("COST", given)?;
                options = true;
                after
            }
            after if is(b"PEEK") => {
                check.peek = true;
                options = true;
                after
            }
            [value, after @ ..] if !options && nth < ENTRIES_MAX => {
                let bounded = within(word, key_bytes_max);
                bounded.map_err(|wrong| wrong.at(&format!("entries[{nth}].key")))?;
                check.entries.push(Entry::new(*word, *value));
                after
            }
            _ => {
                let word = repeated(word);
                return Err(Refused::Malformed(format!(
                    "{word:?}: expected up to {ENTRIES_MAX} pairs of entry and value, then COST n or PEEK"
                )));
            }
        };
    }
    Ok(check)
}

impl Words<'_> {
    /// Hands the check to `then`. Who says that it costs nothing looks.
    pub fn check<R>(&self, then: impl FnOnce(&Check<'_>) -> R) -> R {
        then(&Check {
            domain: self.domain,
            descriptors: &[Descriptor::of(&self.entries)],
            cost: Cells::new(self.cost),
            peek: self.peek,
        })
    }
}

fn text(bytes: &[u8]) -> Result<&str, Wrong> {
    str::from_utf8(bytes).map_err(|_| Wrong::Malformed("must be UTF-8".to_owned()))
}

/// One word of a query, decoded.
fn decoded(word: &str) -> Cow<'_, [u8]> {
    match word.contains('+') {
        // As forms are encoded: a plus is a space, a real one comes as %2B.
        true => {
            let spaced = word.replace('+', " ");
            Cow::Owned(percent_decode(spaced.as_bytes()).collect())
        }
        false => percent_decode(word.as_bytes()).into(),
    }
}

fn domain(value: Cow<'_, [u8]>) -> Result<Cow<'_, str>, Refused> {
    let text = match value {
        Cow::Borrowed(bytes) => str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    text.ok_or_else(|| Refused::Malformed("domain: must be UTF-8".to_owned()))
}

/// What a refusal repeats of a word that is not what it should be.
fn repeated(word: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(word.get(..REPEATED_BYTES_MAX).unwrap_or(word))
}

fn number(name: &str, value: &[u8]) -> Result<u64, Refused> {
    let number = str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let found = repeated(value);
        let most = u64::MAX;
        Refused::Malformed(format!(
            "{name}: must be a whole number from 0 to {most}, is {found:?}"
        ))
    })
}

fn flag(value: &[u8]) -> Result<bool, Refused> {
    match value {
        b"" | b"1" | b"true" => Ok(true),
        b"0" | b"false" => Ok(false),
        _ => {
            let found = repeated(value);
            Err(Refused::Malformed(format!(
                "peek: must be true or false, is {found:?}"
            )))
        }
    }
}

fn status(value: &[u8]) -> Result<u16, Refused> {
    let status = str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok());
    status
        .filter(|status| matches!(status, 400..=599))
        .ok_or_else(|| {
            let found = repeated(value);
            Refused::Malformed(format!(
                "deny_status: must be a status from 400 to 599, is {found:?}"
            ))
        })
}

impl Asked<'_> {
    /// The same check, which came by `/v1/forward`.
    #[must_use]
    pub const fn forwarded(mut self) -> Self {
        self.forwarded = true;
        self
    }

    /// Hands the check to `then`, once it is within the bounds.
    pub fn check<R>(
        &self,
        key_bytes_max: usize,
        then: impl FnOnce(&Check<'_>) -> R,
    ) -> Result<R, Refused> {
        self.bounded(key_bytes_max)?;
        let kind = match self.forwarded {
            true => ValueKind::Forwarded,
            false => ValueKind::Sent,
        };
        let entries: SmallVec<[Entry<'_>; 8]> = self
            .descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.entries)
            .map(|entry| Entry {
                kind,
                ..Entry::new(&entry.key, &entry.value)
            })
            .collect();
        let mut rest = entries.as_slice();
        let descriptors: SmallVec<[Descriptor<'_>; 4]> = self
            .descriptors
            .iter()
            .map(|descriptor| {
                let (entries, after) = rest.split_at(descriptor.entries.len());
                rest = after;
                Descriptor {
                    entries,
                    cost: descriptor.hits_addend.map(Cells::new),
                    refund: descriptor.refund,
                    limit: descriptor.limit,
                }
            })
            .collect();
        Ok(then(&Check {
            domain: &self.domain,
            descriptors: &descriptors,
            cost: Cells::new(self.hits_addend.max(1)),
            peek: self.peek,
        }))
    }

    fn bounded(&self, key_bytes_max: usize) -> Result<(), Refused> {
        within(self.domain.as_bytes(), key_bytes_max).map_err(|wrong| wrong.at("domain"))?;
        count_descriptors(self.descriptors.len())?;
        let native = self.dialect == Dialect::Native;
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            let count = descriptor.entries.len();
            if count > ENTRIES_MAX || (count == 0 && native) {
                count_entries(index, count)?;
            }
            for (nth, entry) in descriptor.entries.iter().enumerate() {
                if entry.key.len() > key_bytes_max || (entry.key.is_empty() && native) {
                    within(&entry.key, key_bytes_max).map_err(|wrong| {
                        wrong.at(&format!("descriptors[{index}].entries[{nth}].key"))
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a check may have that many descriptors.
pub(super) fn count_descriptors(count: usize) -> Result<(), Refused> {
    counted(count, DESCRIPTORS_MAX).map_err(|wrong| wrong.at("descriptors"))
}

/// Whether a descriptor may have that many entries.
pub(super) fn count_entries(index: usize, count: usize) -> Result<(), Refused> {
    let entries = counted(count, ENTRIES_MAX);
    entries.map_err(|wrong| wrong.at(&format!("descriptors[{index}].entries")))
}

/// What is wrong with a part of a check.
enum Wrong {
    Malformed(String),
    OverBound(String),
}

impl Wrong {
    /// The refusal for the part of that name.
    fn at(self, name: &str) -> Refused {
        match self {
            Self::Malformed(what) => Refused::Malformed(format!("{name}: {what}")),
            Self::OverBound(what) => Refused::OverBound(format!("{name}: {what}")),
        }
    }
}

fn counted(count: usize, most: usize) -> Result<(), Wrong> {
    let what = || format!("must be 1 to {most}, are {count}");
    match count {
        0 => Err(Wrong::Malformed(what())),
        _ if count > most => Err(Wrong::OverBound(what())),
        _ => Ok(()),
    }
}

fn within(word: &[u8], bytes_max: usize) -> Result<(), Wrong> {
    match word.len() {
        0 => Err(Wrong::Malformed("must not be empty".to_owned())),
        length if length > bytes_max => Err(Wrong::OverBound(format!(
            "must be at most {bytes_max} bytes, is {length}"
        ))),
        _ => Ok(()),
    }
}
