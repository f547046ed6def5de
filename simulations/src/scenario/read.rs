//! Checks a parsed scenario and builds one that can be run.

use std::path::Path;

use serde_saphyr::Error as YamlError;
use tidegate_core::engine::sync::Pace;
use tidegate_core::pure::rule::{Consistency, PathStep};
use tidegate_core::pure::{Rules, Span};

use super::raw::{RawExpect, RawFault, RawLoad, RawScenario};
use super::{
    Expectation, FaultKind, Figure, FigureBound, Forgery, Load, LoadSource, Scenario,
    ScenarioError, ScenarioFault, accuracy,
};
use crate::trace;

/// The most pods of one scenario.
const PODS_MAX: usize = 5_000;
/// The most keys of a pod, unless `bounds` says otherwise: a thousand pods must fit in memory.
const KEYS_MAX: usize = 4_096;
/// The default of `bounds.keys_max`.
const KEYS_MAX_DEFAULT: usize = 1_000_000;
/// Seeds, unless the scenario says otherwise.
const SEEDS: u64 = 100;
const SECOND: u64 = 1_000_000_000;

/// Turns an error of the parser into an error with its position.
pub(super) fn shape(path: &str, error: &YamlError) -> ScenarioError {
    let location = error.location();
    let line = location.map_or(1, |location| location.line());
    let column = location.map_or(1, |location| location.column());
    let text = error.without_snippet().to_string();
    // The error has the position already.
    let text = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(text, _)| text)
        .to_owned();
    ScenarioError::Shape {
        path: path.to_owned(),
        line,
        column,
        text,
    }
}

