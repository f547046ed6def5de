//! Configurations, good and bad: every file of `config/` gives exactly the faults in its `.err`, every file of
//! `config/good/` loads with exactly the warnings in its `.warn`. `UPDATE=1` writes what is found; read it then.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on fails"
)]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tidegate_config::{Address, Config, Faults, HeaderStyle, LogFormat, LogLevel};
use tidegate_config::{check_text, fingerprint, load};
use tidegate_testing::Folder;

fn environment(name: &str) -> Option<String> {
    match name {
        "LIMIT" => Some("20".to_owned()),
        "WORD" => Some("word".to_owned()),
        "EMPTY" => Some(String::new()),
        "TRICKY" => Some("x\nlisten: {}".to_owned()),
        _ => None,
    }
}

fn check(text: &str) -> Result<Config, Faults> {
    check_text("test.yaml", text, &environment)
}

fn faults(text: &str) -> String {
    check(text).expect_err(text).to_string()
}

fn with<'a>(variables: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + 'a {
    |name| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    }
}

fn yaml_files(folder: &str) -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = fs::read_dir(root.join("tests/it").join(folder)).unwrap();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "yaml"));
    paths.sort();
    paths
}

/// Compares with the file of expectations; an absent one expects nothing.
fn expect(path: &Path, found: &str) {
    if std::env::var_os("UPDATE").is_some() {
        if found.is_empty() {
            let _ = fs::remove_file(path);
        } else {
            fs::write(path, found).unwrap();
        }
    }
    let expected = fs::read_to_string(path).unwrap_or_default();
    assert_eq!(found, expected, "{}", path.display());
}

fn lines(findings: impl Iterator<Item = String>) -> String {
    findings.map(|finding| finding + "\n").collect()
}

#[test]
fn every_bad_file_gives_its_faults_with_their_places() {
    let paths = yaml_files("config");
    assert!(paths.len() >= 45, "only {} bad files", paths.len());
    for path in paths {
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        match check_text(name, &text, &environment) {
            Ok(_) => panic!("{name} has no fault"),
            Err(faults) => expect(
                &path.with_extension("err"),
                &lines(faults.iter().map(ToString::to_string)),
            ),
        }
    }
}

#[test]
fn every_good_file_loads_with_its_warnings() {
    for path in yaml_files("config/good") {
        let name = path.file_name().unwrap().to_str().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        match check_text(name, &text, &environment) {
            Ok(config) => expect(
                &path.with_extension("warn"),
                &lines(config.warnings.iter().map(ToString::to_string)),
            ),
            Err(faults) => panic!("{faults}"),
        }
    }
}

#[test]
fn the_shipped_file_loads_without_a_warning_and_says_what_it_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("sidecar.yaml");
    let config = load(&path, &|_| None).unwrap();
    assert_eq!(config.warnings, []);
    assert_eq!(config.store, None);
    let http: Vec<String> = config.listen.http.iter().map(Address::to_string).collect();
    assert_eq!(http, ["127.0.0.1:7600", "unix:tidegate.sock"]);
    let rules = config.rules.all().iter();
    let rules: Vec<String> = rules
        .map(|rule| format!("{} {}", rule.label, rule.spec.limit.unwrap()))
        .collect();
    assert_eq!(
        rules,
        [
            "api_platform/api_key 100/minute burst 20",
            "api_platform/api_key/endpoint 20/minute",
            "api_platform/remote_address 30/minute",
            "api_platform/global 10000/second",
        ]
    );
}

#[test]
fn what_is_not_said_has_its_default() {
    let config = check("rules: []").unwrap();
    assert_eq!(config.pod_id, "pod");
    assert_eq!(
        config.listen.http,
        ["127.0.0.1:7600".parse::<Address>().unwrap()]
    );
    assert_eq!(config.listen.admin.len(), 1);
    assert_eq!(config.listen.unix_mode, 0o660);
    assert_eq!(config.headers, [HeaderStyle::Draft11, HeaderStyle::Legacy]);
    assert_eq!(config.log.level, LogLevel::Info);
    assert_eq!(config.drain.as_secs(), 10);
    assert_eq!(config.bounds.keys_max, 1_000_000);
    assert!(check("headers: []").unwrap().headers.is_empty());
}

