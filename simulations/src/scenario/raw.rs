//! The scenario's own sections as written. `tidegate-config` reads `rules`, `sync` and the like.

use std::fmt;

use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A length of time in nanoseconds, written as `500us`, `250ms`, `1s`, `5m`. It may be negative, for clocks that step back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Length(pub i64);

impl Length {
    /// Parses a number, with or without decimals, and one unit.
    pub fn parse(text: &str) -> Option<Self> {
        let split = text.find(|letter: char| letter.is_ascii_alphabetic())?;
        let (number, unit) = text.split_at(split);
        let nanos = match unit {
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3_600e9,
            _ => return None,
        };
        let number: f64 = number.parse().ok()?;
        let length = number * nanos;
        (length.abs() <= 1e18).then_some(Self(length.round() as i64))
    }

    /// Its nanoseconds; none below zero.
    pub fn nanos(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

struct LengthVisitor;

impl Visitor<'_> for LengthVisitor {
    type Value = Length;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number and a unit: 500us, 250ms, 1s, 5m, 1h")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Length, E> {
        Length::parse(text).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
    }
}

impl<'de> Deserialize<'de> for Length {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(LengthVisitor)
    }
}

/// The sections that `sidecar.yaml` does not have.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawScenario {
    pub why: String,
    pub pods: usize,
    pub lasts: Length,
    #[serde(default = "settles")]
    pub settles: Length,
    #[serde(default)]
    pub network: RawNetwork,
    #[serde(default)]
    pub redis: RawRedis,
    pub load: Vec<RawLoad>,
    #[serde(default)]
    pub faults: Vec<RawFault>,
    #[serde(default)]
    pub random_faults: usize,
    pub expect: Vec<RawExpect>,
    #[serde(default = "percentile")]
    pub percentile: f64,
    pub seeds: Option<u64>,
    #[serde(default)]
    pub long: bool,
    pub bounded: Option<bool>,
}

fn settles() -> Length {
    Length(5_000_000_000)
}

const fn percentile() -> f64 {
    95.0
}

/// The network between the pods and the store.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawNetwork {
    /// The round-trip time, without the store's own time.
    pub rtt: Length,
    /// The mean extra latency of one way, as a part of it; exponentially distributed.
    pub jitter: f64,
    /// The part of messages that is lost, each way.
    pub lost: f64,
    /// The part of news that is lost.
    pub news_lost: f64,
    /// The timeout of a call.
    pub timeout: Length,
    /// The delay from a check that wakes the sync to the turn of the sync.
    pub wakes: Length,
}

impl Default for RawNetwork {
    fn default() -> Self {
        Self {
            rtt: Length(1_000_000),
            jitter: 0.1,
            lost: 0.0,
            news_lost: 0.0,
            timeout: Length(250_000_000),
            wakes: Length(30_000),
        }
    }
}

/// The time that the store takes. It serves one call at a time.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawRedis {
    pub call: Length,
    pub key: Length,
    /// For each pod that news is sent to.
    pub message: Length,
}

impl Default for RawRedis {
    fn default() -> Self {
        Self {
            call: Length(10_000),
            key: Length(8_000),
            message: Length(5_000),
        }
    }
}

/// A stream of checks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawLoad {
    pub checks_per_second: Option<f64>,
    pub trace: Option<String>,
    #[serde(default = "one")]
    pub keys: u32,
    #[serde(default)]
    pub first_key: u32,
    #[serde(default)]
    pub pick: RawPick,
    #[serde(default)]
    pub pods: RawPods,
    #[serde(default)]
    pub arrivals: RawArrivals,
    #[serde(default)]
    pub from: Length,
    #[serde(rename = "for")]
    pub lasts: Option<Length>,
    #[serde(default = "one_cell")]
    pub cost: u64,
    pub refunds: Option<RawRefunds>,
    /// Whether its checks supply their limit, which is then that of the first rule.
    #[serde(default)]
    pub caller_limit: bool,
    pub domain: Option<String>,
    pub descriptor: Option<Vec<String>>,
}

/// Refunds by clients.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawRefunds {
    /// The part of the allowed checks that is refunded.
    pub part: f64,
    /// The mean delay after the check, exponentially distributed; 0 without this field.
    #[serde(default)]
    pub after: Length,
}

const fn one() -> u32 {
    1
}

const fn one_cell() -> u64 {
    1
}

/// How a check gets its key.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawPick {
    #[default]
    Uniform,
    Zipf,
    /// A new key each time.
    Fresh,
    /// One after the other, each for so long.
    Rotate(Length),
}

/// How a check gets its pod.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawPods {
    #[default]
    Even,
    /// Only the first so many.
    First(u64),
    Skewed(RawSkew),
    /// A key stays with a pod for so long, then moves to another.
    Sticky(Length),
}

/// A part of the checks goes to a few pods.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawSkew {
    pub part: f64,
    pub to: u64,
}

/// When checks arrive.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawArrivals {
    #[default]
    Poisson,
    Regular,
    Bursts(RawBursts),
}

/// Poisson arrivals for a while, then a pause. Both lengths are exponentially distributed around these means. The mean
/// rate stays the same.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawBursts {
    pub on: Length,
    pub off: Length,
}

/// A fault. Exactly one of the optional fields besides `for` and `over` must be given.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawFault {
    pub at: Length,
    #[serde(rename = "for")]
    pub lasts: Option<Length>,
    pub over: Option<Length>,
    pub cut: Option<RawWhom>,
    pub lose: Option<f64>,
    pub lose_answers: Option<f64>,
    pub lose_news: Option<f64>,
    pub slow: Option<Length>,
    pub hang: Option<bool>,
    pub restart: Option<RawRestart>,
    pub failover: Option<Length>,
    pub join: Option<usize>,
    pub leave: Option<usize>,
    pub crash: Option<usize>,
    pub pause: Option<usize>,
    pub roll: Option<Length>,
    pub store_clock: Option<Length>,
    pub calendars: Option<Length>,
    pub reload: Option<String>,
    pub reset: Option<u32>,
    pub forge_full: Option<u32>,
    pub forge_live: Option<u32>,
    pub forge_reset: Option<u32>,
}

/// Which pods.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawWhom {
    All,
    /// So many pods, at random.
    Some(usize),
}

/// What the store still has after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RawRestart {
    Empty,
    Kept,
}

/// Bounds on figures between `from` and `to`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawExpect {
    pub from: Option<Length>,
    pub to: Option<Length>,
    /// Only checks whose first entry has this key.
    pub of: Option<String>,
    pub overshoot_percent_max: Option<f64>,
    pub overshoot_cells_max: Option<f64>,
    pub admitted_ratio_max: Option<f64>,
    pub admitted_ratio_min: Option<f64>,
    pub worst_key_ratio_max: Option<f64>,
    pub admitted_rate_max: Option<f64>,
    pub admitted_rate_min: Option<f64>,
    pub false_denials_percent_max: Option<f64>,
    pub updates_per_second_max: Option<f64>,
    pub updates_per_admitted_max: Option<f64>,
    pub lost_cells_max: Option<f64>,
}
