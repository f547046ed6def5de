//! Bytes into a check. Bound first, then parse; whatever is wrong is named.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use serde::Deserialize;
use smallvec::SmallVec;

use crate::pure::{Cells, Check, Descriptor, Entry, Limit};

/// Descriptors of one check.
pub const DESCRIPTORS_MAX: usize = 64;
/// Entries of one descriptor. Rules nest less deep than this.
pub const ENTRIES_MAX: usize = 32;

/// What is wrong with a request, for whoever sent it.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

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
    #[serde(borrow)]
    pub(super) key: Cow<'a, str>,
    #[serde(borrow, default)]
    pub(super) value: Cow<'a, str>,
}

/// The check in a JSON body.
pub fn from_json(body: &[u8]) -> Result<Asked<'_>, Malformed> {
    parse_json(body)
}

/// What a JSON body holds, or where it goes wrong.
pub(super) fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Malformed> {
    // As text first: bytes would be looked through for every string in them.
    let parsed = str::from_utf8(body).map(serde_json::from_str);
    parsed.ok().and_then(Result::ok).ok_or_else(|| {
        // Parsed once more, only now, to learn where it went wrong.
        let mut again = serde_json::Deserializer::from_slice(body);
        match serde_path_to_error::deserialize::<_, T>(&mut again) {
            Err(error) if error.path().iter().next().is_some() => {
                Malformed(format!("{}: {}", error.path(), error.inner()))
            }
            Err(error) => Malformed(error.into_inner().to_string()),
            Ok(_) => Malformed("trailing characters after the check".to_owned()),
        }
    })
}