#[test]
fn a_door_that_a_listen_section_does_not_name_is_off() {
    let config = check("listen: { metrics: [\"127.0.0.1:0\"] }").unwrap();
    assert_eq!(
        (config.listen.http.len(), config.listen.admin.len()),
        (0, 0)
    );
    assert_eq!(config.listen.metrics.len(), 1);
}

#[test]
fn variables_are_put_into_values_of_every_kind() {
    let path = "tests/it/config/good/variables.yaml";
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let config = load(&path, &environment).unwrap();
    assert_eq!(config.pod_id, "word-20");
    assert_eq!(config.drain.as_secs(), 20);
    assert_eq!(config.bounds.keys_max, 100);
    let rule = config.rules.get(0).unwrap();
    assert_eq!(rule.label, "word/user");
    assert_eq!(rule.steps()[0].value.as_deref(), Some("costs $5 $x"));
    assert_eq!(rule.spec.limit.unwrap().to_string(), "20/hour");
}

#[test]
fn variables_beat_the_file() {
    let text = "pod: { id: file }\nlog: { level: warn, format: text }\nlisten: { http: [\"127.0.0.1:1\"] }";
    let variables = with(&[
        ("TIDEGATE_POD_ID", "variable"),
        ("POD_NAME", "other"),
        ("TIDEGATE_LOG_LEVEL", "debug"),
        ("TIDEGATE_LOG_FORMAT", "json"),
        ("TIDEGATE_LISTEN_HTTP", "127.0.0.1:2, unix:b.sock"),
        ("TIDEGATE_LISTEN_ADMIN", "127.0.0.1:3"),
        ("TIDEGATE_LISTEN_METRICS", ""),
        ("TIDEGATE_LISTEN_RESP", "127.0.0.1:4"),
    ]);
    let config = check_text("test.yaml", text, &variables).unwrap();
    assert_eq!(config.pod_id, "variable");
    assert_eq!(config.log.level, LogLevel::Debug);
    assert_eq!(config.log.format, LogFormat::Json);
    let http: Vec<String> = config.listen.http.iter().map(Address::to_string).collect();
    assert_eq!(http, ["127.0.0.1:2", "unix:b.sock"]);
    assert_eq!(config.listen.admin.len(), 1);
    assert!(config.listen.metrics.is_empty());
    assert_eq!(config.listen.resp.len(), 1);
}

#[test]
fn a_pod_without_an_id_takes_the_first_name_there_is() {
    let id = |text: &str, variables: &[(&str, &str)]| {
        check_text("test.yaml", text, &with(variables))
            .unwrap()
            .pod_id
    };
    let both = [("POD_NAME", "name"), ("HOSTNAME", "host")];
    assert_eq!(id("pod: { id: \"\" }", &both), "name");
    assert_eq!(id("pod: {}", &both[1..]), "host");
    assert_eq!(id("drain: 1s", &[]), "pod");
}

#[test]
fn a_bad_variable_is_a_fault_at_its_name() {
    let variables = with(&[
        ("TIDEGATE_LOG_LEVEL", "loud"),
        ("TIDEGATE_LISTEN_ADMIN", "0.0.0.0:1"),
        ("REDIS_URL", "user:secret@redis"),
    ]);
    let faults = check_text("test.yaml", "rules: []", &variables).expect_err("three faults");
    assert_eq!(
        faults.to_string(),
        "REDIS_URL: store.url: must be a URL that starts with redis://, rediss:// or unix://\n\
         TIDEGATE_LISTEN_ADMIN: listen.admin: 0.0.0.0:1 is open to other hosts: give listen.token_file, or listen on \
         loopback\n\
         TIDEGATE_LOG_LEVEL: log.level: must be one of trace, debug, info, warn, error, off, not \"loud\""
    );
}

