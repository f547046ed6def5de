//! The image, built and run as a container.

mod names;
mod pod;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::json;
use tidegate_testing::podman::{done, storage};
use tidegate_testing::{Folder, SOON, now, repository};

const HEALTH: &[&str] = &["/tidegate", "health"];
const SOCKET: &str = "unix:/run/tidegate/tidegate.sock";

/// Every path below a folder, with owner and mode.
fn paths(root: &Path, folder: &Path, into: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let about = fs::symlink_metadata(&path).unwrap();
        let (owner, mode) = (about.uid(), about.permissions().mode() & 0o7777);
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if about.is_dir() {
            paths(root, &path, into);
        }
        // A folder on the way is nothing by itself.
        if !about.is_dir() || name == "run/tidegate" {
            into.insert(format!("{name} {owner} {mode:o}"));
        }
    }
}

#[test]
fn it_has_nothing_but_what_it_needs() {
    let files = storage().files();
    let mut found = BTreeSet::new();
    paths(&files, &files, &mut found);
    let expected = [
        "etc/ssl/certs/ca-certificates.crt 0 644",
        "etc/tidegate/sidecar.yaml 0 644",
        "run/tidegate 65532 750",
        "tidegate 0 755",
    ];
    assert_eq!(Vec::from_iter(&found), expected);
}

#[test]
fn it_says_what_it_is() {
    let manifest = storage().manifest();
    let config = &manifest["Config"];
    assert_eq!(config["User"], "65532:65532");
    assert_eq!(config["Entrypoint"], json!(["/tidegate"]));
    assert_eq!(config["WorkingDir"], "/run/tidegate");
    assert_eq!(config["Volumes"], json!({ "/run/tidegate": {} }));
    let variables = config["Env"].as_array().unwrap();
    let named = json!("TIDEGATE_CONFIG=/etc/tidegate/sidecar.yaml");
    assert!(variables.contains(&named), "{variables:?}");
    let label = |name: &str| config["Labels"][format!("org.opencontainers.image.{name}")].clone();
    assert_eq!(label("title"), env!("CARGO_PKG_NAME"));
    assert_eq!(label("version"), env!("CARGO_PKG_VERSION"));
    assert_eq!(label("licenses"), "Apache-2.0");
    let test = &manifest["Healthcheck"]["Test"];
    assert_eq!(test, &json!(["CMD", "/tidegate", "health"]), "{manifest:#}");
}

/// What stands in quotes after `name`, in a file of the repository.
fn quoted(file: &str, name: &str) -> String {
    let text = fs::read_to_string(repository().join(file)).unwrap();
    let found = text.split(&format!("{name}\"")).nth(1);
    let found = found.unwrap_or_else(|| panic!("no {name:?} in {file}"));
    found.split('"').next().unwrap().to_owned()
}

/// What the tests put in the image is what the Dockerfile would have built, as far as files can tell.
#[test]
fn the_dockerfile_builds_as_the_makefile_does() {
    let flags = quoted("Dockerfile", "ENV RUSTFLAGS=");
    assert_eq!(quoted("Makefile", "STATIC = RUSTFLAGS="), flags);
    let version = quoted("Cargo.toml", "rust-version = ");
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let base = format!("\nFROM rust:{version}-bookworm AS build\n");
    assert!(dockerfile.contains(&base), "{dockerfile}");
}

/// The stage that builds sees manifests without the files they name. Its first steps make up for that: with them cargo
/// has to understand the workspace, and leave the lock file as it is.
#[test]
fn the_dockerfile_stands_in_for_what_it_does_not_copy() {
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let (copies, rest) = dockerfile.split_once("\nRUN ").unwrap();
    // What follows the first step copies sources.
    let (run, _) = rest.split_once("\nCOPY ").unwrap();
    let folder = Folder::new();
    for copy in copies.lines().filter_map(|line| line.strip_prefix("COPY ")) {
        let (files, to) = copy.rsplit_once(' ').unwrap();
        fs::create_dir_all(folder.path(to)).unwrap();
        for file in files.split(' ') {
            let name = Path::new(file).file_name().unwrap();
            fs::copy(repository().join(file), folder.path(to).join(name)).unwrap();
        }
    }
    // What it needs is fetched for this platform alone, as a build would: there may be no other crate on this machine.
    let platform = r#""$(cat triple)""#;
    let fetched = format!("cargo fetch --locked --target {platform}");
    let read = format!("cargo metadata --locked --offline --filter-platform {platform} >metadata");
    let steps = run.replace("cargo build --locked", &format!("{fetched} && {read} && :"));
    assert_ne!(steps, run);
    let ran = folder.shell(&steps);
    assert_eq!(ran.code, Some(0), "{steps}\n{ran:?}");
    let metadata = fs::read_to_string(folder.path("metadata")).unwrap();
    assert!(metadata.contains("loom-models") && metadata.contains("simulations"));
}

