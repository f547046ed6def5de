//! A real Prometheus of a test's own, on a port that the system chooses.

use std::process::Command;

use serde_json::Value;
use tidegate_testing::{Folder, SOON, Sidecar, until};

use super::runs;

/// A running server. It ends with this.
#[derive(Debug)]
pub struct Prometheus {
    /// Runs as long as it lives.
    _process: Sidecar,
    address: String,
}

/// A series that a query answered: its labels and its value.
pub type Sample = (Value, f64);

impl Prometheus {
    /// Starts it with this configuration, `rules.yaml` beside it.
    pub fn start(configuration: &str, rules: &str) -> Self {
        let folder = Folder::new();
        folder.write("prometheus.yaml", configuration);
        folder.write("rules.yaml", rules);
        let mut command = Command::new("prometheus");
        command
            .args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"])
            .args(["--web.listen-address=127.0.0.1:0", "--log.format=json"])
            .current_dir(folder.path(""));
        let mut process = Sidecar::of(command, folder);
        let ready = "Server is ready to receive web requests.";
        let address = until("a ready Prometheus", SOON, || {
            let ended = process.has_ended();
            assert!(!ended, "{}: run `make tools`", process.stderr.text());
            let said = process.stderr.all();
            let events = said.iter().map(|line| serde_json::from_str(line));
            let events: Vec<Value> = events.filter_map(Result::ok).collect();
            let told = |message: &str| events.iter().find(|event| event["msg"] == message);
            told(ready)?;
            told("Listening on")?["address"].as_str().map(str::to_owned)
        });
        Self {
            _process: process,
            address,
        }
    }

    /// What the API answers to a page with these fields.
    pub fn ask(&self, page: &str, fields: &[(&str, &str)]) -> Value {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--get"]);
        for (name, value) in fields {
            command.args(["--data-urlencode", &format!("{name}={value}")]);
        }
        command.arg(format!("http://{}/api/v1/{page}", self.address));
        let answer = runs(&mut command);
        let answer: Value = serde_json::from_str(&answer).expect(&answer);
        assert_eq!(answer["status"], "success", "{page} {fields:?}: {answer}");
        answer["data"].clone()
    }

    /// What a query answers now.
    pub fn query(&self, query: &str) -> Vec<Sample> {
        let data = self.ask("query", &[("query", query)]);
        let results = data["result"].as_array().unwrap().iter();
        let sample = |result: &Value| {
            let value = result["value"][1].as_str().unwrap();
            (result["metric"].clone(), value.parse().unwrap())
        };
        results.map(sample).collect()
    }

    /// The same, once it holds.
    pub fn until(&self, query: &str, holds: impl Fn(&[Sample]) -> bool) -> Vec<Sample> {
        let look = || {
            let found = self.query(query);
            holds(&found).then_some(found)
        };
        until(query, SOON, look)
    }

    /// The alerts it knows, each with its state, and all that is wrong with its evaluation.
    pub fn alerts(&self) -> Vec<Value> {
        let data = self.ask("rules", &[("type", "alert")]);
        let groups = data["groups"].as_array().unwrap().iter();
        groups
            .flat_map(|group| group["rules"].as_array().unwrap().clone())
            .collect()
    }

    /// Waits until the alert is in this state, and returns it.
    pub fn until_alert(&self, name: &str, state: &str) -> Value {
        until(&format!("{name} {state}"), SOON, || {
            let alerts = self.alerts();
            let mut alerts = alerts.into_iter();
            alerts.find(|alert| alert["name"] == name && alert["state"] == state)
        })
    }
}
