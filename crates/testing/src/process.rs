//! Programs that tests run: where the binary under test is, what a program printed, and signals.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};
use std::thread;

/// The root of the repository.
pub fn repository() -> &'static Path {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("this crate is two folders below the root")
}

/// The `tidegate` that cargo built with the running test or benchmark.
///
/// Cargo names it to the tests of its package. Everywhere else it is beside the folder `deps`, where tests are.
pub fn tidegate_binary() -> PathBuf {
    if let Some(named) = std::env::var_os("CARGO_BIN_EXE_tidegate") {
        return named.into();
    }
    let test = std::env::current_exe().expect("this program has a path");
    let found = test
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("tidegate"))
        .find(|path| path.is_file());
    found.unwrap_or_else(|| {
        let test = test.display();
        panic!("no tidegate beside {test}: run `cargo build --bin tidegate` in the same profile")
    })
}

/// Sends a signal to a process, by name: `STOP`, `CONT`, `TERM`.
pub fn send_signal(pid: u32, name: &str) {
    let sent = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(sent.expect("kill runs").success(), "kill -s {name} {pid}");
}

/// What a command that has ended printed, and its status.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// What a running child has printed so far, line by line.
#[derive(Clone, Debug)]
pub struct OutputLines(Arc<Mutex<(Vec<String>, bool)>>);

impl OutputLines {
    /// Reads `stream` in a thread of its own until it ends.
    pub fn of(stream: impl Read + Send + 'static) -> Self {
        let lines = Self(Arc::default());
        let heard = lines.clone();
        thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n') {
                let Ok(line) = line else { break };
                let line = String::from_utf8_lossy(&line).into_owned();
                heard.0.lock().unwrap().0.push(line);
            }
            heard.0.lock().unwrap().1 = true;
        });
        lines
    }

    pub fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().0.clone()
    }

    pub fn text(&self) -> String {
        self.all().join("\n")
    }

    pub fn has_ended(&self) -> bool {
        self.0.lock().unwrap().1
    }
}
