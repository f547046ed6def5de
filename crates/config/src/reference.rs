//! The documentation of every field, printed into `docs/config.md`. Nothing else uses it.
//!
//! `fields.rs` declares it together with the fields. The values that a field accepts are not part of it: the fault for a
//! wrong value names them, and the page repeats that. `tests/it/reference` prints the page and checks every statement.

pub use super::fields::SECTIONS;

/// The documentation of one section.
#[derive(Clone, Copy, Debug)]
pub struct SectionDoc {
    /// Its path: `store.tls`, `rules[].descriptors[]`; empty for the whole file.
    pub path: &'static str,
    /// What the section is for, in Markdown.
    pub about: &'static str,
    /// Its fields.
    pub fields: &'static [FieldDoc],
}

/// The documentation of one field.
#[derive(Clone, Copy, Debug)]
pub struct FieldDoc {
    /// The field's name.
    pub name: &'static str,
    /// What the field is for, in Markdown.
    pub about: &'static str,
    /// What holds if the file does not have the field.
    pub default: FieldDefault,
}

/// What holds if the file does not have a field.
#[derive(Clone, Copy, Debug)]
pub enum FieldDefault {
    /// This value, in YAML.
    Value(&'static str),
    /// A value from elsewhere, described in Markdown.
    Described(&'static str),
    /// Nothing: the feature is off or has no value.
    Absent,
    /// The field is required: its absence is a fault.
    Required,
}
