//! A real redis-server of a test's own: on a port that was free, in a folder of its own, ended by its id.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// For a server that starts on a busy machine.
const STARTS_WITHIN: Duration = Duration::from_secs(20);

/// The time. The only reader of it here.
#[expect(clippy::disallowed_methods, reason = "servers run by the real clock")]
pub fn now() -> Instant {
    Instant::now()
}

/// Looks until `look` finds something. Fails after `within`.
pub fn until<T>(what: &str, within: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < within, "{what}: not within {within:?}");
        thread::park_timeout(Duration::from_millis(5));
    }
}

/// A port that nobody listens on.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
    port: u16,
    child: Child,
}

impl Server {
    /// `redis-server` with these further arguments, answering.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_program(Path::new("redis-server"), arguments)
    }

    /// The same with another program, such as Valkey's.
    pub fn start_program(program: &Path, arguments: &[&str]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-redis-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let port = free_port();
        let child = spawn(program, &arguments, &folder, port);
        let server = Self {
            program: program.to_owned(),
            arguments,
            folder,
            port,
            child,
        };
        server.wait();
        server
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` with these words prints.
    pub fn cli(&self, words: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.to_string()])
            .args(words)
            .output()
            .expect("redis-cli runs");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(&self.program, &self.arguments, &self.folder, self.port);
        self.wait();
    }

    /// Sends it a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success(), "{name} to {pid}");
    }

    fn wait(&self) {
        // Whatever it answers, even that a password is needed, it answers.
        until("redis-server answers", STARTS_WITHIN, || {
            (!self.cli(&["PING"]).is_empty()).then_some(())
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn spawn(program: &Path, arguments: &[String], folder: &Path, port: u16) -> Child {
    let port = port.to_string();
    Command::new(program)
        .args([
            "--port",
            &port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ])
        .arg("--dir")
        .arg(folder)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server starts")
}
