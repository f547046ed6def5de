//! Fields read as what they should be: numbers, flags, durations, one word of several. Collects what is wrong.
//!
//! A reader that finds a fault notes it and answers `None`, as for an absent field: the default that the caller then
//! takes is never used, because a configuration with faults is not built.

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::duration;
use super::error::{Fault, Spot, Warning, quote};
use super::raw::{Field, Fields, List, Text};
use super::substitute::{Environment, substitute};

/// Faults that are told at once, and warnings.
const FINDINGS_MAX: usize = 1_000;

/// A field and its name.
pub type Named<'f, T> = (&'static str, &'f T);

/// A value with its variables put in, and where it stands.
#[derive(Clone, Debug)]
pub struct Word {
    pub text: String,
    pub spot: Spot,
}

/// The findings so far.
pub struct Check<'a> {
    environment: &'a Environment<'a>,
    pub faults: Vec<Fault>,
    pub warnings: Vec<Warning>,
}

impl<'a> Check<'a> {
    pub fn new(environment: &'a Environment<'a>) -> Self {
        Self {
            environment,
            faults: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Notes that something is wrong.
    pub fn fault(&mut self, spot: &Spot, text: impl Into<String>) {
        note(&mut self.faults, spot, text.into());
    }

    /// Notes that something is surprising.
    pub fn warn(&mut self, spot: &Spot, text: impl Into<String>) {
        note(&mut self.warnings, spot, text.into());
    }

    /// A field of any shape. Blank is a fault: whether "nothing" or "the default" was meant cannot be known.
    pub fn given<'f, T>(
        &mut self,
        at: &Spot,
        (name, field): Named<'f, Field<T>>,
    ) -> Option<(Spot, &'f T)> {
        self.unblank(at.field(name), field)
    }

    /// A section, or `absent` in its place: a section that is not there is one in which every field is absent.
    pub fn section<'f, T: Fields>(
        &mut self,
        at: &Spot,
        section: Named<'f, Field<T>>,
        absent: &'f T,
    ) -> (Spot, &'f T) {
        let given = self.given(at, section);
        let (spot, raw) = given.unwrap_or_else(|| (at.field(section.0), absent));
        self.unknown(&spot, raw);
        (spot, raw)
    }

    /// Faults for the fields that `raw`, at `at`, should not have.
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
        list: Named<'f, List<T>>,
    ) -> Option<Vec<(Spot, &'f T)>> {
        let (spot, items) = self.given(at, list)?;
        let items = (0..).zip(items);
        Some(
            items
                .filter_map(|(index, item)| self.unblank(spot.item(index), item))
                .collect(),
        )
    }

    fn unblank<'f, T>(&mut self, spot: Spot, field: &'f Field<T>) -> Option<(Spot, &'f T)> {
        let (place, value) = field.found()?;
        let spot = spot.at(place);
        if value.is_none() {
            self.fault(&spot, "is blank: give it a value, or leave it out");
        }
        value.map(|value| (spot, value))
    }

    /// A single value.
    pub fn word(&mut self, at: &Spot, field: Named<'_, Text>) -> Option<Word> {
        let (spot, text) = self.given(at, field)?;
        self.substituted(spot, text)
    }

    /// The values of a list.
    pub fn words(&mut self, at: &Spot, list: Named<'_, List<String>>) -> Option<Vec<Word>> {
        let items = self.items(at, list)?;
        Some(
            items
                .into_iter()
                .filter_map(|(spot, text)| self.substituted(spot, text))
                .collect(),
        )
    }

    /// A value with its variables put in.
    pub fn substituted(&mut self, spot: Spot, text: &str) -> Option<Word> {
        match substitute(text, self.environment) {
            Ok(text) => Some(Word { text, spot }),
            Err(fault) => {
                self.fault(&spot, fault);
                None
            }
        }
    }

    /// What a variable says of the field at `path`. An empty variable says nothing.
    pub fn variable(&self, name: &str, path: &str) -> Option<Word> {
        let text = (self.environment)(name).filter(|text| !text.is_empty())?;
        let spot = Spot::file(name).field(path);
        Some(Word { text, spot })
    }

    /// A value that must not be empty.
    pub fn filled(&mut self, at: &Spot, field: Named<'_, Text>) -> Option<Word> {
        let word = self.word(at, field)?;
        if word.text.is_empty() {
            self.fault(&word.spot, "must not be empty");
            return None;
        }
        Some(word)
    }

    /// A path, as it is written.
    pub fn path(&mut self, at: &Spot, field: Named<'_, Text>) -> Option<PathBuf> {
        self.filled(at, field).map(|word| word.text.into())
    }

    /// A whole number within `range`.
    pub fn number(
        &mut self,
        at: &Spot,
        field: Named<'_, Text>,
        range: RangeInclusive<u64>,
    ) -> Option<u64> {
        let Word { text, spot } = self.word(at, field)?;
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

    /// Yes or no. The spellings are those of YAML 1.1, which envoyproxy/ratelimit reads.
    pub fn flag(&mut self, at: &Spot, field: Named<'_, Text>) -> Option<bool> {
        let Word { text, spot } = self.word(at, field)?;
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
        field: Named<'_, Text>,
        range: RangeInclusive<Duration>,
    ) -> Option<Duration> {
        let Word { text, spot } = self.word(at, field)?;
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

    /// One word of several.
    pub fn choice<T: Copy>(
        &mut self,
        at: &Spot,
        field: Named<'_, Text>,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let word = self.word(at, field)?;
        self.chosen(&word, choices)
    }

    /// What `word` chooses.
    pub fn chosen<T: Copy>(&mut self, word: &Word, choices: &[(&str, T)]) -> Option<T> {
        let found = choices.iter().find(|(name, _)| *name == word.text);
        if found.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let (names, text) = (names.join(", "), quote(&word.text));
            self.fault(&word.spot, format!("must be one of {names}, not {text}"));
        }
        found.map(|(_, choice)| *choice)
    }
}

fn note(findings: &mut Vec<Fault>, spot: &Spot, text: String) {
    let (spot, text) = match findings.len() {
        0..FINDINGS_MAX => (spot.clone(), text),
        FINDINGS_MAX => {
            let text = format!("there is more than these {FINDINGS_MAX} to say: mend them first");
            (Spot::file(&spot.file), text)
        }
        _ => return,
    };
    findings.push(Fault { spot, text });
}
