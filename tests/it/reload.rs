//! Hot reload: every way a configuration changes, every way it can be bad, and what stays over it.

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tidegate_testing::{Client, SOON, Sidecar, SidecarSetup, now, until};

/// What the contract promises.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(10);

fn rules(limit: u64) -> String {
    format!("- {{ domain: api, descriptors: [{{ key: client, rate_limit: {limit}/day }}] }}")
}

fn start(limit: u64) -> Sidecar {
    SidecarSetup::rules(&rules(limit)).start()
}

/// The limit in force, looked up without using it.
fn limit(client: &mut Client) -> u64 {
    limit_of(client, "api", "client")
}

fn limit_of(client: &mut Client, domain: &str, key: &str) -> u64 {
    let path = format!("/v1/check?domain={domain}&{key}=probe&peek=1");
    let answer = client.get(&path);
    let found = answer.header("x-ratelimit-limit").unwrap_or("0");
    found.parse().unwrap()
}

/// Waits until `expected` is in force.
fn in_force(sidecar: &Sidecar, how: &str, expected: u64) {
    let mut client = sidecar.connect();
    let begun = now();
    until(&format!("{how}: limit {expected}"), IN_FORCE_WITHIN, || {
        (limit(&mut client) == expected).then_some(())
    });
    eprintln!("{how}: in force after {:?}", begun.elapsed());
}

fn reloads(sidecar: &Sidecar, outcome: &str) -> f64 {
    let labels = [("outcome", outcome)];
    sidecar
        .metrics()
        .of("ratelimit_config_reloads_total", &labels)
}

/// What alerts go by: whether the last reload was refused, and the hash of what is in force.
fn told_as(sidecar: &Sidecar) -> (f64, String) {
    let hash = sidecar.admin("/admin/v1/status")["configuration"]["hash"].clone();
    let hash = hash.as_str().unwrap().to_owned();
    let metrics = sidecar.metrics();
    let info = metrics
        .series
        .iter()
        .filter(|series| series.name == "ratelimit_config_info");
    let hashes: Vec<_> = info.map(|series| series.labels[0].1.clone()).collect();
    assert_eq!(hashes, [hash.as_str()], "only what is in force");
    (metrics.of("ratelimit_config_reload_refused", &[]), hash)
}

fn readiness(sidecar: &Sidecar) -> String {
    let page = sidecar.door("metrics").unwrap().get("/readyz?verbose");
    assert_eq!(page.status, 200, "a bad file must not take the pod down");
    page.text()
}

fn faults(sidecar: &Sidecar) -> Vec<String> {
    let status = sidecar.admin("/admin/v1/status");
    let faults = status["configuration"]["last_reload_faults"].clone();
    serde_json::from_value(faults).unwrap()
}

#[test]
fn a_file_written_in_place_is_read_again() {
    let sidecar = start(10);
    for limit in [20, 30] {
        let yaml = sidecar.setup().with(&rules(limit));
        sidecar.folder().write("sidecar.yaml", &yaml);
        in_force(&sidecar, "written in place", limit);
    }
    assert_eq!(reloads(&sidecar, "applied"), 2.0);
    assert_eq!(reloads(&sidecar, "refused"), 0.0);
}

#[test]
fn a_file_renamed_over_is_read_again() {
    let sidecar = start(10);
    for limit in [20, 30] {
        let yaml = sidecar.setup().with(&rules(limit));
        sidecar.folder().replace("sidecar.yaml", &yaml);
        in_force(&sidecar, "renamed over", limit);
    }
}

/// The layout of a ConfigMap volume: the swap renames a symbolic link, and the file itself never changes.
#[test]
fn a_config_map_that_was_swapped_is_read_again() {
    let setup = SidecarSetup::rules("").file("volume/sidecar.yaml");
    let at = |name: &str| setup.folder.path(&format!("volume/{name}"));
    fs::create_dir(setup.folder.path("volume")).unwrap();
    let put = |version: &str, limit: u64| {
        fs::create_dir(at(version)).unwrap();
        let yaml = setup.with(&rules(limit));
        fs::write(at(version).join("sidecar.yaml"), yaml).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    put("..2026_a", 10);
    symlink("..data/sidecar.yaml", at("sidecar.yaml")).unwrap();
    let later = ["..2026_b", "..2026_c"].map(|version| {
        let yaml = setup.with(&rules(if version == "..2026_b" { 20 } else { 30 }));
        (version, yaml)
    });
    let sidecar = setup.start_as_is();
    in_force(&sidecar, "ConfigMap at the start", 10);
    let at = |name: &str| sidecar.folder().path(&format!("volume/{name}"));
    let mut old = "..2026_a";
    for ((version, yaml), limit) in later.into_iter().zip([20, 30]) {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("sidecar.yaml"), yaml).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
        fs::remove_dir_all(at(old)).unwrap();
        old = version;
        in_force(&sidecar, "ConfigMap swapped", limit);
    }
    assert_eq!(reloads(&sidecar, "refused"), 0.0);
}

