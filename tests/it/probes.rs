//! Probes get in, whoever else holds connections open, and however few descriptors the process has.

use std::collections::VecDeque;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate_testing::{
    Client, Endpoint, Folder, SOON, Sidecar, SidecarSetup, tidegate_binary, until,
};

const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 100000/day }] }";
const CHECK: &str = "/v1/check?domain=api&client=x";
/// As many as a page's listener serves at once.
const PAGES_MAX: f64 = 64.0;

/// Connections of the door that do nothing, or never finish their request.
fn idle(door: &Endpoint, count: usize) -> Vec<Client> {
    let connect = |number: usize| {
        let mut client = door.connect();
        if number % 2 == 1 {
            client.send(BEGUN);
        }
        client
    };
    (0..count).map(connect).collect()
}

/// What kubelet does: a connection of its own, and an answer within a second.
fn probe(door: &Endpoint, path: &str) {
    let mut client = door.connect();
    client.patience(Duration::from_secs(1));
    assert_eq!(client.get(path).status, 200, "{path}");
}

fn of_door(sidecar: &Sidecar, metric: &str, door: &str) -> f64 {
    sidecar.metrics().of(metric, &[("door", door)])
}

#[test]
fn idle_connections_to_the_pages_give_way() {
    let sidecar = SidecarSetup::rules(RULES).start();
    for (name, path) in [("metrics", "/livez"), ("admin", "/admin/v1/status")] {
        let door = sidecar.door(name).unwrap();
        let mut silent = idle(&door, 200);
        let mut kept = door.connect();
        for _ in 0..20 {
            probe(&door, path);
            // Whoever asks on is not who was silent longest.
            assert_eq!(kept.get(path).status, 200);
            silent.extend(idle(&door, 40));
        }
        assert!(of_door(&sidecar, "ratelimit_connections", name) <= PAGES_MAX);
        assert_eq!(
            of_door(&sidecar, "ratelimit_connections_refused_total", name),
            0.0
        );
        let gave_way = of_door(&sidecar, "ratelimit_connections_gave_way_total", name);
        assert!(gave_way >= 900.0, "{gave_way}");
        assert!(silent[0].is_closed());
    }
}

/// Silent connections that a client makes, at most.
const FLOOD_MAX: usize = 200_000;

/// The first half of a request.
const BEGUN: &[u8] = b"GET /livez HTTP/1.1\r\nHost: loc";
/// The second.
const REST: &[u8] = b"alhost\r\n\r\n";

fn silent(door: &Endpoint, count: usize) -> Vec<Client> {
    (0..count).map(|_| door.connect()).collect()
}

fn begun(door: &Endpoint, count: usize) -> Vec<Client> {
    let connect = |_| {
        let mut client = door.connect();
        assert!(client.send(BEGUN));
        client
    };
    (0..count).map(connect).collect()
}

/// Waits until so many connections to the admin listener have given way. Asked on the other listener.
fn gave_way(sidecar: &Sidecar, count: f64) {
    until("they give way", SOON, || {
        let gave_way = of_door(sidecar, "ratelimit_connections_gave_way_total", "admin");
        assert!(gave_way <= count, "{gave_way}");
        (gave_way == count).then_some(())
    });
}

/// However many connect and send nothing, whoever has sent something keeps his seat.
#[test]
fn silent_connections_give_way_before_those_that_have_spoken() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let door = sidecar.door("admin").unwrap();
    let mut spoken = silent(&door, 8);
    for client in &mut spoken {
        // Once it is answered, the sidecar has read it.
        assert_eq!(client.get("/livez").status, 404);
        assert!(client.send(BEGUN));
    }
    let mut held = silent(&door, 56);
    gave_way(&sidecar, 0.0);
    held.extend(silent(&door, 500));
    gave_way(&sidecar, 500.0);
    for client in &mut spoken {
        client.send(REST);
        assert_eq!(client.response().status, 404);
    }
    assert!(held[499].is_closed(), "the oldest go first");
    assert_eq!(held[555].get("/admin/v1/status").status, 200);
}

/// Whoever holds all seats with half a request leaves enough for those that have yet to send theirs.
#[test]
fn connections_that_have_spoken_leave_half_of_the_seats() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let door = sidecar.door("admin").unwrap();
    let held = begun(&door, 200);
    gave_way(&sidecar, 136.0);
    let mut late = door.connect();
    let others = silent(&door, 31);
    gave_way(&sidecar, 168.0);
    assert_eq!(late.get("/admin/v1/status").status, 200);
    drop((held, others));
}

