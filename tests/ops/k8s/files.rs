//! The plain files of `k8s`, with kubectl or without: every file that is named exists, every file that exists is named,
//! and each is sound by itself.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use tidegate_testing::Folder;

use super::checks::CHECKS;
use super::objects::{Objects, text};
use super::tree::{self, Kustomization};

/// `folder/../name` without its dots.
fn plain(folder: &str, name: &str) -> String {
    let mut path = PathBuf::new();
    for part in Path::new(folder).join(name).components() {
        match part {
            Component::ParentDir => assert!(path.pop(), "{folder}: {name} is outside of k8s"),
            part @ (Component::Normal(_)
            | Component::CurDir
            | Component::RootDir
            | Component::Prefix(_)) => {
                path.push(part);
            }
        }
    }
    path.to_str().unwrap().to_owned()
}

/// Every file and folder that a kustomization names, by its path below `k8s`.
fn named(kustomization: &Kustomization) -> Vec<String> {
    let mut found = kustomization.names("resources");
    found.extend(kustomization.names("components"));
    for generator in ["configMapGenerator", "secretGenerator"] {
        let maps = kustomization.content[generator].as_array();
        let files = maps
            .into_iter()
            .flatten()
            .flat_map(|map| map["files"].as_array());
        found.extend(files.flatten().map(|file| file.as_str().unwrap()));
    }
    let patches = kustomization.content["patches"].as_array();
    let patches = patches.into_iter().flatten();
    found.extend(patches.filter_map(|patch| patch["path"].as_str()));
    let paths = found
        .into_iter()
        .map(|name| plain(&kustomization.folder, name));
    paths.collect()
}

#[test]
fn what_is_named_is_there_and_what_is_there_is_named() {
    let files: BTreeSet<_> = tree::files().into_iter().collect();
    let all = tree::kustomizations();
    let named: BTreeSet<_> = all.iter().flat_map(named).collect();
    for path in &named {
        let folder = format!("{path}/kustomization.yaml");
        assert!(
            files.contains(path) || files.contains(&folder),
            "there is no k8s/{path}"
        );
    }
    let read_otherwise = |file: &str| file == "README.md" || file.ends_with("/kustomization.yaml");
    let orphans: Vec<_> = files
        .iter()
        .filter(|file| !named.contains(*file) && !read_otherwise(file))
        .collect();
    assert!(orphans.is_empty(), "no kustomization names {orphans:?}");
    // A component is seen only where something uses it.
    for component in all.iter().filter(|each| !each.is_whole()) {
        assert!(
            named.contains(&component.folder),
            "nothing uses {}",
            component.folder
        );
    }
}

#[test]
fn every_file_is_yaml_and_every_object_fits_the_schema() {
    let mut objects = 0;
    for file in tree::files().iter().filter(|file| file.ends_with(".yaml")) {
        let content = tree::read(file);
        let documents: Vec<Value> = serde_saphyr::from_multiple(&content)
            .unwrap_or_else(|error| panic!("k8s/{file}: {error}"));
        let is_object = |document: &Value| !text(document, "/metadata/name").is_empty();
        let ours = ["PodMonitor"];
        let known =
            |document: &Value| is_object(document) && !ours.contains(&text(document, "/kind"));
        // Patches are parts of objects.
        let is_patch = file.contains("prod/deployment") || file.ends_with("patch.yaml");
        if documents.iter().all(known) && !is_patch {
            let ran = tree::schema(tree::NEWEST, &content);
            assert_eq!(
                ran.code,
                Some(0),
                "k8s/{file}: {}{}",
                ran.stdout,
                ran.stderr
            );
            objects += 1;
        }
    }
    assert!(objects >= 15, "{objects}");
}

/// What needs no rendering to be judged.
#[test]
fn every_workload_is_sound_as_it_stands() {
    let mut seen = 0;
    for file in tree::files().iter().filter(|file| file.ends_with(".yaml")) {
        let objects = Objects::parse(&tree::read(file));
        // The patch of production says only what is different there.
        if objects.pods().is_empty() || file.starts_with("overlays/") {
            continue;
        }
        seen += 1;
        let plain = [
            "mounts",
            "ports",
            "probes",
            "security",
            "host",
            "resources",
            "images",
        ];
        for (name, check) in CHECKS.iter().filter(|(name, _)| plain.contains(name)) {
            let faults = check(&objects);
            assert!(faults.is_empty(), "k8s/{file}: {name}: {faults:?}");
        }
    }
    assert!(seen >= 5, "{seen}");
}

/// By the command, as a user would: sound, and without warnings, but for secrets that only a pod has.
#[test]
fn every_configuration_is_sound() {
    let folder = Folder::new();
    let files = tree::files();
    let found: Vec<_> = files
        .iter()
        .filter(|file| file.ends_with("sidecar.yaml"))
        .collect();
    assert!(found.len() >= 4, "{found:?}");
    for file in found {
        folder.write("sidecar.yaml", &tree::read(file));
        let mut command = folder.command(&["validate", "sidecar.yaml"]);
        command.env("REDIS_URL", "rediss://tidegate@redis.example.com:6380");
        let output = command.output().unwrap();
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "k8s/{file}: {said}");
        let is_secret = |line: &&str| {
            line.starts_with("warning: sidecar.yaml: ") && line.contains(" /etc/tidegate-store/")
        };
        let others: Vec<_> = said.lines().filter(|line| !is_secret(line)).collect();
        assert_eq!(others.len(), 1, "k8s/{file}: {said}");
        assert!(
            others[0].starts_with("sidecar.yaml: ok"),
            "k8s/{file}: {said}"
        );
    }
}

/// The image that the README builds is the one that runs, in the version that this is.
#[test]
fn the_image_is_of_this_version() {
    let image = format!("tidegate:{}", env!("CARGO_PKG_VERSION"));
    let patch = tree::read("components/sidecar/patch.yaml");
    assert!(patch.contains(&format!("image: {image}\n")), "not {image}");
    assert!(tree::read("README.md").contains(&image));
    let tag = format!("newTag: {}", env!("CARGO_PKG_VERSION"));
    assert!(tree::read("overlays/prod/kustomization.yaml").contains(&tag));
}

/// What the README says can be typed is there.
#[test]
fn the_readme_names_what_there_is() {
    let readme = tree::read("README.md");
    for kustomization in tree::kustomizations() {
        let folder = &kustomization.folder;
        assert!(
            readme.contains(&format!("`{folder}`")),
            "the README does not tell of {folder}"
        );
    }
    for (at, _) in readme.match_indices("k8s/") {
        let (before, path) = (&readme[..at], &readme[at + "k8s/".len()..]);
        if before.ends_with(['/', '`']) {
            // A folder of that name elsewhere.
            continue;
        }
        let end = path.find(|each: char| !(each.is_ascii_alphanumeric() || "/-_.".contains(each)));
        let path = path[..end.unwrap_or(path.len())].trim_end_matches(['.', '/']);
        let found = tree::root().join("k8s").join(path);
        assert!(found.exists(), "the README names k8s/{path}");
    }
}
