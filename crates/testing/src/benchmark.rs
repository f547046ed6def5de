//! Servers as processes of their own on one core, the load on another.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);
const SERVER_CORE: &str = "0";
const LOAD_CORE: &str = "1";

/// A running server, listening on both transports. It ends with this.
pub struct Running {
    process: Child,
    pub tcp: SocketAddr,
    pub unix: PathBuf,
}

impl Running {
    /// The sidecar, with only this door, and one rule that denies nothing.
    pub fn tidegate(directory: &Directory, door: &str, pinned: bool) -> Self {
        let (tcp, unix) = (free_address(), directory.0.join("tidegate.sock"));
        let config = directory.0.join("sidecar.yaml");
        let text = format!(
            "listen:\n  {door}: [\"{tcp}\", \"unix:{}\"]\nrules:\n  - domain: bench\n    descriptors:\n      \
            - key: client\n        rate_limit: 1000000000/second\n",
            unix.display()
        );
        fs::write(&config, text).expect("the configuration is written");
        let mut command = pinned_command(env!("CARGO_BIN_EXE_tidegate").as_ref(), pinned);
        command.arg("--config").arg(config);
        Self::start(command, tcp, unix)
    }

    /// This binary run again as the floor of that name.
    pub fn floor(directory: &Directory, name: &str, more: &[&Path], pinned: bool) -> Self {
        let (tcp, unix) = (free_address(), directory.0.join(format!("{name}.sock")));
        let binary = std::env::current_exe().expect("this binary has a path");
        let mut command = pinned_command(&binary, pinned);
        command.arg(name).arg(tcp.to_string()).arg(&unix).args(more);
        Self::start(command, tcp, unix)
    }

    /// Starts it, and waits until it listens.
    pub fn start(mut command: Command, tcp: SocketAddr, unix: PathBuf) -> Self {
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the server starts");
        let begun = Instant::now();
        while TcpStream::connect(tcp).is_err() || UnixStream::connect(&unix).is_err() {
            assert!(begun.elapsed() < START_MAX, "the server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self { process, tcp, unix }
    }

    /// Its number among processes.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Time that a process has been on the processor so far, all threads.
pub fn processor_time(process: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    let nanos = threads
        .expect("the server runs")
        .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("schedstat")).ok())
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanos)
}

/// A command on the servers' core.
pub fn pinned_command(binary: &Path, pinned: bool) -> Command {
    if !pinned {
        return Command::new(binary);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", SERVER_CORE]).arg(binary);
    command
}

/// Keeps this process on its own core. Whether that is possible.
pub fn pin_load() -> bool {
    let pinned = Command::new("taskset")
        .args(["-acp", LOAD_CORE, &std::process::id().to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    if !pinned {
        println!("taskset does not work here: nothing is pinned, the figures are noisier");
    }
    pinned
}

/// An address nobody listens on.
pub fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
}

/// A directory that goes when the run ends.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a directory for sockets");
        Self(path)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The middle one.
pub fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
