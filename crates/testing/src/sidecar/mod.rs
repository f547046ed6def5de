//! The real daemon, in a folder of its own, on addresses that the system chooses; and the one place that waits.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::client::{Client, Door};
use super::prometheus::Metrics;

/// For whatever has no deadline of its own: long enough for a busy machine.
pub const SOON: Duration = Duration::from_secs(20);
/// How long a wait rests between two looks.
const REST: Duration = Duration::from_millis(2);

/// The time. The only reader of it in these tests.
#[expect(
    clippy::disallowed_methods,
    reason = "the daemon under test runs by the real clock"
)]
pub fn now() -> Instant {
    Instant::now()
}

/// Looks until `look` finds something, and says how long that took. Fails after `within`.
pub fn until<T>(
    what: &str,
    within: Duration,
    mut look: impl FnMut() -> Option<T>,
) -> (T, Duration) {
    let begun = now();
    loop {
        if let Some(found) = look() {
            return (found, begun.elapsed());
        }
        let waited = begun.elapsed();
        assert!(waited < within, "{what}: not within {within:?}");
        thread::park_timeout(REST);
    }
}

/// A folder of this test's own, removed at the end.
#[derive(Debug)]
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // Short: the path of a Unix socket may have a hundred bytes.
        let name = format!("tidegate-it-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Writes beside and renames over, as careful writers do.
    pub fn replace(&self, name: &str, text: &str) {
        self.write(".new", text);
        fs::rename(self.path(".new"), self.path(name)).unwrap();
    }

    /// `tidegate` with these arguments, in this folder, without variables of ours in its environment.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(arguments).current_dir(&self.0);
        let ours = |name: &str| {
            name.starts_with("TIDEGATE_") || ["POD_NAME", "HOSTNAME", "REDIS_URL"].contains(&name)
        };
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_str().is_some_and(ours)) {
            command.env_remove(name);
        }
        command.stdin(Stdio::null());
        command
    }

    /// Runs `tidegate` to its end.
    pub fn run(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().unwrap())
    }

    /// Runs a line of shell to its end.
    pub fn shell(&self, line: &str) -> Ran {
        let mut command = Command::new("sh");
        command.args(["-c", line]).current_dir(&self.0);
        Ran::of(command.output().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    pub fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// What to start. Each part is YAML.
#[derive(Debug)]
pub struct Setup {
    pub folder: Folder,
    rules: String,
    top: String,
    listen: String,
    bounds: String,
    file: String,
    arguments: Vec<String>,
    variables: Vec<(String, String)>,
}

impl Setup {
    /// A daemon with these domains: a list as it stands below `rules:`.
    pub fn rules(rules: &str) -> Self {
        Self {
            folder: Folder::new(),
            rules: rules.to_owned(),
            top: "log: { format: json }".to_owned(),
            listen: LISTEN.to_owned(),
            bounds: "keys_max: 10000".to_owned(),
            file: "sidecar.yaml".to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
        }
    }

    /// Lines at the top level, in place of the one that sets the log's format.
    pub fn top(self, top: &str) -> Self {
        Self {
            top: top.to_owned(),
            ..self
        }
    }

    /// Another `listen`, as a flow map without its braces.
    pub fn listen(self, listen: &str) -> Self {
        Self {
            listen: listen.to_owned(),
            ..self
        }
    }

    /// More fields of `listen`.
    pub fn listen_also(mut self, more: &str) -> Self {
        self.listen += ", ";
        self.listen += more;
        self
    }

    /// More fields of `bounds`.
    pub fn bounds(mut self, more: &str) -> Self {
        self.bounds += ", ";
        self.bounds += more;
        self
    }

    /// Where the configuration is, from the folder. [`Setup::write`] is then the caller's to call or not.
    pub fn file(self, file: &str) -> Self {
        Self {
            file: file.to_owned(),
            ..self
        }
    }

    pub fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.to_owned());
        self
    }

    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// The configuration with these rules in place of its own.
    pub fn with(&self, rules: &str) -> String {
        let Self {
            top,
            listen,
            bounds,
            ..
        } = self;
        format!("listen: {{ {listen} }}\n{top}\nbounds: {{ {bounds} }}\nrules:\n{rules}\n")
    }

    pub fn yaml(&self) -> String {
        self.with(&self.rules)
    }

    /// Writes the configuration and starts.
    pub fn start(self) -> Sidecar {
        self.folder.write(&self.file, &self.yaml());
        self.start_as_is()
    }

    /// Starts with what is in the folder.
    pub fn start_as_is(self) -> Sidecar {
        let mut sidecar = self.spawn();
        sidecar.wait_until_ready();
        sidecar
    }

    /// Writes the configuration and starts a daemon that is expected to end by itself.
    pub fn fail(self) -> (Ran, Folder) {
        self.folder.write(&self.file, &self.yaml());
        let mut sidecar = self.spawn();
        let code = sidecar.wait(SOON).code();
        let ran = Ran {
            code,
            stdout: sidecar.stdout.text(),
            stderr: sidecar.stderr.text(),
        };
        let folder = sidecar.setup.take().unwrap().folder;
        (ran, folder)
    }

    fn spawn(self) -> Sidecar {
        let mut command = self.folder.command(&["--config", &self.file]);
        command.args(&self.arguments);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        Sidecar::spawn(command, self)
    }
}

