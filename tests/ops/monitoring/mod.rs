//! Dashboard, alerts and the operator's page: what they say of one another, what promtool says of them, and what they
//! show of real sidecars that a real Prometheus scrapes.

mod files;
mod live;
mod promql;
mod server;

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

/// A file of ours, from the root.
fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).expect(name)
}

/// Runs a tool of `make tools` to its end.
fn run(command: &mut Command) -> Output {
    let output = command.output();
    output.unwrap_or_else(|error| panic!("{command:?}: {error}: run `make tools`"))
}

/// The same for one that has to succeed, and what it printed.
fn runs(command: &mut Command) -> String {
    let output = run(command);
    let printed = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (printed(&output.stdout), printed(&output.stderr));
    assert!(output.status.success(), "{command:?}\n{out}\n{err}");
    out
}

/// One alert of `monitoring/alerts.yaml`.
#[derive(Debug)]
struct Alert {
    name: String,
    expr: String,
    waits: String,
    severity: String,
    annotations: Value,
}

fn alerts() -> Vec<Alert> {
    let file: Value = serde_saphyr::from_str(&read("monitoring/alerts.yaml")).unwrap();
    let groups = file["groups"].as_array().unwrap().iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().unwrap());
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    rules
        .map(|rule| Alert {
            name: text(&rule["alert"]),
            expr: text(&rule["expr"]),
            waits: text(&rule["for"]),
            severity: text(&rule["labels"]["severity"]),
            annotations: rule["annotations"].clone(),
        })
        .collect()
}

fn dashboard() -> Value {
    serde_json::from_str(&read("monitoring/dashboard.json")).unwrap()
}

/// The panels that show something: rows only set them apart.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    panels.filter(|panel| panel["type"] != "row").collect()
}

/// Every query of every panel, with the panel's title.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let targets = panels(dashboard).into_iter().flat_map(|panel| {
        let targets = panel["targets"].as_array().unwrap().iter();
        targets.map(move |target| (&panel["title"], &target["expr"]))
    });
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    targets
        .map(|(title, expr)| (text(title), text(expr)))
        .collect()
}