#[test]
fn files_of_the_rules_folder_come_change_and_go() {
    let setup = SidecarSetup::rules(&rules(10)).top("log: { format: json }\nrules_dir: rules");
    fs::create_dir(setup.folder.path("rules")).unwrap();
    let sidecar = setup.start();
    let mut client = sidecar.connect();
    let more = |limit: u64| {
        format!("domain: more\ndescriptors: [{{ key: client, rate_limit: {limit}/day }}]\n")
    };
    let mut wait = |how: &str, expected: u64| {
        until(how, IN_FORCE_WITHIN, || {
            (limit_of(&mut client, "more", "client") == expected).then_some(())
        });
    };
    sidecar.folder().write("rules/more.yaml", &more(7));
    wait("a file added", 7);
    sidecar.folder().write("rules/more.yaml", &more(8));
    wait("a file changed", 8);
    fs::remove_file(sidecar.folder().path("rules/more.yaml")).unwrap();
    wait("a file removed", 0);
    sidecar.folder().write("rules/bad.yaml", "domain: [");
    until("a bad file refused", IN_FORCE_WITHIN, || {
        readiness(&sidecar).contains("rules/bad.yaml").then_some(())
    });
    fs::remove_dir_all(sidecar.folder().path("rules")).unwrap();
    until("a folder missed", IN_FORCE_WITHIN, || {
        faults(&sidecar)
            .iter()
            .any(|fault| fault.contains("rules_dir"))
            .then_some(())
    });
    in_force(&sidecar, "the other rules", 10);
    fs::create_dir(sidecar.folder().path("rules")).unwrap();
    sidecar.folder().write("rules/more.yaml", &more(9));
    wait("a folder back", 9);
    assert_eq!(faults(&sidecar), [""; 0]);
}

/// The files are compared every 5 s: what was refused or applied once is not read again as long as it stays.
#[test]
fn a_change_is_read_once() {
    let top = "log: { format: json }\nrules_dir: rules";
    let setup = SidecarSetup::rules(&rules(10)).top(top);
    fs::create_dir(setup.folder.path("rules")).unwrap();
    let sidecar = setup.start();
    let outcomes = || ["applied", "unchanged", "refused"].map(|outcome| reloads(&sidecar, outcome));
    let stays = |expected: [f64; 3]| {
        until(&format!("{expected:?}"), IN_FORCE_WITHIN, || {
            (outcomes() == expected).then_some(())
        });
        let begun = now();
        until("another look at the files", SOON, || {
            assert_eq!(outcomes(), expected);
            (begun.elapsed() > Duration::from_millis(5_500)).then_some(())
        });
    };
    sidecar.folder().replace("sidecar.yaml", "rules: [");
    stays([0.0, 0.0, 1.0]);
    let without = sidecar
        .setup()
        .with(&rules(20))
        .replace("rules_dir: rules", "");
    sidecar.folder().replace("sidecar.yaml", &without);
    stays([1.0, 0.0, 1.0]);
    let with = sidecar.setup().with(&rules(30));
    sidecar.folder().replace("sidecar.yaml", &with);
    stays([2.0, 0.0, 1.0]);
}

#[test]
fn a_hang_up_reads_the_file_again() {
    let sidecar = start(10);
    sidecar.signal("HUP");
    until("unchanged", IN_FORCE_WITHIN, || {
        (reloads(&sidecar, "unchanged") == 1.0).then_some(())
    });
    let yaml = sidecar.setup().with(&rules(20));
    sidecar.folder().write("sidecar.yaml", &yaml);
    sidecar.signal("HUP");
    in_force(&sidecar, "SIGHUP", 20);
}

