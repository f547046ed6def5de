//! A check out of a `RateLimitRequest`, in protobuf or in protobuf's JSON.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::proto::rate_limit_descriptor::RateLimitOverride;
use super::proto::{RateLimitDescriptor, RateLimitRequest, RateLimitUnit};
use crate::protocol::json::{self, bytes};
use crate::protocol::raw_check::{
    DESCRIPTORS_MAX, Dialect, ENTRIES_MAX, RawCheck, RawDescriptor, RawEntry, Refusal,
    ensure_descriptors, ensure_entries,
};
use tidegate_core::pure::{Limit, LimitFault, Unit};

/// The check in a protobuf message. What is over a bound is only counted, for the refusal.
pub fn from_protobuf(request: &RateLimitRequest) -> Result<RawCheck<'_>, Refusal> {
    if request.descriptors.len() > DESCRIPTORS_MAX {
        ensure_descriptors(request.descriptors.len())?;
    }
    let descriptors = request.descriptors.iter().enumerate();
    Ok(RawCheck {
        domain: Cow::Borrowed(&request.domain),
        hits_addend: request.hits_addend.into(),
        descriptors: descriptors
            .map(|(index, descriptor)| descriptor_of(descriptor, index))
            .collect::<Result<_, _>>()?,
        dialect: Dialect::Envoy,
        ..RawCheck::default()
    })
}

fn descriptor_of(
    descriptor: &RateLimitDescriptor,
    index: usize,
) -> Result<RawDescriptor<'_>, Refusal> {
    if descriptor.entries.len() > ENTRIES_MAX {
        ensure_entries(index, descriptor.entries.len())?;
    }
    let entries = descriptor.entries.iter().map(|entry| RawEntry {
        key: Cow::Borrowed(&entry.key),
        value: Cow::Borrowed(&entry.value),
    });
    let limit = descriptor.limit.as_ref();
    Ok(RawDescriptor {
        entries: entries.collect(),
        hits_addend: descriptor.hits_addend,
        refund: descriptor.is_negative_hits,
        limit: limit.map(|limit| caller_limit(limit, index)).transpose()?,
    })
}

/// The caller-supplied limit. One that makes no sense is over a bound, because a malformed check would let the request
/// pass.
fn caller_limit(limit: &RateLimitOverride, index: usize) -> Result<Limit, Refusal> {
    let at = || format!("descriptors[{index}].limit");
    let Some(unit) = unit_numbered(limit.unit) else {
        let wrong = "must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
        return Err(Refusal::OverBound(format!("{}.unit: {wrong}", at())));
    };
    let multiplier = limit.unit_multiplier.unwrap_or(1).into();
    Limit::new(limit.requests_per_unit.into(), unit, multiplier, None).map_err(|fault| {
        let field = match fault {
            LimitFault::NoWindow | LimitFault::TooLong => "unit_multiplier",
            LimitFault::NoBurst | LimitFault::TooFast => "requests_per_unit",
        };
        Refusal::OverBound(format!("{}.{field}: {fault}", at()))
    })
}

fn unit_numbered(number: i32) -> Option<Unit> {
    match RateLimitUnit::try_from(number).ok()? {
        RateLimitUnit::Unknown => None,
        RateLimitUnit::Second => Some(Unit::Second),
        RateLimitUnit::Minute => Some(Unit::Minute),
        RateLimitUnit::Hour => Some(Unit::Hour),
        RateLimitUnit::Day => Some(Unit::Day),
        RateLimitUnit::Month => Some(Unit::Month),
        RateLimitUnit::Year => Some(Unit::Year),
    }
}

/// The check in a JSON body.
pub fn from_json(body: &[u8]) -> Result<RawCheck<'_>, Refusal> {
    let request: JsonRequest<'_> = json::parse(body)?;
    let mut raw = RawCheck {
        domain: request.domain.unwrap_or_default(),
        hits_addend: request
            .hits_addend
            .map_or(0, |WholeNumber(hits)| hits.into()),
        dialect: Dialect::Envoy,
        ..RawCheck::default()
    };
    let descriptors = request.descriptors.unwrap_or_default();
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        raw.descriptors.push(descriptor.into_raw(index)?);
    }
    Ok(raw)
}

