//! Varies one parameter of a scenario.

use std::str::FromStr;

use tidegate_core::pure::Span;

use crate::scenario::{self, Length, LoadSource, Scenario};

/// The number of values of a range.
const POINTS: u32 = 6;

/// The parameter that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParameterName {
    Accuracy,
    Interval,
    Rtt,
    Pods,
    Load,
}

impl ParameterName {
    const ALL: [(&'static str, Self); 5] = [
        ("accuracy", Self::Accuracy),
        ("interval", Self::Interval),
        ("rtt", Self::Rtt),
        ("pods", Self::Pods),
        ("load", Self::Load),
    ];
}

/// A parameter and its values.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    name: ParameterName,
    values: Vec<f64>,
}

impl FromStr for Parameter {
    type Err = String;

    /// `name=from..to`, spread evenly by factor, or `name=a,b,c`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (name, values) = text
            .split_once('=')
            .ok_or("say NAME=FROM..TO or NAME=a,b,c")?;
        let known = ParameterName::ALL.iter().find(|(known, _)| *known == name);
        let Some((_, name)) = known else {
            let names: Vec<&str> = ParameterName::ALL.iter().map(|(name, _)| *name).collect();
            return Err(format!("must be one of {}", names.join(", ")));
        };
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|value| *value > 0.0);
        let values: Option<Vec<f64>> = match values.split_once("..") {
            Some((from, to)) => number(from)
                .zip(number(to))
                .map(|(from, to)| spread(from, to)),
            None => values.split(',').map(number).collect(),
        };
        let values = values.ok_or("values are numbers above 0: 0.02..0.5 or 0.05,0.1,0.2")?;
        Ok(Self {
            name: *name,
            values,
        })
    }
}

/// Values from `from` to `to`, each the same factor above the one before, with two significant digits.
fn spread(from: f64, to: f64) -> Vec<f64> {
    let steps = f64::from(POINTS - 1);
    let value = |nth: u32| from * (to / from).powf(f64::from(nth) / steps);
    let mut values: Vec<f64> = (0..POINTS).map(value).map(rounded).collect();
    values.dedup();
    values
}

fn rounded(value: f64) -> f64 {
    let scale = 10_f64.powf(1.0 - value.log10().floor());
    (value * scale).round() / scale
}

impl Parameter {
    pub fn name(&self) -> &'static str {
        let named = ParameterName::ALL
            .iter()
            .find(|(_, name)| *name == self.name);
        named.map_or("", |(name, _)| *name)
    }

    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.values.iter().copied()
    }

    /// `scenario` with the parameter at `value`.
    pub fn set(&self, scenario: &Scenario, value: f64) -> Scenario {
        let mut changed = scenario.clone();
        match self.name {
            ParameterName::Accuracy => changed.pace.accuracy = scenario::accuracy(value.min(1.0)),
            ParameterName::Interval => changed.pace.interval = Span::nanos((value * 1e9) as u64),
            ParameterName::Rtt => changed.network.rtt = Length((value * 1e6) as i64),
            ParameterName::Pods => changed.pods = (value as usize).max(1),
            ParameterName::Load => {
                for load in &mut changed.load {
                    if let LoadSource::Random { rate, .. } = &mut load.source {
                        *rate *= value;
                    }
                }
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_spread_by_factor() {
        let parameter: Parameter = "accuracy=0.02..0.5".parse().expect("sound");
        assert_eq!(parameter.values, [0.02, 0.038, 0.072, 0.14, 0.26, 0.5]);
        let parameter: Parameter = "pods=3,20,100".parse().expect("sound");
        assert_eq!(
            (parameter.name(), parameter.values),
            ("pods", vec![3.0, 20.0, 100.0])
        );
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for text in [
            "accuracy",
            "accurac=1",
            "pods=",
            "rtt=1..x",
            "load=-1",
            "pods=0..3",
        ] {
            assert!(text.parse::<Parameter>().is_err(), "{text}");
        }
    }
}
