//! A real redis-server of a test's own: on a port that was free, in a folder of its own, ended by its id.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::folder::Folder;
use crate::port::free_port;
use crate::process::send_signal;
use crate::wait::{SOON, until};

/// The value of `name:value` in what INFO or CLUSTER INFO prints.
pub fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let line = |line: &'a str| line.trim().strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(line)
}

/// A server to start.
#[derive(Debug)]
pub struct ServerPlan {
    program: PathBuf,
    arguments: Vec<String>,
    client: Vec<String>,
    folder: Folder,
    port: u16,
}

impl Default for ServerPlan {
    /// A plain `redis-server` that keeps nothing.
    fn default() -> Self {
        let plan = Self::bare();
        let (port, folder) = (plan.port.to_string(), plan.folder().display().to_string());
        plan.arguments(&["--port", &port, "--bind", "127.0.0.1", "--dir", &folder])
            .arguments(&["--save", "", "--appendonly", "no"])
    }
}

impl ServerPlan {
    /// A plain `redis-server` that keeps nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// A `redis-server` that has only the arguments which the caller adds.
    pub fn bare() -> Self {
        Self {
            program: PathBuf::from("redis-server"),
            arguments: Vec::new(),
            client: Vec::new(),
            folder: Folder::new(),
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

    /// Speaks TLS and nothing else, with a certificate, its key and the authority that signed both sides' certificates.
    /// `clients` is `yes` or `no`: whether clients have to show a certificate too.
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
        self.folder.root()
    }

    /// Starts it and waits until it answers.
    pub fn start(self) -> RedisServer {
        let child = self.spawn();
        let mut server = RedisServer { plan: self, child };
        server.wait();
        server
    }

    /// The file that the server logs to.
    fn log(&self) -> PathBuf {
        self.folder.path("log")
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

/// What INFO reports of one command since the server started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommandStats {
    pub calls: u64,
    /// Microseconds that the server spent in it.
    pub micros: u64,
}

impl CommandStats {
    /// Reads `calls=3,usec=21,…`.
    fn parse(stats: &str) -> Self {
        let number = |name: &str| {
            let mut pairs = stats.split(',').filter_map(|pair| pair.split_once('='));
            let value = pairs.find_map(|(key, value)| (key == name).then_some(value));
            let number = value.and_then(|value| value.parse().ok());
            number.unwrap_or_else(|| panic!("no number {name} in {stats}"))
        };
        Self {
            calls: number("calls"),
            micros: number("usec"),
        }
    }
}

/// A running server.
#[derive(Debug)]
pub struct RedisServer {
    plan: ServerPlan,
    child: Child,
}

impl RedisServer {
    /// Starts `redis-server` with these further arguments, and waits until it answers.
    pub fn start(arguments: &[&str]) -> Self {
        ServerPlan::new().arguments(arguments).start()
    }

    /// The same with another program, such as Valkey's.
    pub fn start_program(program: &Path, arguments: &[&str]) -> Self {
        let plan = ServerPlan::new().program(program);
        plan.arguments(arguments).start()
    }

    pub fn port(&self) -> u16 {
        self.plan.port
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.plan.folder()
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

    /// The same as bytes, without the last newline.
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

    /// A number that INFO reports.
    pub fn info(&self, section: &str, name: &str) -> f64 {
        let info = self.cli(&["INFO", section]);
        let value = field(&info, name);
        let number = value.and_then(|value| value.parse().ok());
        number.unwrap_or_else(|| panic!("no number {name} in {info}"))
    }

    /// How often a command was called since the server started.
    pub fn calls(&self, command: &str) -> u64 {
        self.command_stats(command).calls
    }

    pub fn command_stats(&self, command: &str) -> CommandStats {
        let info = self.cli(&["INFO", "commandstats"]);
        let stats = field(&info, &format!("cmdstat_{command}"));
        stats.map_or_else(CommandStats::default, CommandStats::parse)
    }

    /// Seconds that the server has had on a processor.
    pub fn processor_seconds(&self) -> f64 {
        self.info("cpu", "used_cpu_user") + self.info("cpu", "used_cpu_sys")
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
        send_signal(self.pid(), name);
    }

    fn wait(&mut self) {
        // Any answer will do, even that a password is needed.
        until("redis-server answers", SOON, || {
            let ended = self.child.try_wait().expect("a child");
            if let Some(status) = ended {
                let log = fs::read_to_string(self.plan.log()).unwrap_or_default();
                panic!("{status}: {:?}\n{log}", self.plan);
            }
            (!self.cli(&["PING"]).is_empty()).then_some(())
        });
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
