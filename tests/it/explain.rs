//! `tidegate explain`: which rule, under which key and limit, and why.

use tidegate_testing::SidecarSetup;

use super::cli::RULES;

#[test]
fn explain_says_which_rule_and_why() {
    let setup = SidecarSetup::rules(RULES);
    setup.folder.write("rules.yaml", &setup.yaml());
    let explain = |arguments: &[&str]| {
        let ran = setup
            .folder
            .run(&[&["explain"], arguments, &["--config", "rules.yaml"]].concat());
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        ran.stdout
    };
    let told = explain(&["api", "client=x"]);
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "rule: api/client");
    assert_eq!(lines[1], "limit: 3/day, gcra");
    assert_eq!(lines[2], "burst: 3 at once, then one every 28800s");
    assert!(
        lines[3].starts_with("key: ") && lines[3].len() == 37,
        "{told}"
    );
    assert_eq!(
        lines[4],
        "why: client may have any value, each with a key of its own"
    );
    for (arguments, expected) in [
        (
            &["api", "client=x", "path=/files/a"][..],
            "limit: 5/6h burst 2, gcra",
        ),
        (
            &["api", "client=x", "path=/files/a"],
            "each with a key of its own, then path matches \"/files/*\"",
        ),
        (&["api", "free=x"], "limit: none, it always allows"),
        (
            &["api", "trial=x"],
            "shadow_mode: it counts and never denies",
        ),
        (&["api", "trial=x"], "limit: 1/day, fixed_window"),
        (
            &["nobody", "client=x"],
            "allowed: no domain \"nobody\" is configured",
        ),
        (
            &["api", "path=x", "client=x"],
            "allowed: no rule of \"api\" is reached with these entries",
        ),
        (
            &["api", "path=x"],
            "why: a rule must be reached with all entries, in their order",
        ),
    ] {
        let told = explain(arguments);
        assert!(
            told.contains(expected),
            "{arguments:?}: {told:?}, expected {expected:?}"
        );
    }
}

/// The key that `explain` prints is the one the admin page prints.

#[test]
fn explain_names_the_key_that_is_held() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let ran = sidecar.folder().run(&["explain", "api", "client=x"]);
    let key = ran
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("key: "))
        .unwrap();
    let usage = sidecar.admin("/admin/v1/usage?domain=api&client=x");
    assert_eq!(usage["usage"][0]["key"], key);
}

#[test]
fn explain_names_keys_as_the_daemon_does() {
    let setup = SidecarSetup::rules(RULES)
        .top("store: { url: redis://127.0.0.1:1, hash_key_file: secret }\nlog: { format: json }");
    setup.folder.write("secret", "s3cret");
    let sidecar = setup.start();
    let usage = sidecar.admin("/admin/v1/usage?domain=api&client=x");
    let explain = || {
        let ran = sidecar.folder().run(&["explain", "api", "client=x"]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let key = ran
            .stdout
            .lines()
            .find_map(|line| line.strip_prefix("key: "));
        key.unwrap().to_owned()
    };
    assert_eq!(explain(), usage["usage"][0]["key"].as_str().unwrap());
    std::fs::remove_file(sidecar.folder().path("secret")).unwrap();
    let told = explain();
    assert!(
        told.starts_with("unknown here: read the hash key from secret: "),
        "{told}"
    );
}
