//! The tree keeps what the documents say of it: the map, the rings, the printed pages, the snippets.

use std::fs;
use std::path::{Path, PathBuf};

use tidegate::telemetry::{self, MetricKind};
use tidegate_config::check_text;

use super::guides;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect(path)
}

/// Every Rust file under `folder`, with its path relative to the root.
fn sources(folder: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path
                    .strip_prefix(root())
                    .expect("below the root")
                    .display()
                    .to_string();
                found.push((name, fs::read_to_string(&path).expect("a file")));
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "{folder} holds no Rust");
    found
}

/// `module -> what it may use`, as ARCHITECTURE.md draws it.
fn map() -> Vec<(String, Vec<String>)> {
    let text = read("ARCHITECTURE.md");
    let block = text
        .split("## The map\n```\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a map");
    let mut map = Vec::new();
    for line in block.lines() {
        // Several arrows may share a line, and three spaces set a remark off.
        for arrow in line
            .split("   ")
            .map(str::trim)
            .filter(|part| part.contains("->"))
        {
            let (from, to) = arrow.split_once("->").expect("an arrow");
            let to = to
                .split_whitespace()
                .filter(|word| !word.contains(['(', ')']))
                .map(str::to_owned);
            map.push((from.trim().to_owned(), to.collect()));
        }
    }
    map
}

/// The top module a file belongs to: `src/doors/http.rs` and `src/doors.rs` are `doors`.
fn module(path: &str) -> &str {
    let path = path.trim_start_matches("src/");
    path.split('/')
        .next()
        .unwrap_or(path)
        .trim_end_matches(".rs")
}

#[test]
fn uses_follow_the_map() {
    let map = map();
    let allowed = |module: &str| {
        map.iter()
            .find(|(from, _)| from == module)
            .map(|(_, to)| to.clone())
    };
    for (path, text) in sources("src") {
        let module = module(&path);
        if module == "lib" || module == "main" {
            continue;
        }
        let allowed = allowed(module)
            .unwrap_or_else(|| panic!("{module} is not on the map of ARCHITECTURE.md"));
        for line in text
            .lines()
            .filter(|line| line.trim_start().starts_with("use crate::"))
        {
            let rest = line.trim_start().trim_start_matches("use crate::");
            let used = rest.split([':', ';', '{', ' ']).next().unwrap_or_default();
            let fine = used == module || allowed.iter().any(|name| name == used);
            assert!(
                fine,
                "{path}: {line}\nthe map lets {module} use only {allowed:?}"
            );
        }
    }
}

#[test]
fn the_inner_rings_know_nothing_of_the_world() {
    let forbidden = [
        "std::fs",
        "std::net::Tcp",
        "std::time",
        "std::env",
        "std::process",
        "tokio",
        "tracing",
        "metrics",
        "quanta",
    ];
    for (path, text) in sources("crates/core/src") {
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for line in code
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
        {
            for word in forbidden {
                assert!(
                    !line.contains(&format!("{word}::")) && !line.contains(&format!("{word};")),
                    "{path}: {line}"
                );
            }
            if path.starts_with("crates/core/src/pure") && line.starts_with("use ") {
                let std = ["use std::", "use super::", "use crate::pure"]
                    .iter()
                    .any(|start| line.starts_with(start));
                assert!(std, "{path}: pure uses the standard library only: {line}");
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is() {
    for folder in ["src", "crates", "tests", "benches", "simulations"] {
        for (path, text) in sources(folder) {
            assert!(text.starts_with("//! "), "{path} has no header");
        }
    }
}

/// The page of every metric, printed from the code. `make docs` writes it.
#[test]
fn the_metrics_page_is_printed_from_the_code() {
    let mut page = "# Metrics\n\nServed at `/metrics` in Prometheus' text format. \
        Printed from `src/telemetry/metric.rs` by `make docs`.\n\
        Label values are known before the first request; what a client sends is never one.\n\n\
        | metric | type | labels | what it tells |\n|---|---|---|---|\n"
        .to_owned();
    for metric in telemetry::ALL {
        let kind = match metric.kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        page += &format!(
            "| `{}` | {kind} | {} | {} |\n",
            metric.name,
            metric.labels.join(", "),
            metric.help
        );
    }
    let path = root().join("docs/metrics.md");
    if std::env::var_os("UPDATE").is_some() {
        fs::write(&path, &page).expect("written");
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap_or_default(),
        page,
        "run `make docs`"
    );
}

/// What operators were promised: dashboards and alerts are written against these names.
#[test]
fn the_promised_metrics_are_on_the_metrics_page() {
    let page = read("docs/metrics.md");
    for (name, labels) in [
        ("ratelimit_decisions_total", "rule, decision, source"),
        ("ratelimit_denied_total", "rule"),
        ("ratelimit_check_duration_seconds", ""),
        ("ratelimit_remaining", "rule"),
        ("ratelimit_circuit_state", "shard"),
        ("ratelimit_redis_errors_total", "kind"),
        ("ratelimit_keys", ""),
        ("ratelimit_keys_evicted_total", "reason"),
        ("ratelimit_sync_rounds_total", "end"),
        ("ratelimit_sync_round_seconds", ""),
        ("ratelimit_sync_reason_total", "reason"),
        ("ratelimit_sync_staleness_seconds", ""),
        ("ratelimit_deltas_pending", ""),
        ("ratelimit_cells_lost_total", "reason"),
        ("ratelimit_overshoot_cells_total", "rule"),
        ("ratelimit_debt_capped_total", "rule"),
        ("ratelimit_mitigations", ""),
        ("ratelimit_config_reloads_total", "outcome"),
        ("ratelimit_pods", ""),
    ] {
        let found = page.lines().any(|line| {
            let mut cells = line.split(" | ");
            cells.next() == Some(&format!("| `{name}`")) && cells.nth(1) == Some(labels)
        });
        assert!(found, "{name} with the labels {labels:?} is not documented");
    }
}

/// Every YAML snippet of the documents is a sound configuration.
#[test]
fn snippets_are_sound() {
    let mut snippets = 0;
    for document in [
        "README.md",
        "docs/config.md",
        "docs/resp.md",
        "docs/sync.md",
    ] {
        let text = read(document);
        for snippet in text
            .split("```yaml\n")
            .skip(1)
            .filter_map(|rest| rest.split("```").next())
        {
            snippets += 1;
            if let Err(faults) = check_text(document, snippet, &|_| None) {
                panic!("{document}:\n{snippet}\n{faults}");
            }
        }
    }
    assert!(snippets >= 2, "the documents show no configuration");
    // Those of the guides are in `guides.rs`: they show others' configurations too.
}

/// Links between our own documents lead somewhere.
#[test]
fn links_lead_somewhere() {
    let guides = guides::pages().into_iter().map(|(path, _)| path);
    let others = [
        "README.md",
        "CONTRIBUTING.md",
        "docs/config.md",
        "docs/algorithms.md",
        "docs/admin.md",
        "docs/sync.md",
        "docs/accuracy.md",
        "docs/resp.md",
        "docs/operations.md",
        "docs/glossary.md",
        "docs/key-phases.md",
        "ARCHITECTURE.md",
        "k8s/README.md",
        "simulations/README.md",
    ];
    for document in others.map(str::to_owned).into_iter().chain(guides) {
        let folder = Path::new(&document).parent().unwrap_or(Path::new(""));
        for link in read(&document)
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            // What follows a # is a place within the page.
            let page = link.split('#').next().unwrap_or_default();
            if !link.starts_with("http") {
                assert!(
                    root().join(folder).join(page).exists(),
                    "{document} links to {link}"
                );
            }
        }
    }
}
