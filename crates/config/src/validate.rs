//! From what is written to what holds: the plain sections. Doors, store and rules have files of their own.
//!
//! Each function goes on after a fault, so that all are found at once. Reads nothing: texts and variables come in.

use std::time::Duration;

use super::check::Check;
use super::error::{Spot, quote};
use super::fields::{RawAddresses, RawBounds, RawLog, RawPaths, RawPod, RawSync};
use super::raw::{Field, List, Text};
use super::settings::{Bounds, HeaderStyle, Log, LogFormat, LogLevel, Sync};
use tidegate_core::pure::{Addresses, KeyDisplay, Paths};

/// The longest a pod's name may be: that of a Kubernetes pod.
const POD_ID_BYTES_MAX: usize = 253;

/// The first that says something: `TIDEGATE_POD_ID`, `pod.id`, `POD_NAME`, `HOSTNAME`, the host's own name.
pub fn pod_id(
    check: &mut Check<'_>,
    root: &Spot,
    raw: &Field<RawPod>,
    host_name: Option<String>,
) -> String {
    let absent = RawPod::default();
    let (at, raw) = check.section(root, ("pod", raw), &absent);
    let written = check.word(&at, ("id", &raw.id));
    let id = check
        .variable("TIDEGATE_POD_ID", "pod.id")
        .or(written.filter(|id| !id.text.is_empty()))
        .or_else(|| check.variable("POD_NAME", "pod.id"))
        .or_else(|| check.variable("HOSTNAME", "pod.id"));
    let Some(id) = id else {
        return host_name.unwrap_or_else(|| "pod".to_owned());
    };
    if id.text.len() > POD_ID_BYTES_MAX || !id.text.bytes().all(|byte| byte.is_ascii_graphic()) {
        let found = quote(&id.text);
        let text = format!(
            "must be at most {POD_ID_BYTES_MAX} ASCII characters without spaces, not {found}"
        );
        check.fault(&id.spot, text);
    }
    id.text
}

/// When to talk to the store.
pub fn sync(check: &mut Check<'_>, root: &Spot, raw: &Field<RawSync>) -> Sync {
    let absent = RawSync::default();
    let (at, raw) = check.section(root, ("sync", raw), &absent);
    let mut sync = Sync::default();
    let range = Duration::from_millis(10)..=Duration::from_secs(60);
    if let Some(interval) = check.duration(&at, ("interval", &raw.interval), range) {
        sync.interval = interval;
    }
    if let Some(word) = check.word(&at, ("accuracy", &raw.accuracy)) {
        match word.text.parse() {
            Ok(accuracy) if (0.001..=1.0).contains(&accuracy) => sync.accuracy = accuracy,
            Ok(_) | Err(_) => {
                let found = quote(&word.text);
                let text = format!("must be a number from 0.001 to 1.0, not {found}");
                check.fault(&word.spot, text);
            }
        }
    }
    sync
}

/// How much to hold at most.
pub fn bounds(check: &mut Check<'_>, root: &Spot, raw: &Field<RawBounds>) -> Bounds {
    let absent = RawBounds::default();
    let (at, raw) = check.section(root, ("bounds", raw), &absent);
    let mut bound = |field, range, default| {
        let number = check.number(&at, field, range);
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
pub fn addresses(check: &mut Check<'_>, root: &Spot, raw: &Field<RawAddresses>) -> Addresses {
    let absent = RawAddresses::default();
    let (at, raw) = check.section(root, ("addresses", raw), &absent);
    let keys = match check.words(&at, ("keys", &raw.keys)) {
        Some(keys) => keys.into_iter().map(|key| key.text).collect(),
        None => vec!["remote_address".to_owned()],
    };
    let prefix = check.number(&at, ("ipv6_prefix", &raw.ipv6_prefix), 1..=128);
    let prefix = prefix.and_then(|prefix| u8::try_from(prefix).ok());
    Addresses::new(keys, prefix.unwrap_or(Addresses::default().prefix()))
}

/// Which entries hold paths.
pub fn paths(check: &mut Check<'_>, root: &Spot, raw: &Field<RawPaths>) -> Paths {
    let absent = RawPaths::default();
    let (at, raw) = check.section(root, ("paths", raw), &absent);
    let mut keys = |field, default| match check.words(&at, field) {
        Some(keys) => keys.into_iter().map(|key| key.text).collect(),
        None => default,
    };
    Paths::new(
        keys(("keys", &raw.keys), Vec::new()),
        keys(("forward_keys", &raw.forward_keys), vec!["path".to_owned()]),
    )
}

/// Which headers an answer has.
pub fn headers(check: &mut Check<'_>, root: &Spot, raw: &List<String>) -> Vec<HeaderStyle> {
    let Some(words) = check.words(root, ("headers", raw)) else {
        return vec![HeaderStyle::Draft11, HeaderStyle::Legacy];
    };
    let choices = [
        ("draft-11", HeaderStyle::Draft11),
        ("legacy", HeaderStyle::Legacy),
        ("legacy-epoch", HeaderStyle::LegacyEpoch),
    ];
    let is_legacy = |style: &HeaderStyle| *style != HeaderStyle::Draft11;
    let mut styles = Vec::new();
    for word in words {
        let Some(style) = check.chosen(&word, &choices) else {
            continue;
        };
        if styles.contains(&style) {
            check.fault(&word.spot, "is given twice: keep one");
        } else if is_legacy(&style) && styles.iter().any(is_legacy) {
            let text = "legacy and legacy-epoch write the same headers: keep one";
            check.fault(&word.spot, text);
        } else {
            styles.push(style);
        }
    }
    styles
}

/// How keys are shown to operators.
pub fn keys(check: &mut Check<'_>, root: &Spot, raw: &Text) -> KeyDisplay {
    let choices = [("plain", KeyDisplay::Plain), ("hashed", KeyDisplay::Hashed)];
    check
        .choice(root, ("keys", raw), &choices)
        .unwrap_or_default()
}

/// What to log. Variables beat the file.
pub fn log(check: &mut Check<'_>, root: &Spot, raw: &Field<RawLog>) -> Log {
    let levels = LogLevel::ALL.map(|level| (level.name(), level));
    let formats = [("text", LogFormat::Text), ("json", LogFormat::Json)];
    let absent = RawLog::default();
    let (at, raw) = check.section(root, ("log", raw), &absent);
    let level = check.choice(&at, ("level", &raw.level), &levels);
    let format = check.choice(&at, ("format", &raw.format), &formats);
    let level_variable = check
        .variable("TIDEGATE_LOG_LEVEL", "log.level")
        .and_then(|word| check.chosen(&word, &levels));
    let format_variable = check
        .variable("TIDEGATE_LOG_FORMAT", "log.format")
        .and_then(|word| check.chosen(&word, &formats));
    Log {
        level: level_variable.or(level).unwrap_or_default(),
        format: format_variable.or(format).unwrap_or_default(),
    }
}

/// How long an orderly stop may take.
pub fn drain(check: &mut Check<'_>, root: &Spot, raw: &Text) -> Duration {
    let range = Duration::ZERO..=Duration::from_secs(3_600);
    check
        .duration(root, ("drain", raw), range)
        .unwrap_or(Duration::from_secs(10))
}