/// The check in a query: one descriptor, entries in the order of the query.
pub fn from_query(query: &str) -> Result<Asked<'_>, Malformed> {
    let mut asked = Asked::default();
    let mut entries: SmallVec<[AskedEntry<'_>; 2]> = SmallVec::new();
    let mut reserved: SmallVec<[&str; 4]> = SmallVec::new();
    for pair in query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .take(ENTRIES_MAX + 5)
    {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (key, value) = (decoded(key)?, decoded(value)?);
        let name = ["domain", "hits_addend", "peek", "deny_status"]
            .into_iter()
            .find(|name| *name == key);
        if entries.iter().any(|entry| entry.key == key)
            || name.is_some_and(|name| reserved.contains(&name))
        {
            return Err(Malformed(format!("{key}: given twice, must be given once")));
        }
        reserved.extend(name);
        match name {
            Some("domain") => asked.domain = value,
            Some("hits_addend") => asked.hits_addend = number(&key, &value)?,
            Some("peek") => asked.peek = flag(&value)?,
            Some(_) => asked.deny_status = Some(status(&value)?),
            None => entries.push(AskedEntry { key, value }),
        }
    }
    if entries.is_empty() {
        return Err(Malformed(
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
pub fn from_words<'a>(words: &[&'a [u8]], key_bytes_max: usize) -> Result<Words<'a>, Malformed> {
    let bounded = |bytes_min, word| text(word, bytes_min, key_bytes_max);
    let domain = words.first().copied().unwrap_or_default();
    let mut rest = words.get(1..).unwrap_or_default();
    let mut check = Words {
        domain: bounded(1, domain).map_err(|wrong| Malformed(format!("domain: {wrong}")))?,
        entries: SmallVec::new(),
        cost: 1,
        peek: false,
    };
    let mut options = false;
    while let [word, after @ ..] = rest {
        let nth = check.entries.len();
        let is = |name: &[u8]| nth > 0 && word.eq_ignore_ascii_case(name);
        let part = |name| move |wrong| Malformed(format!("entries[{nth}].{name}: {wrong}"));
        rest = match after {
            [given, after @ ..] if is(b"COST") => {
                check.cost = number("COST", &String::from_utf8_lossy(given))?;
                options = true;
                after
            }
            after if is(b"PEEK") => {
                check.peek = true;
                options = true;
                after
            }
            [value, after @ ..] if !options && nth < ENTRIES_MAX => {
                check.entries.push(Entry {
                    key: bounded(1, word).map_err(part("key"))?,
                    value: bounded(0, value).map_err(part("value"))?,
                });
                after
            }
            _ => {
                let word = String::from_utf8_lossy(word.get(..32).unwrap_or(word));
                return Err(Malformed(format!(
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

fn text(bytes: &[u8], bytes_min: usize, bytes_max: usize) -> Result<&str, String> {
    let text = str::from_utf8(bytes).map_err(|_| "must be UTF-8".to_owned())?;
    within(text, bytes_min, bytes_max).map(|()| text)
}

fn decoded(text: &str) -> Result<Cow<'_, str>, Malformed> {
    let malformed = |_| Malformed("the query is not UTF-8 once decoded".to_owned());
    match text.contains('+') {
        // As forms are encoded: a plus is a space, a real one comes as %2B.
        true => {
            let spaced = text.replace('+', " ");
            Ok(Cow::Owned(
                percent_decode_str(&spaced)
                    .decode_utf8()
                    .map_err(malformed)?
                    .into_owned(),
            ))
        }
        false => percent_decode_str(text).decode_utf8().map_err(malformed),
    }
}

fn number(name: &str, value: &str) -> Result<u64, Malformed> {
    value.parse().map_err(|_| {
        Malformed(format!(
            "{name}: must be a whole number from 0 to {}, is {value:?}",
            u64::MAX
        ))
    })
}

fn flag(value: &str) -> Result<bool, Malformed> {
    match value {
        "" | "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err(Malformed(format!(
            "peek: must be true or false, is {value:?}"
        ))),
    }
}

fn status(value: &str) -> Result<u16, Malformed> {
    match value.parse() {
        Ok(status @ 400..=599) => Ok(status),
        Ok(_) | Err(_) => Err(Malformed(format!(
            "deny_status: must be a status from 400 to 599, is {value:?}"
        ))),
    }
}

impl Asked<'_> {
    /// Hands the check to `then`, once it is within the bounds.
    pub fn check<R>(
        &self,
        key_bytes_max: usize,
        then: impl FnOnce(&Check<'_>) -> R,
    ) -> Result<R, Malformed> {
        self.bounded(key_bytes_max)?;
        let entries: SmallVec<[Entry<'_>; 8]> = self
            .descriptors
            .iter()
            .flat_map(|descriptor| &descriptor.entries)
            .map(|entry| Entry {
                key: &entry.key,
                value: &entry.value,
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

    fn bounded(&self, key_bytes_max: usize) -> Result<(), Malformed> {
        within(&self.domain, 1, key_bytes_max)
            .map_err(|wrong| Malformed(format!("domain: {wrong}")))?;
        count_descriptors(self.descriptors.len())?;
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            count_entries(index, descriptor.entries.len())?;
            for (nth, entry) in descriptor.entries.iter().enumerate() {
                let part = |name| {
                    move |wrong| {
                        Malformed(format!(
                            "descriptors[{index}].entries[{nth}].{name}: {wrong}"
                        ))
                    }
                };
                within(&entry.key, 1, key_bytes_max).map_err(part("key"))?;
                within(&entry.value, 0, key_bytes_max).map_err(part("value"))?;
            }
        }
        Ok(())
    }
}

/// Whether a check may have that many descriptors.
pub(super) fn count_descriptors(count: usize) -> Result<(), Malformed> {
    match count {
        1..=DESCRIPTORS_MAX => Ok(()),
        _ => Err(Malformed(format!(
            "descriptors: must be 1 to {DESCRIPTORS_MAX}, are {count}"
        ))),
    }
}

/// Whether a descriptor may have that many entries.
pub(super) fn count_entries(index: usize, count: usize) -> Result<(), Malformed> {
    match count {
        1..=ENTRIES_MAX => Ok(()),
        _ => Err(Malformed(format!(
            "descriptors[{index}].entries: must be 1 to {ENTRIES_MAX}, are {count}"
        ))),
    }
}

fn within(text: &str, bytes_min: usize, bytes_max: usize) -> Result<(), String> {
    match text.len() {
        length if length < bytes_min => Err("must not be empty".to_owned()),
        length if length > bytes_max => {
            Err(format!("must be at most {bytes_max} bytes, is {length}"))
        }
        _ => Ok(()),
    }
}
