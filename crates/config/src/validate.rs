//! Checks the plain sections. Doors, store and rules have files of their own.
//!
//! Each function continues after a fault, so that all faults are found at once. Nothing here reads files or the
//! environment.

use std::time::Duration;

use super::error::{Spot, quote};
use super::fields::{RawAddresses, RawBounds, RawLog, RawPaths, RawPod, RawSync};
use super::raw::{Field, ListField, TextField};
use super::reader::FieldReader;
use super::settings::{Bounds, HeaderStyle, LogFormat, LogLevel, LogSettings, SyncSettings};
use tidegate_core::pure::{Addresses, KeyDisplay, Paths};

/// The longest name of a pod: that of a Kubernetes pod.
const POD_ID_BYTES_MAX: usize = 253;

/// The pod's name: the first that is set of `TIDEGATE_POD_ID`, `pod.id`, `POD_NAME`, `HOSTNAME` and the host's own name.
pub fn pod_id(
    reader: &mut FieldReader<'_>,
    root: &Spot,
    raw: &Field<RawPod>,
    host_name: Option<String>,
) -> String {
    let absent = RawPod::default();
    let (at, raw) = reader.section(root, ("pod", raw), &absent);
    let written = reader.text(&at, ("id", &raw.id));
    let id = reader
        .variable("TIDEGATE_POD_ID", "pod.id")
        .or(written.filter(|id| !id.text.is_empty()))
        .or_else(|| reader.variable("POD_NAME", "pod.id"))
        .or_else(|| reader.variable("HOSTNAME", "pod.id"));
    let Some(id) = id else {
        return host_name.unwrap_or_else(|| "pod".to_owned());
    };
    if id.text.len() > POD_ID_BYTES_MAX || !id.text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let found = quote(&id.text);
        let text = format!(
            "must be at most {POD_ID_BYTES_MAX} ASCII characters without spaces, not {found}"
        );
        reader.fault(&id.spot, text);
    }
    id.text
}

/// When the pod reports to the store.
pub fn sync(reader: &mut FieldReader<'_>, root: &Spot, raw: &Field<RawSync>) -> SyncSettings {
    let absent = RawSync::default();
    let (at, raw) = reader.section(root, ("sync", raw), &absent);
    let mut sync = SyncSettings::default();
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    if let Some(interval) = reader.duration(&at, ("interval", &raw.interval), range) {
        sync.interval = interval;
    }
    if let Some(value) = reader.text(&at, ("accuracy", &raw.accuracy)) {
        match value.text.parse() {
            Ok(accuracy) if (0.001..=1.0).contains(&accuracy) => sync.accuracy = accuracy,
            Ok(_) | Err(_) => {
                let found = quote(&value.text);
                let text = format!("must be a number from 0.001 to 1.0, not {found}");
                reader.fault(&value.spot, text);
            }
        }
    }
    sync
}

/// The most that a pod holds and accepts.
pub fn bounds(reader: &mut FieldReader<'_>, root: &Spot, raw: &Field<RawBounds>) -> Bounds {
    let absent = RawBounds::default();
    let (at, raw) = reader.section(root, ("bounds", raw), &absent);
    let mut bound = |field, range, default| {
        let number = reader.number(&at, field, range);
        let number = number.and_then(|number| usize::try_from(number).ok());
        number.unwrap_or(default)
    };
    let default = Bounds::default();
    Bounds {
        keys_max: bound(
            ("keys_max", &raw.keys_max),
            16..=100_000_000,
            default.keys_max,
        ),
        connections_max: bound(
            ("connections_max", &raw.connections_max),
            1..=1_000_000,
            default.connections_max,
        ),
        key_bytes_max: bound(
            ("key_bytes_max", &raw.key_bytes_max),
            16..=65_536,
            default.key_bytes_max,
        ),
        body_bytes_max: bound(
            ("body_bytes_max", &raw.body_bytes_max),
            256..=16_777_216,
            default.body_bytes_max,
        ),
    }
}

