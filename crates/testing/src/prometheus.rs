//! A strict reader of the Prometheus text format (version 0.0.4).

use std::collections::BTreeMap;

/// A page of metrics.
#[derive(Debug, Default)]
pub struct MetricsPage {
    /// Name to type.
    pub types: BTreeMap<String, String>,
    pub helps: BTreeMap<String, String>,
    pub series: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub name: String,
    pub labels: Vec<(String, String)>,
    pub value: f64,
}

impl MetricsPage {
    /// Reads a page, or fails on the line that is wrong.
    pub fn parse(page: &str) -> Self {
        assert!(page.is_empty() || page.ends_with('\n'), "no last newline");
        let mut metrics = Self::default();
        for line in page.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let (name, help) = rest.split_once(' ').expect(line);
                assert!(is_name(name) && !help.is_empty(), "{line}");
                let twice = metrics.helps.insert(name.to_owned(), help.to_owned());
                assert_eq!(twice, None, "{line}");
            } else if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').expect(line);
                let known = ["counter", "gauge", "histogram", "summary", "untyped"];
                assert!(is_name(name) && known.contains(&kind), "{line}");
                let twice = metrics.types.insert(name.to_owned(), kind.to_owned());
                assert_eq!(twice, None, "{line}");
            } else {
                assert!(!line.starts_with('#'), "{line}");
                metrics.add(series(line));
            }
        }
        metrics
    }

    fn add(&mut self, series: Sample) {
        let same = |other: &Sample| other.name == series.name && other.labels == series.labels;
        assert!(!self.series.iter().any(same), "twice: {series:?}");
        let family = self.family(&series.name);
        assert!(
            self.types.contains_key(&family),
            "no TYPE before {series:?}"
        );
        assert!(
            self.helps.contains_key(&family),
            "no HELP before {series:?}"
        );
        self.series.push(series);
    }

    /// The metric that a series belongs to: a histogram has three kinds of series.
    pub fn family(&self, name: &str) -> String {
        let stem = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .filter(|stem| {
                self.types
                    .get(*stem)
                    .is_some_and(|kind| kind == "histogram")
            });
        stem.unwrap_or(name).to_owned()
    }

    /// Checks that this pod itself allowed and denied by `rule`.
    pub fn decided(&self, rule: &str) -> (f64, f64) {
        let of = |decision| {
            let labels = [("rule", rule), ("decision", decision), ("source", "local")];
            self.of("ratelimit_decisions_total", &labels)
        };
        (of("allow"), of("deny"))
    }

    /// The value of a series, labels in any order.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let matches = |series: &&Sample| {
            series.name == name
                && series.labels.len() == labels.len()
                && labels
                    .iter()
                    .all(|(key, value)| series.labels.iter().any(|(k, v)| k == key && v == value))
        };
        self.series.iter().find(matches).map(|series| series.value)
    }

    /// The same, for a series that has to be there.
    pub fn of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.get(name, labels)
            .unwrap_or_else(|| panic!("no {name} {labels:?} in {:#?}", self.series))
    }
}

fn series(line: &str) -> Sample {
    let end = line.find(['{', ' ']).expect(line);
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        while !rest.starts_with('}') {
            let (label, after) = rest.split_once("=\"").expect(line);
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (value, after) = quoted(after).expect(line);
            labels.push((label.to_owned(), value));
            rest = after.strip_prefix(',').unwrap_or(after);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').expect(line);
    let value = match value {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        "NaN" => f64::NAN,
        number => number.parse().expect(line),
    };
    Sample {
        name: name.to_owned(),
        labels,
        value,
    }
}

/// A label's value up to its closing quote, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut characters = text.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match characters.next()?.1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                _ => return None,
            }),
            _ => value.push(character),
        }
    }
    None
}

fn is_name(name: &str) -> bool {
    let first = |character: char| character.is_ascii_alphabetic() || "_:".contains(character);
    name.starts_with(first)
        && name
            .chars()
            .all(|character| first(character) || character.is_ascii_digit())
}
