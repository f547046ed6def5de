//! Names and dependencies: no two types share a name, paths in texts exist, crates list only what they may use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testing::repository;

/// Names that two types may have, and why.
const SHARED_NAMES: [(&str, &str); SHARED] =
    [("Word", "one trait, built for loom or for the machine")];
const SHARED: usize = 1;

/// Crates that `core` must not reach: no runtime, no network, no serialisation, no metrics.
const NOT_IN_CORE: [&str; 10] = [
    "tokio",
    "hyper",
    "tonic",
    "redis",
    "serde",
    "serde_json",
    "metrics",
    "tracing",
    "quanta",
    "rustls",
];
const NOT_IN_SIMULATIONS: [&str; 4] = ["hyper", "tonic", "redis", "tokio"];

/// Every file of ours whose name ends so, by its path from the root.
fn ours(ends: &[&str]) -> Vec<PathBuf> {
    let root = repository();
    let mut folders = vec![root.to_owned()];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                let is_ours = !name.starts_with('.') && name != "target" && name != "node_modules";
                folders.extend(is_ours.then(|| path.clone()));
            } else if ends.iter().any(|end| name.ends_with(end)) {
                let path = path.strip_prefix(root).expect("below the root");
                found.push(path.to_owned());
            }
        }
    }
    found.sort();
    assert!(!found.is_empty(), "no file ends with {ends:?}");
    found
}

fn is_product(path: &Path) -> bool {
    let path = path.to_string_lossy();
    let in_crates = path.starts_with("crates/") && path.contains("/src/");
    (path.starts_with("src/") || path.starts_with("simulations/src/") || in_crates)
        && !path.ends_with("proto/messages.rs")
}

/// The name of a type that a line declares at the left margin.
fn declared(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '<', '(', '{', ';', ':', '=']);
    let mut word = words.next()?;
    if word == "pub" {
        word = match line.strip_prefix("pub(") {
            Some(rest) => {
                let rest = rest.split_once(") ")?.1;
                words = rest.split([' ', '<', '(', '{', ';', ':', '=']);
                words.next()?
            }
            None => words.next()?,
        };
    }
    ["struct", "enum", "trait", "type", "union"]
        .contains(&word)
        .then(|| words.next())
        .flatten()
}

#[test]
fn no_two_types_share_a_name() {
    let mut places: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for path in ours(&[".rs"]).into_iter().filter(|path| is_product(path)) {
        let text = fs::read_to_string(repository().join(&path)).expect("a file");
        for name in text.lines().filter_map(declared) {
            *seen.entry(name.to_owned()).or_default() += 1;
            let place = path.display().to_string();
            places.entry(name.to_owned()).or_default().insert(place);
        }
    }
    assert!(seen.len() > 300, "{} types found", seen.len());
    let shared: Vec<_> = seen
        .iter()
        .filter(|(name, count)| **count > 1 && SHARED_NAMES.iter().all(|(one, _)| one != name))
        .map(|(name, _)| format!("{name}: {:?}", places[name]))
        .collect();
    assert!(
        shared.is_empty(),
        "types share names:\n{}",
        shared.join("\n")
    );
    for (name, why) in SHARED_NAMES {
        assert!(
            seen.get(name) > Some(&1),
            "{name} is no exception any more: {why}"
        );
    }
}

/// What a normal build of `package` consists of.
fn dependencies(package: &str) -> BTreeSet<String> {
    let read = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--locked",
            "--offline",
            "--edges",
            "normal",
            "--prefix",
            "none",
        ])
        .args(["--format", "{p}", "--package", package])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    let text = String::from_utf8_lossy(&read.stdout).into_owned();
    assert!(
        read.status.success(),
        "{}",
        String::from_utf8_lossy(&read.stderr)
    );
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names.map(str::to_owned).collect()
}

#[test]
fn crates_depend_only_on_what_the_map_says() {
    for (package, forbidden) in [
        ("tidegate-core", &NOT_IN_CORE[..]),
        ("simulations", &NOT_IN_SIMULATIONS[..]),
        ("tidegate-testing", &NOT_IN_SIMULATIONS[..]),
    ] {
        let found = dependencies(package);
        assert!(found.contains(package), "{found:?}");
        for name in forbidden {
            assert!(!found.contains(*name), "{package} depends on {name}");
        }
    }
    let crates_of = |package: &str| {
        let of_ours = |name: &String| name.starts_with("tidegate") && name != package;
        let found = dependencies(package).into_iter();
        found.filter(of_ours).collect::<Vec<String>>()
    };
    assert_eq!(crates_of("tidegate-core"), [""; 0]);
    assert_eq!(crates_of("tidegate-config"), ["tidegate-core"]);
    assert_eq!(crates_of("tidegate-testing"), ["tidegate-core"]);
    assert_eq!(
        crates_of("simulations"),
        ["tidegate-config", "tidegate-core"]
    );
    assert_eq!(crates_of("loom-models"), ["tidegate-core"]);
    assert_eq!(crates_of("tidegate"), ["tidegate-config", "tidegate-core"]);
}

/// Words in backticks that name a file of ours.
fn named_paths(text: &str) -> impl Iterator<Item = &str> {
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|word| {
        let file = word.split('/').next_back().unwrap_or_default();
        let is_file = [".rs", ".lua"]
            .iter()
            .any(|end| file.len() > end.len() && file.ends_with(end));
        let is_plain = word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"/_-.".contains(&byte));
        is_file && is_plain
    })
}

/// A file that a text names is in the tree, whole or as the end of a path.
#[test]
fn files_that_texts_name_exist() {
    let files: Vec<String> = ours(&[".rs", ".lua"])
        .iter()
        .map(|path| format!("/{}", path.display()))
        .collect();
    let mut missing = Vec::new();
    let mut named = 0;
    for path in ours(&[".md", ".rs", ".lua"]) {
        let history = ["CHANGELOG.md"].iter().any(|name| path.ends_with(name));
        let text = fs::read_to_string(repository().join(&path)).expect("a file");
        let comments: String = match path.extension().is_some_and(|extension| extension == "rs") {
            true => {
                let lines = text.lines().map(str::trim_start);
                lines
                    .filter(|line| line.starts_with("//"))
                    .flat_map(|line| [line, "\n"])
                    .collect()
            }
            false => text,
        };
        for name in named_paths(&comments) {
            named += 1;
            let end = format!("/{}", name.trim_start_matches("../"));
            if !history && !files.iter().any(|file| file.ends_with(&end)) {
                missing.push(format!("{}: {name}", path.display()));
            }
        }
    }
    assert!(named > 100, "{named} files named");
    assert!(missing.is_empty(), "no such files:\n{}", missing.join("\n"));
}
