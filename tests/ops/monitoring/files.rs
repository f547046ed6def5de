//! The files by themselves: promtool reads the rules, Grafana's own types check the dashboard, and all that these or
//! the operator's page name exists.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

use serde_json::Value;
use tidegate::telemetry::ALL;
use tidegate_testing::Folder;

use super::promql::{known, name, selectors};
use super::{alerts, dashboard, panels, path, queries, read, runs};

const OPERATIONS: &str = "docs/operations.md";

fn promtool(arguments: &[&str]) -> String {
    runs(
        Command::new("promtool")
            .args(arguments)
            .current_dir(path("monitoring")),
    )
}

#[test]
fn promtool_accepts_the_rules() {
    let said = promtool(&["check", "rules", "alerts.yaml"]);
    let count = alerts().len();
    assert!(said.contains(&format!("{count} rules found")), "{said}");
}

#[test]
fn alerts_fire_when_they_should_and_not_before() {
    let said = promtool(&["test", "rules", "alerts.test.yaml"]);
    assert!(said.contains("SUCCESS"), "{said}");
}

/// The unit tests leave no alert out: each is seen to wait, to fire, and in its test not to fire for something else.
#[test]
fn every_alert_has_its_unit_test() {
    let file: Value = serde_saphyr::from_str(&read("monitoring/alerts.test.yaml")).unwrap();
    let tests = file["tests"].as_array().unwrap();
    let checks: Vec<&Value> = tests
        .iter()
        .flat_map(|test| test["promql_expr_test"].as_array().unwrap())
        .collect();
    for alert in alerts() {
        let of_alert =
            |check: &&&Value| check["expr"] == format!("ALERTS{{alertname=\"{}\"}}", alert.name);
        let samples: Vec<String> = checks
            .iter()
            .filter(of_alert)
            .map(|check| check["exp_samples"].to_string())
            .collect();
        for state in ["pending", "firing"] {
            let seen = samples.iter().any(|samples| samples.contains(state));
            assert!(seen, "{} is never seen {state}", alert.name);
        }
    }
}

#[test]
fn alerts_say_how_bad_it_is_and_where_to_read_on() {
    let page = read(OPERATIONS);
    for alert in alerts() {
        let severity = alert.severity.as_str();
        assert!(
            ["critical", "warning", "info"].contains(&severity),
            "{alert:?}"
        );
        assert_ne!(
            alert.waits, "0s",
            "{}: nothing is to be told at once",
            alert.name
        );
        for annotation in ["summary", "description"] {
            let text = alert.annotations[annotation].as_str();
            assert!(text.is_some_and(|text| text.len() > 20), "{}", alert.name);
        }
        let place = format!("{OPERATIONS}#{}", alert.name.to_lowercase());
        assert_eq!(alert.annotations["runbook"], place, "{}", alert.name);
        let heading = format!("\n#### {}\n", alert.name);
        assert!(
            page.contains(&heading),
            "{OPERATIONS} has no heading for {}",
            alert.name
        );
    }
    let headings = page
        .lines()
        .filter_map(|line| line.strip_prefix("#### Tidegate"));
    assert_eq!(
        headings.count(),
        alerts().len(),
        "headings of alerts that are gone"
    );
}

#[test]
fn every_metric_is_in_the_runbook_and_on_the_dashboard() {
    let (page, board) = (read(OPERATIONS), dashboard());
    let shown: BTreeSet<String> = queries(&board)
        .iter()
        .flat_map(|(_, query)| selectors(query))
        .map(|selector| name(&selector).to_owned())
        .collect();
    for metric in ALL {
        assert!(
            page.contains(&format!("`{}`", metric.name)),
            "{} is not in {OPERATIONS}",
            metric.name
        );
        let of_metric = |shown: &String| {
            let end = shown.strip_prefix(metric.name);
            end.is_some_and(|end| ["", "_bucket", "_count"].contains(&end))
        };
        assert!(
            shown.iter().any(of_metric),
            "{} is on no panel",
            metric.name
        );
    }
}

