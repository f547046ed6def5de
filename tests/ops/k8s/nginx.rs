//! The sample app: real nginx with the file of the base, beside the real sidecar with its own, as two users.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tidegate_testing::{Endpoint, Folder, Response, SOON, Sidecar, now, until};

use super::live::{self, Running, own_ip, put};
use super::objects::list;
use super::tree;

/// nginx by the command of a Deployment, with its configuration.
pub struct Nginx {
    running: Running,
    pub address: SocketAddr,
    _folder: Folder,
}

/// Where a file stands, and what of it cannot be had here.
pub struct Place<'a> {
    /// Below `k8s`.
    pub folder: &'a str,
    /// The container's place in the Deployment, and where it has its file.
    pub container: &'a str,
    pub mounted: &'a str,
    pub port: u16,
}

impl Nginx {
    /// Of this place, at an address of its own, after `change`. `groups` are those that the kubelet gives it.
    pub fn start(place: &Place<'_>, groups: &str, change: impl Fn(String) -> String) -> Self {
        let (folder, ip) = (Folder::new(), own_ip());
        let address = SocketAddr::from((ip, place.port));
        let tmp = folder.path("tmp");
        fs::create_dir(&tmp).unwrap();
        fs::set_permissions(&tmp, fs::Permissions::from_mode(0o777)).unwrap();
        let conf = tree::read(&format!("{}/nginx.conf", place.folder));
        let conf = put(&conf, "/tmp/", &format!("{}/", tmp.display()));
        let conf = put(&conf, "127.0.0.1:8000", &format!("{ip}:8000"));
        folder.write(
            "nginx.conf",
            &change(conf.replace("listen 8080;", &format!("listen {address};"))),
        );
        let deployment = tree::read(&format!("{}/deployment.yaml", place.folder));
        let deployment: Value = serde_saphyr::from_str(&deployment).unwrap();
        let words = list(&deployment, &format!("{}/command", place.container));
        let words = words.iter().map(|word| word.as_str().unwrap());
        let words =
            words.map(|word| word.replace(place.mounted, folder.path("").to_str().unwrap()));
        let mut command = as_app(groups);
        command.args(words);
        Self {
            running: Running::start(command, &folder, address),
            address,
            _folder: folder,
        }
    }

    fn get(&self, path: &str, key: &str) -> Response {
        let header = format!("X-Api-Key: {key}");
        Endpoint::Tcp(self.address)
            .connect()
            .request("GET", path, &[&header], b"")
    }
}

/// A command as the app's user, if this may be.
fn as_app(groups: &str) -> Command {
    let mut command = Command::new("env");
    // Debian keeps servers where not every user looks.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    command.env("PATH", path);
    if live::is_root() {
        command
            .args(["setpriv", "--reuid=101", "--regid=101"])
            .arg(groups);
    }
    command
}

/// The sidecar, in its group, with its socket in a folder that `fsGroup` made.
fn sidecar() -> Sidecar {
    let setup = live::setup(&tree::read("base/sidecar.yaml"));
    let mut command = setup.folder.command(&["--config", "sidecar.yaml"]);
    if live::is_root() {
        let program = command.get_program().to_owned();
        let mut as_group = Command::new("setpriv");
        as_group
            .args(["--regid=65532", "--clear-groups"])
            .arg(program);
        as_group.args(["--config", "sidecar.yaml"]);
        as_group.current_dir(setup.folder.path(""));
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => as_group.env(name, value),
                None => as_group.env_remove(name),
            };
        }
        command = as_group;
    }
    let sidecar = Sidecar::of(command, setup.folder);
    until("a ready sidecar", SOON, || {
        sidecar.stdout.text().contains("ready, ").then_some(())
    });
    sidecar
}

const BASE: Place<'_> = Place {
    folder: "base",
    container: "/spec/template/spec/containers/0",
    mounted: "/etc/hello/",
    port: 8080,
};

/// What the Deployment's `fsGroup` gives an app.
const IN_GROUP: &str = "--groups=65532";

fn app(socket: &Path, groups: &str) -> Nginx {
    let run = socket.display().to_string();
    Nginx::start(&BASE, groups, |conf| {
        // A busy machine fails no test.
        let conf = put(&conf, " 100ms", " 10s");
        let conf = put(&conf, " 250ms", " 10s");
        put(&conf, "/run/tidegate/", &format!("{run}/"))
    })
}

#[test]
fn the_demo_passes_twenty_and_denies_the_next() {
    let sidecar = sidecar();
    let app = app(&sidecar.folder().path("run"), IN_GROUP);
    let begun = now();
    let first = app.get("/", "one");
    assert_eq!(first.status, 200, "{first:?}");
    assert!(first.text().starts_with("hello from "), "{}", first.text());
    assert_eq!(first.header("x-ratelimit-remaining"), Some("19"));
    let answers: Vec<_> = (0..200).map(|_| app.get("/", "one")).collect();
    // One comes back a second.
    let back = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    let passed = answers.iter().filter(|answer| answer.status == 200).count() + 1;
    assert!(
        (20..=20 + back).contains(&passed),
        "{passed} of 201 in {back} s"
    );
    let denied = answers.iter().find(|answer| answer.status == 429);
    let denied = denied.expect("a denial");
    assert_eq!(denied.header("retry-after"), Some("1"), "{denied:?}");
    assert_eq!(denied.json()["error"]["code"], "RATE_LIMITED");
    assert!(
        answers
            .iter()
            .all(|answer| [200, 429].contains(&answer.status))
    );
    assert_eq!(app.get("/", "another").status, 200);
    assert_eq!(
        app.get("/healthz", "one").status,
        200,
        "the kubelet is not limited"
    );
    // Without its sidecar the app goes on.
    drop(sidecar);
    let answer = app.get("/", "one");
    assert_eq!(
        (answer.status, answer.header("ratelimit")),
        (200, None),
        "{}",
        app.running.said()
    );
}

/// Why there is an `fsGroup`: another user, outside of the group, is not let in.
#[test]
fn without_the_group_the_socket_is_closed() {
    if !live::is_root() {
        return;
    }
    let sidecar = sidecar();
    let run = sidecar.folder().path("run");
    let app = app(&run, "--clear-groups");
    let answer = app.get("/", "one");
    assert_eq!(
        (answer.status, answer.header("ratelimit")),
        (200, None),
        "it fails open"
    );
    assert!(
        app.running.said().contains("Permission denied"),
        "{}",
        app.running.said()
    );
}