/// Checks one file.
pub(super) struct Reader<'a> {
    pub(super) path: String,
    pub(super) file: &'a Path,
    pub(super) rules: &'a Rules,
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

    pub(super) fn scenario(
        &self,
        raw: RawScenario,
        config: &tidegate_config::Config,
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
                "a strict rule waits for the store, which is not simulated: use hybrid or local";
            self.ensure(!waits, "rules", text)?;
        }
        let settles = raw.settles.nanos();
        let load = raw.load.iter().map(|load| self.load(load, lasts));
        let mut load: Vec<Load> = load.collect::<Result<_, _>>()?;
        for nth in 0..load.len() {
            let (domain, entries) = (&load[nth].domain, &load[nth].entries);
            let same = |other: &Load| other.domain == *domain && other.entries == *entries;
            load[nth].subject = load.iter().position(same).unwrap_or(nth);
        }
        let faults = raw.faults.iter().map(|fault| self.fault(fault, lasts));
        let faults: Vec<ScenarioFault> = faults.collect::<Result<_, _>>()?;
        let calm = faults.is_empty() && raw.random_faults == 0;
        let name = self.file.file_stem().unwrap_or_default();
        let keys_max = match config.bounds.keys_max {
            KEYS_MAX_DEFAULT => KEYS_MAX,
            given => given,
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
            load,
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
        self.ensure(raw.keys > 0, "load.keys", "must be at least 1")?;
        let part = raw.refunds.map_or(0.0, |refunds| refunds.part);
        let sound = (0.0..=1.0).contains(&part);
        self.ensure(sound, "load.refunds", "a part is from 0 to 1")?;
        let (domain, entries) = self.descriptor(raw)?;
        let from = raw.from.nanos();
        let to = raw.lasts.map_or(lasts, |length| from + length.nanos());
        Ok(Load {
            source: self.source(raw)?,
            keys: raw.keys,
            first_key: raw.first_key,
            pick: raw.pick,
            pods: raw.pods,
            from,
            to: to.min(lasts),
            cost: raw.cost,
            refunds: raw.refunds,
            caller_limit: raw
                .caller_limit
                .then(|| self.rules.all().first()?.spec.limit)
                .flatten(),
            domain,
            entries,
            subject: 0,
        })
    }

    fn source(&self, raw: &RawLoad) -> Result<LoadSource, ScenarioError> {
        match (raw.checks_per_second, &raw.trace) {
            (Some(rate), None) => {
                let (sound, field) = (rate > 0.0 && rate <= 10e6, "load.checks_per_second");
                self.ensure(sound, field, "must be above 0, and at most 10000000")?;
                Ok(LoadSource::Random {
                    rate,
                    arrivals: raw.arrivals,
                })
            }
            (None, Some(trace)) => {
                let folder = self.file.parent().unwrap_or(Path::new("."));
                let records = trace::read(&folder.join(trace));
                let records = records.map_err(|text| self.wrong("load.trace", &text))?;
                Ok(LoadSource::Trace(records.into()))
            }
            (None, None) | (Some(_), Some(_)) => {
                Err(self.wrong("load", "give checks_per_second or a trace, one of them"))
            }
        }
    }

    /// The domain and entries of a load's checks: its own, or those of the first rule.
    fn descriptor(&self, raw: &RawLoad) -> Result<(String, Vec<(String, String)>), ScenarioError> {
        let Some(first) = self.rules.all().first() else {
            return Err(self.wrong("rules", "there is no rule to ask for"));
        };
        let domain = raw.domain.clone();
        let domain = domain.unwrap_or_else(|| first.domain().to_owned());
        let entries: Option<Vec<(String, String)>> = match &raw.descriptor {
            Some(descriptor) => {
                let entries = descriptor.iter().map(|entry| entry.split_once('='));
                let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                entries.map(|entry| entry.map(owned)).collect()
            }
            None => {
                let entry = |step: &PathStep| {
                    let value = step.value.clone().unwrap_or_else(|| "{n}".to_owned());
                    Some((step.key.clone(), value))
                };
                first.steps().iter().map(entry).collect()
            }
        };
        let text = "entries are key=value, and {n} in a value is the key's number";
        let entries = entries.ok_or_else(|| self.wrong("load.descriptor", text))?;
        Ok((domain, entries))
    }

    fn fault(&self, raw: &RawFault, lasts: u64) -> Result<ScenarioFault, ScenarioError> {
        let over = raw.over.map_or(0, |length| length.nanos());
        let part = |part: f64| part.clamp(0.0, 1.0);
        let reload = match &raw.reload {
            Some(limit) => Some(FaultKind::Reload(Box::new(self.reloaded(limit)?))),
            None => None,
        };
        let given: Vec<FaultKind> = [
            raw.cut.map(FaultKind::Cut),
            raw.lose.map(|lost| FaultKind::Lose(part(lost))),
            raw.lose_answers
                .map(|lost| FaultKind::LoseAnswers(part(lost))),
            raw.lose_news.map(|lost| FaultKind::LoseNews(part(lost))),
            raw.slow.map(|by| FaultKind::Slow(by.nanos())),
            raw.hang.map(|_| FaultKind::Hang),
            raw.restart.map(FaultKind::Restart),
            raw.failover.map(|lost| FaultKind::Failover(lost.nanos())),
            raw.join.map(FaultKind::Join),
            raw.leave.map(FaultKind::Leave),
            raw.crash.map(FaultKind::Crash),
            raw.pause.map(FaultKind::Pause),
            raw.roll.map(|each| FaultKind::Roll(each.nanos())),
            raw.store_clock.map(|by| FaultKind::StoreClock(by.0)),
            raw.calendars.map(|by| FaultKind::Calendars(by.0)),
            reload,
            raw.reset.map(FaultKind::Reset),
            raw.forge_full
                .map(|key| FaultKind::Forge(Forgery::Full, key)),
            raw.forge_live
                .map(|key| FaultKind::Forge(Forgery::Live, key)),
            raw.forge_reset
                .map(|key| FaultKind::Forge(Forgery::Reset, key)),
        ]
        .into_iter()
        .flatten()
        .collect();
        let Ok([what]) = <[FaultKind; 1]>::try_from(given) else {
            return Err(self.wrong(
                "faults",
                "each says one thing that happens, beside at, for and over",
            ));
        };
        let at = raw.at.nanos();
        self.ensure(at <= lasts, "faults.at", "is after the end")?;
        let to = raw.lasts.map_or(at + over, |length| at + length.nanos());
        Ok(ScenarioFault { at, to, what })
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
        let config = tidegate_config::check_text(&self.path, &text, &|_| None)
            .map_err(ScenarioError::Rules)?;
        Ok(config.rules)
    }
}

fn expected(raw: &RawExpect, ends: u64) -> Expectation {
    use FigureBound::{AtLeast, AtMost};
    let figures = [
        (
            Figure::OvershootPercent,
            raw.overshoot_percent_max.map(AtMost),
        ),
        (Figure::OvershootCells, raw.overshoot_cells_max.map(AtMost)),
        (Figure::AdmittedRatio, raw.admitted_ratio_max.map(AtMost)),
        (Figure::AdmittedRatio, raw.admitted_ratio_min.map(AtLeast)),
        (Figure::WorstKeyRatio, raw.worst_key_ratio_max.map(AtMost)),
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
    Expectation {
        from: raw.from.map_or(0, |length| length.nanos()),
        to: raw.to.map_or(ends, |length| length.nanos()),
        of: raw.of.clone(),
        figures: figures
            .filter_map(|(figure, target)| Some((figure, target?)))
            .collect(),
    }
}
