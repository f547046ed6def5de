//! A scenario: why it is run, the world, the load, what goes wrong, and what must hold all the same.
//!
//! One YAML file. Its `rules`, `sync`, `defaults`, `bounds` and `addresses` are those of `sidecar.yaml`, read by the
//! same code and with the same faults; the rest is described in `simulations/README.md`.

mod raw;
mod sections;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_saphyr::Error as YamlError;
use tidegate::config;
use tidegate::engine::rounds::Pace;
use tidegate::pure::rule::Consistency;
use tidegate::pure::sync::Share;
use tidegate::pure::{Rules, Span};

pub use raw::{Length, RawRedis, RawRestart as Restart, RawWhom as Whom};
pub use raw::{RawArrivals as Arrivals, RawNetwork, RawPick as Pick, RawPods as Pods};

use crate::trace::{self, Recorded};
use raw::{RawExpect, RawFault, RawLoad, RawScenario};

/// Pods of one world, at most.
const PODS_MAX: usize = 5_000;
/// The keys a pod holds, unless `bounds` says otherwise: memory is for a thousand of them.
const KEYS_MAX: usize = 4_096;
/// What `bounds` says where it says nothing.
const KEYS_UNSAID: usize = 1_000_000;
/// Seeds, unless the scenario says otherwise.
const SEEDS: u64 = 100;
const SECOND: u64 = 1_000_000_000;

/// Why a scenario cannot be run.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// There is no such file, and no scenario of that name.
    #[error("cannot read {path}: {source}")]
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
    Rules(config::Faults),
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
    pub domain: String,
    /// Entries; `{n}` in a value is the key's number.
    pub entries: Vec<(String, String)>,
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
    Reload(Rules),
    Reset(u32),
}

/// What must hold between two points in time.
#[derive(Clone, Debug)]
pub struct Expect {
    pub from: u64,
    pub to: u64,
    pub figures: Vec<(Figure, Target)>,
}

/// A figure that can be expected to be small, or large.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Figure {
    OvershootPercent,
    OvershootCells,
    AdmittedRatio,
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
        let config =
            config::check_text(&path, &sidecar, &|_| None).map_err(ScenarioError::Rules)?;
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
    pub fn only_limit(&self) -> Option<tidegate::pure::Limit> {
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

fn shape(path: &str, error: &YamlError) -> ScenarioError {
    let location = error.location();
    let line = location.map_or(1, |location| location.line());
    let column = location.map_or(1, |location| location.column());
    let text = error.without_snippet().to_string();
    ScenarioError::Shape {
        path: path.to_owned(),
        line,
        column,
        text,
    }
}

/// Reads one file.
struct Reader<'a> {
    path: String,
    file: &'a Path,
    rules: &'a Rules,
}

