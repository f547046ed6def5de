//! Faults and warnings: their position in the configuration and how they print.
//!
//! Each prints as `file:line:column: path: what is wrong and what would be right`. Nothing here decides what is wrong.

use std::error::Error;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// The most characters of a value that a fault repeats.
const QUOTE_CHARS_MAX: usize = 60;

/// A line and a column in a file, from 1; zeros mean the whole file. It is small, because every parsed field has one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// A field in the configuration: its file, its position and its path. Spots sort by file, line and column.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Spot {
    /// The file, or the environment variable.
    pub file: Arc<str>,
    /// The line and column in it.
    pub position: Position,
    /// The field at that position: `rules[2].descriptors[0].rate_limit.burst`; empty for the file as a whole.
    pub path: String,
}

impl Spot {
    /// The whole file.
    pub fn file(name: &str) -> Self {
        Self {
            file: name.into(),
            position: Position::default(),
            path: String::new(),
        }
    }

    /// The start of the file: the position of fields that the file does not have.
    pub(super) fn start(name: &str) -> Self {
        Self::file(name).after("")
    }

    /// The position after `text`, which is the beginning of the file.
    pub(super) fn after(self, text: &str) -> Self {
        let narrow = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        let last = text.rsplit('\n').next().unwrap_or_default();
        self.at(Position {
            line: narrow(text.matches('\n').count()).saturating_add(1),
            column: narrow(last.chars().count()).saturating_add(1),
        })
    }

    /// The same field at another position.
    pub(super) fn at(self, position: Position) -> Self {
        Self { position, ..self }
    }

    /// The field `name` below this one, at the same position for now.
    pub(super) fn field(&self, name: &str) -> Self {
        let dot = if self.path.is_empty() { "" } else { "." };
        Self {
            path: format!("{}{dot}{name}", self.path),
            ..self.clone()
        }
    }

    /// The item `index` of this list, at the same position for now.
    pub(super) fn item(&self, index: usize) -> Self {
        Self {
            path: format!("{}[{index}]", self.path),
            ..self.clone()
        }
    }

    /// How a fault at `other` refers to this spot: by path and line, and by file if that differs.
    pub(super) fn seen_from(&self, other: &Self) -> String {
        let (path, file, line) = (&self.path, &self.file, self.position.line);
        if self.position == Position::default() {
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
        if self.position != Position::default() {
            write!(f, ":{}:{}", self.position.line, self.position.column)?;
        }
        if !self.path.is_empty() {
            write!(f, ": {}", self.path)?;
        }
        Ok(())
    }
}

/// One thing that is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// The field that is wrong.
    pub spot: Spot,
    /// What is wrong, and what would be right.
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.spot, self.text)
    }
}

/// Something legal but surprising. It prints like a fault.
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

    /// The files and folders to watch: a change there may fix the faults.
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

/// A value as a fault repeats it: quoted, on one line, and cut to [`QUOTE_CHARS_MAX`].
pub(super) fn quote(value: &str) -> String {
    match value.char_indices().nth(QUOTE_CHARS_MAX) {
        Some((end, _)) => format!("{:?}...", value.get(..end).unwrap_or_default()),
        None => format!("{value:?}"),
    }
}
