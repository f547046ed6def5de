//! A scenario: why it is run, the world, the load, what goes wrong, and what must hold all the same.
//!
//! One YAML file. Its `rules`, `sync`, `defaults`, `bounds` and `addresses` are those of `sidecar.yaml`, read by the
//! same code and with the same faults; the rest is described in `simulations/README.md`.

mod raw;
mod read;
mod sections;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate_core::engine::sync::Pace;
use tidegate_core::pure::sync::Share;
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Limit, Rules};

pub use raw::RawRefunds as Refunds;
pub use raw::{Length, RawRedis, RawRestart as Restart, RawWhom as Whom};
pub use raw::{RawArrivals as Arrivals, RawNetwork, RawPick as Pick, RawPods as Pods};

use crate::trace::Recorded;
use raw::RawScenario;
use read::{Reader, shape};

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// There is no such file, and no scenario of that name.
    #[error(
        "cannot read {path}: {source} (`tidegate-sim list` names the scenarios that there are)"
    )]
    Read {
        /// Where it was looked for.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// It is not what a scenario looks like.
    #[error("{path}:{line}:{column}: {text}")]
    Shape {
        /// The file.
        path: String,
        /// Where.
        line: u64,
        /// Where in the line.
        column: u64,
        /// What is wrong.
        text: String,
    },
    /// The part that is `sidecar.yaml`'s is wrong.
    #[error("{0}")]
    Rules(tidegate_config::Faults),
    /// A value makes no sense.
    #[error("{path}: {field}: {text}")]
    Value {
        /// The file.
        path: String,
        /// The field.
        field: String,
        /// What is wrong and what would be right.
        text: String,
    },
}

/// A scenario that can be run.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file's name without its ending.
    pub name: String,
    pub why: String,
    pub pods: usize,
    /// Nanoseconds with load, and after it without.
    pub lasts: u64,
    pub settles: u64,
    pub pace: Pace,
    pub keys_max: usize,
    pub rules: Rules,
    pub network: RawNetwork,
    pub redis: RawRedis,
    pub load: Vec<Load>,
    pub faults: Vec<Fault>,
    pub random_faults: usize,
    pub expect: Vec<Expect>,
    /// Of the figures of all seeds, which one is held against the expectations.
    pub percentile: f64,
    pub seeds: u64,
    /// Whether it takes so long that only `make sim-long` runs it.
    pub long: bool,
    /// Whether the bound of `docs/sync.md` must hold at every step.
    pub bounded: bool,
}

/// Checks that arrive.
#[derive(Clone, Debug)]
pub struct Load {
    pub source: Source,
    pub keys: u32,
    pub first_key: u32,
    pub pick: Pick,
    pub pods: Pods,
    pub from: u64,
    pub to: u64,
    pub cost: u64,
    pub refunds: Option<Refunds>,
    /// The limit that its checks carry.
    pub caller_limit: Option<Limit>,
    pub domain: String,
    /// Entries; `{n}` in a value is the key's number.
    pub entries: Vec<(String, String)>,
    /// The first load with the same domain and entries: they share their keys.
    pub subject: usize,
}

