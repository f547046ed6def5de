//! The file exactly as written: which fields there are, and where they stand. Nothing is checked here but the shape.
//!
//! Every value is read as text, whatever YAML would make of it: variables are put in and words parsed later, at one
//! place, where a fault can name the field. That also reads `value: 42` as the text it is, as envoyproxy/ratelimit
//! does. Parsing is bounded in depth, nodes and aliases before anything is built.

use std::{fmt, thread};

use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor, value};
use serde::{Deserialize, de};
use serde_saphyr::{Error, MessageFormatter, Options, Spanned, UserMessageFormatter};

use super::error::{Fault, Place, Spot, quote};

/// Levels of YAML: two for each level of descriptors, and the rest on top.
const YAML_DEPTH_MAX: usize = 40;
/// Values and collections in one file.
const YAML_NODES_MAX: usize = 250_000;
/// Uses of anchors in one file, and values that these uses repeat.
const YAML_ALIASES_MAX: usize = 10_000;
const YAML_REPLAYED_MAX: usize = 100_000;

/// The parser's stack: several times what the deepest file needs in an unoptimised build.
const PARSER_STACK_BYTES: usize = 16 * 1024 * 1024;

/// A field: absent, blank, or given, and where.
#[derive(Debug)]
pub struct Field<T>(Option<(Place, Option<T>)>);

impl<T> Field<T> {
    /// Where it stands and what it is (`None`: blank), if the file has it.
    pub fn found(&self) -> Option<(Place, Option<&T>)> {
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
pub type Text = Field<String>;
/// A list of things that may each be blank.
pub type List<T> = Field<Vec<Field<T>>>;

/// The whole file. With `domain` and `descriptors` on top it is an envoyproxy/ratelimit file, too.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    pub pod: Field<RawPod>,
    pub listen: Field<RawListen>,
    pub store: Field<RawStore>,
    pub sync: Field<RawSync>,
    pub defaults: Field<RawDefaults>,
    pub bounds: Field<RawBounds>,
    pub addresses: Field<RawAddresses>,
    pub headers: List<String>,
    pub log: Field<RawLog>,
    pub drain: Text,
    pub rules: List<RawDomain>,
    pub rules_dir: Text,
    pub domain: Text,
    #[serde(rename = "match")]
    pub matching: Text,
    pub descriptors: List<RawNode>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPod {
    pub id: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawListen {
    pub http: List<String>,
    pub grpc: List<String>,
    pub resp: List<String>,
    pub metrics: List<String>,
    pub admin: List<String>,
    pub unix_mode: Text,
    pub token_file: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawStore {
    pub url: Text,
    pub topology: Text,
    pub master: Text,
    pub password_file: Text,
    pub tls: Field<RawTls>,
    pub timeout: Text,
    pub key_prefix: Text,
    pub hash_key_file: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawTls {
    pub ca_file: Text,
    pub cert_file: Text,
    pub key_file: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawSync {
    pub interval: Text,
    pub accuracy: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawDefaults {
    pub algorithm: Text,
    pub consistency: Text,
    pub on_store_error: Text,
    pub report: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawBounds {
    pub keys_max: Text,
    pub connections_max: Text,
    pub key_bytes_max: Text,
    pub body_bytes_max: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawAddresses {
    pub keys: List<String>,
    pub ipv6_prefix: Text,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawLog {
    pub level: Text,
    pub format: Text,
}

/// An envoyproxy/ratelimit file, and our `match`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawDomain {
    pub domain: Text,
    #[serde(rename = "match")]
    pub matching: Text,
    pub descriptors: List<RawNode>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawNode {
    pub key: Text,
    pub value: Text,
    pub rate_limit: Field<RawRate>,
    pub descriptors: List<RawNode>,
    pub shadow_mode: Text,
    pub quota_mode: Text,
    pub detailed_metric: Text,
    pub value_to_metric: Text,
    pub share_threshold: Text,
    pub consistency: Text,
    pub on_store_error: Text,
    pub report: Text,
    pub count_rejected: Text,
}

/// A limit in either form.
#[derive(Debug)]
pub enum RawRate {
    Short(String),
    Long(Box<RawLimit>),
    /// Neither: kept, so that the fault can say what would be right.
    List,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawLimit {
    pub requests_per_unit: Text,
    pub unit: Text,
    pub unit_multiplier: Text,
    pub burst: Text,
    pub algorithm: Text,
    pub name: Text,
    pub unlimited: Text,
    pub replaces: List<RawReplaced>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawReplaced {
    pub name: Text,
}

impl<'de> Deserialize<'de> for RawRate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RateVisitor)
    }
}

/// Tells the two forms apart by their shape.
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
/// The parser recurses, up to [`YAML_DEPTH_MAX`] levels with large frames. It runs on a stack made for that, so that no
/// file can overflow the caller's, whatever is left of it; and should it ever panic, that is a fault like another.
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

/// An empty file is a fault: more often than meant it is one that was cut short.
fn parse_here<T: for<'de> Deserialize<'de>>(file: &str, text: &str) -> Result<T, Fault> {
    let error = match serde_saphyr::from_str_with_options(text, options()) {
        Ok(Some(raw)) => return Ok(raw),
        Ok(None) => Error::custom("the file is empty: say at least `rules: []`"),
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

/// The parser's message in the words of this file's reader, without its place, which the fault has.
fn explain(error: &Error) -> String {
    if let Error::AliasError { error, .. } = error {
        return explain(error);
    }
    if let Error::SerdeUnknownField {
        field, expected, ..
    } = error
    {
        return format!(
            "unknown field {}: known here are {}",
            quote(field),
            expected.join(", ")
        );
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
    if let Error::Budget { .. }
    | Error::AliasReplayLimitExceeded { .. }
    | Error::AliasReplayStackDepthExceeded { .. } = error
    {
        return format!(
            "is too deep or too large: at most {YAML_DEPTH_MAX} levels, {YAML_NODES_MAX} values, {YAML_ALIASES_MAX} \
             aliases and {YAML_REPLAYED_MAX} values repeated by them"
        );
    }
    if let Error::MultipleDocuments { .. } = error {
        return "a second document (---): put one in each file".to_owned();
    }
    UserMessageFormatter.format_message(error).into_owned()
}
