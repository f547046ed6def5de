//! As much of PromQL as it takes to find the metrics in a query.

use std::collections::BTreeSet;

use tidegate::telemetry::{ALL, MetricKind};

/// Words of the language that stand where a metric could.
const WORDS: [&str; 7] = ["and", "or", "unless", "offset", "bool", "inf", "nan"];
/// Words that labels follow, in parentheses.
const LABELS_FOLLOW: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// Every series that a pod shows, as the page names it; and whether the target is up, which Prometheus knows.
pub fn known() -> BTreeSet<String> {
    let mut names = BTreeSet::from(["up".to_owned()]);
    for metric in ALL {
        match metric.kind {
            MetricKind::Counter | MetricKind::Gauge => drop(names.insert(metric.name.to_owned())),
            MetricKind::Histogram => names
                .extend(["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", metric.name))),
        }
    }
    names
}

/// The selectors of a query, `name{label="value"}`, as they stand in it.
pub fn selectors(query: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        let named = |character: char| character.is_ascii_alphanumeric() || "_:".contains(character);
        if first == '[' || first == '"' {
            let close = if first == '[' { ']' } else { '"' };
            rest = after(&rest[1..], close);
        } else if first.is_ascii_digit() {
            rest = rest.trim_start_matches(|character| named(character) || character == '.');
        } else if named(first) {
            let end = rest.find(|character| !named(character));
            let (name, behind) = rest.split_at(end.unwrap_or(rest.len()));
            rest = behind;
            let next = behind.trim_start();
            if LABELS_FOLLOW.contains(&name) {
                rest = match next.starts_with('(') {
                    true => after(next, ')'),
                    false => next,
                };
            } else if name == "offset" {
                rest = next.trim_start_matches(named);
            } else if next.starts_with('{') {
                let labels = &next[..next.len() - after_labels(next).len()];
                found.push(format!("{name}{labels}"));
                rest = after_labels(next);
            } else if !is_call(next) && !WORDS.contains(&name) {
                found.push(name.to_owned());
            }
        } else {
            rest = &rest[first.len_utf8()..];
        }
    }
    found
}

/// Whether what precedes this is called with it: `sum(`, `sum by (`.
fn is_call(next: &str) -> bool {
    ["(", "by ", "without "]
        .iter()
        .any(|begin| next.starts_with(begin))
}

/// The metric that a selector names.
pub fn name(selector: &str) -> &str {
    selector.split('{').next().unwrap_or(selector)
}

fn after(text: &str, close: char) -> &str {
    text.split_once(close).expect("closed").1
}

/// What follows `{...}`: no value here holds a brace.
fn after_labels(text: &str) -> &str {
    after(text, '}')
}

#[test]
fn selectors_are_found_and_nothing_else() {
    for (query, expected) in [
        ("up == 0", vec!["up"]),
        (
            "sum by (le, rule) (rate(a_total[5m] offset 1h)) > 0.5e",
            vec!["a_total"],
        ),
        (
            r#"1 - a{b="sum(c)", d=~"e|f"} / on (g) group_left h and i"#,
            vec![r#"a{b="sum(c)", d=~"e|f"}"#, "h", "i"],
        ),
        (
            r#"avg_over_time(sum by (rule)(rate(a{x="$y"}[$__rate_interval]))[1d:30m] offset 1h)"#,
            vec![r#"a{x="$y"}"#],
        ),
        (
            "histogram_quantile(0.99, b_bucket) unless absent(c)",
            vec!["b_bucket", "c"],
        ),
    ] {
        assert_eq!(selectors(query), expected, "{query}");
    }
}