/// As protobuf's JSON has it: names in camel case or as in the proto file, and null for an absent value.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest<'a> {
    #[serde(borrow)]
    domain: Option<Cow<'a, str>>,
    #[serde(borrow)]
    descriptors: Option<Vec<JsonDescriptor<'a>>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<WholeNumber<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor<'a> {
    #[serde(borrow)]
    entries: Option<Vec<JsonEntry<'a>>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<WholeNumber<u64>>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry<'a> {
    #[serde(borrow, default)]
    key: Option<JsonBytes<'a>>,
    #[serde(borrow, default)]
    value: Option<JsonBytes<'a>>,
}

#[derive(Default, Deserialize)]
struct JsonBytes<'a>(#[serde(borrow, deserialize_with = "bytes")] Cow<'a, [u8]>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonLimit {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<WholeNumber<u32>>,
    unit: Option<JsonUnit>,
    #[serde(alias = "unitMultiplier")]
    unit_multiplier: Option<WholeNumber<u32>>,
}

impl<'a> JsonDescriptor<'a> {
    fn into_raw(self, index: usize) -> Result<RawDescriptor<'a>, Refusal> {
        let entries = self.entries.unwrap_or_default();
        let entry = |entry: JsonEntry<'a>| RawEntry {
            key: entry.key.unwrap_or_default().0,
            value: entry.value.unwrap_or_default().0,
        };
        let limit = self.limit.map(|limit| RateLimitOverride {
            requests_per_unit: limit
                .requests_per_unit
                .map_or(0, |WholeNumber(requests)| requests),
            unit: limit.unit.map_or(0, |JsonUnit(unit)| unit),
            unit_multiplier: limit.unit_multiplier.map(|WholeNumber(units)| units),
        });
        Ok(RawDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            hits_addend: self.hits_addend.map(|WholeNumber(hits)| hits),
            refund: self.is_negative_hits.unwrap_or(false),
            limit: limit.map(|limit| caller_limit(&limit, index)).transpose()?,
        })
    }
}

/// A whole number, or one in quotes: large ones do not survive JavaScript otherwise.
#[derive(Clone, Copy)]
struct WholeNumber<N>(N);

impl<'de, N: TryFrom<u64>> Deserialize<'de> for WholeNumber<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(NumberOrTextVisitor("a whole number"))?;
        let number = match number {
            NumberOrText::Number(number) => Some(number),
            NumberOrText::Text(text) => text.parse().ok(),
        };
        let number = number.and_then(|number| N::try_from(number).ok());
        number
            .map(Self)
            .ok_or_else(|| de::Error::custom("is not a whole number that fits"))
    }
}

/// A unit by its name or its number.
#[derive(Clone, Copy)]
struct JsonUnit(i32);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match deserializer.deserialize_any(NumberOrTextVisitor("a unit"))? {
            NumberOrText::Number(number) => i32::try_from(number).ok(),
            NumberOrText::Text(name) => RateLimitUnit::from_str_name(&name).map(i32::from),
        };
        number
            .map(Self)
            .ok_or_else(|| de::Error::custom("is not a unit"))
    }
}

enum NumberOrText {
    Number(u64),
    Text(String),
}

/// Accepts a number or a text, where its name says what is expected.
struct NumberOrTextVisitor(&'static str);

impl Visitor<'_> for NumberOrTextVisitor {
    type Value = NumberOrText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }

    fn visit_u64<E>(self, number: u64) -> Result<NumberOrText, E> {
        Ok(NumberOrText::Number(number))
    }

    fn visit_str<E>(self, text: &str) -> Result<NumberOrText, E> {
        Ok(NumberOrText::Text(text.to_owned()))
    }
}
