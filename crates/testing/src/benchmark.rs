//! What benchmarks share: servers as processes of their own on one core, the load on another.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::folder::Folder;
use crate::port::free_port;
use crate::process::tidegate_binary;
use crate::stores::field;
use crate::wait::until;

/// How long a server may take to listen.
const START_MAX: Duration = Duration::from_secs(10);
const SERVER_CORE: &str = "0";
const LOAD_CORE: &str = "1";

/// A running server that listens on TCP and on a Unix socket. Dropping this ends it.
#[derive(Debug)]
pub struct MeasuredServer {
    process: Child,
    pub tcp: SocketAddr,
    pub unix: PathBuf,
}

impl MeasuredServer {
    /// The sidecar, with only this door, and one rule that denies nothing.
    pub fn tidegate(folder: &Folder, door: &str, pinned: bool) -> Self {
        let (tcp, unix) = (free_address(), folder.path("tidegate.sock"));
        let config = folder.path("sidecar.yaml");
        let text = format!(
            "listen:\n  {door}: [\"{tcp}\", \"unix:{}\"]\nrules:\n  - domain: bench\n    descriptors:\n      \
            - key: client\n        rate_limit: 1000000000/second\n",
            unix.display()
        );
        fs::write(&config, text).expect("the configuration is written");
        let mut command = pinned_command(&tidegate_binary(), pinned);
        command.arg("--config").arg(config);
        Self::start(command, tcp, unix)
    }

    /// Runs this binary again, as the floor of that name.
    pub fn floor(folder: &Folder, name: &str, more: &[&Path], pinned: bool) -> Self {
        let (tcp, unix) = (free_address(), folder.path(&format!("{name}.sock")));
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
        let server = Self { process, tcp, unix };
        until("a server that listens", START_MAX, || {
            TcpStream::connect(tcp).ok()?;
            UnixStream::connect(&server.unix).ok()
        });
        server
    }

    /// The id of its process.
    pub fn id(&self) -> u32 {
        self.process.id()
    }
}

impl Drop for MeasuredServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Processor time of all threads of a process so far.
pub fn processor_time(process: u32) -> Duration {
    let nanos = of_threads(process, "schedstat")
        .filter_map(|stat| stat.split(' ').next()?.parse::<u64>().ok())
        .sum();
    Duration::from_nanos(nanos)
}

/// How often the threads of a process have gone to sleep so far. Each sleep ends with a wake-up.
pub fn voluntary_switches(process: u32) -> u64 {
    of_threads(process, "status")
        .filter_map(|status| {
            let number = field(&status, "voluntary_ctxt_switches")?;
            number.trim().parse::<u64>().ok()
        })
        .sum()
}

/// The text of this file of `/proc`, for each thread of a process.
fn of_threads(process: u32, file: &str) -> impl Iterator<Item = String> {
    let threads = fs::read_dir(format!("/proc/{process}/task"));
    threads
        .expect("the server runs")
        .filter_map(move |thread| fs::read_to_string(thread.ok()?.path().join(file)).ok())
}

/// A command that runs on the servers' core if `pinned`.
pub fn pinned_command(binary: &Path, pinned: bool) -> Command {
    if !pinned {
        return Command::new(binary);
    }
    let mut command = Command::new("taskset");
    command.args(["-c", SERVER_CORE]).arg(binary);
    command
}

/// Pins this process to the load's core. False if that is not possible here.
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
    SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()))
}

/// The median.
pub fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut sorted: Vec<f64> = figures.collect();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// What to print beside a target.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}
