//! The command line: what it prints, and with which status it ends.

use std::net::TcpListener;

use serde_json::{Value, json};
use tidegate_testing::{
    CommandOutput, Endpoint, Folder, SOON, Sidecar, SidecarSetup, tidegate_binary, until,
};

pub const RULES: &str = r#"
- domain: api
  descriptors:
    - key: client
      rate_limit: 3/day
      descriptors: [{ key: path, value: "/files/*", rate_limit: { unit: hour, requests_per_unit: 5, unit_multiplier: 6, burst: 2 } }]
    - { key: free, rate_limit: { unlimited: true } }
    - { key: trial, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1, algorithm: fixed_window } }
"#;

#[test]
fn help_of_every_command_shows_an_example() {
    let folder = Folder::new();
    for (command, example) in [
        (&["--help"][..], "Example: tidegate --config sidecar.yaml"),
        (&["-h"], "Example: tidegate --config sidecar.yaml"),
        (&["run", "--help"], "Example: tidegate run --config"),
        (
            &["validate", "--help"],
            "Example: tidegate validate sidecar.yaml",
        ),
        (
            &["check", "--help"],
            "Example: tidegate check api_platform api_key=abc123",
        ),
        (
            &["explain", "--help"],
            "Example: tidegate explain api_platform api_key=abc123",
        ),
        (&["health", "--help"], "Example: tidegate health --to"),
        (&["top", "--help"], "Example: tidegate top --every 2s"),
    ] {
        let ran = folder.run(command);
        assert_eq!(
            (ran.code, ran.stderr.as_str()),
            (Some(0), ""),
            "{command:?}"
        );
        assert!(ran.stdout.contains(example), "{command:?}: {}", ran.stdout);
        assert!(
            ran.stdout.contains("Usage: tidegate"),
            "{command:?}: {}",
            ran.stdout
        );
    }
    let ran = folder.run(&["--help"]);
    for part in [
        "validate",
        "check",
        "explain",
        "health",
        "top",
        "Exit status: 0 stopped on request, 64 bad command line, 78 bad configuration",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
}

#[test]
fn the_version_is_that_of_the_package() {
    let folder = Folder::new();
    for flag in ["--version", "-V"] {
        let ran = folder.run(&[flag]);
        let expected = format!("tidegate {}\n", env!("CARGO_PKG_VERSION"));
        assert_eq!((ran.code, ran.stdout), (Some(0), expected));
    }
}

#[test]
fn a_bad_command_line_ends_with_64() {
    let folder = Folder::new();
    for arguments in [
        &["--nonsense"][..],
        &["nonsense"],
        &["--config"],
        &["validate"],
        &["check"],
        &["check", "api"],
        &["check", "api", "client"],
        &["check", "api", "=x"],
        &["check", "api", "client=x", "--cost", "-1"],
        &["check", "api", "client=x", "--cost", "many"],
        &["check", "api", "client=x", "--to", "example.org:80"],
        &["explain", "api"],
        &["health", "--to", "example.org:80"],
        &["health", "now"],
    ] {
        let ran = folder.run(arguments);
        assert_eq!(ran.code, Some(64), "{arguments:?}: {ran:?}");
        assert!(
            ran.stderr.starts_with("error: ") && ran.stdout.is_empty(),
            "{arguments:?}: {ran:?}"
        );
    }
}

/// A start that must end is known before: what is wrong is in the files, not on the network.
#[test]
fn what_run_refuses_validate_refuses() {
    let store = |url: &str, more: &str| format!("store: {{ url: \"{url}\"{more} }}");
    let number = "store.url: must end in the number of a database, or have none";
    for (top, expected) in [
        (store("redis://h/abc", ""), number),
        (store("redis://h/-1", ""), number),
        (store("unix:///r.sock?db=x", ""), number),
        (
            store("redis://h/1", ", topology: cluster"),
            "store.url: must name hosts and no database but 0",
        ),
        (
            store("unix:///r.sock", ", topology: sentinel, master: m"),
            "store.url: must name the hosts of sentinels",
        ),
        (
            store("redis://h", ", password_file: none"),
            "read store.password_file none: No such file",
        ),
        (
            store("redis://h", ", password_file: blank"),
            "store.password_file blank is empty",
        ),
        (
            store("rediss://h", ", tls: { ca_file: garbage }"),
            "store.tls does not hold certificates",
        ),
        (
            store("redis://h", ", hash_key_file: none"),
            "read the hash key from none: No such file",
        ),
        (
            "listen: { admin: [\"127.0.0.1:0\"], token_file: blank }".to_owned(),
            "the admin token in blank is empty",
        ),
        (
            "listen: { admin: [\"127.0.0.1:0\"], token_file: none }".to_owned(),
            "read the admin token from none: No such file",
        ),
        (
            "listen: { resp: [\"127.0.0.1:0\"], resp_password_file: blank }".to_owned(),
            "the RESP password in blank is empty",
        ),
    ] {
        let folder = Folder::new();
        folder.write("blank", " \n");
        folder.write(
            "garbage",
            "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n",
        );
        let rules = "rules: [{ domain: a, descriptors: [{ key: b, rate_limit: 1/day }] }]";
        folder.write("sidecar.yaml", &format!("{top}\n{rules}\n"));
        let [validated, ran] =
            [&["validate", "sidecar.yaml"][..], &["run"]].map(|arguments| folder.run(arguments));
        assert_eq!(ran.code, Some(78), "{top}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{top}: {ran:?}");
        assert!(ran.stderr.starts_with("sidecar.yaml:"), "{ran:?}");
        // A file that is not here may be where the sidecar runs.
        let expected = match expected.contains("No such file") {
            true => (
                Some(0),
                format!("warning: {}: run would end here\n", ran.stderr.trim_end()),
            ),
            false => (Some(78), ran.stderr),
        };
        assert_eq!((validated.code, validated.stderr), expected, "{top}");
    }
}

#[test]
fn a_bad_configuration_ends_with_78() {
    let folder = Folder::new();
    folder.write("bad.yaml", "rules: [\n");
    for (arguments, told) in [
        (&["--config", "bad.yaml"][..], "bad.yaml:"),
        (&["run", "--config", "bad.yaml"], "bad.yaml:"),
        (
            &["--config", "absent.yaml"],
            "absent.yaml: cannot be read: No such file",
        ),
        (&[], "sidecar.yaml: cannot be read: No such file"),
        (&["validate", "bad.yaml"], "bad.yaml:"),
        (&["validate", "absent.yaml"], "absent.yaml: cannot be read"),
        (
            &["explain", "api", "client=x", "--config", "bad.yaml"],
            "bad.yaml:",
        ),
        (
            &["explain", "api", "client=x"],
            "sidecar.yaml: cannot be read",
        ),
    ] {
        let ran = folder.run(arguments);
        assert_eq!(ran.code, Some(78), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.starts_with(told), "{arguments:?}: {ran:?}");
        assert_eq!(ran.stdout, "", "{arguments:?}");
    }
}

#[test]
fn validate_prints_every_fault_of_every_file() {
    let folder = Folder::new();
    folder.write("good.yaml", &SidecarSetup::rules(RULES).yaml());
    folder.write(
        "plain.yaml",
        "domain: api\ndescriptors: [{ key: client, rate_limit: 3/day }]\n",
    );
    let bad = "drain: soon\nlog: { level: loud }\nunknown: 1\nrules:\n  - domain: api\n    descriptors: [{ key: client, rate_limit: 3/fortnight }]\n";
    folder.write("bad.yaml", bad);
    folder.write("worse.yaml", "bounds: { keys_max: -1 }\n");
    let ran = folder.run(&["validate", "good.yaml", "plain.yaml"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(
        ran.stdout,
        "good.yaml: ok, 4 rules\nplain.yaml: ok, 1 rules\n"
    );
    let ran = folder.run(&["validate", "bad.yaml", "good.yaml", "worse.yaml"]);
    assert_eq!(ran.code, Some(78), "{ran:?}");
    assert_eq!(ran.stdout, "good.yaml: ok, 4 rules\n");
    let starts: Vec<_> = ran
        .stderr
        .lines()
        .map(|line| line.split(": ").take(2).collect::<Vec<_>>().join(": "))
        .collect();
    let expected = [
        "bad.yaml:1:8: drain",
        "bad.yaml:2:15: log.level",
        "bad.yaml:3:1: unknown field \"unknown\"",
        "bad.yaml:6:46: rules[0].descriptors[0].rate_limit",
        "worse.yaml:1:21: bounds.keys_max",
    ];
    assert_eq!(starts, expected, "{}", ran.stderr);
}

#[test]
fn validate_prints_warnings_and_still_passes() {
    let folder = Folder::new();
    folder.write("empty.yaml", "log: { level: info }\n");
    let ran = folder.run(&["validate", "empty.yaml"]);
    assert_eq!(
        (ran.code, ran.stdout.as_str()),
        (Some(0), "empty.yaml: ok, 0 rules\n")
    );
    assert!(
        ran.stderr
            .contains("warning: empty.yaml:1:1: rules: no rule is configured"),
        "{ran:?}"
    );
}

#[test]
fn the_shipped_configuration_is_sound() {
    let folder = Folder::new();
    let shipped = concat!(env!("CARGO_MANIFEST_DIR"), "/sidecar.yaml");
    let ran = folder.run(&["validate", shipped]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
}

fn check(sidecar: &Sidecar, to: &str, arguments: &[&str]) -> CommandOutput {
    let all = [&["check"], arguments, &["--to", to]].concat();
    sidecar.folder().run(&all)
}

#[test]
fn check_asks_over_both_transports() {
    let sidecar = SidecarSetup::rules(RULES).start();
    for door in sidecar.doors("http") {
        let (to, client) = (door.to(), format!("client={}", door.kind()));
        let ask = |more: &[&str]| check(&sidecar, &to, &[&["api", &client], more].concat());
        let ran = ask(&["--peek"]);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (
                Some(0),
                "allowed by api/client: limit 3 per day, 3 left, full again in 0s\n"
            )
        );
        let ran = ask(&["--cost", "2"]);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (
                Some(0),
                "allowed by api/client: limit 3 per day, 1 left, full again in 57600s\n"
            )
        );
        assert_eq!(ask(&["--cost", "0"]).code, Some(0), "a cost of 0 is a look");
        let ran = ask(&["--cost", "2"]);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(
            ran.stdout
                .starts_with("denied by api/client: limit 3 per day, 1 left, retry after 28"),
            "{ran:?}"
        );
        assert_eq!(ask(&[]).code, Some(0));
        assert_eq!(ask(&["--peek"]).code, Some(1));
        let ran = check(&sidecar, &to, &["api", "stranger=x"]);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(0), "allowed: no rule matches\n")
        );
        let ran = check(&sidecar, &to, &["api", &client, "path=/files/a=b"]);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (
                Some(0),
                "allowed by api/client/path: limit 5 per 6 hour, 1 left, full again in 4320s\n"
            )
        );
    }
}

