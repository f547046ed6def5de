//! A log that cannot be written, or that nobody reads, changes nothing but the log.

use std::fs::OpenOptions;
use std::process::{Child, ChildStdout, Stdio};
use std::time::Duration;

use tidegate_testing::{CommandOutput, Endpoint, Folder, MetricsPage, SOON, until};

/// What the contract promises of a reload.
const IN_FORCE_WITHIN: Duration = Duration::from_secs(10);
/// Faults of a bad file: each is a line of the log. As many as are told at once.
const FAULTS: usize = 1_000;

/// A daemon whose log goes where the test says.
struct Daemon {
    child: Child,
    folder: Folder,
}

impl Daemon {
    fn start(stdout: Stdio, stderr: Stdio) -> Self {
        let folder = Folder::new();
        folder.write("sidecar.yaml", &configuration(10));
        let mut command = folder.command(&[]);
        let child = command.stdout(stdout).stderr(stderr).spawn().unwrap();
        let mut daemon = Self { child, folder };
        until("a ready daemon", SOON, || {
            let ended = daemon.child.try_wait().unwrap();
            assert_eq!(ended, None, "ended by itself");
            let ready = |door: Endpoint| {
                door.try_connect()
                    .map(|mut door| door.get("/readyz").status)
            };
            ready(daemon.door("m"))
                .is_ok_and(|status| status == 200)
                .then_some(())
        });
        daemon
    }

    fn door(&self, name: &str) -> Endpoint {
        Endpoint::Unix(self.folder.path(&format!("{name}.sock")))
    }

    fn limit(&self) -> u64 {
        let answer = self
            .door("t")
            .get("/v1/check?domain=api&client=probe&peek=1");
        answer.header("x-ratelimit-limit").unwrap().parse().unwrap()
    }

    /// Puts a sound configuration in force.
    fn reloads(&self, limit: u64) {
        self.folder.replace("sidecar.yaml", &configuration(limit));
        until("a reload", IN_FORCE_WITHIN, || {
            (self.limit() == limit).then_some(())
        });
    }

    /// Has a configuration refused that has a great deal wrong with it.
    fn refuses(&self, time: usize) {
        let wrong: String = (0..FAULTS)
            .map(|field| format!("wrong_{time}_{field}: 1\n"))
            .collect();
        self.folder.replace("sidecar.yaml", &wrong);
        until("a refusal", IN_FORCE_WITHIN, || {
            let page = self.door("m").get("/readyz?verbose").text();
            page.contains(&format!("wrong_{time}_")).then_some(())
        });
    }

    fn lost(&self, reason: &str) -> f64 {
        let page = self.door("m").get("/metrics").text();
        MetricsPage::parse(&page).of("ratelimit_log_lines_lost_total", &[("reason", reason)])
    }

    /// Ends it in order: it drains, and says that all is well.
    fn stop(mut self) {
        let pid = self.child.id().to_string();
        let killed = self.folder.shell(&format!("kill -TERM {pid}"));
        assert_eq!(killed.code, Some(0));
        let status = until("the end", SOON, || self.child.try_wait().unwrap());
        assert_eq!(status.code(), Some(0));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn configuration(limit: u64) -> String {
    format!(
        "listen: {{ http: [\"unix:t.sock\"], metrics: [\"unix:m.sock\"] }}\ndrain: 1s\n\
         rules: [{{ domain: api, descriptors: [{{ key: client, rate_limit: {limit}/day }}] }}]\n"
    )
}

fn full() -> Stdio {
    OpenOptions::new()
        .write(true)
        .open("/dev/full")
        .unwrap()
        .into()
}

#[test]
fn a_full_disk_ends_nothing() {
    let daemon = Daemon::start(full(), full());
    until("a line is lost", SOON, || {
        (daemon.lost("write") > 0.0).then_some(())
    });
    daemon.reloads(20);
    daemon.reloads(30);
    daemon.stop();
}

#[test]
fn a_closed_pipe_ends_nothing() {
    let mut daemon = Daemon::start(Stdio::piped(), Stdio::piped());
    drop((daemon.child.stdout.take(), daemon.child.stderr.take()));
    daemon.reloads(20);
    until("a line is lost", SOON, || {
        (daemon.lost("write") > 0.0).then_some(())
    });
    daemon.reloads(30);
    daemon.stop();
}

/// The pipe is full after 64 KiB, and whoever writes more would wait for ever.
#[test]
fn a_reader_that_stalls_holds_nothing_up() {
    let mut daemon = Daemon::start(Stdio::piped(), Stdio::null());
    let unread: ChildStdout = daemon.child.stdout.take().unwrap();
    let all_kept = |time: &usize| {
        daemon.refuses(*time);
        daemon.lost("queue") == 0.0
    };
    assert_ne!((0..20).take_while(all_kept).count(), 20);
    daemon.reloads(20);
    daemon.stop();
    drop(unread);
}

/// What a command found is its exit status, whether or not it can be told.
#[test]
fn an_exit_status_does_not_depend_on_who_reads() {
    let folder = Folder::new();
    folder.write("bad.yaml", "drain: soon\n");
    for arguments in [
        &["run", "--config", "bad.yaml"][..],
        &["validate", "bad.yaml"],
        &["run", "--config", "nowhere.yaml"],
    ] {
        let mut command = folder.command(arguments);
        command.stdout(full()).stderr(full());
        let ran = CommandOutput::of(command.output().unwrap());
        assert_eq!(ran.code, Some(78), "{arguments:?}");
    }
    for arguments in [
        &["health", "--to", "unix:none"][..],
        &["check", "api", "a=b", "--to", "unix:none"],
    ] {
        let mut command = folder.command(arguments);
        command.stdout(full()).stderr(full());
        let ran = CommandOutput::of(command.output().unwrap());
        assert_eq!(ran.code, Some(2), "{arguments:?}");
    }
}

/// All that was logged is written before the end, however much it is.
#[test]
fn a_log_that_is_read_is_whole() {
    let mut daemon = Daemon::start(Stdio::piped(), Stdio::null());
    let mut stdout = daemon.child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || std::io::read_to_string(&mut stdout).unwrap());
    daemon.refuses(0);
    let lost = [daemon.lost("queue"), daemon.lost("write")];
    daemon.stop();
    let log = reader.join().unwrap();
    let refused = log.lines().filter(|line| line.contains("wrong_0_")).count();
    assert_eq!((refused, lost), (FAULTS, [0.0; 2]), "{log}");
    assert!(log.trim_end().ends_with("stopped"), "{log}");
}
