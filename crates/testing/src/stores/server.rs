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
/// Below the ports that the system gives to clients, and so are a cluster's buses, ten thousand above: a client that
/// finds its server gone cannot take the server's port.
const PORT_FIRST: u32 = 11_000;
const PORTS: u32 = 11_000;

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

/// A port that nobody listens on, and that this process has not given away before.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests of other processes begin elsewhere.
    let first = std::process::id().wrapping_mul(251);
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    until("a free port", STARTS_WITHIN, || {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORT_FIRST + first.wrapping_add(nth) % PORTS;
        let port = u16::try_from(port).expect("a port");
        (free(port) && free(port + 10_000)).then_some(port)
    })
}

/// The value of `name:value` in what INFO or CLUSTER INFO prints.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let line = |line: &'a str| line.trim().strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(line)
}

/// A server to start.
#[derive(Debug)]
pub struct Plan {
    program: PathBuf,
    arguments: Vec<String>,
    client: Vec<String>,
    folder: PathBuf,
    port: u16,
}

impl Plan {
    /// A plain `redis-server` that keeps nothing.
    pub fn new() -> Self {
        let plan = Self::bare();
        let (port, folder) = (plan.port.to_string(), plan.folder.display().to_string());
        plan.arguments(&["--port", &port, "--bind", "127.0.0.1", "--dir", &folder])
            .arguments(&["--save", "", "--appendonly", "no"])
    }

    /// A `redis-server` that is told everything by its arguments.
    pub fn bare() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-redis-{}-{count}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        Self {
            program: PathBuf::from("redis-server"),
            arguments: Vec::new(),
            client: Vec::new(),
            folder,
            port: free_port(),
        }
    }

    /// Another program, such as Valkey's.
    pub fn program(mut self, program: &Path) -> Self {
        program.clone_into(&mut self.program);
        self
    }

    /// Further arguments.
    pub fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments
            .extend(arguments.iter().map(ToString::to_string));
        self
    }

    /// Speaks TLS and nothing else, with a certificate, its key and who signed both sides'. Whether clients have to show
    /// one, too, is `yes` or `no`.
    pub fn tls(self, [certificate, key, authority]: [&str; 3], clients: &str) -> Self {
        let port = self.port.to_string();
        self.arguments(&["--port", "0", "--tls-port", &port])
            .arguments(&["--tls-cert-file", certificate, "--tls-key-file", key])
            .arguments(&["--tls-ca-cert-file", authority])
            .arguments(&["--tls-auth-clients", clients])
    }

    /// Further arguments of `redis-cli`.
    pub fn client(mut self, arguments: &[&str]) -> Self {
        self.client
            .extend(arguments.iter().map(ToString::to_string));
        self
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> Server {
        let child = self.spawn();
        let mut server = Server { plan: self, child };
        server.wait();
        server
    }

    /// Where it says what is wrong.
    fn log(&self) -> PathBuf {
        self.folder.join("log")
    }

    fn spawn(&self) -> Child {
        let log = fs::File::create(self.log()).expect("a log");
        Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts")
    }
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    plan: Plan,
    child: Child,
}

impl Server {
    /// `redis-server` with these further arguments, answering.
    pub fn start(arguments: &[&str]) -> Self {
        Plan::new().arguments(arguments).start()
    }

    /// The same with another program, such as Valkey's.
    pub fn start_program(program: &Path, arguments: &[&str]) -> Self {
        let plan = Plan::new().program(program);
        plan.arguments(arguments).start()
    }

    pub fn port(&self) -> u16 {
        self.plan.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        &self.plan.folder
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    /// What `redis-cli` with these words prints.
    pub fn cli(&self, words: &[&str]) -> String {
        let printed = self.cli_bytes(words);
        String::from_utf8_lossy(&printed).trim().to_owned()
    }

    /// The same, to the byte, but for the newline that ends it.
    pub fn cli_bytes(&self, words: &[&str]) -> Vec<u8> {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port().to_string()])
            .args(&self.plan.client)
            .args(words)
            .output()
            .expect("redis-cli runs");
        let mut printed = output.stdout;
        printed.pop();
        printed
    }

    /// A number that INFO tells.
    pub fn info(&self, section: &str, name: &str) -> f64 {
        let info = self.cli(&["INFO", section]);
        let value = field(&info, name);
        let number = value.and_then(|value| value.parse().ok());
        number.unwrap_or_else(|| panic!("no number {name} in {info}"))
    }

    /// How often a command was called since the server started.
    pub fn calls(&self, command: &str) -> u64 {
        let info = self.cli(&["INFO", "commandstats"]);
        let stats = field(&info, &format!("cmdstat_{command}"));
        let calls = stats.and_then(|stats| stats.strip_prefix("calls=")?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again on its port.
    pub fn restart(&mut self) {
        self.kill();
        self.child = self.plan.spawn();
        self.wait();
    }

    /// Sends it a signal, such as `STOP` or `CONT`.
    pub fn signal(&self, name: &str) {
        let pid = self.pid().to_string();
        let sent = Command::new("kill").args(["-s", name, &pid]).status();
        assert!(sent.expect("kill runs").success(), "{name} to {pid}");
    }

    fn wait(&mut self) {
        // Whatever it answers, even that a password is needed, it answers.
        until("redis-server answers", STARTS_WITHIN, || {
            let ended = self.child.try_wait().expect("a child");
            if let Some(status) = ended {
                let log = fs::read_to_string(self.plan.log()).unwrap_or_default();
                panic!("{status}: {:?}\n{log}", self.plan);
            }
            (!self.cli(&["PING"]).is_empty()).then_some(())
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.plan.folder);
    }
}
