//! Two real sidecars and a Redis under load, scraped by a real Prometheus: every panel shows data, no alert fires
//! while all is well, and the alerts of an outage fire when it comes.

use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Client, SOON, Sidecar, SidecarSetup, now, until};

use super::server::{Prometheus, Sample};
use super::{alerts, dashboard, promql, queries, read, run};
use crate::load::Load;

const RULES: &str = r"  - domain: api
    descriptors:
      - { key: client, rate_limit: 50/second burst 20 }
      - { key: trial, shadow_mode: true, rate_limit: 5/second }
      - { key: window, rate_limit: { unit: second, requests_per_unit: 20, algorithm: fixed_window } }
      - { key: exact, consistency: strict, rate_limit: 20/second }
      - { key: open, on_store_error: allow, rate_limit: 10/second }
      - { key: wide, rate_limit: 2000/second }";

/// What is asked for in a turn. The store is waited for rarely: that takes longer than a check may.
const TURN: [&str; 8] = [
    "client", "client", "client", "trial", "window", "open", "wide", "nothing",
];
const STRICT_EVERY: usize = 50;

/// Asks everything that there is a panel for.
fn ask(turn: usize, client: &mut Client) {
    let strict = turn.is_multiple_of(STRICT_EVERY).then_some("exact");
    for key in TURN.into_iter().chain(strict) {
        let answer = client.get(&format!("/v1/check?domain=api&{key}=x"));
        assert!([200, 429].contains(&answer.status), "{}", answer.text());
    }
}

/// Two sidecars, of which one is labelled as a PodMonitor does it and the other has only its address.
struct World {
    redis: RedisServer,
    sidecars: [Sidecar; 2],
    load: [Load; 2],
    prometheus: Prometheus,
}

impl World {
    fn start() -> Self {
        let redis = RedisServer::start(&[]);
        let store = format!(
            "store: {{ url: \"{}\" }}\nlog: {{ format: json }}",
            redis.url()
        );
        let sidecars = ["shop-0", "shop-1"].map(|pod| {
            let setup = SidecarSetup::rules(RULES).top(&store);
            setup.variable("POD_NAME", pod).start()
        });
        let target = |sidecar: &Sidecar| sidecar.door("metrics").unwrap().to();
        let configuration = format!(
            "global: {{ scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms }}\n\
             rule_files: [rules.yaml]\n\
             scrape_configs:\n  - job_name: shop/tidegate\n    static_configs:\n      \
             - {{ targets: [\"{}\"], labels: {{ namespace: shop, pod: shop-0 }} }}\n      \
             - {{ targets: [\"{}\"], labels: {{ namespace: shop }} }}\n",
            target(&sidecars[0]),
            target(&sidecars[1]),
        );
        Self {
            prometheus: Prometheus::start(&configuration, &impatient()),
            load: [0, 1].map(|nth| Load::on(sidecars[nth].http(), ask)),
            redis,
            sidecars,
        }
    }

    /// A query with what the dashboard's user chose in it.
    fn chosen(query: &str, [job, pod, rule]: [&str; 3]) -> String {
        let chosen = query
            .replace("$job", job)
            .replace("$pod", pod)
            .replace("$rule", rule)
            .replace("$__rate_interval", "2s")
            .replace("$__range", "30s");
        assert!(!chosen.contains('$'), "{chosen}");
        chosen
    }
}

/// The alerts, but each as soon as its condition holds for a second.
fn impatient() -> String {
    let rules = read("monitoring/alerts.yaml");
    let lines = rules.lines().map(|line| match line.split_once("for: ") {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}for: 1s\n"),
        Some(_) | None => format!("{line}\n"),
    });
    lines.collect()
}

/// Nothing chosen: what `allValue` says.
const ALL: [&str; 3] = [".*"; 3];

fn is_data(samples: &[Sample]) -> bool {
    samples.iter().any(|(_, value)| value.is_finite())
}

fn is_above_zero(samples: &[Sample]) -> bool {
    samples.iter().any(|(_, value)| *value > 0.0)
}

#[test]
fn panels_show_data_and_alerts_are_raised_when_it_matters() {
    let world = World::start();
    every_panel_shows_data(&world);
    what_moves_is_seen_to_move(&world);
    variables_offer_what_is_there(&world);
    promtool_accepts_the_page(&world);
    no_alert_is_raised(&world);
    an_outage_raises_alerts(world);
}

