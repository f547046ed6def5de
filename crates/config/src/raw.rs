//! Parses the YAML file into fields with their positions. It checks the shape only; `fields.rs` lists the fields.
//!
//! Every value is read as text, whatever type YAML would give it. `reader.rs` substitutes variables and parses values
//! later, where a fault can name the field. So `value: 42` is the text `42`, as in envoyproxy/ratelimit. Parsing is
//! bounded in depth, nodes and aliases before anything is built.

use std::marker::PhantomData;
use std::{fmt, thread};

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor, value};
use serde::{Deserialize, de};
use serde_saphyr::{Error, Location, MessageFormatter, Options, Spanned, UserMessageFormatter};

use super::error::{Fault, Position, Spot, quote};
use super::fields::RawLimit;

/// Levels of YAML: two for each level of descriptors, and some for what is above them.
const YAML_DEPTH_MAX: usize = 40;
/// Values and collections in one file.
const YAML_NODES_MAX: usize = 250_000;
/// Aliases in one file, and values that these aliases repeat.
const YAML_ALIASES_MAX: usize = 10_000;
const YAML_REPLAYED_MAX: usize = 100_000;

/// The parser's stack: several times what the deepest file needs in an unoptimised build.
const PARSER_STACK_BYTES: usize = 16 * 1024 * 1024;

impl From<Location> for Position {
    fn from(location: Location) -> Self {
        let narrow = |number| u32::try_from(number).unwrap_or(u32::MAX);
        Self {
            line: narrow(location.line()),
            column: narrow(location.column()),
        }
    }
}

/// A field: absent, blank or given, with its position.
#[derive(Debug)]
pub struct Field<T>(Option<(Position, Option<T>)>);

impl<T> Field<T> {
    /// Its position and its value (`None`: blank), if the file has the field.
    pub fn found(&self) -> Option<(Position, Option<&T>)> {
        let (place, value) = self.0.as_ref()?;
        Some((*place, value.as_ref()))
    }
}

impl<T> Default for Field<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let found = Spanned::deserialize(deserializer)?;
        Ok(Self(Some((found.referenced.into(), found.value))))
    }
}

/// A single value, before substitution.
pub type TextField = Field<String>;
/// A list whose items may each be blank.
pub type ListField<T> = Field<Vec<Field<T>>>;

/// A struct that is read from a map. It collects unknown fields, where serde's own `deny_unknown_fields` would stop at
/// the first: a misspelt name must not hide the other faults.
pub trait Fields: Default {
    /// The names of its fields.
    const KNOWN: &'static [&'static str];

    /// Reads the value of the field `name`; false if there is no such field.
    fn take<'de, A: MapAccess<'de>>(&mut self, name: &str, map: &mut A) -> Result<bool, A::Error>;

    /// Adds an unknown field.
    fn note_unknown(&mut self, place: Position, name: String);

    /// The unknown fields of the map.
    fn unknown(&self) -> &[(Position, String)];
}

/// Reads a map as a `T`.
pub struct FieldsVisitor<T>(PhantomData<T>);

impl<T> FieldsVisitor<T> {
    pub const NEW: Self = Self(PhantomData);
}

impl<'de, T: Fields> Visitor<'de> for FieldsVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map of fields")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<T, A::Error> {
        let mut raw = T::default();
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            if !raw.take(&name.value, &mut map)? {
                map.next_value::<IgnoredAny>()?;
                raw.note_unknown(name.referenced.into(), name.value);
            }
        }
        Ok(raw)
    }
}

/// Declares structs of [`Fields`] and their documentation in [`SECTIONS`](super::reference::SECTIONS): `Struct in
/// "path"`, then for each field `field: type = default`, or `field as "name": type = default` where Rust reserves the
/// name. Each field has a comment, because each has its line in the reference.
macro_rules! fields {
    (@name $field:ident) => { stringify!($field) };
    (@name $field:ident $name:literal) => { $name };
    ($($(#[doc = $of:literal])* $raw:ident in $path:literal {
        $($(#[doc = $about:literal])+ $field:ident $(as $name:literal)?: $type:ty = $default:expr,)*
    })*) => {
        $(
            $(#[doc = $of])*
            #[derive(Debug, Default)]
            pub struct $raw {
                $($(#[doc = $about])+ pub $field: $type,)*
                pub unknown: Vec<($crate::error::Position, String)>,
            }

            impl $crate::raw::Fields for $raw {
                const KNOWN: &'static [&'static str] = &[$(fields!(@name $field $($name)?)),*];

                fn take<'de, A: serde::de::MapAccess<'de>>(
                    &mut self,
                    name: &str,
                    map: &mut A,
                ) -> Result<bool, A::Error> {
                    $(if name == fields!(@name $field $($name)?) {
                        self.$field = map.next_value()?;
                        return Ok(true);
                    })*
                    Ok(false)
                }

                fn note_unknown(&mut self, place: $crate::error::Position, name: String) {
                    self.unknown.push((place, name));
                }

                fn unknown(&self) -> &[($crate::error::Position, String)] {
                    &self.unknown
                }
            }

            impl<'de> serde::Deserialize<'de> for $raw {
                fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                    deserializer.deserialize_map($crate::raw::FieldsVisitor::<Self>::NEW)
                }
            }
        )*

        /// Every section of the file, for its documentation.
        pub const SECTIONS: &[$crate::reference::SectionDoc] = &[$($crate::reference::SectionDoc {
            path: $path,
            about: concat!($($of),*),
            fields: &[$($crate::reference::FieldDoc {
                name: fields!(@name $field $($name)?),
                about: concat!($($about),+),
                default: $default,
            }),*],
        }),*];
    };
}
pub(super) use fields;

/// A limit in its short or long form.
#[derive(Debug)]
pub enum RawRate {
    Short(String),
    Long(Box<RawLimit>),
    /// Neither form. A later fault says what would be right.
    List,
}

impl<'de> Deserialize<'de> for RawRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RateVisitor)
    }
}