/// Spoils the configuration, sees that nothing changed but what is told, and repairs it.
fn survives(what: &str, told: &str, spoil: impl FnOnce(&Sidecar)) {
    let sidecar = start(3);
    let (refused, before) = told_as(&sidecar);
    assert_eq!(refused, 0.0, "{what}");
    let mut client = sidecar.connect();
    let ask = |client: &mut Client| client.get("/v1/check?domain=api&client=used").status;
    assert_eq!([0; 4].map(|_| ask(&mut client)), [200, 200, 200, 429]);
    spoil(&sidecar);
    until(&format!("{what}: told by readyz"), IN_FORCE_WITHIN, || {
        let page = readiness(&sidecar);
        (page.contains("last reload refused: ") && page.contains(told)).then_some(())
    });
    let faults_told = faults(&sidecar);
    assert!(
        faults_told.iter().any(|fault| fault.contains(told)),
        "{what}: {faults_told:?}"
    );
    assert!(reloads(&sidecar, "refused") >= 1.0, "{what}");
    assert_eq!(told_as(&sidecar), (1.0, before.clone()), "{what}");
    assert_eq!(reloads(&sidecar, "applied"), 0.0, "{what}");
    // What it logs is heard a moment later.
    until(&format!("{what}: a warning"), SOON, || {
        let said = sidecar.said("configuration refused");
        said.iter()
            .any(|event| event["level"] == "WARN")
            .then_some(())
    });
    assert_eq!(limit(&mut client), 3, "{what}: the last good rules stay");
    assert_eq!(ask(&mut client), 429, "{what}: and what they counted");
    let path = sidecar.folder().path("sidecar.yaml");
    let _ = fs::remove_dir(&path);
    let _ = fs::remove_file(&path);
    let yaml = sidecar.setup().with(&rules(30));
    sidecar.folder().replace("sidecar.yaml", &yaml);
    in_force(&sidecar, &format!("{what}: repaired"), 30);
    assert_eq!(faults(&sidecar), [""; 0], "{what}");
    assert!(!readiness(&sidecar).contains("refused"), "{what}");
    let (refused, after) = told_as(&sidecar);
    assert_eq!(refused, 0.0, "{what}");
    assert_ne!(after, before, "{what}: other files");
}

#[test]
fn a_bad_file_changes_nothing() {
    survives("bad", "sidecar.yaml:5:", |sidecar| {
        let yaml = sidecar
            .setup()
            .with(&rules(30))
            .replace("30/day", "30/fortnight");
        sidecar.folder().write("sidecar.yaml", &yaml);
    });
}

#[test]
fn a_truncated_file_changes_nothing() {
    survives("truncated", "sidecar.yaml:", |sidecar| {
        let yaml = sidecar.setup().with(&rules(30));
        sidecar
            .folder()
            .write("sidecar.yaml", &yaml[..yaml.len() - 12]);
    });
}

#[test]
fn a_deleted_file_changes_nothing() {
    survives("deleted", "sidecar.yaml: cannot be read", |sidecar| {
        fs::remove_file(sidecar.folder().path("sidecar.yaml")).unwrap();
    });
}

#[test]
fn an_empty_file_changes_nothing() {
    survives("empty", "sidecar.yaml", |sidecar| {
        sidecar.folder().write("sidecar.yaml", "");
    });
}

#[test]
fn a_directory_in_place_of_the_file_changes_nothing() {
    survives("directory", "directory", |sidecar| {
        let path = sidecar.folder().path("sidecar.yaml");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    });
}

/// Permissions do not stop root, who may run this: a link to itself stops everyone, and a pipe would never end.
#[test]
fn an_unreadable_file_changes_nothing() {
    survives("a link to itself", "cannot be read", |sidecar| {
        let path = sidecar.folder().path("sidecar.yaml");
        fs::remove_file(&path).unwrap();
        symlink("sidecar.yaml", &path).unwrap();
    });
    survives("a pipe", "not a regular file", |sidecar| {
        let made = sidecar
            .folder()
            .shell("rm sidecar.yaml && mkfifo sidecar.yaml");
        assert_eq!(made.code, Some(0), "{made:?}");
    });
}

#[test]
fn unchanged_rules_keep_what_they_counted() {
    let two = |other: u64| {
        format!(
            "{}\n- {{ domain: other, descriptors: [{{ key: x, rate_limit: {other}/day }}] }}",
            rules(3)
        )
    };
    let sidecar = SidecarSetup::rules(&two(1)).start();
    let mut client = sidecar.connect();
    let mut ask = || client.get("/v1/check?domain=api&client=used").status;
    assert_eq!([0; 4].map(|_| ask()), [200, 200, 200, 429]);
    let yaml = sidecar.setup().with(&two(5));
    sidecar.folder().replace("sidecar.yaml", &yaml);
    let mut probe = sidecar.connect();
    until("the other limit", IN_FORCE_WITHIN, || {
        (limit_of(&mut probe, "other", "x") == 5).then_some(())
    });
    assert_eq!(ask(), 429, "a drained bucket stays drained");
}

