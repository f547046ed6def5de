//! The whole Dockerfile, step by step, with the compiler of this machine where its base image has one.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_testing::podman::{IMAGE, ImageStorage, done};
use tidegate_testing::repository;

/// The most that the image may have.
const IMAGE_BYTES_MAX: u64 = 20_000_000;

/// An image that stands in for the Dockerfile's base: folders for what is mounted, and where to look for it.
fn base(storage: &ImageStorage) {
    let folder = storage.folder().join("base");
    for name in ["etc/ssl/certs", "tmp", "usr"] {
        fs::create_dir_all(folder.join(name)).unwrap();
    }
    for name in ["bin", "lib", "lib64"] {
        symlink(Path::new("usr").join(name), folder.join(name)).unwrap();
    }
    let bundle = "etc/ssl/certs/ca-certificates.crt";
    fs::copy(Path::new("/").join(bundle), folder.join(bundle)).unwrap();
    let file = "FROM scratch\nCOPY . /\n\
        ENV PATH=/toolchain/bin:/usr/bin CARGO_HOME=/cargo CARGO_NET_OFFLINE=true\n";
    fs::write(folder.join("Dockerfile"), file).unwrap();
    done(storage.buildah().args(["--tag", "base"]).arg(folder));
}

/// What the steps find of this machine: its userland, its compiler, and the sources of the dependencies.
fn mounts() -> Vec<String> {
    let sysroot = done(
        Command::new("rustc")
            .args(["--print", "sysroot"])
            .current_dir(repository()),
    );
    let home = || PathBuf::from(std::env::var_os("HOME").unwrap()).join(".cargo");
    let cargo = std::env::var_os("CARGO_HOME").map_or_else(home, PathBuf::from);
    let mut mounts = vec![
        "/usr:/usr:ro".to_owned(),
        "/etc/alternatives:/etc/alternatives:ro".to_owned(),
        format!("{}:/toolchain:ro", sysroot.trim()),
        format!("{}:/cargo/registry", cargo.join("registry").display()),
    ];
    // Where sources come from, if not from where they usually do.
    let config = cargo.join("config.toml");
    if config.exists() {
        mounts.push(format!("{}:/cargo/config.toml:ro", config.display()));
    }
    let option = |mount: String| format!("--volume={mount}");
    mounts.into_iter().map(option).collect()
}

#[test]
fn the_whole_dockerfile_builds_a_release() {
    let storage = ImageStorage::empty();
    base(&storage);
    let mut build = storage.buildah();
    let dockerfile = fs::read_to_string(repository().join("Dockerfile")).unwrap();
    let from = dockerfile
        .lines()
        .find_map(|line| line.strip_prefix("FROM "));
    let name = from.unwrap().split(' ').next().unwrap();
    build.arg(format!(
        "--build-context={name}=container-image://localhost/base"
    ));
    build
        .args(mounts())
        .args(["--tag", IMAGE])
        .arg(repository());
    let said = done(&mut build);
    let size = storage.manifest()["Size"].as_u64().unwrap();
    eprintln!("{said}\nthe image has {size} bytes as a release");
    assert!(size < IMAGE_BYTES_MAX, "{size} bytes");
    let validate = ["validate", "/etc/tidegate/sidecar.yaml"];
    let ran = storage.run(&[], &validate);
    let sound = "/etc/tidegate/sidecar.yaml: ok, 4 rules\n";
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), sound), "{ran:?}");
}
