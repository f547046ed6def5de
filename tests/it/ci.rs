//! What CI runs: `make test`, by a cargo that has downloaded nothing yet.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use tidegate_testing::{CommandOutput, Folder};

/// Says what it was called for and what its cargo home holds, and fails in a way of its own.
const MAKE: &str = r#"#!/bin/sh
echo "make $*"
echo "home $CARGO_HOME"
ls -A "$CARGO_HOME"
cat "$CARGO_HOME"/config.toml "$CARGO_HOME"/credentials.toml
exit 3
"#;

/// A repository with nothing but the script, beside a cargo home that has been used.
fn machine() -> Folder {
    let folder = Folder::new();
    for path in ["our repo/.ci", "bin", "used home/registry/cache"] {
        fs::create_dir_all(folder.path(path)).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/run");
    fs::copy(script, folder.path("our repo/.ci/run")).unwrap();
    folder.write("bin/make", MAKE);
    fs::set_permissions(folder.path("bin/make"), fs::Permissions::from_mode(0o755)).unwrap();
    folder.write("used home/config.toml", "configuration\n");
    folder.write("used home/credentials.toml", "credentials\n");
    folder.write("used home/registry/cache/a.crate", "downloaded before\n");
    folder
}

fn run(folder: &Folder, ci: Option<&str>, home: &Path) -> CommandOutput {
    let path = std::env::var("PATH").unwrap();
    let bin = folder.path("bin");
    let mut command = Command::new(folder.path("our repo/.ci/run"));
    command.env("PATH", format!("{}:{path}", bin.display()));
    command.env("CARGO_HOME", home).env_remove("CI");
    if let Some(ci) = ci {
        command.env("CI", ci);
    }
    CommandOutput::of(command.output().unwrap())
}

#[test]
fn it_starts_with_an_empty_registry_and_the_users_configuration() {
    let folder = machine();
    let empty = folder.path("our repo/target/ci-cargo-home");
    // An earlier run that was killed has left its own.
    fs::create_dir_all(empty.join("registry")).unwrap();
    let told = format!(
        "make test\nhome {}\nconfig.toml\ncredentials.toml\nconfiguration\ncredentials\n",
        empty.display()
    );
    // Seen from the repository, too.
    for home in [&folder.path("used home"), Path::new("../used home")] {
        let ran = run(&folder, Some("true"), home);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(3), told.as_str()),
            "{ran:?}"
        );
        assert!(!empty.exists(), "it leaves nothing");
    }
    let kept = folder.path("used home/registry/cache/a.crate");
    assert!(kept.exists(), "the user's own cache is left alone");
    let ran = run(&folder, Some("true"), &empty);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(64), ""), "{ran:?}");
}

#[test]
fn a_machine_without_a_cargo_home_will_do() {
    let folder = machine();
    let ran = run(&folder, Some("1"), &folder.path("nowhere"));
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(ran.stdout.starts_with("make test\n"), "{ran:?}");
}

#[test]
fn without_ci_cargo_keeps_what_it_has() {
    let folder = machine();
    let home = folder.path("used home");
    for ci in [None, Some("")] {
        let ran = run(&folder, ci, &home);
        let told = format!("make test\nhome {}\n", home.display());
        assert_eq!(ran.code, Some(3), "{ran:?}");
        assert!(ran.stdout.starts_with(&told), "{ran:?}");
        assert!(ran.stdout.contains("\nregistry\n"), "{ran:?}");
    }
}
