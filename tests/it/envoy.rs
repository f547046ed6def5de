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
use tidegate_config::check_text;
use tidegate_testing::{
    Client, Endpoint, Folder, Response, SOON, Sidecar, SidecarSetup, now, request, until,
};

use super::guides;

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
    SidecarSetup::rules(rules)
        .listen_also(r#"grpc: ["127.0.0.1:0", "unix:g.sock"]"#)
        .start()
}

/// An application that answers every request with 200, and says what that has cost.
fn app() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut answers = stream.try_clone().unwrap();
                // Bytes: a header need not be text.
                let lines = BufReader::new(stream).split(b'\n');
                for line in lines.map_while(Result::ok) {
                    let answer =
                        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-tokens: 600000\r\n\r\nok";
                    if line == b"\r" && answers.write_all(answer).is_err() {
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

/// How often the key is asked about, each time as another descriptor.
#[derive(Clone, Copy)]
struct Copies(usize);

/// A running Envoy.
struct Envoy {
    child: Child,
    folder: Folder,
    front: Endpoint,
    admin: Endpoint,
}

impl Envoy {
    /// In front of the sidecar that listens at `rls`.
    fn start(rls: &Endpoint, changes: Changes) -> Self {
        Self::start_with(rls, changes, Copies(1))
    }

    fn start_with(rls: &Endpoint, changes: Changes, Copies(copies): Copies) -> Self {
        let [_, envoy, pipe] = guide();
        let action = "- actions:\n                                    - request_headers: { header_name: x-api-key, descriptor_key: api_key }\n";
        let indented = format!("{action}                                ");
        let copied = format!("{}\n", indented.repeat(copies).trim_end());
        let envoy = put(&envoy, action, &copied);
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
            Endpoint::Tcp(address) => put(
                &envoy,
                "port_value: 8081",
                &format!("port_value: {}", address.port()),
            ),
            Endpoint::Unix(path) => {
                let pipe = put(&pipe, "/run/tidegate/rls.sock", &path.display().to_string());
                let endpoint = envoy.lines().find(|line| line.contains("port_value: 8081"));
                put(&envoy, endpoint.unwrap(), pipe.trim_end())
            }
        };
        Self::launch(&envoy)
    }

    /// With this configuration.
    fn launch(envoy: &str) -> Self {
        let folder = Folder::new();
        folder.write("envoy.yaml", envoy);
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
        let admin = until("Envoy's admin page", SOON, || {
            if let Some(status) = child.try_wait().unwrap() {
                let said = fs::read_to_string(folder.path("err")).unwrap();
                panic!("Envoy ended with {status}: {said}");
            }
            let address = fs::read_to_string(folder.path("admin")).ok()?;
            Some(Endpoint::Tcp(address.trim().parse().ok()?))
        });
        let port = until("Envoy's listener", SOON, || {
            let listeners = page(&admin, "/listeners?format=json")?;
            let (_, port) = listeners.split_once("\"port_value\": ")?;
            let digits = port.bytes().take_while(u8::is_ascii_digit).count();
            port[..digits].parse::<u16>().ok().filter(|port| *port > 0)
        });
        let front = Endpoint::Tcp(([127, 0, 0, 1], port).into());
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

fn page(admin: &Endpoint, path: &str) -> Option<String> {
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

/// What a client with a header of these bytes is answered.
fn get_bytes(front: &Endpoint, key: &[u8], path: &str) -> Response {
    let before = request("GET", path, &["x-api-key: ~"], b"");
    let at = before.iter().position(|byte| *byte == b'~').unwrap();
    let mut client = front.connect();
    client.send(&[&before[..at], key, &before[at + 1..]].concat());
    client.response()
}

/// The guide's files, a ban in front, and Envoy that lets pass what it gets no answer to: nothing that a client sends
/// may be a reason to get none.
#[test]
fn no_header_gets_past_a_ban() {
    let [sidecar, _, _] = guide();
    let (_, rules) = sidecar.split_once("rules:\n").unwrap();
    // One domain: the guide's, and who is banned.
    let banned = "\n      - { key: path, value: \"/banned*\", rate_limit: { unit: day, requests_per_unit: 0 } }\n";
    let sidecar = SidecarSetup::rules(&format!("{}{banned}", rules.trim_end()))
        .listen_also(r#"grpc: ["127.0.0.1:0"]"#)
        .start();
    let open = Changes {
        failure_mode_deny: false,
        ..COUNTED
    };
    let mut envoy = Envoy::start(&sidecar.door("grpc").unwrap(), open);
    let long = "x".repeat(1_100);
    let large = "x".repeat(50_000);
    for key in [
        &b"short"[..],
        long.as_bytes(),
        b"\xff\xfe",
        large.as_bytes(),
    ] {
        for path in ["/banned", "/banned/%ff", &format!("/banned{long}")] {
            let answer = get_bytes(&envoy.front, key, path);
            assert_eq!(answer.status, 429, "{} bytes on {path:.20}", key.len());
        }
    }
    // They are limited as others are: three in a day, each for itself.
    for key in [long.as_bytes(), b"\xff\xfe", b"\xff\xff", large.as_bytes()] {
        let statuses = [0; 4].map(|_| get_bytes(&envoy.front, key, "/").status);
        assert_eq!(statuses, [200, 200, 200, 429], "{} bytes", key.len());
    }
    envoy.is_well();
}

/// A header of nearly 60 KiB, which Envoy takes by default, in three descriptors: a message of 170 KiB.
#[test]
fn a_header_in_several_descriptors_gets_past_no_ban() {
    let sidecar = sidecar();
    let open = Changes {
        failure_mode_deny: false,
        ..COUNTED
    };
    let copied = Copies(3);
    let mut envoy = Envoy::start_with(&sidecar.door("grpc").unwrap(), open, copied);
    assert_eq!(get_bytes(&envoy.front, b"small", "/").status, 200);
    for length in [30_000, 58_000] {
        let answer = get_bytes(&envoy.front, "x".repeat(length).as_bytes(), "/");
        assert_eq!(answer.status, 429, "{length} bytes: {answer:?}");
    }
    envoy.is_well();
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

/// Envoy looks before a call and charges when its answer has been sent. Of a budget of a million two calls of 600,000
/// are served.
#[test]
fn a_budget_that_is_charged_on_stream_done_runs_out() {
    let [sidecar, limits] = blocks("token-budgets.md");
    check_text("docs/guides/token-budgets.md", &sidecar, &|_| None).expect("a sound file");
    let (_, rules) = sidecar.split_once("rules:\n").unwrap();
    let sidecar = SidecarSetup::rules(rules)
        .listen_also(r#"grpc: ["127.0.0.1:0"]"#)
        .start();
    let Endpoint::Tcp(rls) = sidecar.door("grpc").unwrap() else {
        panic!("a port");
    };
    let envoy = put(&guide()[1], "port_value: 9901", "port_value: 0");
    let envoy = put(&envoy, "port_value: 10000", "port_value: 0");
    let envoy = put(
        &envoy,
        "port_value: 8080",
        &format!("port_value: {}", app()),
    );
    let envoy = put(
        &envoy,
        "port_value: 8081",
        &format!("port_value: {}", rls.port()),
    );
    let envoy = put(&envoy, "timeout: 0.05s", "timeout: 20s");
    let envoy = put(&envoy, "domain: edge", "domain: llm");
    let mut envoy: Value = serde_saphyr::from_str(&envoy).unwrap();
    let limits: Value = serde_saphyr::from_str(&limits).unwrap();
    let route = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config/\
        virtual_hosts/0/routes/0/typed_per_filter_config";
    let route = envoy.pointer_mut(route).unwrap();
    route["envoy.filters.http.ratelimit"]["rate_limits"] = limits["rate_limits"].clone();
    let envoy = Envoy::launch(&envoy.to_string());
    let call = || {
        let mut client = envoy.front.connect();
        client.request("GET", "/", &["x-user: alice"], b"").status
    };
    let left = |expected: u64| {
        until("the charge", SOON, || {
            let path = "/v1/check?domain=llm&user=alice&peek=true";
            let left = sidecar.connect().get(path).json()["statuses"][0]["limit_remaining"].clone();
            // Some cells come back while the test runs.
            (left.as_u64().unwrap() / 100_000 == expected).then_some(())
        });
    };
    assert_eq!(call(), 200);
    left(4);
    assert_eq!(call(), 200);
    left(0);
    let denied = (0..48).filter(|_| call() == 429).count();
    assert_eq!(denied, 48);
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