/// Every door on a port of the system's choice, and checks on a Unix socket too.
pub const LISTEN: &str =
    r#"http: ["127.0.0.1:0", "unix:t.sock"], metrics: ["127.0.0.1:0"], admin: ["127.0.0.1:0"]"#;

/// What a stream of a child has said so far.
#[derive(Clone, Debug)]
pub struct Lines(Arc<Mutex<(Vec<String>, bool)>>);

impl Lines {
    fn of(stream: impl Read + Send + 'static) -> Self {
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

    fn ended(&self) -> bool {
        self.0.lock().unwrap().1
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Sidecar {
    child: Child,
    pub stdout: Lines,
    pub stderr: Lines,
    setup: Option<Setup>,
    status: Option<ExitStatus>,
}

impl Sidecar {
    /// A daemon started by a command of the caller's own.
    pub fn of(command: Command, folder: Folder) -> Self {
        let setup = Setup {
            folder,
            ..Setup::rules("")
        };
        Self::spawn(command, setup)
    }

    fn spawn(mut command: Command, setup: Setup) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        Self {
            stdout: Lines::of(child.stdout.take().unwrap()),
            stderr: Lines::of(child.stderr.take().unwrap()),
            child,
            setup: Some(setup),
            status: None,
        }
    }

    pub fn setup(&self) -> &Setup {
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

    /// Every address of a door, as the log tells it.
    pub fn doors(&self, name: &str) -> Vec<Door> {
        let listening = self.said("listening");
        let of_door = listening.iter().filter(|event| event["door"] == name);
        of_door
            .map(|event| {
                let address = event["address"].as_str().unwrap();
                match address.strip_prefix("unix:") {
                    Some(path) => Door::Unix(self.folder().path(path)),
                    None => Door::Tcp(address.parse().unwrap()),
                }
            })
            .collect()
    }

    pub fn door(&self, name: &str) -> Option<Door> {
        self.doors(name).into_iter().next()
    }

    pub fn http(&self) -> Door {
        self.door("http").unwrap()
    }

    /// A connection for checks.
    pub fn connect(&self) -> Client {
        self.http().connect()
    }

    pub fn metrics(&self) -> Metrics {
        let page = self.door("metrics").unwrap().get("/metrics");
        assert_eq!(page.status, 200, "{}", page.text());
        Metrics::parse(&page.text())
    }

    pub fn admin(&self, path: &str) -> Value {
        let page = self.door("admin").unwrap().get(path);
        assert_eq!(page.status, 200, "{}", page.text());
        page.json()
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, signal: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", signal, &pid]).status();
        assert!(sent.unwrap().success(), "kill -s {signal} {pid}");
    }

    pub fn has_ended(&mut self) -> bool {
        self.status = self.status.or_else(|| self.child.try_wait().unwrap());
        self.status.is_some()
    }

    /// Its end, which has to come by itself, with all that it said.
    pub fn wait(&mut self, within: Duration) -> ExitStatus {
        until("the end of the daemon", within, || {
            (self.has_ended() && self.stdout.ended() && self.stderr.ended()).then_some(())
        });
        self.status.unwrap()
    }

    /// Kills it and starts another in the same folder.
    pub fn kill(mut self) -> Setup {
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
        let heard = || (self.stdout.ended() && self.stderr.ended()).then_some(());
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