/// Which entries hold addresses.
pub fn addresses(
    reader: &mut FieldReader<'_>,
    root: &Spot,
    raw: &Field<RawAddresses>,
) -> Addresses {
    let absent = RawAddresses::default();
    let (at, raw) = reader.section(root, ("addresses", raw), &absent);
    let keys = match reader.texts(&at, ("keys", &raw.keys)) {
        Some(keys) => keys.into_iter().map(|key| key.text).collect(),
        None => vec!["remote_address".to_owned()],
    };
    let prefix = reader.number(&at, ("ipv6_prefix", &raw.ipv6_prefix), 1..=128);
    let prefix = prefix.and_then(|prefix| u8::try_from(prefix).ok());
    Addresses::new(keys, prefix.unwrap_or(Addresses::default().prefix()))
}

/// Which entries hold paths.
pub fn paths(reader: &mut FieldReader<'_>, root: &Spot, raw: &Field<RawPaths>) -> Paths {
    let absent = RawPaths::default();
    let (at, raw) = reader.section(root, ("paths", raw), &absent);
    let mut keys = |field, default| match reader.texts(&at, field) {
        Some(keys) => keys.into_iter().map(|key| key.text).collect(),
        None => default,
    };
    Paths::new(
        keys(("keys", &raw.keys), Vec::new()),
        keys(("forward_keys", &raw.forward_keys), vec!["path".to_owned()]),
    )
}

/// The headers of an answer.
pub fn headers(
    reader: &mut FieldReader<'_>,
    root: &Spot,
    raw: &ListField<String>,
) -> Vec<HeaderStyle> {
    let Some(values) = reader.texts(root, ("headers", raw)) else {
        return vec![HeaderStyle::Draft11, HeaderStyle::Legacy];
    };
    let choices = [
        ("draft-11", HeaderStyle::Draft11),
        ("legacy", HeaderStyle::Legacy),
        ("legacy-epoch", HeaderStyle::LegacyEpoch),
    ];
    let is_legacy = |style: &HeaderStyle| *style != HeaderStyle::Draft11;
    let mut styles = Vec::new();
    for value in values {
        let Some(style) = reader.choose(&value, &choices) else {
            continue;
        };
        if styles.contains(&style) {
            reader.fault(&value.spot, "is given twice: keep one");
        } else if is_legacy(&style) && styles.iter().any(is_legacy) {
            let text = "legacy and legacy-epoch write the same headers: keep one";
            reader.fault(&value.spot, text);
        } else {
            styles.push(style);
        }
    }
    styles
}

/// How keys are shown to operators.
pub fn keys(reader: &mut FieldReader<'_>, root: &Spot, raw: &TextField) -> KeyDisplay {
    let choices = [("plain", KeyDisplay::Plain), ("hashed", KeyDisplay::Hashed)];
    reader
        .choice(root, ("keys", raw), &choices)
        .unwrap_or_default()
}

/// What to log. Variables override the file.
pub fn log(reader: &mut FieldReader<'_>, root: &Spot, raw: &Field<RawLog>) -> LogSettings {
    let levels = LogLevel::ALL.map(|level| (level.name(), level));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let absent = RawLog::default();
    let (at, raw) = reader.section(root, ("log", raw), &absent);
    let level = reader.choice(&at, ("level", &raw.level), &levels);
    let format = reader.choice(&at, ("format", &raw.format), &formats);
    let level_variable = reader
        .variable("TIDEGATE_LOG_LEVEL", "log.level")
        .and_then(|value| reader.choose(&value, &levels));
    let format_variable = reader
        .variable("TIDEGATE_LOG_FORMAT", "log.format")
        .and_then(|value| reader.choose(&value, &formats));
    LogSettings {
        level: level_variable.or(level).unwrap_or_default(),
        format: format_variable.or(format).unwrap_or_default(),
    }
}

/// The longest that an orderly stop may take.
pub fn drain(reader: &mut FieldReader<'_>, root: &Spot, raw: &TextField) -> Duration {
    let range = Duration::ZERO..=Duration::from_secs(3_600);
    reader
        .duration(root, ("drain", raw), range)
        .unwrap_or(Duration::from_secs(10))
}
