//! A pod with a native sidecar, in the order of the kubelet: the sidecar starts first and ends last.

use std::path::Path;

use tidegate_testing::podman::{Container, storage};
use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Endpoint, Folder, SOON, SidecarSetup, free_port, until};

use super::{GROUP, shared_folder};

/// The pod reports cells after a minute, or when it ends if that is first.
const SETTINGS: &str = "sync: { interval: 60s, accuracy: 1.0 }\nlog: { format: json }\ndrain: 10s";
/// What the drain takes, and a bit.
const GRACE: u32 = 15;
/// What a sidecar says that did not get rid of its cells.
const UNCONFIRMED: &str = "stopped with cells that the store has not confirmed";
const RULES: &str =
    "- { domain: api, descriptors: [{ key: client, report: always, rate_limit: 100000/year }] }";
const CHECK: &str = "/v1/check?domain=api&client=x";
const USAGE: &str = "/admin/v1/usage?domain=api&client=x";

/// Asks from its first moment to its last; asked to end it still has five questions.
const APP: &str = r#"
ask() {
  curl --silent --output /dev/null --write-out '%{http_code}\n' --unix-socket /run/tidegate/tidegate.sock \
    'http://localhost/v1/check?domain=api&client=x'
}
trap 'stopping=1' TERM
while [ -z "$stopping" ]; do ask; done
echo stopping
for last in 1 2 3 4 5; do ask; done
"#;

/// The sidecar's container.
fn sidecar(folder: &Folder, shared: &[&str], metrics: &str, redis: &RedisServer) -> Container {
    let listen = r#"http: ["unix:tidegate.sock"], admin: ["unix:admin.sock"]"#;
    let store = format!("store: {{ url: \"{}\" }}", redis.url());
    folder.write(
        "sidecar.yaml",
        &format!(
            "listen: {{ {listen}, metrics: [\"{metrics}\"] }}\n{store}\n{SETTINGS}\nrules:\n{RULES}\n"
        ),
    );
    let mount = format!("--volume={}:/etc/tidegate:ro", folder.path(".").display());
    let options = [shared, &["--network=host", &mount]].concat();
    storage().start(&options, &[])
}

/// The application's container: another user, with the shell and the curl of this machine.
fn app(shared: &[&str]) -> Container {
    let folders = ["/usr", "/bin", "/lib", "/lib64"];
    let here = folders.iter().filter(|folder| Path::new(folder).exists());
    let mounts: Vec<_> = here
        .map(|folder| format!("--volume={folder}:{folder}:ro"))
        .collect();
    let mounts: Vec<_> = mounts.iter().map(String::as_str).collect();
    let own = [
        "--user=1000:1000",
        "--entrypoint=/bin/sh",
        "--no-healthcheck",
    ];
    storage().start(&[shared, &mounts, &own].concat(), &["-c", APP])
}

/// Asks until the books, which have to come to all that was asked, have something that the store has not heard of. How
/// many questions that took, after `asked` of others.
fn ask_until_pending(pod: &Folder, asked: usize) -> usize {
    let (http, admin) = (pod.path("tidegate.sock"), pod.path("admin.sock"));
    let (http, admin) = (Endpoint::Unix(http), Endpoint::Unix(admin));
    let mut more = 0;
    until("a cell that is pending", SOON, || {
        more += 1;
        assert_eq!(http.get(CHECK).status, 200);
        let pending = until("the books to have all", SOON, || {
            let books = admin.get("/admin/v1/status").json()["books"].take();
            let cells = |place: &str| usize::try_from(books[place].as_u64().unwrap()).unwrap();
            let sum = cells("settled") + cells("in_flight") + cells("pending");
            assert!(sum <= asked + more, "{books} of {asked} and {more}");
            (sum == asked + more).then(|| cells("pending"))
        });
        (pending > 0).then_some(())
    });
    more
}

#[test]
fn a_native_sidecar_is_there_before_the_app_and_after_it() {
    let (folder, pod, redis) = (Folder::new(), shared_folder(), RedisServer::start(&[]));
    let mount = format!("--volume={}:/run/tidegate", pod.path(".").display());
    let group = format!("--group-add={GROUP}");
    let shared = [mount.as_str(), group.as_str()];
    let metrics = format!("127.0.0.1:{}", free_port());

    // The startup probe, and only then the app, which asks at once.
    let sidecar = sidecar(&folder, &shared, &metrics, &redis);
    sidecar.probe(SOON, &["/tidegate", "health", "--to", &metrics]);
    let app = app(&shared);
    until("checks", SOON, || {
        (app.logs().lines().count() > 20).then_some(())
    });

    // The app ends first, and is answered to the end.
    assert_eq!(app.stop(GRACE), 0);
    let said = app.logs();
    let (before, after) = said.split_once("stopping\n").unwrap();
    let (before, after): (Vec<_>, Vec<_>) = (before.lines().collect(), after.lines().collect());
    assert!(before.iter().all(|status| *status == "200"), "{said}");
    assert_eq!(after, ["200"; 5]);

    // However long all that took: something is pending when the sidecar is asked to end.
    let asked = before.len() + after.len();
    let asked = asked + ask_until_pending(&pod, asked);

    // The sidecar ends last, before it is killed, and with nothing unreported.
    assert_eq!(sidecar.stop(GRACE), 0);
    assert!(!sidecar.logs().contains(UNCONFIRMED), "{}", sidecar.logs());
    let store = format!("{SETTINGS}\nstore: {{ url: \"{}\" }}", redis.url());
    let other = SidecarSetup::rules(RULES).top(&store).start();
    assert_eq!(other.admin(USAGE)["usage"][0]["fleet"]["used"], asked);
}
