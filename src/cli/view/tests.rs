//! The view of sample readings.

use serde_json::json;

use super::*;

const SIZE: ViewSize = ViewSize {
    columns: 100,
    lines: 40,
};

fn reading(at: &str, allowed: u64, denied: u64) -> AdminReading {
    AdminReading {
        status: json!({
            "pod": "a", "version": "1", "ready": true, "pods": 3,
            "store": { "link": "closed", "staleness": "0.3s", "partitioned": false },
            "keys": { "held": 5, "max": 1_000, "tables": { "level": 4, "carried": 1 } }, "books": { "pending": 1, "in_flight": 2 },
            "configuration": { "version": 4, "last_reload_faults": [] },
        }),
        top: json!({
            "at": at, "recent": "42s", "overshoot": 7, "rules_left_out": 0,
            "checks": { "decided": allowed + denied, "recent": { "p50": "0.0000405s", "p99": "0.0025s" } },
            "decisions": { "allow": allowed, "deny": denied, "shadow_deny": 0 },
            "rules": [{
                "rule": "api/client", "shadow_mode": false, "remaining": 0,
                "limit": { "requests_per_unit": 10_000, "unit": "SECOND", "unit_multiplier": 30, "burst": 20 },
                "decisions": { "allow": allowed, "deny": denied, "shadow_deny": 0 },
                "keys": [
                    { "key": "ab", "entries": [{ "key": "client", "value": "x\u{1b}[2J\u{202e}" }], "denied": 12, "error": 2 },
                    { "key": "cd", "entries": null, "denied": 40, "error": 0 },
                ],
            }],
        }),
    }
}

fn texts(lines: &[ViewLine]) -> Vec<&str> {
    lines.iter().map(|line| line.text.as_str()).collect()
}

#[test]
fn rates_are_of_the_time_between_two_readings() {
    let lines = view(&reading("12s", 3_000, 51), &reading("10s", 0, 50), SIZE);
    assert_eq!(
        texts(&lines),
        [
            "tidegate a 1  ready  store connected, answered 300 ms ago, pods 3",
            "1,500 checks/s  allow 1,500/s  deny 0.5/s  shadow deny 0/s  p50 40.5 us  p99 2.5 ms",
            "keys 5, fullest table 4 of 1,000  7 cells overshoot  3 to be reported  configuration 4",
            "",
            "RULE                                       LIMIT                       ALLOW/S     DENY/S       LEFT",
            "api/client                                 10,000/30 seconds burst…      1,500        0.5          0",
            "",
            "DENIED MOST IN 42 S                    RULE                                                   DENIED",
            "cd                                     api/client                                                 40",
            "client=x\u{fffd}[2J\u{fffd}                          api/client                                           10 to 12",
        ]
    );
}

#[test]
fn another_start_of_the_pod_has_no_rates_yet() {
    let lines = view(&reading("1s", 5, 5), &reading("10s", 900, 50), SIZE);
    assert!(
        lines[1].text.starts_with("- checks/s  allow -/s"),
        "{lines:?}"
    );
}

#[test]
fn a_start_that_is_older_than_the_last_one_was_is_still_another() {
    let (mut now, before) = (reading("6s", 1_000, 5), reading("5s", 10, 5));
    now.status["incarnation"] = "b".into();
    let lines = view(&now, &before, SIZE);
    assert!(lines[1].text.starts_with("- checks/s"), "{lines:?}");
}

#[test]
fn rules_that_there_is_no_room_for_are_counted() {
    let mut now = reading("2s", 9, 9);
    let rule = now.top["rules"][0].clone();
    now.top["rules"] = json!(vec![rule; 50]);
    now.top["rules_left_out"] = 7.into();
    let lines = view(&now, &now, SIZE);
    let shown = lines.iter().filter(|line| line.text.starts_with("api/"));
    let more = format!("and {} rules that deny less", 57 - shown.count());
    assert!(texts(&lines).contains(&more.as_str()), "{lines:?}");
    assert_eq!(lines.len(), SIZE.lines);
}

#[test]
fn nothing_that_the_sidecar_says_reaches_the_terminal_as_a_command() {
    let mut now = reading("2s", 9, 9);
    let evil = json!("\u{1b}]0;x\u{7}\u{9b}2J\u{202e}");
    now.top["rules"][0]["rule"] = evil.clone();
    now.top["rules"][0]["limit"]["unit"] = evil.clone();
    now.status["pod"] = evil.clone();
    now.status["configuration"]["last_reload_faults"] = json!([evil]);
    for line in view(&now, &now, SIZE) {
        assert!(
            !line.text.contains(|letter: char| letter.is_control()),
            "{line:?}"
        );
        assert!(!line.text.contains('\u{202e}'), "{line:?}");
    }
}

#[test]
fn what_needs_someone_is_an_alarm() {
    let mut now = reading("2s", 0, 0);
    let before = now.clone();
    now.status["store"] = json!({ "link": "open", "staleness": null, "partitioned": true });
    now.status["configuration"]["last_reload_faults"] = json!(["sidecar.yaml:1:1: bad"]);
    let lines = view(&now, &before, SIZE);
    assert_eq!(lines[0].tone, Tone::Alarm);
    assert!(
        lines[0]
            .text
            .ends_with("store unreachable, not answered yet, partitioned, pods 3")
    );
    let fault = "last reload refused: sidecar.yaml:1:1: bad";
    assert_eq!(
        (lines[3].text.as_str(), lines[3].tone),
        (fault, Tone::Alarm)
    );
}

#[test]
fn no_line_is_longer_and_no_view_taller_than_there_is_room_for() {
    let mut now = reading("2s", 9, 9);
    let rule = now.top["rules"][0].clone();
    now.top["rules"] = json!(vec![rule; 50]);
    now.status["configuration"]["last_reload_faults"] = json!(vec!["bad"; 40]);
    for (columns, lines) in [(20, 5), (40, 10), (80, 24), (200, 50), (1, 1)] {
        let size = ViewSize { columns, lines };
        let found = view(&now, &now, size);
        assert!(found.len() <= lines, "{size:?}: {}", found.len());
        let longest = found.iter().map(|line| line.text.chars().count()).max();
        assert!(longest <= Some(columns), "{size:?}");
    }
}

#[test]
fn figures_are_as_people_write_them() {
    for (number, expected) in [
        (0.0, "0"),
        (0.25, "0.2"),
        (99.94, "99.9"),
        (99.96, "100"),
        (1_234.5, "1,234"),
        (1_000_000.0, "1,000,000"),
    ] {
        assert_eq!(figure(number), expected);
    }
}