fn every_panel_shows_data(world: &World) {
    let board = dashboard();
    let one = ["shop/tidegate", "shop-0", "(api/client|api/trial)"];
    for choice in [ALL, one] {
        for (title, query) in queries(&board) {
            let query = World::chosen(&query, choice);
            let found = world.prometheus.until(&query, is_data);
            // `ratelimit_pods` and the like have no pod label at the second sidecar: it is shown by its address.
            if choice == ALL && query.contains("by (pod, instance)") {
                assert_eq!(found.len(), 2, "{title}: {found:?}");
            }
        }
    }
    for annotation in board["annotations"]["list"].as_array().unwrap() {
        if let Some(query) = annotation["target"]["expr"].as_str() {
            world.prometheus.query(&World::chosen(query, ALL));
        }
    }
}

/// Zeros are data too. These are more.
fn what_moves_is_seen_to_move(world: &World) {
    let board = dashboard();
    for moving in [
        "Denied",
        "Pods",
        "Decisions",
        "Most limited rules",
        "Deny ratio",
        "Shadow rules would deny",
        "Decided by",
        "Asked in vain",
        "Check latency",
        "Checks by pod",
        "Connections",
        "Staleness by pod",
        "Rounds",
        "Keys told, by why",
        "Round latency",
        "Key updates per 1,000 checks",
        "Mitigations",
        "Cells kept silent",
        "How full the tables are",
        "Keys held",
        "Configurations in force",
        "Versions",
    ] {
        let of_panel = queries(&board)
            .into_iter()
            .find(|(title, _)| title == moving);
        let (_, query) = of_panel.unwrap_or_else(|| panic!("no panel {moving}"));
        world
            .prometheus
            .until(&World::chosen(&query, ALL), is_above_zero);
    }
    let of = |title: &str| {
        let queries = queries(&board);
        let (_, query) = queries.iter().find(|(found, _)| found == title).unwrap();
        world.prometheus.query(&World::chosen(query, ALL))
    };
    let mut decisions: Vec<_> = of("Decisions")
        .into_iter()
        .filter(|(_, rate)| *rate > 0.0)
        .map(|(labels, _)| labels["decision"].as_str().unwrap().to_owned())
        .collect();
    decisions.sort();
    assert_eq!(decisions, ["allow", "deny", "shadow_deny"]);
    // A scrape that took too long leaves a pod out for a moment.
    let (_, pods) = queries(&board)
        .into_iter()
        .find(|(title, _)| title == "Pods")
        .unwrap();
    world.prometheus.until(&World::chosen(&pods, ALL), |found| {
        found.first().is_some_and(|(_, pods)| *pods == 2.0)
    });
    let configurations = of("Configurations in force");
    assert_eq!(configurations.len(), 1, "{configurations:?}");
}