#[test]
fn alerts_and_panels_speak_only_of_metrics_that_exist() {
    let known = known();
    let board = dashboard();
    let of_alerts = alerts().into_iter().map(|alert| (alert.name, alert.expr));
    for (who, query) in queries(&board).into_iter().chain(of_alerts) {
        let selectors = selectors(&query);
        assert!(!selectors.is_empty(), "{who}: {query}");
        for selector in selectors {
            assert!(known.contains(name(&selector)), "{who}: {selector}");
        }
    }
    // What the page speaks of, too.
    let families = ALL.iter().map(|metric| metric.name.to_owned());
    let names: Vec<String> = alerts().into_iter().map(|alert| alert.name).collect();
    let speaks_of = known.into_iter().chain(families).chain(names);
    let speaks_of: BTreeSet<_> = speaks_of.collect();
    let text = read(OPERATIONS) + &board.to_string();
    let part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    for word in text.split(|character| !part(character)) {
        // A prefix alone is the beginning of any.
        let ours = ["ratelimit_", "Tidegate"].map(|prefix| word.strip_prefix(prefix));
        let ours = ours.into_iter().flatten().any(|rest| !rest.is_empty());
        assert!(!ours || speaks_of.contains(word), "there is no {word}");
    }
}

/// What stands between these two, each time.
fn between<'a>(text: &'a str, begin: &str, end: &str) -> Vec<&'a str> {
    let parts = text.split(begin).skip(1);
    parts.map(|part| part.split(end).next().unwrap()).collect()
}

/// The place in a page that a heading makes.
fn place(heading: &str) -> String {
    let heading = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
    heading
        .chars()
        .filter(kept)
        .collect::<String>()
        .replace(' ', "-")
}

#[test]
fn links_of_the_page_lead_to_places_that_exist() {
    for link in between(&read(OPERATIONS), "](", ")") {
        let Some((page, anchor)) = link.split_once('#') else {
            continue;
        };
        let page = match page {
            "" => OPERATIONS.to_owned(),
            page => format!("docs/{page}"),
        };
        let text = read(&page);
        let mut headings = text.lines().filter(|line| line.starts_with('#'));
        assert!(headings.any(|heading| place(heading) == anchor), "{link}");
    }
}

/// What the page shows is taken by whom it is for.
#[test]
fn snippets_of_the_page_are_sound() {
    let (page, folder) = (read(OPERATIONS), Folder::new());
    let drills = between(&page, "<<'END'\n", "END\n");
    assert!(drills.len() >= 2);
    for drill in drills {
        folder.write("drill.yaml", drill);
        let ran = folder.run(&["validate", "drill.yaml"]);
        assert_eq!(ran.code, Some(0), "{drill}\n{ran:?}");
    }
    folder.write("alerts.yaml", &read("monitoring/alerts.yaml"));
    for snippet in between(&page, "```yaml\n", "```") {
        folder.write("prometheus.yaml", snippet);
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "config", "prometheus.yaml"]);
        let said = runs(promtool.current_dir(folder.path("")));
        assert!(said.contains("1 rule files found"), "{said}");
    }
    let blocks = between(&page, "```sh\n", "```");
    let wrap = blocks.iter().find(|block| block.contains("PrometheusRule"));
    fs::create_dir(folder.path("monitoring")).unwrap();
    folder.write("monitoring/alerts.yaml", &read("monitoring/alerts.yaml"));
    assert_eq!(folder.shell(wrap.unwrap()).code, Some(0));
    let wrapped = fs::read_to_string(folder.path("prometheusrule.yaml")).unwrap();
    let wrapped: Value = serde_saphyr::from_str(&wrapped).unwrap();
    let bare: Value = serde_saphyr::from_str(&read("monitoring/alerts.yaml")).unwrap();
    assert_eq!(wrapped["spec"], bare);
}