#[test]
fn redis_url_makes_a_store_where_the_file_has_none() {
    let variables = with(&[("REDIS_URL", "redis://variable:1")]);
    let url = |text: &str| {
        let config = check_text("test.yaml", text, &variables).unwrap();
        config.store.unwrap().url.to_string()
    };
    assert_eq!(url("rules: []"), "redis://variable:1");
    assert_eq!(url("store: { url: \"redis://file:2\" }"), "redis://file:2");
}

#[test]
fn a_password_is_never_printed() {
    for url in [
        "redis://user:secret@redis:6379/1",
        "redis://:my@secret@redis",
        "redis://redis?password=secret",
    ] {
        let config = check(&format!("store: {{ url: \"{url}\" }}")).unwrap();
        let printed = format!("{config:?}");
        assert!(printed.contains("redis://redis"), "{printed}");
        assert!(!printed.contains("secret"), "{printed}");
        assert_eq!(config.store.unwrap().url.expose(), url);
    }
}

#[test]
fn nesting_beyond_measure_is_refused_before_it_is_followed() {
    for (start, open, expected) in [
        ("rules: ", "[", "1:263: is too deep or too large"),
        (
            "domain: x\ndescriptors: [",
            "{ key: x, descriptors: [",
            "2:471: is too deep or too large",
        ),
        ("rules:\n", "- ", "2:3: must be a map of fields"),
        ("unknown: ", "[", "1:265: is too deep or too large"),
        ("unknown: ", "{ a: [", "1:777: is too deep or too large"),
        ("pod: ", "{ id: ", "1:12: must be a single value"),
    ] {
        let text = faults(&format!("{start}{}", open.repeat(10_000)));
        assert!(text.starts_with(&format!("test.yaml:{expected}")), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn a_file_cut_short_anywhere_is_a_fault_or_a_smaller_file_but_never_a_panic() {
    for path in yaml_files("config/good") {
        let text = fs::read_to_string(&path).unwrap();
        for (end, _) in text.char_indices().filter(|(end, _)| end % 7 == 0) {
            match check(&text[..end]) {
                Ok(_) => {}
                Err(faults) => assert!(!faults.to_string().contains("the parser failed")),
            }
        }
    }
}

#[test]
fn more_rules_than_there_may_be_are_refused_at_the_first_too_many() {
    let rules: String = (0..10_001)
        .map(|index| format!("  - {{ key: k{index}, rate_limit: 1/second }}\n"))
        .collect();
    assert_eq!(
        faults(&format!("domain: many\ndescriptors:\n{rules}")),
        "test.yaml:10003:32: descriptors[10000].rate_limit: is one too many: there may be 10000 rules"
    );
}

#[test]
fn faults_without_end_are_told_up_to_a_bound() {
    let text = faults(&format!("headers: [{}]", "x, ".repeat(100_000)));
    assert_eq!(text.lines().count(), 1_001);
    assert!(text.starts_with("test.yaml: only the first 1000 are listed"));
}

#[test]
fn what_cannot_be_read_is_one_clear_fault() {
    let folder = Folder::new();
    let check = |name: &str, expected: &str| {
        let path = folder.path(name);
        let faults = load(&path, &|_| None).expect_err(name);
        let expected = format!("{}{expected}", path.display());
        assert_eq!(faults.to_string(), expected);
        assert_eq!(faults.sources(), [path]);
    };
    symlink("nowhere", folder.path("dangling.yaml")).unwrap();
    fs::write(folder.path("large.yaml"), vec![b'#'; 4 * 1024 * 1024 + 1]).unwrap();
    fs::write(
        folder.path("latin1.yaml"),
        b"drain: 5s\npod: { id: caf\xe9 }\n",
    )
    .unwrap();
    fs::write(folder.path("cut.yaml"), "listen:\n  http: [\"127.0").unwrap();
    let missing = ": cannot be read: No such file or directory (os error 2)";
    check("missing.yaml", missing);
    check("dangling.yaml", missing);
    check("", ": cannot be read: it is a directory, not a file");
    check(
        "large.yaml",
        ": cannot be read: it is larger than 4194304 bytes",
    );
    check("latin1.yaml", ":2:15: is not UTF-8 text from here on");
    check("cut.yaml", ":2:10: unclosed quote");
}

/// What is legal and surprising about a configuration, without the folder that it is in.
fn warnings(config: &Config, folder: &Path) -> Vec<String> {
    let folder = format!("{}/", folder.display());
    let told = config.warnings.iter().map(ToString::to_string);
    told.map(|warning| warning.replace(&folder, "")).collect()
}

fn labels(config: &Config) -> Vec<&str> {
    let rules = config.rules.all().iter();
    rules.map(|rule| rule.label.as_str()).collect()
}

/// What envoyproxy/ratelimit reads of its folder: every file, also in folders below.
#[test]
fn every_file_of_rules_dir_is_a_domain() {
    let folder = Folder::new();
    let path = folder.path("sidecar.yaml");
    fs::create_dir_all(folder.path("rules/team/b")).unwrap();
    fs::write(&path, "rules: [{ domain: inline }]\nrules_dir: rules\n").unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path("rules").join(name), text).unwrap();
    let domain = |name: &str, domain: &str| {
        let rules = "[{ key: x, rate_limit: 2/second }]";
        write(name, &format!("domain: {domain}\ndescriptors: {rules}\n"));
    };
    domain("b.yaml", "b");
    domain("a.yaml", "a");
    domain("short.yml", "c");
    domain("no_extension", "d");
    domain("limits.conf", "e");
    domain("team/f.yaml", "f");
    domain("team/b/g", "g");
    let limit = "\"rate_limit\": {\"unit\": \"second\", \"requests_per_unit\": 2}";
    let rules = format!("[\n\t{{\"key\": \"x\", {limit}}}\n]");
    write(
        "h.json",
        &format!("{{\n\t\"domain\": \"h\",\n\t\"descriptors\": {rules}\n}}\n"),
    );
    let config = load(&path, &|_| None).unwrap();
    let expected = ["a/x", "b/x", "h/x", "e/x", "d/x", "c/x", "g/x", "f/x"];
    assert_eq!(labels(&config), expected);
    assert!(config.rules.matching("inline").is_some());
    assert_eq!(warnings(&config, folder.root()), [""; 0]);
    assert_eq!(config.sources, [path.clone(), folder.path("rules")]);

    write("i.yaml", "domain: inline\n");
    write("j.txt", "domain: j\nlisten: {}\n");
    write("README.md", "# Read me: not YAML [\n");
    let faults = load(&path, &|_| None).expect_err("three bad files");
    let text = faults
        .to_string()
        .replace(&folder.root().display().to_string(), "");
    assert_eq!(
        text,
        "/rules/README.md:1:1: the file is empty: write at least `rules: []`\n\
         /rules/i.yaml:1:9: domain: \"inline\" is given twice: the first is rules[0].domain (/sidecar.yaml:1)\n\
         /rules/j.txt:2:1: unknown field \"listen\": known here are domain, match, descriptors"
    );
}

#[test]
fn what_is_not_read_of_rules_dir_is_told() {
    let folder = Folder::new();
    let path = folder.path("sidecar.yaml");
    fs::create_dir_all(folder.path("rules/.git")).unwrap();
    fs::create_dir_all(folder.path("elsewhere")).unwrap();
    fs::write(&path, "rules_dir: rules\n").unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path("rules").join(name), text).unwrap();
    write(
        "a.yaml",
        "domain: a\ndescriptors: [{ key: x, rate_limit: 2/second }]\n",
    );
    let config = load(&path, &|_| None).unwrap();
    let read = config.hash;
    for name in ["a.yaml~", ".hidden.yaml", ".git/config"] {
        write(name, "not YAML: [");
    }
    symlink("../elsewhere", folder.path("rules/link")).unwrap();
    let _socket = UnixListener::bind(folder.path("rules/s.sock")).unwrap();
    let config = load(&path, &|_| None).unwrap();
    assert_eq!(labels(&config), ["a/x"]);
    let told = |name: &str, why: &str| {
        format!("sidecar.yaml:1:12: rules_dir: rules/{name} is not read: {why}")
    };
    let expected = [
        told(".git", "its name begins with a dot"),
        told(".hidden.yaml", "its name begins with a dot"),
        told("a.yaml~", "its name ends in ~, as an editor's backup does"),
        told("link", "it is a link to a folder"),
        told("s.sock", "it is not a regular file"),
    ];
    assert_eq!(warnings(&config, folder.root()), expected);
    assert_eq!(config.hash, read, "what is not read is no change");
}

/// A ConfigMap as the kubelet mounts one: links into a hidden folder, which must not be read a second time.
#[test]
fn a_mounted_config_map_is_read_once() {
    let folder = Folder::new();
    let path = folder.path("sidecar.yaml");
    let rules = folder.path("rules");
    fs::create_dir_all(rules.join("..2026_11_17")).unwrap();
    fs::write(&path, "rules_dir: rules\n").unwrap();
    let text = "domain: a\ndescriptors: [{ key: x, rate_limit: 2/second }]\n";
    fs::write(rules.join("..2026_11_17/a.yaml"), text).unwrap();
    symlink("..2026_11_17", rules.join("..data")).unwrap();
    symlink("..data/a.yaml", rules.join("a.yaml")).unwrap();
    let config = load(&path, &|_| None).unwrap();
    assert_eq!(labels(&config), ["a/x"]);
    assert_eq!(warnings(&config, folder.root()), [""; 0]);
}

#[test]
fn grpc_without_a_store_is_told() {
    let told = |top: &str| {
        let rules = "rules: [{ domain: a, descriptors: [{ key: x, rate_limit: 1/second }] }]";
        let text = format!("{top}\n{rules}\n");
        let config = check_text("s.yaml", &text, &|_| None).unwrap();
        config
            .warnings
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    let grpc = "listen: { grpc: [\"127.0.0.1:8081\"] }";
    let found = told(grpc);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].starts_with("s.yaml:1:1: store: is missing while listen.grpc is open: "),
        "{found:?}"
    );
    assert_eq!(
        told(&format!("{grpc}\nstore: {{ url: \"redis://h\" }}")),
        [""; 0]
    );
    assert_eq!(
        told(&format!("{grpc}\ndefaults: {{ consistency: local }}")),
        [""; 0]
    );
    assert_eq!(told("listen: { http: [\"127.0.0.1:7600\"] }"), [""; 0]);
}

