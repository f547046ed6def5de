//! Images and containers, by buildah, podman and runc, in a storage of this process's own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::process::{CommandOutput, repository, tidegate_binary};
use crate::wait::until;

/// The name of the image.
pub const IMAGE: &str = "tidegate:0.1.0";

/// What Kubernetes calls restricted, and less memory than a laptop's browser tab. runc may raise no limit here.
const CONFINED: &[&str] = &[
    "--read-only",
    "--read-only-tmpfs=false",
    "--cap-drop=all",
    "--security-opt=no-new-privileges",
    "--memory=64m",
    "--ulimit=nofile=1024:1024",
    "--ulimit=nproc=1024:1024",
    "--log-driver=k8s-file",
];

/// A shell script that waits for the end of this process, however it comes, and removes what the process left.
const KEEPER: &str = r#"trap '' INT TERM HUP
cat
folder=$1; shift
"$@" rm --all --force --time 0 --volumes
rm -rf "$folder""#;

/// Where the image and its containers are.
#[derive(Debug)]
pub struct ImageStorage {
    folder: PathBuf,
    /// Ends when this process does.
    _keeper: Child,
}

/// The storage with the image in it, which is built once.
pub fn storage() -> &'static ImageStorage {
    static STORAGE: OnceLock<ImageStorage> = OnceLock::new();
    STORAGE.get_or_init(|| {
        let storage = ImageStorage::empty();
        storage.build();
        storage
    })
}

/// Runs a command to its end. One that cannot be started has to be installed.
fn ran(command: &mut Command) -> CommandOutput {
    let output = command.stdin(Stdio::null()).output();
    CommandOutput::of(
        output.unwrap_or_else(|error| panic!("{command:?}: {error}: run `make tools`")),
    )
}

/// Runs a command that has to succeed, for what it prints.
pub fn done(command: &mut Command) -> String {
    let ran = ran(command);
    assert_eq!(ran.code, Some(0), "{command:?}: {ran:?}");
    ran.stdout
}

impl ImageStorage {
    /// A storage without an image.
    pub fn empty() -> Self {
        // Short: there are Unix sockets below it.
        let folder = std::env::temp_dir().join(format!("tidegate-image-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "keeper"]).arg(&folder);
        keeper.arg("podman").args(podman_options(&folder));
        keeper.stdin(Stdio::piped());
        keeper.stdout(Stdio::null()).stderr(Stdio::null());
        Self {
            _keeper: keeper.spawn().unwrap(),
            folder,
        }
    }

    /// Builds the Dockerfile's last stage as it is. The stage before it needs a base from a registry: this function
    /// builds the same with the same compiler and flags.
    fn build(&self) {
        let mut binary = Command::new("make");
        // Cargo sets variables of its package for a test. A build script below would see a change and build all again.
        for (name, _) in std::env::vars_os() {
            let of_package =
                |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
            if name.to_str().is_some_and(of_package) {
                binary.env_remove(name);
            }
        }
        done(
            binary
                .current_dir(repository())
                .args(["--silent", "image-binary"]),
        );
        let stage = self.folder().join("stage");
        let certificates = stage.join("etc/ssl/certs");
        fs::create_dir_all(&certificates).unwrap();
        let bundle = "ca-certificates.crt";
        fs::copy(
            Path::new("/etc/ssl/certs").join(bundle),
            certificates.join(bundle),
        )
        .unwrap();
        fs::create_dir_all(stage.join("out/run/tidegate")).unwrap();
        done(
            Command::new("chmod")
                .arg("0750")
                .arg(stage.join("out/run/tidegate")),
        );
        let binary = stage.join("out/tidegate");
        done(
            Command::new("strip")
                .arg("-o")
                .args([&binary, &static_binary()]),
        );
        let context = format!("--build-context=build={}", stage.display());
        done(
            self.buildah()
                .arg(context)
                .args(["--tag", IMAGE])
                .arg(repository()),
        );
    }

    /// A folder for what images are made of.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A command that builds an image in the format that has health checks.
    pub fn buildah(&self) -> Command {
        let mut buildah = Command::new("buildah");
        buildah.args(storage_options(&self.folder));
        buildah.args(["build", "--isolation=chroot", "--format=docker"]);
        buildah
    }

    fn podman(&self) -> Command {
        let mut podman = Command::new("podman");
        podman.args(podman_options(&self.folder));
        podman
    }

    /// Mounts the image and returns where.
    pub fn files(&self) -> PathBuf {
        let mounted = done(self.podman().args(["image", "mount", IMAGE]));
        PathBuf::from(mounted.trim())
    }

    /// What `podman image inspect` prints of the image.
    pub fn manifest(&self) -> Value {
        let printed = done(self.podman().args(["image", "inspect", IMAGE]));
        serde_json::from_str::<Value>(&printed).unwrap()[0].take()
    }

    /// Runs a container to its end.
    pub fn run(&self, options: &[&str], arguments: &[&str]) -> CommandOutput {
        let mut podman = self.podman();
        podman
            .args(["run", "--rm", "--network=none"])
            .args(CONFINED);
        // podman warns of health checks, since there is no systemd to run them.
        podman.arg("--no-healthcheck").args(options);
        ran(podman.arg(IMAGE).args(arguments))
    }

    /// Starts a container without a network, unless the options name one.
    pub fn start(&'static self, options: &[&str], arguments: &[&str]) -> Container {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("t{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let container = Container {
            storage: self,
            name,
        };
        let mut podman = self.podman();
        podman.args(["run", "--detach", "--name", &container.name]);
        if !options.iter().any(|option| option.starts_with("--network")) {
            podman.arg("--network=none");
        }
        podman.args(CONFINED).args(options);
        done(podman.arg(IMAGE).args(arguments));
        container
    }
}

/// The binary that the Dockerfile builds, not optimised.
fn static_binary() -> PathBuf {
    let built = tidegate_binary();
    let profile = built.parent().unwrap();
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    // `make test` names the target for the tests too.
    if profile.parent().unwrap().ends_with(&triple) {
        return built;
    }
    profile.with_file_name(triple).join("debug/tidegate")
}

fn storage_options(folder: &Path) -> Vec<String> {
    let path = |option: &str, name: &str| format!("--{option}={}", folder.join(name).display());
    let driver = "--storage-driver=vfs".to_owned();
    vec![driver, path("root", "root"), path("runroot", "run")]
}

fn podman_options(folder: &Path) -> Vec<String> {
    let mut options = storage_options(folder);
    options.push(format!("--tmpdir={}", folder.join("tmp").display()));
    let plain = [
        "--cgroup-manager=cgroupfs",
        "--events-backend=file",
        "--runtime=runc",
    ];
    options.extend(plain.map(str::to_owned));
    options
}

/// A container, removed at the end of its test.
#[derive(Debug)]
pub struct Container {
    storage: &'static ImageStorage,
    name: String,
}

impl Container {
    fn podman(&self, words: &[&str]) -> CommandOutput {
        ran(self.storage.podman().args(words))
    }

