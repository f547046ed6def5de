//! Real Envoy in front of the sidecar, with the configuration of `docs/guides/envoy.md`.
//!
//! `make tools` brings Envoy. Where answers are counted, the filter's timeout is long: a busy machine fails no test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tidegate::config::check_text;

use super::client::{Client, Door, Response, request};
use super::guides;
use super::sidecar::{Folder, SOON, Setup, Sidecar, now, until};

/// The sidecar, Envoy, and Envoy's endpoint on a Unix socket.
fn guide() -> [String; 3] {
    blocks("envoy.md")
}

/// The blocks of YAML in a guide.
fn blocks<const N: usize>(name: &str) -> [String; N] {
    let blocks = guides::guide(name, "yaml").try_into();
    blocks.expect("as many blocks as are used")
}

/// `text` with `from`, which has to be there once, in other words.
fn put(text: &str, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), 1, "{from} in {text}");
    text.replace(from, to)
}

/// The guide's sidecar, on addresses of its own.
fn sidecar() -> Sidecar {
    let [sidecar, _, _] = guide();
    check_text("docs/guides/envoy.md", &sidecar, &|_| None).expect("a sound file");
    let (_, rules) = sidecar.split_once("rules:\n").unwrap();
    Setup::rules(rules)
        .listen_also(r#"grpc: ["127.0.0.1:0", "unix:g.sock"]"#)
        .start()
}

/// An application that answers every request with 200.
fn app() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut answers = stream.try_clone().unwrap();
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
                    if line.is_empty() && answers.write_all(answer).is_err() {
                        break;
                    }
                }
            });
        }
    });
    port
}

/// How Envoy differs from the guide's.
#[derive(Clone, Copy)]
struct Changes {
    timeout: &'static str,
    failure_mode_deny: bool,
    /// Whether the path is asked about when the answer is sent, and not before. Envoys have crashed over that.
    on_stream_done: bool,
}

const COUNTED: Changes = Changes {
    timeout: "20s",
    failure_mode_deny: true,
    on_stream_done: false,
};

/// A running Envoy.
struct Envoy {
    child: Child,
    folder: Folder,
    front: Door,
    admin: Door,
}

impl Envoy {
    /// In front of the sidecar that listens at `rls`.
    fn start(rls: &Door, changes: Changes) -> Self {
        let [_, envoy, pipe] = guide();
        let envoy = put(&envoy, "port_value: 9901", "port_value: 0");
        let envoy = put(&envoy, "port_value: 10000", "port_value: 0");
        let envoy = put(
            &envoy,
            "port_value: 8080",
            &format!("port_value: {}", app()),
        );
        let envoy = put(
            &envoy,
            "timeout: 0.05s",
            &format!("timeout: {}", changes.timeout),
        );
        let deny = format!("failure_mode_deny: {}", changes.failure_mode_deny);
        let envoy = put(&envoy, "failure_mode_deny: false", &deny);
        let envoy = match changes.on_stream_done {
            true => put(
                &envoy,
                "hits_addend: { number: 2 }",
                "apply_on_stream_done: true",
            ),
            false => envoy,
        };
        let envoy = match rls {
            Door::Tcp(address) => put(
                &envoy,
                "port_value: 8081",
                &format!("port_value: {}", address.port()),
            ),
            Door::Unix(path) => {
                let pipe = put(&pipe, "/run/tidegate/rls.sock", &path.display().to_string());
                let endpoint = envoy.lines().find(|line| line.contains("port_value: 8081"));
                put(&envoy, endpoint.unwrap(), pipe.trim_end())
            }
        };
        let folder = Folder::new();
        folder.write("envoy.yaml", &envoy);
        let child = Command::new(binary())
            .args([
                "-c",
                "envoy.yaml",
                "--admin-address-path",
                "admin",
                "-l",
                "warning",
            ])
            .args([
                "--disable-hot-restart",
                "--concurrency",
                "1",
                "--file-flush-interval-msec",
                "10",
            ])
            .current_dir(folder.path(""))
            .stdin(Stdio::null())
            .stdout(fs::File::create(folder.path("out")).unwrap())
            .stderr(fs::File::create(folder.path("err")).unwrap())
            .spawn()
            .unwrap();
        Self::ready(child, folder)
    }