#[test]
fn a_rules_dir_that_is_not_there_is_a_fault_where_it_is_named() {
    let folder = Folder::new();
    let path = folder.path("sidecar.yaml");
    fs::write(&path, "drain: 5s\nrules_dir: nowhere\n").unwrap();
    let faults = load(&path, &|_| None).expect_err("no such folder");
    let text = faults
        .to_string()
        .replace(&folder.root().display().to_string(), "");
    assert_eq!(
        text,
        "/sidecar.yaml:2:12: rules_dir: /nowhere cannot be read: No such file or directory (os error 2)"
    );
}

#[test]
fn a_fingerprint_changes_with_whatever_is_read() {
    let folder = Folder::new();
    let path = folder.path("sidecar.yaml");
    let rules = folder.path("rules");
    fs::create_dir(&rules).unwrap();
    fs::write(&path, "rules_dir: rules\n").unwrap();
    let config = load(&path, &|_| None).unwrap();
    let mut seen = vec![config.hash];
    assert_eq!(fingerprint(&config.sources), config.hash);
    let mut changed = |what: &str| {
        let now = fingerprint(&config.sources);
        assert!(!seen.contains(&now), "{what}");
        assert_eq!(fingerprint(&config.sources), now);
        seen.push(now);
    };
    fs::write(&path, "rules_dir: rules # changed\n").unwrap();
    changed("the file");
    fs::write(rules.join("a.yaml"), "domain: a\n").unwrap();
    changed("a new file");
    fs::write(rules.join("a.yaml"), "domain: b\n").unwrap();
    changed("a file of the folder");
    fs::rename(rules.join("a.yaml"), rules.join("b.yaml")).unwrap();
    changed("its name");
    fs::remove_file(&path).unwrap();
    changed("the file is gone");
    fs::remove_dir_all(&rules).unwrap();
    changed("the folder is gone");
    fs::create_dir(&path).unwrap();
    changed("the file is a directory");
}