impl Load {
    /// What `ask` says to a check of `cost` cells of the key of that number; of none it is a look.
    pub fn ask<R>(&self, key: u32, cost: u64, ask: impl FnOnce(&Check<'_>) -> R) -> R {
        self.ask_or_refund(key, (cost, false), ask)
    }

    /// The same for cells that are given back.
    pub fn refund<R>(&self, key: u32, cost: u64, ask: impl FnOnce(&Check<'_>) -> R) -> R {
        self.ask_or_refund(key, (cost, true), ask)
    }

    fn ask_or_refund<R>(
        &self,
        key: u32,
        (cost, refund): (u64, bool),
        ask: impl FnOnce(&Check<'_>) -> R,
    ) -> R {
        let number = key.to_string();
        let values = self
            .entries
            .iter()
            .map(|(_, value)| value.replace("{n}", &number));
        let values: Vec<String> = values.collect();
        let entries = self.entries.iter().zip(&values);
        let entries: Vec<Entry<'_>> = entries
            .map(|((key, _), value)| Entry::new(key, value))
            .collect();
        let descriptors = [Descriptor {
            limit: self.caller_limit,
            refund,
            ..Descriptor::of(&entries)
        }];
        ask(&Check {
            domain: &self.domain,
            cost: Cells::new(cost),
            peek: cost == 0,
            descriptors: &descriptors,
        })
    }
}

/// Where arrivals come from.
#[derive(Clone, Debug)]
pub enum Source {
    Random { rate: f64, arrivals: Arrivals },
    Trace(Arc<[Recorded]>),
}

/// Something that happens, and until when.
#[derive(Clone, Debug)]
pub struct Fault {
    pub at: u64,
    pub to: u64,
    pub what: What,
}

/// What happens.
#[derive(Clone, Debug)]
pub enum What {
    /// Nothing passes between these pods and the store.
    Cut(Whom),
    /// A part of the messages is lost, each way.
    Lose(f64),
    LoseAnswers(f64),
    LoseNews(f64),
    /// The store takes so much longer.
    Slow(u64),
    /// The store stands still and goes on afterwards with what has come meanwhile.
    Hang,
    Restart(Restart),
    /// The store is gone, and comes back without what it was told in the last so many nanoseconds.
    Failover(u64),
    Join(usize),
    Leave(usize),
    Crash(usize),
    Pause(usize),
    /// Every pod is replaced, one each so many nanoseconds.
    Roll(u64),
    StoreClock(i64),
    Calendars(i64),
    Reload(Box<Rules>),
    Reset(u32),
    /// Somebody who is no pod says this of a key, again and again.
    Forge(Forged, u32),
}

/// What a forger says of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forged {
    /// That it is full, for as long as anybody believes.
    Full,
    /// That every pod is to report it.
    Live,
    /// That somebody reset it.
    Reset,
}

/// What must hold between two points in time.
#[derive(Clone, Debug)]
pub struct Expect {
    pub from: u64,
    pub to: u64,
    /// Only checks whose first entry has this key.
    pub of: Option<String>,
    pub figures: Vec<(Figure, Target)>,
}

impl Expect {
    /// Whether a check that comes at `at` is one of those it is about.
    pub fn is_about(&self, at: u64, check: &Check<'_>) -> bool {
        let first = check
            .descriptors
            .first()
            .and_then(|one| one.entries.first());
        let of = self.of.as_deref();
        (self.from..self.to).contains(&at)
            && of.is_none_or(|of| first.is_some_and(|e| e.key == of.as_bytes()))
    }

    /// Whether it wants to know of each key.
    pub fn is_by_key(&self) -> bool {
        let mut figures = self.figures.iter();
        figures.any(|(figure, _)| *figure == Figure::WorstKeyRatio)
    }
}

/// A figure that can be expected to be small, or large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    OvershootPercent,
    OvershootCells,
    AdmittedRatio,
    /// Admitted against exact, of the key that is furthest off.
    WorstKeyRatio,
    AdmittedRate,
    FalseDenialsPercent,
    UpdatesPerSecond,
    UpdatesPerAdmitted,
    LostCells,
}

impl Figure {
    /// Its name in scenarios, without `_max` or `_min`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OvershootPercent => "overshoot_percent",
            Self::OvershootCells => "overshoot_cells",
            Self::AdmittedRatio => "admitted_ratio",
            Self::WorstKeyRatio => "worst_key_ratio",
            Self::AdmittedRate => "admitted_rate",
            Self::FalseDenialsPercent => "false_denials_percent",
            Self::UpdatesPerSecond => "updates_per_second",
            Self::UpdatesPerAdmitted => "updates_per_admitted",
            Self::LostCells => "lost_cells",
        }
    }
}

/// How a figure must be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Scenario {
    /// The scenario in the file `path`, or of the name `path` among those that come with the project.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn load(path: &str) -> Result<Self, ScenarioError> {
        let given = Path::new(path);
        let shipped = folder().join(path).with_extension("yaml");
        let file = if given.is_file() { given } else { &shipped };
        let text = std::fs::read_to_string(file).map_err(|source| ScenarioError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(file, &text)
    }

    /// Every scenario that comes with the project, sorted by name.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn shipped() -> Result<Vec<Self>, ScenarioError> {
        let folder = folder();
        let unreadable = |source| ScenarioError::Read {
            path: folder.display().to_string(),
            source,
        };
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&folder).map_err(unreadable)? {
            let path = entry.map_err(unreadable)?.path();
            if path.extension().is_some_and(|ending| ending == "yaml") {
                paths.push(path.display().to_string());
            }
        }
        paths.sort();
        paths.iter().map(|path| Self::load(path)).collect()
    }

    /// The scenario that `text` is; faults call it by the name of `file`.
    ///
    /// # Errors
    /// What is wrong with it, and where.
    pub fn parse(file: &Path, text: &str) -> Result<Self, ScenarioError> {
        let path = file.display().to_string();
        let (own, sidecar) = sections::split(text);
        let config = tidegate_config::check_text(&path, &sidecar, &|_| None)
            .map_err(ScenarioError::Rules)?;
        let raw: RawScenario =
            serde_saphyr::from_str(&own).map_err(|error| shape(&path, &error))?;
        Reader {
            path,
            file,
            rules: &config.rules,
        }
        .scenario(raw, &config)
    }

    /// Nanoseconds in all.
    pub const fn ends(&self) -> u64 {
        self.lasts + self.settles
    }

    /// The limit of its only rule; `None` if it has several, or one that the baselines do not know.
    pub fn only_limit(&self) -> Option<tidegate_core::pure::Limit> {
        match self.rules.all() {
            [rule] if !rule.spec.algorithm.is_windowed() => rule.spec.limit,
            _ => None,
        }
    }
}

/// Where the scenarios of the project are: beside this code, wherever it is run from.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

/// The share that `accuracy` is, as the sidecar reads it.
pub fn accuracy(accuracy: f64) -> Share {
    Share::of((accuracy * 65_536.0).ceil() as u64, 65_536)
}
