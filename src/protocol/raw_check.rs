//! A check as a client sent it, and its bounds.
//!
//! A [`RawCheck`] borrows from the request. It becomes a [`Check`] only within its bounds; the refusal of any other
//! names the part that is wrong. Every bound is checked before anything is made of what it bounds.

use std::borrow::Cow;

use serde::Deserialize;
use smallvec::SmallVec;

use super::json::bytes;
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Limit, ValueKind};

/// Descriptors of one check.
pub(super) const DESCRIPTORS_MAX: usize = 64;
/// Entries of one descriptor. Rules nest less deep than this.
pub(super) const ENTRIES_MAX: usize = 32;

/// Bytes of a wrong word that its refusal repeats.
const EXCERPT_BYTES_MAX: usize = 32;

/// Why a request is not decided, in words for the client.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It is no check.
    #[error("{0}")]
    Malformed(String),
    /// It is a check, but over a bound. Envoy lets a request pass whose check fails, so Envoy's protocol denies this
    /// one.
    #[error("{0}")]
    OverBound(String),
}

/// Whose check it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Ours: a descriptor without entries and an entry without a key are refused.
    #[default]
    Native,
    /// Envoy's: they are valid, and no rule matches them.
    Envoy,
}

/// A check as a client sent it.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawCheck<'a> {
    #[serde(borrow)]
    pub(super) domain: Cow<'a, str>,
    #[serde(default)]
    pub(super) hits_addend: u64,
    #[serde(default)]
    pub(super) peek: bool,
    #[serde(borrow)]
    pub(super) descriptors: SmallVec<[RawDescriptor<'a>; 1]>,
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
pub(super) struct RawDescriptor<'a> {
    #[serde(borrow)]
    pub(super) entries: SmallVec<[RawEntry<'a>; 2]>,
    pub(super) hits_addend: Option<u64>,
    /// Whether it gives cells back; only Envoy can.
    #[serde(skip)]
    pub(super) refund: bool,
    /// A caller-supplied limit; only Envoy has one.
    #[serde(skip)]
    pub(super) limit: Option<Limit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawEntry<'a> {
    #[serde(borrow, deserialize_with = "bytes")]
    pub(super) key: Cow<'a, [u8]>,
    #[serde(borrow, default, deserialize_with = "bytes")]
    pub(super) value: Cow<'a, [u8]>,
}

impl RawCheck<'_> {
    /// Hands the check to `then`, if it is within the bounds.
    pub fn with_check<R>(
        &self,
        key_bytes_max: usize,
        then: impl FnOnce(&Check<'_>) -> R,
    ) -> Result<R, Refusal> {
        self.ensure_bounded(key_bytes_max)?;
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

    fn ensure_bounded(&self, key_bytes_max: usize) -> Result<(), Refusal> {
        ensure_word(self.domain.as_bytes(), key_bytes_max).map_err(|fault| fault.at("domain"))?;
        ensure_descriptors(self.descriptors.len())?;
        let native = self.dialect == Dialect::Native;
        for (index, descriptor) in self.descriptors.iter().enumerate() {
            let count = descriptor.entries.len();
            if count > ENTRIES_MAX || (count == 0 && native) {
                ensure_entries(index, count)?;
            }
            for (nth, entry) in descriptor.entries.iter().enumerate() {
                if entry.key.len() > key_bytes_max || (entry.key.is_empty() && native) {
                    ensure_word(&entry.key, key_bytes_max).map_err(|fault| {
                        fault.at(&format!("descriptors[{index}].entries[{nth}].key"))
                    })?;
                }
            }
        }
        Ok(())
    }
}

/// Refuses a check of that many descriptors, unless it may have them.
pub(super) fn ensure_descriptors(count: usize) -> Result<(), Refusal> {
    ensure_count(count, DESCRIPTORS_MAX).map_err(|fault| fault.at("descriptors"))
}

/// Refuses a descriptor of that many entries, unless it may have them.
pub(super) fn ensure_entries(index: usize, count: usize) -> Result<(), Refusal> {
    let entries = ensure_count(count, ENTRIES_MAX);
    entries.map_err(|fault| fault.at(&format!("descriptors[{index}].entries")))
}

/// What is wrong with a part of a check.
pub(super) enum PartFault {
    Malformed(String),
    OverBound(String),
}

impl PartFault {
    /// The refusal for the part of that name.
    pub(super) fn at(self, name: &str) -> Refusal {
        match self {
            Self::Malformed(what) => Refusal::Malformed(format!("{name}: {what}")),
            Self::OverBound(what) => Refusal::OverBound(format!("{name}: {what}")),
        }
    }
}

fn ensure_count(count: usize, most: usize) -> Result<(), PartFault> {
    let what = || format!("must be 1 to {most}, are {count}");
    match count {
        0 => Err(PartFault::Malformed(what())),
        _ if count > most => Err(PartFault::OverBound(what())),
        _ => Ok(()),
    }
}

/// Refuses a domain or a key that is empty or too long.
pub(super) fn ensure_word(word: &[u8], bytes_max: usize) -> Result<(), PartFault> {
    match word.len() {
        0 => Err(PartFault::Malformed("must not be empty".to_owned())),
        length if length > bytes_max => Err(PartFault::OverBound(format!(
            "must be at most {bytes_max} bytes, is {length}"
        ))),
        _ => Ok(()),
    }
}

/// The number of cells that a client wrote for the option of that name.
pub(super) fn whole_number(name: &str, value: &[u8]) -> Result<u64, Refusal> {
    let number = str::from_utf8(value)
        .ok()
        .and_then(|text| text.parse().ok());
    number.ok_or_else(|| {
        let found = excerpt(value);
        let most = u64::MAX;
        Refusal::Malformed(format!(
            "{name}: must be a whole number from 0 to {most}, is {found:?}"
        ))
    })
}

/// The beginning of a wrong word, for its refusal.
pub(super) fn excerpt(word: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(word.get(..EXCERPT_BYTES_MAX).unwrap_or(word))
}
