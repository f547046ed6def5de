//! A figure with its target beside it.

use std::fmt;

/// What was measured, and the most that it may be.
#[derive(Clone, Debug)]
pub struct FleetFigure {
    pub scenario: &'static str,
    pub what: String,
    /// None if the sidecars did not report it.
    pub value: Option<f64>,
    /// None for a figure that is only shown.
    pub target: Option<f64>,
}

impl FleetFigure {
    /// Whether it is within so many times its target. An unknown figure is not.
    pub fn is_within(&self, times: f64) -> bool {
        match (self.value, self.target) {
            (Some(value), Some(target)) => value <= target * times,
            (Some(_), None) => true,
            (None, _) => false,
        }
    }
}

impl fmt::Display for FleetFigure {
    /// A line of a table in Markdown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self
            .value
            .map_or("UNKNOWN".to_owned(), |value| format!("{value:.2}"));
        let target = self
            .target
            .map_or(String::new(), |target| format!("≤ {target}"));
        let verdict = match (self.is_within(1.0), self.target) {
            (true, Some(_)) => "pass",
            (true, None) => "",
            (false, _) => "SHORT",
        };
        let Self { scenario, what, .. } = self;
        write!(
            f,
            "| {scenario} | {what} | {value} | {target} | {verdict} |"
        )
    }
}

/// The figures of one scenario.
#[derive(Debug)]
pub struct FleetFigures {
    scenario: &'static str,
    pub all: Vec<FleetFigure>,
}

impl FleetFigures {
    pub fn of(scenario: &'static str) -> Self {
        Self {
            scenario,
            all: Vec::new(),
        }
    }

    /// Adds a figure with a target.
    pub fn most(self, what: &str, value: impl Into<Option<f64>>, target: f64) -> Self {
        self.add(what, value.into(), Some(target))
    }

    /// Adds a figure that is only shown.
    pub fn show(self, what: &str, value: impl Into<Option<f64>>) -> Self {
        self.add(what, value.into(), None)
    }

    /// Removes a figure that depends on the machine.
    pub fn without(mut self, what: &str) -> Self {
        self.all.retain(|figure| figure.what != what);
        self
    }

    fn add(mut self, what: &str, value: Option<f64>, target: Option<f64>) -> Self {
        let (scenario, what) = (self.scenario, what.to_owned());
        self.all.push(FleetFigure {
            scenario,
            what,
            value,
            target,
        });
        self
    }

    /// Those that are not within so many times their target.
    fn short(&self, times: f64) -> impl Iterator<Item = &FleetFigure> {
        let has_target = |figure: &&FleetFigure| figure.target.is_some();
        let all = self.all.iter().filter(has_target);
        all.filter(move |figure| !figure.is_within(times))
    }

    /// Whether every figure is within so many times its target.
    pub fn are_within(&self, times: f64) -> bool {
        self.short(times).next().is_none()
    }

    /// Fails unless every figure is within so many times its target.
    pub fn assert(&self, times: f64) {
        let short: Vec<String> = self.short(times).map(ToString::to_string).collect();
        let all: Vec<String> = self.all.iter().map(ToString::to_string).collect();
        assert!(
            short.is_empty(),
            "beyond {times} times the target:\n{}\nof\n{}",
            short.join("\n"),
            all.join("\n")
        );
    }
}