impl Reader<'_> {
    fn wrong(&self, field: &str, text: &str) -> ScenarioError {
        ScenarioError::Value {
            path: self.path.clone(),
            field: field.to_owned(),
            text: text.to_owned(),
        }
    }

    fn ensure(&self, sound: bool, field: &str, text: &str) -> Result<(), ScenarioError> {
        match sound {
            true => Ok(()),
            false => Err(self.wrong(field, text)),
        }
    }

    fn scenario(
        &self,
        raw: RawScenario,
        config: &config::Config,
    ) -> Result<Scenario, ScenarioError> {
        let pods = (1..=PODS_MAX).contains(&raw.pods);
        self.ensure(pods, "pods", "must be from 1 to 5000")?;
        let lasts = raw.lasts.nanos();
        let bearable = (SECOND / 10..=86_400 * SECOND).contains(&lasts);
        self.ensure(bearable, "lasts", "must be from 100ms to 24h")?;
        self.ensure(!raw.load.is_empty(), "load", "must not be empty")?;
        let parts = [raw.network.lost, raw.network.news_lost];
        let sound = parts.iter().all(|part| (0.0..=1.0).contains(part));
        self.ensure(sound, "network", "a part is from 0 to 1")?;
        let percent = (0.0..=100.0).contains(&raw.percentile);
        self.ensure(percent, "percentile", "must be from 0 to 100")?;
        for rule in config.rules.all() {
            let waits = rule.spec.consistency == Consistency::Strict;
            let text =
                "a strict rule waits for the store, which is not simulated: say hybrid or local";
            self.ensure(!waits, "rules", text)?;
        }
        let settles = raw.settles.nanos();
        let load = raw.load.iter().map(|load| self.load(load, lasts));
        let faults = raw.faults.iter().map(|fault| self.fault(fault, lasts));
        let faults: Vec<Fault> = faults.collect::<Result<_, _>>()?;
        let calm = faults.is_empty() && raw.random_faults == 0;
        let name = self.file.file_stem().unwrap_or_default();
        let keys_max = match config.bounds.keys_max {
            KEYS_UNSAID => KEYS_MAX,
            said => said,
        };
        let interval = u64::try_from(config.sync.interval.as_nanos()).unwrap_or(u64::MAX);
        Ok(Scenario {
            name: name.to_string_lossy().into_owned(),
            why: raw.why.trim().to_owned(),
            pods: raw.pods,
            lasts,
            settles,
            pace: Pace {
                interval: Span::nanos(interval),
                accuracy: accuracy(config.sync.accuracy),
            },
            keys_max,
            rules: config.rules.clone(),
            network: raw.network,
            redis: raw.redis,
            load: load.collect::<Result<_, _>>()?,
            faults,
            random_faults: raw.random_faults,
            expect: raw
                .expect
                .iter()
                .map(|expect| expected(expect, lasts + settles))
                .collect(),
            percentile: raw.percentile,
            seeds: raw.seeds.unwrap_or(SEEDS).max(1),
            long: raw.long,
            bounded: raw.bounded.unwrap_or(calm),
        })
    }

    fn load(&self, raw: &RawLoad, lasts: u64) -> Result<Load, ScenarioError> {
        let source = match (raw.checks_per_second, &raw.trace) {
            (Some(rate), None) => {
                let sound = rate > 0.0 && rate <= 10e6;
                self.ensure(
                    sound,
                    "load.checks_per_second",
                    "must be above 0, and at most 10000000",
                )?;
                Source::Random {
                    rate,
                    arrivals: raw.arrivals,
                }
            }
            (None, Some(trace)) => {
                let folder = self.file.parent().unwrap_or(Path::new("."));
                let recorded = trace::read(&folder.join(trace));
                let recorded = recorded.map_err(|text| self.wrong("load.trace", &text))?;
                Source::Trace(recorded.into())
            }
            (None, None) | (Some(_), Some(_)) => {
                return Err(self.wrong("load", "give checks_per_second or a trace, one of them"));
            }
        };
        self.ensure(raw.keys > 0, "load.keys", "must be at least 1")?;
        let first = self.rules.all().first();
        let (domain, entries) = match (&raw.descriptor, first) {
            (Some(descriptor), Some(first)) => {
                let domain = raw
                    .domain
                    .clone()
                    .unwrap_or_else(|| first.domain().to_owned());
                let entries = descriptor.iter().map(|entry| {
                    let (key, value) = entry.split_once('=')?;
                    Some((key.to_owned(), value.to_owned()))
                });
                let entries: Option<Vec<_>> = entries.collect();
                let text = "entries are key=value, and {n} in a value is the key's number";
                (
                    domain,
                    entries.ok_or_else(|| self.wrong("load.descriptor", text))?,
                )
            }
            (None, Some(first)) => {
                let entry = |step: &tidegate::pure::rule::Step| {
                    let value = step.value.clone().unwrap_or_else(|| "{n}".to_owned());
                    (step.key.clone(), value)
                };
                (
                    first.domain().to_owned(),
                    first.steps().iter().map(entry).collect(),
                )
            }
            (_, None) => return Err(self.wrong("rules", "there is no rule to ask for")),
        };
        let from = raw.from.nanos();
        let to = raw
            .lasts
            .map_or(lasts, |length| from + length.nanos())
            .min(lasts);
        Ok(Load {
            source,
            keys: raw.keys,
            first_key: raw.first_key,
            pick: raw.pick,
            pods: raw.pods,
            from,
            to,
            cost: raw.cost,
            domain,
            entries,
        })
    }

    fn fault(&self, raw: &RawFault, lasts: u64) -> Result<Fault, ScenarioError> {
        let over = raw.over.map_or(0, |length| length.nanos());
        let part = |part: f64| part.clamp(0.0, 1.0);
        let reload = match &raw.reload {
            Some(limit) => Some(What::Reload(self.reloaded(limit)?)),
            None => None,
        };
        let given: Vec<What> = [
            raw.cut.map(What::Cut),
            raw.lose.map(|lost| What::Lose(part(lost))),
            raw.lose_answers.map(|lost| What::LoseAnswers(part(lost))),
            raw.lose_news.map(|lost| What::LoseNews(part(lost))),
            raw.slow.map(|by| What::Slow(by.nanos())),
            raw.hang.map(|_| What::Hang),
            raw.restart.map(What::Restart),
            raw.failover.map(|lost| What::Failover(lost.nanos())),
            raw.join.map(What::Join),
            raw.leave.map(What::Leave),
            raw.crash.map(What::Crash),
            raw.pause.map(What::Pause),
            raw.roll.map(|each| What::Roll(each.nanos())),
            raw.store_clock.map(|by| What::StoreClock(by.0)),
            raw.calendars.map(|by| What::Calendars(by.0)),
            reload,
            raw.reset.map(What::Reset),
        ]
        .into_iter()
        .flatten()
        .collect();
        let Ok([what]) = <[What; 1]>::try_from(given) else {
            return Err(self.wrong(
                "faults",
                "each says one thing that happens, beside at, for and over",
            ));
        };
        let at = raw.at.nanos();
        self.ensure(at <= lasts, "faults.at", "is after the end")?;
        let to = raw.lasts.map_or(at + over, |length| at + length.nanos());
        Ok(Fault { at, to, what })
    }

    /// The same rules with another limit in the first one.
    fn reloaded(&self, limit: &str) -> Result<Rules, ScenarioError> {
        let Some(first) = self.rules.all().first() else {
            return Err(self.wrong("faults.reload", "there is no rule to change"));
        };
        let [step] = first.steps() else {
            let text = "only a rule right below its domain can be changed";
            return Err(self.wrong("faults.reload", text));
        };
        let (domain, key) = (first.domain(), &step.key);
        let text = format!(
            "rules: [{{ domain: \"{domain}\", descriptors: [{{ key: \"{key}\", rate_limit: {limit} }}] }}]"
        );
        let config =
            config::check_text(&self.path, &text, &|_| None).map_err(ScenarioError::Rules)?;
        Ok(config.rules)
    }
}

