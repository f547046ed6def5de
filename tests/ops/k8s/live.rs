//! The sidecar's files, run: the real daemon with each `sidecar.yaml`, asked what the kubelet would ask.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};

use serde_json::Value;
use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Endpoint, Folder, SOON, Sidecar, SidecarSetup, until};

use super::objects::{list, number, text};
use super::rendered::objects;
use super::tree;

/// `text` with `from`, which has to be there, in other words.
pub fn put(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "no {from} in {text}");
    text.replace(from, to)
}

/// A loopback address that no other test uses: ports stay as they are in the files.
pub fn own_ip() -> Ipv4Addr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, high, low, count)
}

/// A daemon that runs until it is dropped.
#[derive(Debug)]
pub struct Running {
    child: Child,
    said: std::path::PathBuf,
}

impl Running {
    fn spawn(mut command: Command, folder: &Folder) -> Self {
        let said = folder.path("said");
        let file = fs::File::create(&said).unwrap();
        command.stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Self { child, said }
    }

    /// Starts it, and waits until it listens.
    pub fn start(command: Command, folder: &Folder, address: SocketAddr) -> Self {
        let mut running = Self::spawn(command, folder);
        until("a daemon that listens", SOON, || {
            let ended = running.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", running.said());
            Endpoint::Tcp(address).is_open().then_some(())
        });
        running
    }

    /// Asked, not killed: it takes its workers along.
    fn ask_to_end(&self) {
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
    }

    pub fn said(&self) -> String {
        fs::read_to_string(&self.said).unwrap_or_default()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.ask_to_end();
        }
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("the daemon said:\n{}", self.said());
        }
    }
}

/// Whether this may start processes as somebody else.
pub fn is_root() -> bool {
    let ran = Command::new("id").arg("-u").output().unwrap();
    let root = ran.stdout == b"0\n";
    if !root {
        tree::aloud(
            "NOT CHECKED: without root, the sidecar and the app of k8s/ ran as one user, not as two",
        );
    }
    root
}

/// The folder of the sockets, as the kubelet makes it of an `emptyDir` and `fsGroup`.
pub fn sockets(folder: &Folder) -> std::path::PathBuf {
    let path = folder.path("run");
    fs::create_dir_all(&path).unwrap();
    if is_root() {
        std::os::unix::fs::chown(&path, None, Some(65532)).unwrap();
    }
    fs::set_permissions(&path, fs::Permissions::from_mode(0o2777)).unwrap();
    path
}

/// A `sidecar.yaml` with addresses and folders that can be had here, in a folder where its sockets are to be.
pub fn setup(yaml: &str) -> SidecarSetup {
    let setup = SidecarSetup::rules("").file("sidecar.yaml");
    let run = sockets(&setup.folder);
    let mut yaml = put(yaml, "/run/tidegate", run.to_str().unwrap());
    yaml = put(&yaml, "0.0.0.0:9464", "127.0.0.1:0");
    for port in [7600, 7601] {
        yaml = yaml.replace(&format!("127.0.0.1:{port}"), "127.0.0.1:0");
    }
    let store = setup.folder.path("store");
    fs::create_dir(&store).unwrap();
    yaml = yaml.replace("/etc/tidegate-store", store.to_str().unwrap());
    setup.folder.write("sidecar.yaml", &yaml);
    setup
}

/// The sidecar with the file at this path below `k8s`, limiting alone.
pub fn sidecar(path: &str) -> Sidecar {
    setup(&tree::read(path)).start_as_is()
}

/// A configuration, and the container that it is of.
fn subjects() -> Vec<(String, Value)> {
    if let Some(rendered) = tree::renderings() {
        let mut found = Vec::new();
        for (_, rendering) in rendered {
            let objects = objects(rendering);
            for pod in objects.limited() {
                let yaml = pod.sidecar_yaml(&objects).unwrap().to_owned();
                found.push((yaml, pod.sidecar().unwrap().clone()));
            }
        }
        return found;
    }
    let patch: Value =
        serde_saphyr::from_str(&tree::read("components/sidecar/patch.yaml")).unwrap();
    let container = list(&patch, "/spec/template/spec/initContainers")[0].clone();
    let files = tree::files().into_iter();
    let files = files.filter(|file| file.ends_with("sidecar.yaml"));
    files
        .map(|file| (tree::read(&file), container.clone()))
        .collect()
}

