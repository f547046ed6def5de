//! A scenario: its purpose, the fleet, the load, the faults, and the expectations.
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

pub use raw::RawRefunds as RefundSettings;
pub use raw::{Length, RawRedis, RawRestart as Restart, RawWhom as FaultTarget};
pub use raw::{RawArrivals as Arrivals, RawNetwork, RawPick as Pick, RawPods as Pods};

use crate::trace::TraceRecord;
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
        /// The path that was tried.
        path: String,
        /// The cause.
        source: std::io::Error,
    },
    /// It does not have the shape of a scenario.
    #[error("{path}:{line}:{column}: {text}")]
    Shape {
        /// The file.
        path: String,
        /// The line.
        line: u64,
        /// The column.
        column: u64,
        /// What is wrong.
        text: String,
    },
    /// A section of `sidecar.yaml` has faults.
    #[error("{0}")]
    Rules(tidegate_config::Faults),
    /// A value is wrong.
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
    /// Nanoseconds with load, and nanoseconds after it without load.
    pub lasts: u64,
    pub settles: u64,
    pub pace: Pace,
    pub keys_max: usize,
    pub rules: Rules,
    pub network: RawNetwork,
    pub redis: RawRedis,
    pub load: Vec<Load>,
    pub faults: Vec<ScenarioFault>,
    pub random_faults: usize,
    pub expect: Vec<Expectation>,
    /// The percentile of all seeds that is compared with the expectations.
    pub percentile: f64,
    pub seeds: u64,
    /// Whether it takes so long that only `make sim-long` runs it.
    pub long: bool,
    /// Whether the bound of `docs/sync.md` must hold at every step.
    pub bounded: bool,
}

/// A stream of checks.
#[derive(Clone, Debug)]
pub struct Load {
    pub source: LoadSource,
    pub keys: u32,
    pub first_key: u32,
    pub pick: Pick,
    pub pods: Pods,
    pub from: u64,
    pub to: u64,
    pub cost: u64,
    pub refunds: Option<RefundSettings>,
    /// The caller-supplied limit of its checks.
    pub caller_limit: Option<Limit>,
    pub domain: String,
    /// Entries; `{n}` in a value is the key's number.
    pub entries: Vec<(String, String)>,
    /// The first load with the same domain and entries: they share their keys.
    pub subject: usize,
}

impl Load {
    /// Calls `ask` with a check of `cost` cells of this key; with cost 0 it is a peek.
    pub fn ask<R>(&self, key: u32, cost: u64, ask: impl FnOnce(&Check<'_>) -> R) -> R {
        self.ask_or_refund(key, cost, false, ask)
    }

    /// Calls `ask` with a refund of `cost` cells of this key.
    pub fn refund<R>(&self, key: u32, cost: u64, ask: impl FnOnce(&Check<'_>) -> R) -> R {
        self.ask_or_refund(key, cost, true, ask)
    }

    fn ask_or_refund<R>(
        &self,
        key: u32,
        cost: u64,
        refund: bool,
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

/// The source of arrivals.
#[derive(Clone, Debug)]
pub enum LoadSource {
    Random { rate: f64, arrivals: Arrivals },
    Trace(Arc<[TraceRecord]>),
}

/// A fault, its start and its end.
#[derive(Clone, Debug)]
pub struct ScenarioFault {
    pub at: u64,
    pub to: u64,
    pub what: FaultKind,
}

/// The kinds of faults.
#[derive(Clone, Debug)]
pub enum FaultKind {
    /// Nothing passes between these pods and the store.
    Cut(FaultTarget),
    /// A part of the messages is lost, each way.
    Lose(f64),
    LoseAnswers(f64),
    LoseNews(f64),
    /// The store takes so many nanoseconds longer.
    Slow(u64),
    /// The store hangs, and afterwards serves the calls that came meanwhile.
    Hang,
    Restart(Restart),
    /// The store goes down, and comes back without the writes of the last so many nanoseconds.
    Failover(u64),
    Join(usize),
    Leave(usize),
    Crash(usize),
    Pause(usize),
    /// Every pod is replaced, one after another at this interval in nanoseconds.
    Roll(u64),
    StoreClock(i64),
    Calendars(i64),
    Reload(Box<Rules>),
    Reset(u32),
    /// An outsider publishes this news of a key, again and again.
    Forge(Forgery, u32),
}

/// The forged news of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forgery {
    /// That it is full, for as long as news can say.
    Full,
    /// That every pod is to report it.
    Live,
    /// That somebody reset it.
    Reset,
}

/// Bounds on figures between two points in time.
#[derive(Clone, Debug)]
pub struct Expectation {
    pub from: u64,
    pub to: u64,
    /// Only checks whose first entry has this key.
    pub of: Option<String>,
    pub figures: Vec<(Figure, FigureBound)>,
}

impl Expectation {
    /// Whether it covers a check at `at`.
    pub fn is_about(&self, at: u64, check: &Check<'_>) -> bool {
        let first = check
            .descriptors
            .first()
            .and_then(|one| one.entries.first());
        let of = self.of.as_deref();
        (self.from..self.to).contains(&at)
            && of.is_none_or(|of| first.is_some_and(|e| e.key == of.as_bytes()))
    }

    /// Whether it needs figures of each key.
    pub fn is_by_key(&self) -> bool {
        let mut figures = self.figures.iter();
        figures.any(|(figure, _)| *figure == Figure::WorstKeyRatio)
    }
}

/// A figure that an expectation can bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    OvershootPercent,
    OvershootCells,
    AdmittedRatio,
    /// Admitted against exact, of the key with the largest error.
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

/// The bound on a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FigureBound {
    AtMost(f64),
    AtLeast(f64),
}

impl Scenario {
    /// Loads the file `path`, or the shipped scenario named `path`.
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

    /// Parses `text`; faults name `file`.
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

    /// What a run costs the simulator, in checks: it takes about as long as a hundred of them to run a pod for a second.
    pub fn work(&self) -> u64 {
        const CHECKS_PER_POD_SECOND: f64 = 100.0;
        let seconds = |nanos: u64| nanos as f64 / 1e9;
        let checks = self.load.iter().map(|load| match &load.source {
            LoadSource::Random { rate, .. } => rate * seconds(load.to.saturating_sub(load.from)),
            LoadSource::Trace(records) => records.len() as f64,
        });
        let pods = self.pods as f64 * seconds(self.ends()) * CHECKS_PER_POD_SECOND;
        ((checks.sum::<f64>() + pods) as u64).max(1)
    }

    /// The limit of its only rule; `None` if it has several rules, or one that the baselines do not support.
    pub fn only_limit(&self) -> Option<tidegate_core::pure::Limit> {
        match self.rules.all() {
            [rule] if !rule.spec.algorithm.is_windowed() => rule.spec.limit,
            _ => None,
        }
    }
}

/// The folder of the shipped scenarios: beside this code, whatever the working directory.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

/// Converts `accuracy` into a share, as the sidecar does.
pub fn accuracy(accuracy: f64) -> Share {
    Share::of((accuracy * 65_536.0).ceil() as u64, 65_536)
}