#[test]
fn panels_are_complete_and_do_not_overlap() {
    let board = dashboard();
    assert_eq!(board["uid"], "tidegate");
    let mut ids = BTreeSet::new();
    let mut taken = BTreeSet::new();
    for panel in board["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        assert!(
            ids.insert(panel["id"].as_u64().unwrap()),
            "{title}: its id is another's"
        );
        let at = |field: &str| panel["gridPos"][field].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24, "{title} is too wide");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(taken.insert((x, y)), "{title} lies over another panel");
            }
        }
    }
    let bottom = taken.iter().map(|(_, y)| y + 1).max().unwrap();
    assert_eq!(taken.len() as u64, bottom * 24, "there are holes");
    let titles: BTreeSet<_> = panels(&board)
        .iter()
        .map(|panel| panel["title"].to_string())
        .collect();
    assert_eq!(
        titles.len(),
        panels(&board).len(),
        "two panels have the same title"
    );
    for panel in panels(&board) {
        let title = panel["title"].as_str().unwrap();
        let description = panel["description"].as_str().unwrap_or_default();
        assert!(description.len() > 30, "{title} does not say what to do");
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str();
        assert!(
            unit.is_some_and(|unit| !unit.is_empty()),
            "{title} has no unit"
        );
        let chosen = |place: &Value| {
            place["datasource"]["uid"] == "${datasource}"
                && place["datasource"]["type"] == "prometheus"
        };
        assert!(chosen(panel), "{title}: another data source");
        for target in panel["targets"].as_array().unwrap() {
            assert!(chosen(target), "{title}: another data source");
            let query = target["expr"].as_str().unwrap();
            // A target without a pod label is told by its address.
            let legend = target["legendFormat"].as_str().unwrap();
            let by_pod = legend.contains("{{pod}}") && legend.contains("{{instance}}");
            assert_eq!(by_pod, query.contains("by (pod, instance)"), "{title}");
            assert!(by_pod || !query.contains("by (pod"), "{title}");
            assert!(
                query.contains(r#"job=~"$job", pod=~"$pod""#),
                "{title} is not of the pods chosen"
            );
            assert!(
                !query.contains("[5m]") && !query.contains("[1m]"),
                "{title}: use $__rate_interval"
            );
        }
    }
}

/// Grafana publishes the types of its dashboards: a field that is misspelt, or that a panel of this kind has not, does
/// not compile. No Grafana server runs here.
#[test]
fn the_dashboard_is_of_grafanas_types() {
    let mut board = dashboard();
    for annotation in board["annotations"]["list"].as_array_mut().unwrap() {
        // A query of the data source's own: its fields are not in these types.
        annotation.as_object_mut().unwrap().remove("target");
    }
    let mut text = String::from("import type { Dashboard } from '@grafana/schema';\n");
    for (module, file) in [
        ("bargauge", "BarGauge"),
        ("stat", "Stat"),
        ("statetimeline", "StateTimeline"),
        ("timeseries", "TimeSeries"),
    ] {
        let place = format!("@grafana/schema/dist/esm/raw/composable/{module}/panelcfg/x");
        text += &format!("import type * as {module} from '{place}/{file}PanelCfg_types.gen';\n");
    }
    // JSON has no enumerations: their values are texts.
    text += "type Plain<T> = T extends string ? `${T}` : T extends (infer I)[] ? Plain<I>[] \
             : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;\n";
    text += &format!("export const board: Plain<Dashboard> = {board:#};\n");
    for panel in panels(&board) {
        let (id, kind) = (
            &panel["id"],
            panel["type"].as_str().unwrap().replace('-', ""),
        );
        let (options, custom) = (
            &panel["options"],
            &panel["fieldConfig"]["defaults"]["custom"],
        );
        text += &format!("export const options{id}: Plain<{kind}.Options> = {options:#};\n");
        if !custom.is_null() {
            text += &format!("export const custom{id}: Plain<{kind}.FieldConfig> = {custom:#};\n");
        }
    }
    let folder = Folder::new();
    folder.write("board.ts", &text);
    let tools = path("target/tools/grafana-schema/node_modules");
    let tools = fs::canonicalize(&tools)
        .unwrap_or_else(|error| panic!("{}: {error}: run `make tools`", tools.display()));
    std::os::unix::fs::symlink(&tools, folder.path("node_modules")).unwrap();
    let mut compiler = Command::new(tools.join(".bin/tsc"));
    compiler.args([
        "--noEmit",
        "--strict",
        "--skipLibCheck",
        "--module",
        "nodenext",
        "board.ts",
    ]);
    runs(compiler.current_dir(folder.path("")));
}
