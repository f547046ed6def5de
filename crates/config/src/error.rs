//! Where a configuration is wrong or surprising, and how that is worded.
//!
//! Every finding prints as `file:line:column: path: what is wrong and what would be right`. Nothing here decides what
//! is wrong.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Characters of a value that a finding repeats.
const QUOTE_CHARS_MAX: usize = 60;

/// A line and a column in a file, from 1. Zeros: the file as a whole. Small, because every field as written has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// A spot in the configuration. Ordered as one reads: file, line, column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The file, or the environment variable.
    pub file: Arc<str>,
    /// Where in it.
    pub place: Place,
    /// The field that stands there: `rules[2].descriptors[0].rate_limit.burst`; empty for the file as a whole.
    pub path: String,
}

impl Spot {
    /// The file as a whole.
    pub fn file(name: &str) -> Self {
        Self {
            file: name.into(),
            place: Place::default(),
            path: String::new(),
        }
    }

    /// The start of the file, where what is missing from it could stand.
    pub(super) fn start(name: &str) -> Self {
        Self::file(name).after("")
    }

    /// The place behind `text`, which begins the file.
    pub(super) fn after(self, text: &str) -> Self {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let last = text.rsplit('\n').next().unwrap_or_default();
        self.at(Place {
            line: narrow(text.matches('\n').count()).saturating_add(1),
            column: narrow(last.chars().count()).saturating_add(1),
        })
    }

    /// The same field, at a place in the same file.
    pub(super) fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    /// The field `name` below this one, as yet at the same place.
    pub(super) fn field(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self {
            path: format!("{}{dot}{name}", self.path),
            ..self.clone()
        }
    }

    /// The item `index` of this list, as yet at the same place.
    pub(super) fn item(&self, index: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.path),
            ..self.clone()
        }
    }

    /// How another spot's finding names this one: its path, and its line or other file.
    pub(super) fn seen_from(&self, other: &Self) -> String {
        let (path, file, line) = (&self.path, &self.file, self.place.line);
        if self.place == Place::default() {
            format!("{path} ({file})")
        } else if self.file == other.file {
            format!("{path} (line {line})")
        } else {
            format!("{path} ({file}:{line})")
        }
    }
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.place != Place::default() {
            write!(f, ":{}:{}", self.place.line, self.place.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        Ok(())
    }
}

/// One thing that is wrong, where it is, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where.
    pub spot: Spot,
    /// What, and what would be right.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.spot, self.text)
    }
}

/// Something legal but surprising, placed and worded as a fault is.
pub type Warning = Fault;

/// Everything that is wrong with a configuration, sorted by file, line and column. Never empty.
#[derive(Clone, Debug)]
pub struct Faults {
    faults: Vec<Fault>,
    sources: Vec<PathBuf>,
}

impl Faults {
    pub(super) fn new(mut faults: Vec<Fault>, sources: Vec<PathBuf>) -> Self {
        faults.sort();
        faults.dedup();
        Self { faults, sources }
    }

    /// Every fault, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.faults.iter()
    }

    /// What was read and has to be watched: a change there may mend it.
    pub fn sources(&self) -> &[PathBuf] {
        &self.sources
    }
}

impl fmt::Display for Faults {
    /// One fault per line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            let line_end = if index == 0 { "" } else { "\n" };
            write!(f, "{line_end}{fault}")?;
        }
        Ok(())
    }
}

impl Error for Faults {}

/// A value as a finding repeats it: quoted, on one line, and not for pages.
pub(super) fn quote(value: &str) -> String {
    match value.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", value.get(..end).unwrap_or_default()),
        None => format!("{value:?}"),
    }
}
