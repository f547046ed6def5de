//! The command as people use it: the same bytes twice, clear errors, and scenarios that fail when a part is left out.
#![expect(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::{env, fs};

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidegate-sim"))
        .args(arguments)
        .output()
        .expect("the simulator runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A file of this test's own.
fn file(name: &str, content: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::write(&path, content).expect("a temporary file");
    path
}

const SOUND: &str = "why: a test
pods: 3
lasts: 2s
rules: [{ domain: api, descriptors: [{ key: client, rate_limit: 10/second }] }]
load: [{ checks_per_second: 50 }]
expect: [{ overshoot_percent_max: 50 }]
";

#[test]
fn the_same_seeds_give_the_same_bytes() {
    let page = |name: &str| Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let run = |name: &str| {
        let page = page(name);
        let html = page.to_str().expect("a path");
        let arguments = [
            "run",
            "swarm",
            "many_keys",
            "scale_up",
            "windows",
            "--seeds",
            "2",
            "--html",
            html,
        ];
        let output = simulate(&arguments);
        assert!(output.status.success(), "{}", text(&output.stdout));
        (output.stdout, fs::read(&page).expect("a page"))
    };
    let (first, second) = (run("first.html"), run("second.html"));
    assert_eq!(text(&first.0), text(&second.0));
    assert!(first.1 == second.1, "the pages differ");
    assert!(text(&first.1).contains("<svg"), "a page has plots");
}

/// Without `part`, these scenarios fail, and say with which words to see it again; with it they hold.
fn needs(part: &str, scenarios: &[&str]) {
    for scenario in scenarios {
        let arguments = ["run", scenario, "--seeds", "10"];
        let whole = simulate(&arguments);
        assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stdout));
        let broken = simulate(&[&arguments[..], &["--without", part]].concat());
        let said = text(&broken.stdout);
        assert_eq!(
            broken.status.code(),
            Some(1),
            "{scenario} does not need {part}:\n{said}"
        );
        let again = format!("again: cargo run --release -p simulations -- run {scenario} --seed ");
        assert!(said.contains(&again), "{said}");
    }
}

#[test]
fn without_the_sequence_check_batches_count_twice() {
    needs("sequence-check", &["answers_lost", "swarm", "store_hangs"]);
}

#[test]
fn without_net_billing_innocents_are_denied_after_an_outage() {
    needs("net-billing", &["partition_heals", "store_hangs"]);
}

#[test]
fn without_news_every_pod_admits_its_first_cell() {
    needs("news", &["low_limit_attack", "overload_20_pods"]);
}

#[test]
fn without_debt_an_overload_is_never_repaid() {
    needs("debt", &["overload_20_pods", "store_restarts"]);
}

#[test]
fn everybody_is_compared_on_the_same_checks() {
    let output = simulate(&["compare", "overload_20_pods", "--seeds", "1"]);
    let said = text(&output.stdout);
    assert!(output.status.success(), "{said}");
    for name in [
        "tidegate",
        "Limitador",
        "Gubernator",
        "even split",
        "per-pod",
        "central",
        "debt only",
    ] {
        assert!(said.contains(name), "{name} is missing:\n{said}");
    }
}

#[test]
fn a_sweep_has_a_line_for_each_value() {
    let output = simulate(&[
        "sweep",
        "overload_20_pods",
        "--param",
        "accuracy=0.05,0.2",
        "--seeds",
        "2",
    ]);
    let said = text(&output.stdout);
    let lines = said
        .lines()
        .filter(|line| line.starts_with("| ") && line.contains("0."));
    assert!(output.status.success() && lines.count() == 2, "{said}");
}

#[test]
fn every_scenario_is_listed_with_its_why() {
    let said = text(&simulate(&["list"]).stdout);
    let scenarios =
        fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios")).expect("scenarios");
    let files = scenarios.map(|entry| entry.expect("an entry").path());
    let files = files.filter(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    assert_eq!(said.lines().count(), files.count(), "{said}");
}

#[test]
fn what_is_wrong_with_a_scenario_is_said_with_its_place() {
    let cases = [
        (
            "field",
            SOUND.replace("pods: 3", "podz: 3"),
            "field.yaml:2:1: unknown field",
        ),
        (
            "pods",
            SOUND.replace("pods: 3", "pods: 0"),
            "pods: must be from 1 to 5000",
        ),
        (
            "rate",
            SOUND.replace("10/second", "10/fortnight"),
            "rate.yaml:4:",
        ),
        (
            "length",
            SOUND.replace("2s", "2 parsecs"),
            "length.yaml:3:1: invalid value",
        ),
        (
            "fault",
            SOUND.to_owned() + "faults: [{ at: 1s }]\n",
            "each says one thing that happens",
        ),
        (
            "strict",
            SOUND.replace("key: client,", "key: client, consistency: strict,"),
            "is not simulated",
        ),
        ("empty", String::new(), "empty.yaml:1:1:"),
    ];
    for (name, content, expected) in cases {
        let path = file(&format!("{name}.yaml"), &content);
        let output = simulate(&["run", path.to_str().expect("a path")]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{name}: {said}");
        assert!(said.contains(expected), "{name}: {said}");
    }
    let output = simulate(&["run", "no_such_scenario"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("no_such_scenario"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn the_readmes_example_holds() {
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md"));
    let readme = readme.expect("a README");
    let example = readme.split("```yaml\n").nth(1).expect("an example");
    let example = example.split("```").next().expect("its end");
    let path = file("example.yaml", example);
    let output = simulate(&["run", path.to_str().expect("a path"), "--seeds", "3"]);
    assert!(
        output.status.success(),
        "{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

#[test]
fn an_expectation_that_fails_tells_how_to_see_it_again() {
    let path = file(
        "short.yaml",
        &SOUND.replace("overshoot_percent_max: 50", "admitted_ratio_min: 2"),
    );
    let output = simulate(&["run", path.to_str().expect("a path"), "--seeds", "3"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("FAIL short seed="), "{said}");
}
