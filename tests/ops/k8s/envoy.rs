//! Real Envoy with the file of `k8s/envoy`, beside the sidecar and the app with theirs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidegate_testing::{Endpoint, Folder, Response, SOON, now, until};

use super::live::{self, Running, put};
use super::nginx::{Nginx, Place};
use super::objects::list;
use super::tree;

fn binary() -> PathBuf {
    let binary = tree::root().join("target/tools/envoy/envoy/_bin/envoy");
    assert!(binary.exists(), "there is no Envoy: run `make tools`");
    binary
}

const APP: Place<'_> = Place {
    folder: "envoy",
    container: "/spec/template/spec/containers/1",
    mounted: "/etc/app/",
    port: 8000,
};

#[test]
fn envoy_finds_its_file_sound() {
    let output = Command::new(binary())
        .args(["--mode", "validate", "-l", "error", "-c"])
        .arg(tree::root().join("k8s/envoy/envoy.yaml"))
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains(" OK"), "{said}");
}

/// What runs here is what the image has.
#[test]
fn the_image_is_the_envoy_that_is_tried() {
    let output = Command::new(binary()).arg("--version").output().unwrap();
    let version = String::from_utf8(output.stdout).unwrap();
    let version = version.split('/').find(|part| part.split('.').count() == 3);
    let image = format!("image: envoyproxy/envoy:distroless-v{}\n", version.unwrap());
    assert!(
        tree::read("envoy/deployment.yaml").contains(&image),
        "not {image}"
    );
}

fn get(door: &Endpoint, path: &str, key: &str) -> Response {
    let header = format!("x-api-key: {key}");
    door.connect().request("GET", path, &[&header], b"")
}

/// Envoy by its file, at `ip`, in front of this app and beside the sidecar with its sockets in `run`.
fn envoy(ip: Ipv4Addr, app: IpAddr, run: &Path, folder: &Folder) -> Running {
    let file = tree::read("envoy/envoy.yaml");
    let at = |ip: &str, port: u16| format!("address: {ip}, port_value: {port}");
    let file = put(&file, &at("127.0.0.1", 8000), &at(&app.to_string(), 8000));
    let file = put(&file, &at("127.0.0.1", 9901), &at(&ip.to_string(), 9901));
    let file = put(&file, "address: 0.0.0.0", &format!("address: {ip}"));
    let file = put(&file, "/run/tidegate/", &format!("{}/", run.display()));
    // A busy machine fails no test, and an Envoy that is not answered does.
    let file = put(&file, "timeout: 0.05s", "timeout: 20s");
    let file = put(&file, "failure_mode_deny: false", "failure_mode_deny: true");
    folder.write("envoy.yaml", &file);
    let deployment = tree::read("envoy/deployment.yaml");
    let deployment: Value = serde_saphyr::from_str(&deployment).unwrap();
    let words = list(&deployment, "/spec/template/spec/containers/0/args");
    let words = words.iter().map(|word| word.as_str().unwrap());
    let mut command = Command::new(binary());
    command.args(words.map(|word| word.replace("/etc/envoy/", folder.path("").to_str().unwrap())));
    command.args(["-l", "warning", "--file-flush-interval-msec", "10"]);
    Running::start(command, folder, SocketAddr::from((ip, 8080)))
}

#[test]
fn envoy_asks_over_the_socket_and_denies() {
    let sidecar = live::sidecar("envoy/sidecar.yaml");
    let app = Nginx::start(&APP, "--clear-groups", |conf| conf);
    let (folder, ip) = (Folder::new(), live::own_ip());
    let run = sidecar.folder().path("run");
    let envoy = envoy(ip, app.address.ip(), &run, &folder);
    let [front, probes] = [8080, 9902].map(|port| Endpoint::Tcp(SocketAddr::from((ip, port))));
    until("a live Envoy", SOON, || {
        (get(&probes, "/ready", "").status == 200).then_some(())
    });
    let begun = now();
    let answers: Vec<_> = (0..100).map(|_| get(&front, "/", "one")).collect();
    let back = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    let passed = answers.iter().filter(|answer| answer.status == 200).count();
    let said = envoy.said();
    assert!(
        (20..=20 + back).contains(&passed),
        "{passed} of 100 in {back} s: {said}"
    );
    assert!(
        answers[0].text().starts_with("hello from "),
        "{:?}",
        answers[0]
    );
    let denied = answers.iter().find(|answer| answer.status == 429);
    let denied = denied.expect("a denial");
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    assert!(
        answers
            .iter()
            .all(|answer| [200, 429].contains(&answer.status))
    );
    // Ten a minute, of all keys: one comes back in six seconds.
    let exported = (0..40).map(|nth| get(&front, "/export", &format!("exporter-{nth}")).status);
    assert!(exported.into_iter().any(|status| status == 429));
    // The kubelet is not limited, and sees nothing else.
    for path in ["/ready", "/app"] {
        assert_eq!(get(&probes, path, "one").status, 200, "{path}");
    }
    assert_eq!(get(&probes, "/config_dump", "one").status, 404);
    until("a line of the log", SOON, || {
        let said = envoy.said();
        said.contains("/ 429 limited by edge/api_key").then_some(())
    });
}
