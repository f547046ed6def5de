//! Reads `rate_limit` in its short or long form: how many cells may pass, and which algorithm counts them.

use super::error::{Spot, quote};
use super::fields::RawLimit;
use super::raw::{Field, RawRate};
use super::reader::{FieldReader, FieldValue};
use super::short_form::{self, UncheckedLimit};
use tidegate_core::pure::limit::CAPACITY_MAX;
use tidegate_core::pure::time::SECOND;
use tidegate_core::pure::{Algorithm, Limit, LimitFault, Unit};

/// The largest number that `requests_per_unit` and `burst` may be.
const NUMBER_MAX: u64 = 1_000_000_000_000;
/// Seconds in the longest window, and so the largest number of any unit in it.
const SECONDS_MAX: u64 = CAPACITY_MAX.get() / SECOND;

/// The checked content of `rate_limit`.
pub struct RateLimit {
    /// `None`: unlimited, or faulty.
    pub limit: Option<Limit>,
    pub algorithm: Algorithm,
    pub name: Option<FieldValue>,
    pub replaces: Vec<FieldValue>,
}

/// Reads the `rate_limit` at `at`.
pub fn read_rate_limit(
    reader: &mut FieldReader<'_>,
    at: &Spot,
    rate: &RawRate,
    default: Algorithm,
) -> Option<RateLimit> {
    let text = match rate {
        RawRate::Long(raw) => return Some(long(reader, at, raw, default)),
        RawRate::Short(text) => reader.substitute(at.clone(), text)?.text,
        RawRate::List => "a list".to_owned(),
    };
    let Some(unchecked) = short_form::parse(&text) else {
        let found = match rate {
            RawRate::List => text,
            RawRate::Short(_) | RawRate::Long(_) => quote(&text),
        };
        let text = format!(
            "must be a map with unit and requests_per_unit, or N/unit, N/30s or \"N/minute burst M\" with unit one of {}, \
             not {found}",
            units()
        );
        reader.fault(at, text);
        return None;
    };
    if unchecked.burst.is_some() && default.is_windowed() {
        reader.fault(at, no_burst(default));
    }
    Some(RateLimit {
        limit: limit(reader, unchecked, &|fault| {
            let part = match fault {
                LimitFault::NoWindow => "the window",
                LimitFault::NoBurst => "the burst",
                LimitFault::TooFast => "the rate",
                LimitFault::TooLong => "the limit",
            };
            (at.clone(), format!("{part} {fault}"))
        }),
        algorithm: default,
        name: None,
        replaces: Vec::new(),
    })
}

fn long(reader: &mut FieldReader<'_>, at: &Spot, raw: &RawLimit, default: Algorithm) -> RateLimit {
    reader.unknown(at, raw);
    let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let algorithm = reader.choice(at, ("algorithm", &raw.algorithm), &algorithms);
    let algorithm = algorithm.unwrap_or(default);
    let unlimited = reader.flag(at, ("unlimited", &raw.unlimited)) == Some(true);
    let unchecked = unchecked(reader, at, raw, unlimited);
    let name = reader.filled(at, ("name", &raw.name));
    let replaces = replaces(reader, at, raw, name.as_ref());
    let limit = unchecked.and_then(|unchecked| {
        if unchecked.burst.is_some() && algorithm.is_windowed() {
            reader.fault(&spot_of(at, "burst", &raw.burst), no_burst(algorithm));
            return None;
        }
        limit(reader, unchecked, &|fault| {
            let spot = match fault {
                LimitFault::NoWindow => spot_of(at, "unit_multiplier", &raw.unit_multiplier),
                LimitFault::NoBurst => spot_of(at, "burst", &raw.burst),
                LimitFault::TooFast => spot_of(at, "requests_per_unit", &raw.requests_per_unit),
                LimitFault::TooLong if raw.burst.found().is_some() => {
                    spot_of(at, "burst", &raw.burst)
                }
                LimitFault::TooLong => spot_of(at, "unit_multiplier", &raw.unit_multiplier),
            };
            (spot, fault.to_string())
        })
    });
    RateLimit {
        limit,
        algorithm,
        name,
        replaces,
    }
}