#[test]
fn a_changed_limit_keeps_the_share_that_is_used() {
    for (burst, left) in [(40, 20), (8, 4), (1000, 500)] {
        let sidecar = start(20);
        let mut client = sidecar.connect();
        for _ in 0..10 {
            assert_eq!(client.get("/v1/check?domain=api&client=half").status, 200);
        }
        let yaml = sidecar.setup().with(&rules(burst));
        sidecar.folder().replace("sidecar.yaml", &yaml);
        in_force(&sidecar, "another limit", burst);
        let answer = client.get("/v1/check?domain=api&client=half&peek=1");
        let found = answer.json()["statuses"][0]["limit_remaining"]
            .as_u64()
            .unwrap();
        assert!(
            found.abs_diff(left) <= 1,
            "half of {burst} is {left}, {found} are left"
        );
    }
}

#[test]
fn a_storm_of_swaps_fails_no_check_and_the_last_holds() {
    let sidecar = start(10);
    let done = AtomicBool::new(false);
    let asked: u64 = thread::scope(|scope| {
        let ask_on = |nth: usize| {
            let door = sidecar.doors("http")[nth % 2].clone();
            let done = &done;
            scope.spawn(move || {
                let mut client = door.connect();
                let mut asked = 0;
                while !done.load(Ordering::Relaxed) || asked == 0 {
                    let answer = client.get(&format!("/v1/check?domain=api&client=c{nth}"));
                    assert!([200, 429].contains(&answer.status), "{answer:?}");
                    asked += 1;
                }
                asked
            })
        };
        let askers = [0, 1, 2, 3].map(ask_on);
        for nth in 1..=1_000 {
            let yaml = sidecar.setup().with(&rules(100 + nth));
            sidecar.folder().replace("sidecar.yaml", &yaml);
            thread::park_timeout(Duration::from_millis(5));
        }
        in_force(&sidecar, "the last of 1,000 swaps", 1_100);
        done.store(true, Ordering::Relaxed);
        askers.into_iter().map(|asker| asker.join().unwrap()).sum()
    });
    assert!(
        asked >= 1_000,
        "{asked} checks are too few to show anything"
    );
    assert_eq!(reloads(&sidecar, "refused"), 0.0);
}

/// The folder may also hold what somebody writes all the time, such as a log.
#[test]
fn a_busy_folder_does_not_hold_up_a_reload() {
    let sidecar = start(10);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let noise = scope.spawn(|| {
            let mut written = 0_u64;
            while !done.load(Ordering::Relaxed) {
                sidecar.folder().write("noise.log", &written.to_string());
                written += 1;
                thread::park_timeout(Duration::from_millis(5));
            }
        });
        let yaml = sidecar.setup().with(&rules(20));
        sidecar.folder().replace("sidecar.yaml", &yaml);
        let mut client = sidecar.connect();
        let begun = now();
        let mut found = 0;
        while found != 20 && begun.elapsed() < IN_FORCE_WITHIN {
            found = limit(&mut client);
            thread::park_timeout(Duration::from_millis(5));
        }
        done.store(true, Ordering::Relaxed);
        noise.join().unwrap();
        assert_eq!(found, 20, "not in force within {IN_FORCE_WITHIN:?}");
    });
}

#[test]
fn sections_that_need_a_restart_are_told() {
    let sidecar = start(10);
    let yaml = r#"
pod: { id: another }
listen: { http: ["127.0.0.1:0"] }
log: { format: json, level: warn }
bounds: { keys_max: 20000 }
headers: []
drain: 3s
sync: { interval: 2s }
store: { url: "redis://127.0.0.1:1" }
rules:
"#;
    sidecar
        .folder()
        .replace("sidecar.yaml", &(yaml.to_owned() + &rules(20)));
    in_force(&sidecar, "the rules beside", 20);
    let expected = [
        "bounds", "drain", "headers", "listen", "log", "pod", "store", "sync",
    ];
    let message = "changed, and needs a restart: rules are reloaded, this is not";
    let mut sections = until("warnings", SOON, || {
        let said = sidecar.said(message);
        let sections: Vec<_> = said
            .iter()
            .map(|event| event["section"].as_str().unwrap().to_owned())
            .collect();
        (sections.len() >= expected.len()).then_some(sections)
    });
    sections.sort();
    assert_eq!(sections, expected);
    let answer = sidecar.connect().get("/v1/check?domain=api&client=x");
    assert!(
        answer.header("ratelimit").is_some(),
        "headers changed without a restart"
    );
}
