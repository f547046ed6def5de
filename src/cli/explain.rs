//! `tidegate explain`: prints which rule a check meets, with its key and limit, and why. It reads the configuration and
//! calls no sidecar.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::{BAD_CONFIGURATION, EntryArgument, load, say, variable, with_causes};
use crate::daemon;
use tidegate_core::engine::{Engine, FleetKey, Setup};
use tidegate_core::pure::rule::{Matching, PathStep};
use tidegate_core::pure::{Cells, Check, Descriptor, Entry, Moment, Rule};

#[derive(Debug, Args)]
pub struct ExplainCommand {
    /// The domain of the check
    domain: String,
    /// The entries of its descriptor, in order
    #[arg(value_name = "KEY=VALUE", required = true)]
    entries: Vec<EntryArgument>,
    /// The configuration file
    #[arg(
        long,
        env = "TIDEGATE_CONFIG",
        value_name = "FILE",
        default_value = "sidecar.yaml"
    )]
    config: PathBuf,
}

impl ExplainCommand {
    /// Prints the rules that the check would meet.
    pub fn run(&self) -> ExitCode {
        let Some(config) = load(&self.config, &variable) else {
            return ExitCode::from(BAD_CONFIGURATION);
        };
        let Some(matching) = config.rules.matching(&self.domain) else {
            say(format_args!(
                "allowed: no domain {:?} is configured, and what is not limited passes",
                self.domain
            ));
            return ExitCode::SUCCESS;
        };
        // The rule does not depend on the fleet's key, and the file with that key need not be on this machine.
        let fleet = daemon::fleet_key(&config);
        let setup = Setup {
            keys_max: 16,
            fleet: fleet.as_ref().copied().unwrap_or(FleetKey::derived(b"")),
            seeds: [0, 0],
            reporting: false,
        };
        let engine = Engine::new(setup, config.rules);
        let entries: Vec<Entry<'_>> = self
            .entries
            .iter()
            .map(|pair| Entry::new(&pair.key, &pair.value))
            .collect();
        let descriptors = [Descriptor::of(&entries)];
        let check = Check {
            domain: &self.domain,
            descriptors: &descriptors,
            cost: Cells::ONE,
            peek: true,
        };
        let answer = engine.check(&check, Moment::at(1));
        if answer.hits().is_empty() {
            say(format_args!(
                "allowed: no rule of {:?} is reached with these entries",
                self.domain
            ));
            say(format_args!("why: {}", why_not(matching)));
        }
        for hit in answer.hits() {
            let key = match &fleet {
                Ok(_) => format!("{:032x}", hit.name),
                Err(error) => format!("unknown here: {}", with_causes(error)),
            };
            explain(answer.rule(hit), &key);
        }
        ExitCode::SUCCESS
    }
}

fn explain(rule: &Rule, key: &str) {
    say(format_args!("rule: {}", rule.label));
    match &rule.spec.limit {
        Some(limit) => {
            say(format_args!(
                "limit: {limit}, {}",
                rule.spec.algorithm.name()
            ));
            if !rule.spec.algorithm.is_windowed() {
                say(format_args!(
                    "burst: {} at once, then one every {}",
                    limit.burst(),
                    limit.interval()
                ));
            }
        }
        None => say(format_args!("limit: none, it always allows")),
    }
    say(format_args!("key: {key}"));
    say(format_args!(
        "why: {}",
        rule.steps()
            .iter()
            .map(reason)
            .collect::<Vec<_>>()
            .join(", then ")
    ));
    for (holds, what) in [
        (rule.spec.shadow, "shadow_mode: it counts and never denies"),
        (
            rule.spec.quota,
            "quota_mode: it denies only if every quota rule of the check does",
        ),
        (
            rule.spec.count_rejected,
            "count_rejected: denied checks are charged too",
        ),
    ] {
        if holds {
            say(format_args!("{what}"));
        }
    }
}

fn reason(step: &PathStep) -> String {
    match &step.value {
        Some(value) if value.contains('*') && step.shared => {
            format!(
                "{} matches {value:?} and all such values share one key",
                step.key
            )
        }
        Some(value) if value.contains('*') => format!("{} matches {value:?}", step.key),
        Some(value) => format!("{} is {value:?}", step.key),
        None => format!(
            "{} may have any value, each with a key of its own",
            step.key
        ),
    }
}

const fn why_not(matching: Matching) -> &'static str {
    match matching {
        Matching::Specific => {
            "a rule must be reached with all entries, in their order (see `match: path` for every rule on the path)"
        }
        Matching::Path => "no rule is on the path of these entries, in their order",
    }
}