/// Reads the numbers; `None` if a required one is missing. With `unlimited` there must be none of them.
fn unchecked(
    reader: &mut FieldReader<'_>,
    at: &Spot,
    raw: &RawLimit,
    unlimited: bool,
) -> Option<UncheckedLimit> {
    let fields = [
        ("requests_per_unit", &raw.requests_per_unit),
        ("unit", &raw.unit),
        ("unit_multiplier", &raw.unit_multiplier),
        ("burst", &raw.burst),
    ];
    if unlimited {
        for (name, field) in fields
            .into_iter()
            .filter(|(_, field)| field.found().is_some())
        {
            let text = "has no meaning beside unlimited: true: remove one of the two";
            reader.fault(&spot_of(at, name, field), text);
        }
        return None;
    }
    let [requests, unit, unit_multiplier, burst] = fields;
    if requests.1.found().is_none() {
        let text = "is missing: say how many may pass per unit (0 denies every check)";
        reader.fault(&at.field(requests.0), text);
    }
    if unit.1.found().is_none() {
        let text = format!("is missing: say one of {}", units());
        reader.fault(&at.field(unit.0), text);
    }
    let requests = reader.number(at, requests, 0..=NUMBER_MAX);
    let unit = reader.text(at, unit).and_then(|value| {
        let unit = Unit::named(&value.text);
        if unit.is_none() {
            let text = format!("must be one of {}, not {}", units(), quote(&value.text));
            reader.fault(&value.spot, text);
        }
        unit
    });
    let multiplier_given = unit_multiplier.1.found().is_some();
    let unit_multiplier = reader.number(at, unit_multiplier, 1..=SECONDS_MAX);
    let burst_given = burst.1.found().is_some();
    let burst = reader.number(at, burst, 0..=NUMBER_MAX);
    if (multiplier_given && unit_multiplier.is_none()) || (burst_given && burst.is_none()) {
        return None;
    }
    Some(UncheckedLimit {
        requests: requests?,
        unit: unit?,
        unit_multiplier: unit_multiplier.unwrap_or(1),
        burst,
    })
}

/// Builds the limit. Warns if the burst is so small that pauses of the caller's scheduler already waste rate.
fn limit(
    reader: &mut FieldReader<'_>,
    unchecked: UncheckedLimit,
    blame: &dyn Fn(LimitFault) -> (Spot, String),
) -> Option<Limit> {
    let UncheckedLimit {
        requests,
        unit,
        unit_multiplier,
        burst,
    } = unchecked;
    match Limit::new(requests, unit, unit_multiplier, burst) {
        Ok(limit) => {
            let seconds = u128::from(unit.seconds()) * u128::from(unit_multiplier);
            if u128::from(limit.burst().get()) * 100 * seconds < u128::from(requests) {
                let (spot, _) = blame(LimitFault::NoBurst);
                let text = format!(
                    "a burst of {} is less than 10 ms of the rate: steady traffic will be denied below it",
                    limit.burst()
                );
                reader.warn(&spot, text);
            }
            Some(limit)
        }
        Err(fault) => {
            let (spot, text) = blame(fault);
            reader.fault(&spot, text);
            None
        }
    }
}

fn replaces(
    reader: &mut FieldReader<'_>,
    at: &Spot,
    raw: &RawLimit,
    own: Option<&FieldValue>,
) -> Vec<FieldValue> {
    let items = reader.items(at, ("replaces", &raw.replaces));
    let mut replaces = Vec::new();
    for (spot, item) in items.into_iter().flatten() {
        reader.unknown(&spot, item);
        if item.name.found().is_none() {
            let text = "is missing: say the name of the rule to replace";
            reader.fault(&spot.field("name"), text);
        }
        let Some(name) = reader.filled(&spot, ("name", &item.name)) else {
            continue;
        };
        if own.is_some_and(|own| own.text == name.text) {
            reader.fault(&name.spot, "a rule cannot replace itself: name another");
        }
        replaces.push(name);
    }
    replaces
}

fn spot_of<T>(at: &Spot, name: &str, field: &Field<T>) -> Spot {
    let spot = at.field(name);
    match field.found() {
        Some((place, _)) => spot.at(place),
        None => spot,
    }
}

fn no_burst(algorithm: Algorithm) -> String {
    format!(
        "{} counts in windows, which have no burst: remove it, or use gcra, token_bucket or leaky_bucket",
        algorithm.name()
    )
}

fn units() -> String {
    Unit::ALL
        .map(|unit| unit.name().to_ascii_lowercase())
        .join(", ")
}