fn variables_offer_what_is_there(world: &World) {
    let board = dashboard();
    let mut offered = Vec::new();
    for variable in board["templating"]["list"].as_array().unwrap() {
        if variable["type"] != "query" {
            continue;
        }
        assert_eq!(
            variable["allValue"], ".*",
            "{variable}: a target without the label is lost"
        );
        let query = variable["query"]["query"].as_str().unwrap();
        let inside = query
            .strip_prefix("label_values(")
            .and_then(|query| query.strip_suffix(')'));
        let (series, label) = inside.and_then(|inside| inside.rsplit_once(", ")).unwrap();
        let series = World::chosen(series, ALL);
        let page = format!("label/{label}/values");
        offered.push(
            world
                .prometheus
                .ask(&page, &[("match[]", &series)])
                .to_string(),
        );
    }
    let rules =
        ["client", "exact", "open", "trial", "wide", "window"].map(|key| format!("api/{key}"));
    let rules = serde_json::to_string(&rules).unwrap();
    assert_eq!(offered, [r#"["shop/tidegate"]"#, r#"["shop-0"]"#, &rules]);
}

fn promtool_accepts_the_page(world: &World) {
    let page = world.sidecars[0].door("metrics").unwrap().get("/metrics");
    let folder = world.sidecars[0].folder();
    folder.write("page", &page.text());
    let page = std::fs::File::open(folder.path("page")).unwrap();
    let mut promtool = Command::new("promtool");
    let output = run(promtool.args(["check", "metrics"]).stdin(Stdio::from(page)));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
}

fn no_alert_is_raised(world: &World) {
    // Whatever an alert selects is there: one that selects nothing is silent for ever.
    for alert in alerts() {
        for selector in promql::selectors(&alert.expr) {
            let found = world.prometheus.query(&selector);
            assert!(!found.is_empty(), "{}: there is no {selector}", alert.name);
        }
    }
    let evaluated = |alert: &Value| {
        let healthy = alert["health"] == "ok" && alert["lastError"].is_null();
        assert!(healthy || alert["health"] == "unknown", "{alert}");
        healthy
    };
    until("every alert evaluated", SOON, || {
        world
            .prometheus
            .alerts()
            .iter()
            .all(evaluated)
            .then_some(())
    });
    let known = world.prometheus.alerts();
    assert_eq!(known.len(), alerts().len());
    for alert in known {
        assert_eq!(alert["state"], "inactive", "{alert:#}");
    }
}

/// What an alert that fires says, by its annotation.
fn told(alert: &Value, annotation: &str) -> Vec<String> {
    let told = |alert: &Value| {
        alert["annotations"][annotation]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let alerts = alert["alerts"].as_array().unwrap();
    let mut texts: Vec<String> = alerts.iter().map(told).collect();
    texts.sort();
    for text in &texts {
        let whole = !["<no value>", "<error", "{{", "%!"]
            .iter()
            .any(|bad| text.contains(bad));
        assert!(whole, "{text}");
    }
    texts
}

fn an_outage_raises_alerts(mut world: World) {
    let prometheus = &world.prometheus;
    world.redis.kill();
    let begun = now();
    let down = prometheus.until_alert("TidegateStoreDown", "firing");
    let after = begun.elapsed();
    assert!(after < Duration::from_secs(10), "{after:?}");
    let [summary] = &told(&down, "summary")[..] else {
        panic!("{down:#}")
    };
    let (job, shard) = ("shop/tidegate", "shard 0");
    assert_eq!(
        *summary,
        format!("Most pods of {job} cannot reach the store ({shard})")
    );
    let link = prometheus.until_alert("TidegateStoreLinkOpen", "firing");
    let plain = world.sidecars[1].door("metrics").unwrap().to();
    for who in ["shop-0", &plain] {
        let expected = format!("{who} cannot reach the store ({shard})");
        assert!(told(&link, "summary").contains(&expected), "{link:#}");
    }
    let open = prometheus.until_alert("TidegateFailOpen", "firing");
    assert_eq!(told(&open, "summary"), ["api/open lets everything pass"]);
    let stale = prometheus.until_alert("TidegateSyncStale", "firing");
    told(&stale, "summary");
    for title in ["Store link", "Fail-open", "Errors of the store"] {
        let (_, query) = queries(&dashboard())
            .into_iter()
            .find(|(found, _)| found == title)
            .unwrap();
        prometheus.until(&World::chosen(&query, ALL), is_above_zero);
    }
    world.redis.restart();
    prometheus.until_alert("TidegateStoreDown", "inactive");
    prometheus.until_alert("TidegateSyncStale", "inactive");
    let World {
        sidecars: [first, second],
        load,
        prometheus,
        ..
    } = world;
    load.into_iter().for_each(Load::end);
    a_bad_file_raises_alerts(&first, &prometheus);
    drop(second.kill());
    let down = prometheus.until_alert("TidegateDown", "firing");
    assert_eq!(
        told(&down, "summary"),
        [format!("{plain} cannot be scraped")]
    );
}

fn a_bad_file_raises_alerts(sidecar: &Sidecar, prometheus: &Prometheus) {
    let good = sidecar.setup().yaml();
    sidecar
        .folder()
        .replace("sidecar.yaml", &good.replace("50/second", "50/fortnight"));
    let refused = prometheus.until_alert("TidegateReloadRefused", "firing");
    let summary = "1 pods of shop/tidegate refuse the configuration they have";
    assert_eq!(told(&refused, "summary"), [summary]);
    sidecar
        .folder()
        .replace("sidecar.yaml", &good.replace("50/second", "60/second"));
    prometheus.until_alert("TidegateReloadRefused", "inactive");
    let differ = prometheus.until_alert("TidegateConfigurationsDiffer", "firing");
    let summary = "Pods of shop/tidegate have 2 different configurations in force";
    assert_eq!(told(&differ, "summary"), [summary]);
}
