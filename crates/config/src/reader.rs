//! Reads fields as numbers, flags, durations or one of several names, and collects faults and warnings.
//!
//! A method that finds a fault records it and returns `None`, as for an absent field. The default that the caller then
//! takes is never used, because a configuration with faults is not built.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::duration;
use super::error::{Fault, Spot, Warning, quote};
use super::raw::{Field, Fields, ListField, TextField};
use super::substitute::{Environment, substitute};

/// The most faults that are reported at once, and the most warnings.
const FINDINGS_MAX: usize = 1_000;

/// A field with its name.
pub type NamedField<'f, T> = (&'static str, &'f T);

/// A value after substitution of its variables, and its position.
#[derive(Clone, Debug)]
pub struct FieldValue {
    pub text: String,
    pub spot: Spot,
}

/// Reads the fields of one configuration and holds what it found wrong so far.
pub struct FieldReader<'a> {
    environment: &'a Environment<'a>,
    pub faults: Vec<Fault>,
    pub warnings: Vec<Warning>,
}

impl<'a> FieldReader<'a> {
    pub fn new(environment: &'a Environment<'a>) -> Self {
        Self {
            environment,
            faults: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Records a fault.
    pub fn fault(&mut self, spot: &Spot, text: impl Into<String>) {
        note(&mut self.faults, spot, text.into());
    }

    /// Records a warning.
    pub fn warn(&mut self, spot: &Spot, text: impl Into<String>) {
        note(&mut self.warnings, spot, text.into());
    }

    /// A field of any shape. A blank field is a fault, because it could mean "nothing" or "the default".
    pub fn given<'f, T>(
        &mut self,
        at: &Spot,
        (name, field): NamedField<'f, Field<T>>,
    ) -> Option<(Spot, &'f T)> {
        self.not_blank(at.field(name), field)
    }

    /// A section; if the file has none, `absent`, a section without any field.
    pub fn section<'f, T: Fields>(
        &mut self,
        at: &Spot,
        section: NamedField<'f, Field<T>>,
        absent: &'f T,
    ) -> (Spot, &'f T) {
        let given = self.given(at, section);
        let (spot, raw) = given.unwrap_or_else(|| (at.field(section.0), absent));
        self.unknown(&spot, raw);
        (spot, raw)
    }

    /// Records a fault for each unknown field of `raw`, which is at `at`.
    pub fn unknown<T: Fields>(&mut self, at: &Spot, raw: &T) {
        for (place, name) in raw.unknown() {
            let (name, known) = (quote(name), T::KNOWN.join(", "));
            let text = format!("unknown field {name}: known here are {known}");
            self.fault(&at.clone().at(*place), text);
        }
    }