/// As many silent connections as a client can make, one after the other: each probe is answered.
#[test]
fn probes_are_answered_in_a_flood_of_silent_connections() {
    let sidecar = SidecarSetup::rules(RULES).start();
    let door = sidecar.door("metrics").unwrap();
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut held = VecDeque::new();
            for _ in 0..FLOOD_MAX {
                held.push_back(door.connect());
                if held.len() > 200 {
                    held.pop_front();
                }
                if ended.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        let probe = || {
            let mut client = door.connect();
            client.send(BEGUN) && client.send(REST) && client.receive().is_some()
        };
        let answered = (0..200).filter(|_| probe()).count();
        ended.store(true, Ordering::Relaxed);
        assert_eq!(answered, 200);
    });
    let gave_way = of_door(&sidecar, "ratelimit_connections_gave_way_total", "metrics");
    assert!(gave_way > 200.0, "{gave_way}");
}

/// The daemon, started by a shell that first runs `limits`.
fn start(limits: &str) -> Sidecar {
    let folder = Folder::new();
    let setup = SidecarSetup::rules(RULES).bounds("connections_max: 1024");
    folder.write("sidecar.yaml", &setup.yaml());
    let mut command = Command::new("sh");
    let line = format!("{limits}; exec {}", tidegate_binary().display());
    command.args(["-c", &line]).current_dir(folder.path("."));
    let sidecar = Sidecar::of(command, folder);
    until("a ready daemon", SOON, || {
        sidecar.stdout.text().contains("ready, ").then_some(())
    });
    sidecar
}

/// The most files that it may have open.
fn files_max(sidecar: &Sidecar) -> u64 {
    let limits = fs::read_to_string(format!("/proc/{}/limits", sidecar.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap()
}

#[test]
fn a_low_soft_limit_of_open_files_is_raised() {
    let sidecar = start("ulimit -Sn 256");
    assert!(files_max(&sidecar) >= 1024 + 128, "{}", files_max(&sidecar));
    let connections = idle(&sidecar.http(), 1000);
    until("all are accepted", SOON, || {
        (of_door(&sidecar, "ratelimit_connections", "http") == 1000.0).then_some(())
    });
    drop(connections);
}

#[test]
fn a_low_hard_limit_of_open_files_means_fewer_connections() {
    let sidecar = start("ulimit -n 256");
    let said = sidecar.said(
        "fewer connections than configured: the system allows too few open files (ulimit -n)",
    );
    let connections_max = said[0]["connections_max"].as_f64().unwrap();
    assert!((1.0..256.0).contains(&connections_max), "{said:?}");
    let metrics = sidecar.door("metrics").unwrap();
    let connections = idle(&sidecar.http(), 400);
    until("the rest is refused", SOON, || {
        let refused = of_door(&sidecar, "ratelimit_connections_refused_total", "http");
        (refused == 400.0 - connections_max).then_some(())
    });
    probe(&metrics, "/livez");
    let silent = idle(&metrics, 100);
    probe(&metrics, "/livez");
    assert_eq!(
        of_door(&sidecar, "ratelimit_accept_errors_total", "http"),
        0.0
    );
    drop((connections, silent));
    until("checks are answered", SOON, || {
        (sidecar.http().get(CHECK).status == 200).then_some(())
    });
}

/// Whatever took them: there is not one descriptor left, and checks cannot be accepted.
#[test]
fn probes_are_answered_when_descriptors_run_out() {
    let sidecar = start("true");
    let metrics = sidecar.door("metrics").unwrap();
    probe(&metrics, "/livez");
    let pid = sidecar.pid().to_string();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() + 5;
    let limit = format!("--nofile={open}:{open}");
    let limited = Command::new("prlimit")
        .args(["--pid", &pid, &limit])
        .status();
    assert!(limited.unwrap().success());
    let waiting = idle(&sidecar.http(), 100);
    let failed = "ratelimit_accept_errors_total";
    until("descriptors run out", SOON, || {
        (of_door(&sidecar, failed, "http") > 0.0).then_some(())
    });
    let before = of_door(&sidecar, failed, "http");
    for _ in 0..20 {
        probe(&metrics, "/livez");
        probe(&metrics, "/readyz");
    }
    let since = of_door(&sidecar, failed, "http") - before;
    // It is tried twenty times a second, and said once for each of the four listeners.
    assert!(since < 200.0, "{since}");
    let said = sidecar.said("accept failed, trying again");
    assert!(said.len() <= 4, "{said:?}");
    drop(waiting);
    until("checks are answered", SOON, || {
        (sidecar.http().get(CHECK).status == 200).then_some(())
    });
}
