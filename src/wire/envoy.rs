//! A check as Envoy asks it, a `RateLimitRequest`: in protobuf, or in protobuf's JSON.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

use super::decode::{
    Asked, AskedDescriptor, AskedEntry, DESCRIPTORS_MAX, ENTRIES_MAX, Malformed, count_descriptors,
    count_entries, parse_json,
};
use super::proto::RateLimitUnit;
use super::protobuf::{Broken, Fields};
use crate::pure::{Limit, LimitFault, Unit};

impl From<Broken> for Malformed {
    fn from(broken: Broken) -> Self {
        Self(format!("the message {broken}"))
    }
}

/// The check in a protobuf message.
pub fn from_protobuf(message: &[u8]) -> Result<Asked<'_>, Malformed> {
    let mut asked = Asked::default();
    let mut count = 0_usize;
    for field in Fields(message) {
        match field? {
            (1, domain) => asked.domain = Cow::Borrowed(domain.text()?),
            (2, descriptor) => {
                // Those beyond the bound are counted, to be told of, and not kept.
                if count < DESCRIPTORS_MAX {
                    asked
                        .descriptors
                        .push(descriptor_of(descriptor.fields()?, count)?);
                }
                count += 1;
            }
            (3, hits) => asked.hits_addend = u64::from(low_half(hits.number()?)),
            _ => {}
        }
    }
    if count > DESCRIPTORS_MAX {
        count_descriptors(count)?;
    }
    Ok(asked)
}