    /// Runs a command in it.
    pub fn exec(&self, words: &[&str]) -> CommandOutput {
        self.podman(&[&["exec", &self.name], words].concat())
    }

    /// Runs its health check, as the image says.
    pub fn is_healthy(&self) -> bool {
        self.podman(&["healthcheck", "run", &self.name]).code == Some(0)
    }

    /// All that it has logged.
    pub fn logs(&self) -> String {
        let ran = self.podman(&["logs", &self.name]);
        ran.stdout + &ran.stderr
    }

    fn state(&self, field: &str) -> String {
        let format = format!("{{{{.State.{field}}}}}");
        let ran = self.podman(&["inspect", "--format", &format, &self.name]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        ran.stdout.trim().to_owned()
    }

    /// A line of its first process's `/proc/PID/status`.
    pub fn process(&self, field: &str) -> String {
        let path = Path::new("/proc").join(self.state("Pid")).join("status");
        let status = fs::read_to_string(path).unwrap();
        let mut lines = status.lines().filter_map(|line| line.split_once(":\t"));
        let found = lines.find(|(name, _)| *name == field);
        found.unwrap().1.to_owned()
    }

    /// Sends SIGTERM, and SIGKILL after `grace` seconds, as the kubelet does. Returns the exit status.
    pub fn stop(&self, grace: u32) -> i32 {
        let ran = self.podman(&["stop", "--time", &grace.to_string(), &self.name]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        self.ended().unwrap()
    }

    /// The exit status, once it has ended.
    pub fn ended(&self) -> Option<i32> {
        let status = self.state("Status");
        (status == "exited").then(|| self.state("ExitCode").parse().unwrap())
    }

    /// Waits until a command in it ends with 0, as the kubelet does with an exec probe. Returns what it printed.
    pub fn probe(&self, within: Duration, words: &[&str]) -> String {
        until(&format!("{words:?} in {}", self.name), within, || {
            let ended = self.ended();
            assert_eq!(ended, None, "{}", self.logs());
            let ran = self.exec(words);
            (ran.code == Some(0)).then_some(ran.stdout)
        })
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the container said:\n{}", self.logs());
        }
        self.podman(&["rm", "--force", "--time", "0", "--volumes", &self.name]);
    }
}