/// Distinguishes the forms by their shape.
struct RateVisitor;

impl<'de> Visitor<'de> for RateVisitor {
    type Value = RawRate;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RawRate, E> {
        Ok(RawRate::Short(text.to_owned()))
    }

    fn visit_bool<E: de::Error>(self, found: bool) -> Result<RawRate, E> {
        Ok(RawRate::Short(found.to_string()))
    }

    fn visit_i64<E: de::Error>(self, found: i64) -> Result<RawRate, E> {
        Ok(RawRate::Short(found.to_string()))
    }

    fn visit_u64<E: de::Error>(self, found: u64) -> Result<RawRate, E> {
        Ok(RawRate::Short(found.to_string()))
    }

    fn visit_f64<E: de::Error>(self, found: f64) -> Result<RawRate, E> {
        Ok(RawRate::Short(found.to_string()))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<RawRate, A::Error> {
        RawLimit::deserialize(value::MapAccessDeserializer::new(map))
            .map(|limit| RawRate::Long(Box::new(limit)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RawRate, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(RawRate::List)
    }
}

/// Reads `text` as a `T`; `file` names it in the fault.
///
/// The parser recurses, up to [`YAML_DEPTH_MAX`] levels with large frames. It runs on a thread with a stack for that, so
/// that no file can overflow the caller's stack. A panic of the parser becomes a fault.
pub fn parse<T: for<'de> Deserialize<'de> + Send>(file: &str, text: &str) -> Result<T, Fault> {
    let parser = thread::Builder::new().stack_size(PARSER_STACK_BYTES);
    thread::scope(|scope| {
        let parsed = parser.spawn_scoped(scope, || parse_here(file, text));
        let text = match parsed.map(thread::ScopedJoinHandle::join) {
            Ok(Ok(outcome)) => return outcome,
            Ok(Err(_)) => "cannot be parsed: the parser failed".to_owned(),
            Err(error) => format!("cannot be parsed: {error}"),
        };
        let spot = Spot::file(file);
        Err(Fault { spot, text })
    })
}

/// An empty file is a fault: most often it was cut short.
fn parse_here<T: for<'de> Deserialize<'de>>(file: &str, text: &str) -> Result<T, Fault> {
    let error = match serde_saphyr::from_str_with_options(text, options()) {
        Ok(Some(raw)) => return Ok(raw),
        Ok(None) => Error::custom("the file is empty: write at least `rules: []`"),
        Err(error) => error,
    };
    let start = Spot::start(file);
    Err(Fault {
        spot: match error.location() {
            Some(location) => start.at(location.into()),
            None => start,
        },
        text: explain(&error),
    })
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: YAML_DEPTH_MAX,
            max_nodes: YAML_NODES_MAX,
            max_aliases: YAML_ALIASES_MAX,
            max_anchors: YAML_ALIASES_MAX,
        },
        alias_limits: serde_saphyr::alias_limits! {
            max_total_replayed_events: YAML_REPLAYED_MAX,
        },
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

/// The parser's message in words for the author of the file, without the position, which the fault has.
fn explain(error: &Error) -> String {
    if let Error::AliasError { error, .. } = error {
        return explain(error);
    }
    if let Error::DuplicateMappingKey { key, .. } = error {
        let key = key.as_deref().map_or_else(String::new, quote);
        return format!("the field {key} is given twice: keep one");
    }
    if let Error::Unexpected { expected, .. } = error {
        let right = match *expected {
            "string scalar" => "a single value",
            "mapping start" => "a map of fields (name: value)",
            "sequence start" => "a list",
            other => other,
        };
        return format!("must be {right}");
    }
    if let Error::MultipleDocuments { .. } = error {
        return "a second document (---): put one in each file".to_owned();
    }
    let text = UserMessageFormatter.format_message(error);
    // The scanner's own bound on brackets has no variant, only this text.
    let too_large = text == "recursion limit exceeded"
        || matches!(
            error,
            Error::Budget { .. }
                | Error::AliasReplayLimitExceeded { .. }
                | Error::AliasReplayStackDepthExceeded { .. }
        );
    if too_large {
        return format!(
            "is too deep or too large: at most {YAML_DEPTH_MAX} levels, {YAML_NODES_MAX} values, {YAML_ALIASES_MAX} \
             aliases and {YAML_REPLAYED_MAX} values repeated by them"
        );
    }
    text.into_owned()
}