#[test]
fn check_prints_the_answer_as_it_came() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let to = sidecar.http().to();
    for (cost, code, overall) in [("3", 0, "OK"), ("1", 1, "OVER_LIMIT")] {
        let ran = check(
            &sidecar,
            &to,
            &["api", "client=x", "--json", "--cost", cost],
        );
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let answer: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(answer["overall_code"], overall);
        assert_eq!(
            answer["statuses"][0]["current_limit"],
            json!({ "requests_per_unit": 3, "unit": "DAY" })
        );
        assert_eq!(ran.stdout.lines().count(), 1);
    }
}

#[test]
fn check_that_cannot_ask_ends_with_2() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let gone = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    let metrics = sidecar.door("metrics").unwrap().to();
    let long = format!("{}=x", "x".repeat(2_000));
    let to = sidecar.http().to();
    for (to, entry, told) in [
        (
            gone.as_str(),
            "client=x",
            format!("tidegate: ask {gone}: Connection refused"),
        ),
        (
            "unix:absent.sock",
            "client=x",
            "tidegate: ask unix:absent.sock: No such file".to_owned(),
        ),
        (
            metrics.as_str(),
            "client=x",
            format!("tidegate: {metrics} answered 40"),
        ),
        (
            to.as_str(),
            long.as_str(),
            format!(
                "tidegate: {to} answered 400 Bad Request: descriptors[0].entries[0].key: must be"
            ),
        ),
    ] {
        let ran = check(&sidecar, to, &["api", entry]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
        assert!(ran.stderr.starts_with(&told), "{told}: {ran:?}");
    }
}