/// The share that `accuracy` is, as the sidecar reads it.
pub fn accuracy(accuracy: f64) -> Share {
    Share::of((accuracy * 65_536.0).ceil() as u64, 65_536)
}

fn expected(raw: &RawExpect, ends: u64) -> Expect {
    use Target::{AtLeast, AtMost};
    let figures = [
        (
            Figure::OvershootPercent,
            raw.overshoot_percent_max.map(AtMost),
        ),
        (Figure::OvershootCells, raw.overshoot_cells_max.map(AtMost)),
        (Figure::AdmittedRatio, raw.admitted_ratio_max.map(AtMost)),
        (Figure::AdmittedRatio, raw.admitted_ratio_min.map(AtLeast)),
        (Figure::AdmittedRate, raw.admitted_rate_max.map(AtMost)),
        (Figure::AdmittedRate, raw.admitted_rate_min.map(AtLeast)),
        (
            Figure::FalseDenialsPercent,
            raw.false_denials_percent_max.map(AtMost),
        ),
        (
            Figure::UpdatesPerSecond,
            raw.updates_per_second_max.map(AtMost),
        ),
        (
            Figure::UpdatesPerAdmitted,
            raw.updates_per_admitted_max.map(AtMost),
        ),
        (Figure::LostCells, raw.lost_cells_max.map(AtMost)),
    ];
    let figures = figures.into_iter();
    Expect {
        from: raw.from.map_or(0, |length| length.nanos()),
        to: raw.to.map_or(ends, |length| length.nanos()),
        figures: figures
            .filter_map(|(figure, target)| Some((figure, target?)))
            .collect(),
    }
}
