//! What the reference of the configuration tells of every field. `docs/config.md` prints it; nothing else needs it.
//!
//! It is declared with the fields, in `fields.rs`. What a field can be is not part of it: the fault of a wrong value
//! says that, and the page repeats it. `tests/it/reference` prints, and holds every statement against the checks.

pub use super::fields::SECTIONS;

/// Fields that stand together.
#[derive(Clone, Copy, Debug)]
pub struct Section {
    /// Where: `store.tls`, `rules[].descriptors[]`; empty for the file as a whole.
    pub path: &'static str,
    /// What they are about, in Markdown.
    pub about: &'static str,
    /// The fields.
    pub fields: &'static [Told],
}

/// What is told of a field.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// Its name.
    pub name: &'static str,
    /// What it says, in Markdown.
    pub about: &'static str,
    /// What holds without it.
    pub without: Without,
}

/// What holds without a field.
#[derive(Clone, Copy, Debug)]
pub enum Without {
    /// This value, in YAML.
    Is(&'static str),
    /// What another place says, in Markdown.
    Like(&'static str),
    /// Nothing: there is no such thing then.
    Nothing,
    /// A fault.
    Needed,
}
