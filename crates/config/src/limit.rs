//! `rate_limit`, in either form: how many may pass, and how they are counted.

use super::check::{Check, Word};
use super::error::{Spot, quote};
use super::fields::RawLimit;
use super::raw::{Field, RawRate};
use super::short_form::{self, Written};
use tidegate_core::pure::limit::CAPACITY_MAX;
use tidegate_core::pure::time::SECOND;
use tidegate_core::pure::{Algorithm, Limit, LimitFault, Unit};

/// The largest number that `requests_per_unit` and `burst` may be.
const NUMBER_MAX: u64 = 1_000_000_000_000;
/// Seconds in the longest window, and so the largest number of any unit in it.
const SECONDS_MAX: u64 = CAPACITY_MAX.get() / SECOND;

/// What stands under `rate_limit`.
pub struct Rated {
    /// `None`: unlimited, or faulty.
    pub limit: Option<Limit>,
    pub algorithm: Algorithm,
    pub name: Option<Word>,
    pub replaces: Vec<Word>,
}

/// Reads `rate_limit`, which stands at `at`.
pub fn rated(
    check: &mut Check<'_>,
    at: &Spot,
    rate: &RawRate,
    default: Algorithm,
) -> Option<Rated> {
    let text = match rate {
        RawRate::Long(raw) => return Some(long(check, at, raw, default)),
        RawRate::Short(text) => check.substituted(at.clone(), text)?.text,
        RawRate::List => "a list".to_owned(),
    };
    let Some(written) = short_form::parse(&text) else {
        let found = match rate {
            RawRate::List => text,
            RawRate::Short(_) | RawRate::Long(_) => quote(&text),
        };
        let text = format!(
            "must be a map with unit and requests_per_unit, or N/unit, N/30s or \"N/minute burst M\" with unit one of {}, \
             not {found}",
            units()
        );
        check.fault(at, text);
        return None;
    };
    if written.burst.is_some() && default.is_windowed() {
        check.fault(at, no_burst(default));
    }
    Some(Rated {
        limit: limit(check, written, &|fault| {
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

fn long(check: &mut Check<'_>, at: &Spot, raw: &RawLimit, default: Algorithm) -> Rated {
    check.unknown(at, raw);
    let algorithms = Algorithm::ALL.map(|algorithm| (algorithm.name(), algorithm));
    let algorithm = check.choice(at, ("algorithm", &raw.algorithm), &algorithms);
    let algorithm = algorithm.unwrap_or(default);
    let unlimited = check.flag(at, ("unlimited", &raw.unlimited)) == Some(true);
    let written = written(check, at, raw, unlimited);
    let name = check.filled(at, ("name", &raw.name));
    let replaces = replaces(check, at, raw, name.as_ref());
    let limit = written.and_then(|written| {
        if written.burst.is_some() && algorithm.is_windowed() {
            check.fault(&spot_of(at, "burst", &raw.burst), no_burst(algorithm));
            return None;
        }
        limit(check, written, &|fault| {
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
    Rated {
        limit,
        algorithm,
        name,
        replaces,
    }
}

/// The numbers, if all that must be there is. Beside `unlimited` there must be none.
fn written(check: &mut Check<'_>, at: &Spot, raw: &RawLimit, unlimited: bool) -> Option<Written> {
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
            check.fault(&spot_of(at, name, field), text);
        }
        return None;
    }
    let [requests, unit, unit_multiplier, burst] = fields;
    if requests.1.found().is_none() {
        let text = "is missing: say how many may pass per unit (0 denies every check)";
        check.fault(&at.field(requests.0), text);
    }
    if unit.1.found().is_none() {
        let text = format!("is missing: say one of {}", units());
        check.fault(&at.field(unit.0), text);
    }
    let requests = check.number(at, requests, 0..=NUMBER_MAX);
    let unit = check.word(at, unit).and_then(|word| {
        let unit = Unit::named(&word.text);
        if unit.is_none() {
            let text = format!("must be one of {}, not {}", units(), quote(&word.text));
            check.fault(&word.spot, text);
        }
        unit
    });
    let multiplier_given = unit_multiplier.1.found().is_some();
    let unit_multiplier = check.number(at, unit_multiplier, 1..=SECONDS_MAX);
    let burst_given = burst.1.found().is_some();
    let burst = check.number(at, burst, 0..=NUMBER_MAX);
    if (multiplier_given && unit_multiplier.is_none()) || (burst_given && burst.is_none()) {
        return None;
    }
    Some(Written {
        requests: requests?,
        unit: unit?,
        unit_multiplier: unit_multiplier.unwrap_or(1),
        burst,
    })
}

/// The limit, and a warning if its bucket is so small that pauses of the caller's own scheduler already waste rate.
fn limit(
    check: &mut Check<'_>,
    written: Written,
    blame: &dyn Fn(LimitFault) -> (Spot, String),
) -> Option<Limit> {
    let Written {
        requests,
        unit,
        unit_multiplier,
        burst,
    } = written;
    match Limit::new(requests, unit, unit_multiplier, burst) {
        Ok(limit) => {
            let seconds = u128::from(unit.seconds()) * u128::from(unit_multiplier);
            if u128::from(limit.burst().get()) * 100 * seconds < u128::from(requests) {
                let (spot, _) = blame(LimitFault::NoBurst);
                let text = format!(
                    "a burst of {} is less than 10 ms of the rate: steady traffic will be denied below it",
                    limit.burst()
                );
                check.warn(&spot, text);
            }
            Some(limit)
        }
        Err(fault) => {
            let (spot, text) = blame(fault);
            check.fault(&spot, text);
            None
        }
    }
}

fn replaces(check: &mut Check<'_>, at: &Spot, raw: &RawLimit, own: Option<&Word>) -> Vec<Word> {
    let items = check.items(at, ("replaces", &raw.replaces));
    let mut replaces = Vec::new();
    for (spot, item) in items.into_iter().flatten() {
        check.unknown(&spot, item);
        if item.name.found().is_none() {
            let text = "is missing: say the name of the rule to replace";
            check.fault(&spot.field("name"), text);
        }
        let Some(name) = check.filled(&spot, ("name", &item.name)) else {
            continue;
        };
        if own.is_some_and(|own| own.text == name.text) {
            check.fault(&name.spot, "a rule cannot replace itself: name another");
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