    fn ready(mut child: Child, folder: Folder) -> Self {
        let (admin, _) = until("Envoy's admin page", SOON, || {
            if let Some(status) = child.try_wait().unwrap() {
                let said = fs::read_to_string(folder.path("err")).unwrap();
                panic!("Envoy ended with {status}: {said}");
            }
            let address = fs::read_to_string(folder.path("admin")).ok()?;
            Some(Door::Tcp(address.trim().parse().ok()?))
        });
        let (port, _) = until("Envoy's listener", SOON, || {
            let listeners = page(&admin, "/listeners?format=json")?;
            let (_, port) = listeners.split_once("\"port_value\": ")?;
            let digits = port.bytes().take_while(u8::is_ascii_digit).count();
            port[..digits].parse::<u16>().ok().filter(|port| *port > 0)
        });
        let front = Door::Tcp(([127, 0, 0, 1], port).into());
        until("a live Envoy", SOON, || {
            page(&admin, "/ready").filter(|ready| ready.contains("LIVE"))
        });
        Self {
            child,
            folder,
            front,
            admin,
        }
    }

    /// What a client with that key is answered for that path.
    fn get(&self, key: &str, path: &str) -> Response {
        get(&mut self.front.connect(), key, path)
    }

    /// The statuses of as many requests.
    fn statuses(&self, key: &str, path: &str, times: usize) -> Vec<u16> {
        let mut client = self.front.connect();
        (0..times)
            .map(|_| get(&mut client, key, path).status)
            .collect()
    }

    /// Whether the same process is up and well.
    fn is_well(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "Envoy ended");
        assert!(page(&self.admin, "/ready").is_some_and(|ready| ready.contains("LIVE")));
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path("out")).unwrap()
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> PathBuf {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let binary = tools.join("envoy/envoy/_bin/envoy");
    assert!(binary.exists(), "there is no Envoy: run `make tools`");
    binary
}

fn page(admin: &Door, path: &str) -> Option<String> {
    let mut client = admin.try_connect().ok()?;
    client.send(&request("GET", path, &["Connection: close"], b""));
    client.receive_any()
}

fn get(client: &mut Client, key: &str, path: &str) -> Response {
    client.request("GET", path, &[&format!("x-api-key: {key}")], b"")
}

#[test]
fn requests_pass_and_are_denied_exactly_as_the_rules_say() {
    let sidecar = sidecar();
    for door in sidecar.doors("grpc") {
        let kind = door.kind();
        let mut envoy = Envoy::start(&door, COUNTED);
        assert_eq!(envoy.statuses(kind, "/", 5), [200, 200, 200, 429, 429]);
        // No header, no descriptor: the filter asks about the path alone.
        let anonymous = envoy.front.connect().get("/");
        assert_eq!((anonymous.status, anonymous.text().as_str()), (200, "ok"));
        envoy.is_well();
    }
    // Four in a day, two each, for both together.
    let envoy = Envoy::start(&sidecar.door("grpc").unwrap(), COUNTED);
    assert_eq!(envoy.statuses("a", "/export", 3), [200, 200, 429]);
    assert_eq!(envoy.statuses("b", "/export", 1), [429]);
    // What was denied by the path has used nothing of the key.
    assert_eq!(
        envoy.get("b", "/").header("x-ratelimit-remaining"),
        Some("2")
    );
}

#[test]
fn clients_see_the_headers_and_the_log_names_the_rule() {
    let sidecar = sidecar();
    let envoy = Envoy::start(&sidecar.door("grpc").unwrap(), COUNTED);
    let first = envoy.get("headers", "/");
    let seen = |answer: &Response, name| answer.header(name).map(str::to_owned);
    assert_eq!(seen(&first, "x-ratelimit-limit").as_deref(), Some("3"));
    assert_eq!(seen(&first, "x-ratelimit-remaining").as_deref(), Some("2"));
    assert_eq!(
        seen(&first, "ratelimit-policy").as_deref(),
        Some("\"per-key\";q=3;w=86400")
    );
    assert_eq!(
        seen(&first, "ratelimit").as_deref(),
        Some("\"per-key\";r=2;t=28800")
    );
    assert_eq!(seen(&first, "retry-after"), None);
    assert_eq!(envoy.statuses("headers", "/", 2), [200, 200]);
    let denial = envoy.get("headers", "/");
    assert_eq!(denial.status, 429);
    assert_eq!(seen(&denial, "retry-after").as_deref(), Some("28800"));
    assert_eq!(
        seen(&denial, "x-envoy-ratelimited").as_deref(),
        Some("true")
    );
    until("a line of the log", SOON, || {
        envoy
            .log()
            .contains("/ 429 limited by edge/api_key")
            .then_some(())
    });
}

/// Whether every thread of a process has stopped.
fn is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat")).unwrap();
        stat.contains(") T ")
    })
}