    /// The items of a list, or `None` if there is no such list.
    pub fn items<'f, T>(
        &mut self,
        at: &Spot,
        list: NamedField<'f, ListField<T>>,
    ) -> Option<Vec<(Spot, &'f T)>> {
        let (spot, items) = self.given(at, list)?;
        let items = (0..).zip(items);
        Some(
            items
                .filter_map(|(index, item)| self.not_blank(spot.item(index), item))
                .collect(),
        )
    }

    fn not_blank<'f, T>(&mut self, spot: Spot, field: &'f Field<T>) -> Option<(Spot, &'f T)> {
        let (place, value) = field.found()?;
        let spot = spot.at(place);
        if value.is_none() {
            self.fault(&spot, "is blank: give it a value, or leave it out");
        }
        value.map(|value| (spot, value))
    }

    /// The text of a field.
    pub fn text(&mut self, at: &Spot, field: NamedField<'_, TextField>) -> Option<FieldValue> {
        let (spot, text) = self.given(at, field)?;
        self.substitute(spot, text)
    }

    /// The texts of a list.
    pub fn texts(
        &mut self,
        at: &Spot,
        list: NamedField<'_, ListField<String>>,
    ) -> Option<Vec<FieldValue>> {
        let items = self.items(at, list)?;
        Some(
            items
                .into_iter()
                .filter_map(|(spot, text)| self.substitute(spot, text))
                .collect(),
        )
    }

    /// Substitutes the variables of a value.
    pub fn substitute(&mut self, spot: Spot, text: &str) -> Option<FieldValue> {
        match substitute(text, self.environment) {
            Ok(text) => Some(FieldValue { text, spot }),
            Err(fault) => {
                self.fault(&spot, fault);
                None
            }
        }
    }

    /// The value that an environment variable gives the field at `path`. An empty variable counts as unset.
    pub fn variable(&self, name: &str, path: &str) -> Option<FieldValue> {
        let text = (self.environment)(name).filter(|text| !text.is_empty())?;
        let spot = Spot::file(name).field(path);
        Some(FieldValue { text, spot })
    }

    /// The text of a field that must not be empty.
    pub fn filled(&mut self, at: &Spot, field: NamedField<'_, TextField>) -> Option<FieldValue> {
        let value = self.text(at, field)?;
        if value.text.is_empty() {
            self.fault(&value.spot, "must not be empty");
            return None;
        }
        Some(value)
    }

    /// A path. Relative paths stay relative.
    pub fn path(&mut self, at: &Spot, field: NamedField<'_, TextField>) -> Option<PathBuf> {
        self.filled(at, field).map(|value| value.text.into())
    }

    /// A whole number within `range`.
    pub fn number(
        &mut self,
        at: &Spot,
        field: NamedField<'_, TextField>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let FieldValue { text, spot } = self.text(at, field)?;
        // Digits only: `parse` alone would take a sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse().ok().filter(|_| digits);
        if let Some(number) = number.filter(|number| range.contains(number)) {
            return Some(number);
        }
        let (from, to) = (range.start(), range.end());
        let found = quote(&text);
        self.fault(
            &spot,
            format!("must be a whole number from {from} to {to}, not {found}"),
        );
        None
    }

    /// A boolean. The spellings are those of YAML 1.1, which envoyproxy/ratelimit reads.
    pub fn flag(&mut self, at: &Spot, field: NamedField<'_, TextField>) -> Option<bool> {
        let FieldValue { text, spot } = self.text(at, field)?;
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => {
                self.fault(
                    &spot,
                    format!("must be true or false, not {}", quote(&text)),
                );
                None
            }
        }
    }

    /// A length of time within `range`.
    pub fn duration(
        &mut self,
        at: &Spot,
        field: NamedField<'_, TextField>,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let FieldValue { text, spot } = self.text(at, field)?;
        let found = duration::parse(&text);
        if let Some(found) = found.filter(|found| range.contains(found)) {
            return Some(found);
        }
        let (from, to) = (
            duration::print(*range.start()),
            duration::print(*range.end()),
        );
        let found = match found {
            Some(_) => quote(&text),
            None => format!(
                "{} (a duration is a whole number and one unit: 250ms, 1s, 5m, 1h)",
                quote(&text)
            ),
        };
        self.fault(&spot, format!("must be from {from} to {to}, not {found}"));
        None
    }

    /// One of the names in `choices`.
    pub fn choice<T: Copy>(
        &mut self,
        at: &Spot,
        field: NamedField<'_, TextField>,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let value = self.text(at, field)?;
        self.choose(&value, choices)
    }

    /// The choice that `value` names.
    pub fn choose<T: Copy>(&mut self, value: &FieldValue, choices: &[(&str, T)]) -> Option<T> {
        let found = choices.iter().find(|(name, _)| *name == value.text);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let (names, text) = (names.join(", "), quote(&value.text));
            self.fault(&value.spot, format!("must be one of {names}, not {text}"));
        }
        found.map(|(_, choice)| *choice)
    }
}

fn note(findings: &mut Vec<Fault>, spot: &Spot, text: String) {
    let (spot, text) = match findings.len() {
        0..FINDINGS_MAX => (spot.clone(), text),
        FINDINGS_MAX => {
            let text = format!("only the first {FINDINGS_MAX} are listed: fix these first");
            (Spot::file(&spot.file), text)
        }
        _ => return,
    };
    findings.push(Fault { spot, text });
}