#[test]
fn check_asks_where_the_variable_says_unless_told() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let to = sidecar.http().to();
    let run = |variable: &str, arguments: &[&str]| {
        let mut command = sidecar.folder().command(&["check", "api", "client=x"]);
        let output = command
            .args(arguments)
            .env("TIDEGATE_TO", variable)
            .output();
        output.unwrap().status.code()
    };
    assert_eq!(run(&to, &[]), Some(0));
    assert_eq!(run("unix:absent.sock", &[]), Some(2));
    assert_eq!(run("unix:absent.sock", &["--to", &to]), Some(0));
}

#[test]
fn an_answer_that_nobody_reads_is_an_answer() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let tidegate = tidegate_binary();
    let tidegate = tidegate.display();
    let (http, metrics) = (sidecar.http().to(), sidecar.door("metrics").unwrap().to());
    for line in [
        format!("{tidegate} health --to {metrics}"),
        format!("{tidegate} check api client=x --to {http}"),
        format!("{tidegate} validate sidecar.yaml"),
        format!("{tidegate} explain api client=x"),
    ] {
        let ran = sidecar.folder().shell(&format!("{line} >/dev/full"));
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{line}");
    }
}

#[test]
fn flags_beat_variables_which_beat_the_file() {
    let pod = |setup: SidecarSetup| {
        let sidecar = setup.start();
        sidecar.admin("/admin/v1/status")["pod"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let file = || SidecarSetup::rules(RULES).top("log: { format: json }\npod: { id: of-file }");
    assert_eq!(pod(file()), "of-file");
    assert_eq!(pod(file().variable("POD_NAME", "of-kubernetes")), "of-file");
    assert_eq!(
        pod(file().variable("TIDEGATE_POD_ID", "of-variable")),
        "of-variable"
    );
    let all = file()
        .variable("TIDEGATE_POD_ID", "of-variable")
        .variable("POD_NAME", "of-kubernetes");
    assert_eq!(pod(all.argument("--pod-id=of-flag")), "of-flag");
    assert_eq!(
        pod(SidecarSetup::rules(RULES).variable("POD_NAME", "of-kubernetes")),
        "of-kubernetes"
    );
    let named =
        SidecarSetup::rules(RULES).top("log: { format: json }\npod: { id: \"${POD_NAME:-}\" }");
    assert_eq!(
        pod(named.variable("POD_NAME", "of-reference")),
        "of-reference"
    );
    assert_ne!(pod(SidecarSetup::rules(RULES)), "");
}

#[test]
fn every_override_works_as_flag_and_as_variable() {
    let listen = r#"http: ["127.0.0.1:1"], metrics: ["127.0.0.1:1"], admin: ["127.0.0.1:1"]"#;
    // Nobody may listen on port 1 and two doors may not share it: this starts only if all are overridden.
    let listen = listen.replacen(":1", ":2", 1).replacen(":1", ":3", 1);
    let text = || {
        SidecarSetup::rules(RULES)
            .listen(&listen)
            .top("log: { level: 'off', format: text }")
    };
    let flags = text()
        .argument("--listen-http=127.0.0.1:0,unix:flag.sock")
        .argument("--listen-metrics=127.0.0.1:0")
        .argument("--listen-admin=localhost:0")
        .argument("--log-level=info")
        .argument("--log-format=json");
    let variables = text()
        .variable("TIDEGATE_LISTEN_HTTP", "127.0.0.1:0, unix:flag.sock")
        .variable("TIDEGATE_LISTEN_METRICS", "127.0.0.1:0")
        .variable("TIDEGATE_LISTEN_ADMIN", "localhost:0")
        .variable("TIDEGATE_LOG_LEVEL", "info")
        .variable("TIDEGATE_LOG_FORMAT", "json");
    for setup in [flags, variables] {
        let sidecar = setup.start();
        let doors = sidecar.doors("http");
        assert_eq!(
            doors.iter().map(Endpoint::kind).collect::<Vec<_>>(),
            ["tcp", "unix"]
        );
        assert!(doors[1].to().ends_with("flag.sock"));
        for door in doors {
            assert_eq!(door.get("/v1/check?domain=api&free=x").status, 200);
        }
        assert_eq!(sidecar.admin("/admin/v1/status")["ready"], true);
    }
}

#[test]
fn a_bad_override_is_told_by_its_name() {
    for (name, told) in [
        ("TIDEGATE_LOG_LEVEL", "TIDEGATE_LOG_LEVEL: log.level: "),
        (
            "TIDEGATE_LISTEN_HTTP",
            "TIDEGATE_LISTEN_HTTP: listen.http: ",
        ),
    ] {
        let (ran, _folder) = SidecarSetup::rules(RULES).variable(name, "nonsense").fail();
        assert_eq!(ran.code, Some(78), "{ran:?}");
        assert!(ran.stderr.starts_with(told), "{told}: {ran:?}");
    }
}

/// The configuration may come by a variable; the log is for people unless told otherwise.
#[test]
fn the_file_may_be_named_by_a_variable_and_run_is_the_default() {
    for arguments in [&[][..], &["run"]] {
        let folder = Folder::new();
        folder.write(
            "named.yaml",
            "listen: { http: [\"unix:t.sock\"] }\nbounds: { keys_max: 1000 }\n",
        );
        let mut command = folder.command(arguments);
        command.env("TIDEGATE_CONFIG", "named.yaml");
        let mut sidecar = Sidecar::of(command, folder);
        let path = sidecar.folder().path("t.sock");
        until("the socket", SOON, || path.exists().then_some(()));
        assert_eq!(
            Endpoint::Unix(path).get("/v1/check?domain=api&x=y").status,
            200
        );
        sidecar.signal("TERM");
        assert_eq!(sidecar.wait(SOON).code(), Some(0));
        let said = sidecar.stdout.text();
        assert!(
            said.contains(" INFO listening door=\"http\" address=unix:t.sock"),
            "{said}"
        );
        assert!(
            said.contains(" WARN configuration warning=named.yaml:"),
            "{said}"
        );
        assert!(
            !said.contains('\u{1b}'),
            "colours, and nobody to see them: {said}"
        );
    }
}