/// What Envoy does while the sidecar is gone and while it hangs.
fn without_a_sidecar(failure_mode_deny: bool, expected: u16) {
    let hung = sidecar();
    let doors = hung.doors("grpc");
    let changes = Changes {
        timeout: "0.25s",
        failure_mode_deny,
        on_stream_done: false,
    };
    let mut envoys = [0, 1].map(|nth: usize| Envoy::start(&doors[nth], changes));
    // The first may be slow: a connection has to be made.
    for envoy in &envoys {
        until("an answer of the sidecar", SOON, || {
            let answer = envoy.get("well", "/");
            answer.header("x-ratelimit-limit").is_some().then_some(())
        });
    }
    hung.signal("STOP");
    until("a stop", SOON, || is_stopped(hung.pid()).then_some(()));
    for envoy in &envoys {
        let answer = envoy.get("hung", "/");
        assert_eq!(
            (answer.status, answer.header("x-ratelimit-limit")),
            (expected, None)
        );
    }
    hung.signal("CONT");
    for envoy in &envoys {
        until("an answer after the hang", SOON, || {
            envoy
                .get("after", "/")
                .header("x-ratelimit-limit")
                .is_some()
                .then_some(())
        });
    }
    let killed = hung.kill();
    for envoy in &mut envoys {
        let begun = now();
        assert_eq!(envoy.statuses("killed", "/", 3), [expected; 3]);
        assert!(begun.elapsed() < SOON);
        envoy.is_well();
    }
    drop(killed);
}

#[test]
fn without_a_sidecar_requests_pass_if_envoy_is_told_so() {
    without_a_sidecar(false, 200);
}

#[test]
fn without_a_sidecar_requests_fail_if_envoy_is_told_so() {
    without_a_sidecar(true, 500);
}

#[test]
fn a_sidecar_that_is_killed_fifty_times_is_found_again_and_every_request_answered() {
    let mut sidecar = sidecar();
    let door = sidecar.doors("grpc").remove(1);
    assert_eq!(door.kind(), "unix");
    let changes = Changes {
        timeout: "0.5s",
        failure_mode_deny: false,
        on_stream_done: true,
    };
    let mut envoy = Envoy::start(&door, changes);
    let (done, answered) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicU64::new(0)),
    );
    let load = thread::spawn({
        let (done, answered, front) = (
            Arc::clone(&done),
            Arc::clone(&answered),
            envoy.front.clone(),
        );
        move || {
            let mut client = front.connect();
            while !done.load(Ordering::Relaxed) {
                // Nothing limits it: with the sidecar or without, it passes.
                let answer = client.get("/");
                assert_eq!(answer.status, 200, "{answer:?}");
                answered.fetch_add(1, Ordering::Relaxed);
                thread::park_timeout(Duration::from_millis(1));
            }
        }
    });
    for round in 0..50 {
        sidecar = sidecar.kill().start_as_is();
        let before = answered.load(Ordering::Relaxed);
        let key = format!("round-{round}");
        until("an answer of the new sidecar", SOON, || {
            let answer = envoy.get(&key, "/");
            answer.header("x-ratelimit-limit").is_some().then_some(())
        });
        until("the load goes on", SOON, || {
            (answered.load(Ordering::Relaxed) > before).then_some(())
        });
    }
    done.store(true, Ordering::Relaxed);
    load.join().expect("every request was answered");
    envoy.is_well();
}

/// What the guide's patches put into Envoy is sound: Envoy says so itself.
#[test]
fn what_istio_is_to_put_into_envoy_is_sound() {
    let [sidecar, filter] = blocks("istio.md");
    check_text("docs/guides/istio.md", &sidecar, &|_| None).expect("a sound file");
    let filter: Value = serde_saphyr::from_str(&filter).unwrap();
    let value = |target: &str| {
        let patches = filter["spec"]["configPatches"].as_array().unwrap();
        let patch = patches.iter().find(|patch| patch["applyTo"] == target);
        patch.expect(target)["patch"]["value"].clone()
    };
    let mut envoy: Value = serde_saphyr::from_str(&guide()[1]).unwrap();
    let manager = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
    let manager = envoy.pointer_mut(manager).unwrap();
    manager["http_filters"][0] = value("HTTP_FILTER");
    let host = &mut manager["route_config"]["virtual_hosts"][0];
    host["routes"][0]
        .as_object_mut()
        .unwrap()
        .remove("typed_per_filter_config");
    let merged = value("VIRTUAL_HOST").as_object().unwrap().clone();
    host.as_object_mut().unwrap().extend(merged);
    envoy["static_resources"]["clusters"][1] = value("CLUSTER");
    let folder = Folder::new();
    folder.write("envoy.json", &envoy.to_string());
    let binary = binary();
    let ran = folder.shell(&format!(
        "{} --mode validate -c envoy.json",
        binary.display()
    ));
    assert!(ran.stdout.contains("OK"), "{ran:?}");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