/// What the kubelet asks is answered, by the very configuration of the rendering.
#[test]
fn every_probe_is_answered() {
    let mut tried = BTreeSet::new();
    for (yaml, container) in subjects() {
        let probes = ["startupProbe", "readinessProbe", "livenessProbe"];
        let paths =
            probes.map(|probe| text(&container, &format!("/{probe}/httpGet/path")).to_owned());
        if yaml.contains("${REDIS_URL}") || !tried.insert((yaml.clone(), paths.clone())) {
            // `store.rs` runs the one that needs a store.
            continue;
        }
        let sidecar = setup(&yaml).start_as_is();
        let metrics = sidecar.door("metrics").unwrap();
        for path in paths {
            let answer = metrics.get(&path);
            assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        }
    }
    assert!(tried.len() >= 3, "{tried:?}");
}

/// As many keys as the table holds fit the container's memory, also while the pod reports all of them to a store.
#[test]
fn the_keys_fit_the_memory() {
    let store = RedisServer::start(&[]);
    let base = || setup(&tree::read("base/sidecar.yaml"));
    fill(&base().start_as_is(), 1);
    let fleet = base().variable("REDIS_URL", &store.url()).start_as_is();
    fill(&fleet, 3);
    let books = fleet.admin("/admin/v1/status")["books"].take();
    assert!(number(&books, "/settled") > Some(10_000), "{books}");
}

/// Asks for more keys than there is room for, each so many times.
fn fill(sidecar: &Sidecar, times: usize) {
    let patch: Value =
        serde_saphyr::from_str(&tree::read("components/sidecar/patch.yaml")).unwrap();
    let limits = "/spec/template/spec/initContainers/0/resources/limits";
    let limit = text(&patch, &format!("{limits}/memory"));
    let limit: u64 = limit.strip_suffix("Mi").unwrap().parse().unwrap();
    let held = || number(&sidecar.admin("/admin/v1/status"), "/keys/held").unwrap();
    let max = number(&sidecar.admin("/admin/v1/status"), "/keys/max").unwrap();
    let mut client = sidecar.connect();
    let mut sent = 0;
    while held() < max / 10 * 9 && sent < 2 * max {
        // Many checks in one go, then the look.
        for _ in 0..100 {
            let descriptors = (sent..sent + 50).map(|nth| {
                format!(r#"{{"entries":[{{"key":"api_key","value":"a-key-of-forty-bytes-or-thereabout-{nth}"}}]}}"#)
            });
            let descriptors: Vec<_> = descriptors.collect();
            let body = format!(
                r#"{{"domain":"hello","descriptors":[{}]}}"#,
                descriptors.join(",")
            );
            for _ in 0..times {
                let answer = client.post("/v1/check", &body);
                assert_eq!(answer.status, 200, "{}", answer.text());
            }
            sent += 50;
        }
    }
    let (held, kilobytes) = (held(), sidecar.process("VmHWM"));
    assert!(held >= max / 10 * 9, "{held} of {max}");
    assert!(
        kilobytes < limit << 10,
        "{held} keys take {kilobytes} kB of {limit} MiB"
    );
}

/// The Deployment of the example: its commands, run against its configuration.
#[test]
fn the_example_asks_and_is_limited() {
    let sidecar = sidecar("examples/any-deployment/sidecar.yaml");
    let shop: Value =
        serde_saphyr::from_str(&tree::read("examples/any-deployment/shop.yaml")).unwrap();
    let folder = sidecar.folder();
    let command = |pointer: &str| {
        let line = shop.pointer(&format!("/spec/template/spec/{pointer}/command/2"));
        let line = put(
            line.unwrap().as_str().unwrap(),
            "/data/",
            folder.path("").to_str().unwrap(),
        );
        line.replace("/run/tidegate", folder.path("run").to_str().unwrap())
    };
    let ran = folder.shell(&command("initContainers/0"));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let mut shop = Command::new("sh");
    shop.args(["-c", &command("containers/0")]);
    let mut shop = Running::spawn(shop, folder);
    let said = until("a limit", SOON, || {
        Some(shop.said()).filter(|said| said.contains("429"))
    });
    // It ends on request.
    shop.ask_to_end();
    until("its end", SOON, || shop.child.try_wait().unwrap());
    let passed = said.lines().take_while(|line| *line == "200").count();
    assert!(passed >= 10, "{said}");
}