#[test]
fn it_runs_confined_with_the_configuration_it_brings() {
    let container = storage().start(&[], &[]);
    let told = container.probe(SOON, HEALTH);
    assert!(told.starts_with("ok; rules: 4, "), "{told}");
    assert!(container.is_healthy());
    assert_eq!(container.process("Uid"), ["65532"; 4].join("\t"));
    assert_eq!(container.process("Gid"), ["65532"; 4].join("\t"));
    for field in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(container.process(field), "0".repeat(16), "{field}");
    }
    assert_eq!(container.process("NoNewPrivs"), "1");
    let check = ["/tidegate", "check", "api_platform", "api_key=abc123"];
    for to in ["127.0.0.1:7600", SOCKET] {
        let ran = container.exec(&[&check[..], &["--to", to]].concat());
        assert_eq!(ran.code, Some(0), "{to}: {ran:?}");
    }
    let begun = now();
    assert_eq!(container.stop(15), 0, "{}", container.logs());
    // `drain` is 10 s, and nothing is open.
    assert!(begun.elapsed().as_secs() < 10, "{:?}", begun.elapsed());
    assert!(container.logs().contains("stopped"), "{}", container.logs());
}

#[test]
fn a_bad_configuration_ends_it_with_78() {
    let folder = Folder::new();
    folder.write("sidecar.yaml", "drain: soon\n");
    let mount = format!("--volume={}:/etc/tidegate:ro", folder.path(".").display());
    let ran = storage().run(&[&mount], &[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(78), ""), "{ran:?}");
    let told = "/etc/tidegate/sidecar.yaml:1:8: drain: ";
    assert!(ran.stderr.starts_with(told), "{ran:?}");
    let validate = ["validate", "/etc/tidegate/sidecar.yaml"];
    assert_eq!(storage().run(&[&mount], &validate).code, Some(78));
    let ran = storage().run(&[], &validate);
    let sound = "/etc/tidegate/sidecar.yaml: ok, 4 rules\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), sound), "{ran:?}");
}

/// A group as `fsGroup` names one.
const GROUP: u32 = 2000;

/// A folder as the kubelet leaves an emptyDir in a pod with `fsGroup`: the group's, and new files are too.
fn shared_folder() -> Folder {
    let folder = Folder::new();
    let path = folder.path(".");
    done(
        Command::new("chown")
            .arg(format!("root:{GROUP}"))
            .arg(&path),
    );
    done(Command::new("chmod").arg("2775").arg(&path));
    folder
}

#[test]
fn a_socket_is_for_the_group_that_shares_its_folder() {
    let folder = shared_folder();
    let mount = format!("--volume={}:/run/tidegate", folder.path(".").display());
    let group = format!("--group-add={GROUP}");
    let container = storage().start(&[&mount, &group], &[]);
    container.probe(SOON, HEALTH);
    let socket = fs::metadata(folder.path("tidegate.sock")).unwrap();
    assert_eq!((socket.uid(), socket.gid()), (65532, GROUP));
    assert_eq!(socket.permissions().mode() & 0o777, 0o660);
    let check = ["check", "api_platform", "api_key=abc123", "--to", SOCKET];
    let ask = |options: &[&str]| storage().run(&[&[mount.as_str()], options].concat(), &check);
    let ran = ask(&["--user=1000:1000", &group]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
    assert!(ran.stdout.starts_with("allowed by api_platform/api_key"));
    let ran = ask(&["--user=1000:1000"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    assert!(ran.stderr.contains("Permission denied"), "{ran:?}");
}