fn descriptor_of(fields: Fields<'_>, index: usize) -> Result<AskedDescriptor<'_>, Malformed> {
    let mut descriptor = AskedDescriptor::default();
    let mut carried: Option<Carried> = None;
    let mut count = 0_usize;
    for field in fields {
        match field? {
            (1, entry) => {
                if count < ENTRIES_MAX {
                    descriptor.entries.push(entry_of(entry.fields()?)?);
                }
                count += 1;
            }
            // A message that is said twice is one message.
            (2, limit) => carried.get_or_insert_default().read(limit.fields()?)?,
            (3, hits) => {
                let before = descriptor.hits_addend.unwrap_or(0);
                descriptor.hits_addend = Some(hits.fields()?.wrapped(before)?);
            }
            (4, negative) => descriptor.refund = negative.number()? != 0,
            _ => {}
        }
    }
    if count > ENTRIES_MAX {
        count_entries(index, count)?;
    }
    descriptor.limit = carried.map(|carried| carried.limit(index)).transpose()?;
    Ok(descriptor)
}

fn entry_of(fields: Fields<'_>) -> Result<AskedEntry<'_>, Broken> {
    let mut entry = AskedEntry::default();
    for field in fields {
        match field? {
            (1, key) => entry.key = Cow::Borrowed(key.text()?),
            (2, value) => entry.value = Cow::Borrowed(value.text()?),
            _ => {}
        }
    }
    Ok(entry)
}

/// A `uint32` or an enum that came with more bits has the low ones, as protobuf has it.
fn low_half(number: u64) -> u32 {
    u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}

/// A limit that the caller carries, as it was sent.
#[derive(Clone, Copy, Debug, Default)]
struct Carried {
    requests: u32,
    unit: u32,
    multiplier: Option<u32>,
}

impl Carried {
    fn read(&mut self, fields: Fields<'_>) -> Result<(), Broken> {
        for field in fields {
            match field? {
                (1, requests) => self.requests = low_half(requests.number()?),
                (2, unit) => self.unit = low_half(unit.number()?),
                (3, multiplier) => {
                    let before = u64::from(self.multiplier.unwrap_or(0));
                    self.multiplier = Some(low_half(multiplier.fields()?.wrapped(before)?));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn limit(self, index: usize) -> Result<Limit, Malformed> {
        let at = format!("descriptors[{index}].limit");
        let unit = i32::try_from(self.unit).ok().and_then(unit_numbered);
        let Some(unit) = unit else {
            let wrong = "must be SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
            return Err(Malformed(format!("{at}.unit: {wrong}")));
        };
        let multiplier = u64::from(self.multiplier.unwrap_or(1));
        Limit::new(self.requests.into(), unit, multiplier, None).map_err(|fault| {
            let field = match fault {
                LimitFault::NoWindow | LimitFault::TooLong => "unit_multiplier",
                LimitFault::NoBurst | LimitFault::TooFast => "requests_per_unit",
            };
            Malformed(format!("{at}.{field}: {fault}"))
        })
    }
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
pub fn from_json(body: &[u8]) -> Result<Asked<'_>, Malformed> {
    let request: JsonRequest<'_> = parse_json(body)?;
    let mut asked = Asked {
        domain: request.domain.unwrap_or_default(),
        hits_addend: request.hits_addend.map_or(0, |Whole(hits)| hits.into()),
        ..Asked::default()
    };
    let descriptors = request.descriptors.unwrap_or_default();
    for (index, descriptor) in descriptors.into_iter().enumerate() {
        asked.descriptors.push(descriptor.asked(index)?);
    }
    Ok(asked)
}

/// As protobuf's JSON has it: names in camel case or as in the proto file, and null for what is not said.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest<'a> {
    #[serde(borrow)]
    domain: Option<Cow<'a, str>>,
    #[serde(borrow)]
    descriptors: Option<Vec<JsonDescriptor<'a>>>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Whole<u32>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonDescriptor<'a> {
    #[serde(borrow)]
    entries: Option<Vec<JsonEntry<'a>>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hitsAddend")]
    hits_addend: Option<Whole<u64>>,
    #[serde(alias = "isNegativeHits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry<'a> {
    #[serde(borrow)]
    key: Option<Cow<'a, str>>,
    #[serde(borrow)]
    value: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonLimit {
    #[serde(alias = "requestsPerUnit")]
    requests_per_unit: Option<Whole<u32>>,
    unit: Option<JsonUnit>,
    #[serde(alias = "unitMultiplier")]
    unit_multiplier: Option<Whole<u32>>,
}

impl<'a> JsonDescriptor<'a> {
    fn asked(self, index: usize) -> Result<AskedDescriptor<'a>, Malformed> {
        let entries = self.entries.unwrap_or_default();
        let entry = |entry: JsonEntry<'a>| AskedEntry {
            key: entry.key.unwrap_or_default(),
            value: entry.value.unwrap_or_default(),
        };
        let carried = self.limit.map(|limit| Carried {
            requests: limit
                .requests_per_unit
                .map_or(0, |Whole(requests)| requests),
            unit: limit.unit.map_or(0, |JsonUnit(unit)| unit),
            multiplier: limit.unit_multiplier.map(|Whole(units)| units),
        });
        Ok(AskedDescriptor {
            entries: entries.into_iter().map(entry).collect(),
            hits_addend: self.hits_addend.map(|Whole(hits)| hits),
            refund: self.is_negative_hits.unwrap_or(false),
            limit: carried.map(|carried| carried.limit(index)).transpose()?,
        })
    }
}

/// A whole number, or one in quotes: large ones do not survive JavaScript otherwise.
#[derive(Clone, Copy)]
struct Whole<N>(N);

impl<'de, N: TryFrom<u64>> Deserialize<'de> for Whole<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = deserializer.deserialize_any(Quoted("a whole number"))?;
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
struct JsonUnit(u32);

impl<'de> Deserialize<'de> for JsonUnit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let number = match deserializer.deserialize_any(Quoted("a unit"))? {
            NumberOrText::Number(number) => u32::try_from(number).ok(),
            NumberOrText::Text(name) => RateLimitUnit::from_str_name(&name)
                .and_then(|unit| u32::try_from(i32::from(unit)).ok()),
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

/// Takes a number or a text, where this is expected.
struct Quoted(&'static str);

impl Visitor<'_> for Quoted {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost::Message;

    use super::super::proto::rate_limit_descriptor::{Entry, RateLimitOverride};
    use super::super::proto::{RateLimitDescriptor, RateLimitRequest};
    use super::*;

    /// What we read, as the message that prost would have read.
    fn told(asked: &Asked<'_>) -> RateLimitRequest {
        let entry = |entry: &AskedEntry<'_>| Entry {
            key: entry.key.clone().into_owned(),
            value: entry.value.clone().into_owned(),
        };
        let descriptor = |descriptor: &AskedDescriptor<'_>| RateLimitDescriptor {
            entries: descriptor.entries.iter().map(entry).collect(),
            // Checked by what it limits, below.
            limit: None,
            hits_addend: descriptor.hits_addend,
            is_negative_hits: descriptor.refund,
        };
        RateLimitRequest {
            domain: asked.domain.clone().into_owned(),
            descriptors: asked.descriptors.iter().map(descriptor).collect(),
            hits_addend: u32::try_from(asked.hits_addend).unwrap(),
        }
    }

    /// Both readers find the same in these bytes. We may refuse what prost reads, if `refusal` allows; never the reverse.
    fn check(bytes: &[u8], refusal: bool) {
        let prost = RateLimitRequest::decode(bytes);
        match from_protobuf(bytes) {
            Ok(ours) => {
                let mut prost = prost.expect("prost reads what we read");
                for (descriptor, asked) in prost.descriptors.iter_mut().zip(&ours.descriptors) {
                    let limit = descriptor.limit.take();
                    let limit = limit.map(|limit| (u64::from(limit.requests_per_unit), limit.unit));
                    let ours = asked.limit.map(|limit| (limit.requests(), limit.unit()));
                    assert_eq!(limit.map(|limit| limit.0), ours.map(|ours| ours.0));
                    assert_eq!(
                        limit.and_then(|limit| unit_numbered(limit.1)),
                        ours.map(|ours| ours.1)
                    );
                }
                assert_eq!(told(&ours), prost);
            }
            Err(_) => assert!(refusal || prost.is_err(), "{prost:?}"),
        }
    }

    prop_compose! {
        fn a_limit()(
            requests_per_unit in 0..1_000_000_u32,
            unit in 1..=6,
            unit_multiplier in proptest::option::of(1..10_u32),
        ) -> RateLimitOverride {
            RateLimitOverride { requests_per_unit, unit, unit_multiplier }
        }
    }

    prop_compose! {
        fn a_descriptor()(
            entries in proptest::collection::vec((".{0,9}", ".{0,9}"), 0..4),
            limit in proptest::option::of(a_limit()),
            hits_addend: Option<u64>,
            is_negative_hits: bool,
        ) -> RateLimitDescriptor {
            let entry = |(key, value)| Entry { key, value };
            let entries = entries.into_iter().map(entry).collect();
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        }
    }

    prop_compose! {
        fn a_request()(
            domain in ".{0,9}",
            descriptors in proptest::collection::vec(a_descriptor(), 0..4),
            hits_addend: u32,
        ) -> RateLimitRequest {
            RateLimitRequest { domain, descriptors, hits_addend }
        }
    }

    proptest! {
        #[test]
        fn what_prost_writes_we_read(request in a_request()) {
            check(&request.encode_to_vec(), false);
        }

        /// As protobuf has it, two messages one after the other are one.
        #[test]
        fn messages_are_merged(first in a_request(), second in a_request()) {
            check(&[first.encode_to_vec(), second.encode_to_vec()].concat(), false);
        }

        #[test]
        fn what_we_read_of_a_garbled_message_is_what_prost_reads(
            request in a_request(),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = request.encode_to_vec();
            for (place, byte) in changes {
                let place = place.index(bytes.len().max(1));
                if let Some(old) = bytes.get_mut(place) {
                    *old = byte;
                }
            }
            check(&bytes, true);
        }

        #[test]
        fn noise_is_read_as_prost_reads_it(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            check(&bytes, true);
        }
    }
}
