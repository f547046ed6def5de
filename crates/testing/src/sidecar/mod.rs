//! The real daemon, in a folder of its own, on addresses that the system chooses.
//!
//! A test that drops a [`Sidecar`] ends it, and fails if the daemon panicked.

mod setup;

pub use setup::{LISTEN, SidecarSetup};

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::client::{Client, Endpoint};
use crate::folder::Folder;
use crate::process::{OutputLines, send_signal};
use crate::prometheus::MetricsPage;
use crate::wait::{SOON, until};

/// A running daemon.
#[derive(Debug)]
pub struct Sidecar {
    child: Child,
    pub stdout: OutputLines,
    pub stderr: OutputLines,
    setup: Option<SidecarSetup>,
    status: Option<ExitStatus>,
}

impl Sidecar {
    /// A daemon that `command` starts.
    pub fn of(command: Command, folder: Folder) -> Self {
        Self::spawn(command, SidecarSetup::rules("").in_folder(folder))
    }

    fn spawn(mut command: Command, setup: SidecarSetup) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdout: OutputLines::of(child.stdout.take().unwrap()),
            stderr: OutputLines::of(child.stderr.take().unwrap()),
            child,
            setup: Some(setup),
            status: None,
        }
    }

    pub fn setup(&self) -> &SidecarSetup {
        self.setup.as_ref().unwrap()
    }

    pub fn folder(&self) -> &Folder {
        &self.setup().folder
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self) {
        until("a ready daemon", SOON, || {
            if let Some(status) = self.child.try_wait().unwrap() {
                let (out, err) = (self.stdout.text(), self.stderr.text());
                panic!("ended with {status}: {out}\n{err}");
            }
            self.stdout.text().contains("ready, ").then_some(())
        });
        let in_json = self.stdout.text().starts_with('{');
        if let Some(metrics) = in_json.then(|| self.door("metrics")).flatten() {
            until("readiness", SOON, || {
                (metrics.get("/readyz").status == 200).then_some(())
            });
        }
    }

    /// Every event logged so far; the log is JSON.
    pub fn events(&self) -> Vec<Value> {
        let parse = |line: &String| {
            serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
        };
        self.stdout.all().iter().map(parse).collect()
    }

    /// The events with this message.
    pub fn said(&self, message: &str) -> Vec<Value> {
        let mut events = self.events();
        events.retain(|event| event["message"] == message);
        events
    }

    /// Every address of a door, as the log says.
    pub fn doors(&self, name: &str) -> Vec<Endpoint> {
        let listening = self.said("listening");
        let of_door = listening.iter().filter(|event| event["door"] == name);
        of_door
            .map(|event| {
                let address = event["address"].as_str().unwrap();
                match address.strip_prefix("unix:") {
                    Some(path) => Endpoint::Unix(self.folder().path(path)),
                    None => Endpoint::Tcp(address.parse().unwrap()),
                }
            })
            .collect()
    }

    pub fn door(&self, name: &str) -> Option<Endpoint> {
        self.doors(name).into_iter().next()
    }

    pub fn http(&self) -> Endpoint {
        self.door("http").unwrap()
    }

    /// A connection for checks.
    pub fn connect(&self) -> Client {
        self.http().connect()
    }

    pub fn metrics(&self) -> MetricsPage {
        let page = self.door("metrics").unwrap().get("/metrics");
        assert_eq!(page.status, 200, "{}", page.text());
        MetricsPage::parse(&page.text())
    }

    pub fn admin(&self, path: &str) -> Value {
        let page = self.door("admin").unwrap().get(path);
        assert_eq!(page.status, 200, "{}", page.text());
        page.json()
    }

    pub fn signal(&self, signal: &str) {
        send_signal(self.pid(), signal);
    }

    pub fn has_ended(&mut self) -> bool {
        self.status = self.status.or_else(|| self.child.try_wait().unwrap());
        self.status.is_some()
    }

    /// Waits until it ends by itself and all its output is read. Returns its status.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        until("the end of the daemon", within, || {
            (self.has_ended() && self.stdout.has_ended() && self.stderr.has_ended()).then_some(())
        });
        self.status.unwrap()
    }

    /// Kills it. The setup that this returns starts another in the same folder.
    pub fn kill(mut self) -> SidecarSetup {
        self.child.kill().unwrap();
        self.wait(SOON);
        self.setup.take().unwrap()
    }

    /// A line of `/proc/PID/status`, such as `VmRSS` in kB or `Threads`.
    pub fn process(&self, field: &str) -> u64 {
        let path = Path::new("/proc").join(self.pid().to_string());
        let status = fs::read_to_string(path.join("status")).unwrap();
        let line = status.lines().find(|line| line.starts_with(field)).unwrap();
        let number = line.split_whitespace().nth(1).unwrap();
        number.parse().unwrap()
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let heard = || (self.stdout.has_ended() && self.stderr.has_ended()).then_some(());
        if !thread::panicking() {
            until("all that the daemon said", SOON, heard);
        }
        let said = format!("{}\n{}", self.stdout.text(), self.stderr.text());
        if thread::panicking() {
            eprintln!("the daemon said:\n{said}");
        } else {
            assert!(!said.contains("panicked"), "the daemon panicked:\n{said}");
        }
    }
}
