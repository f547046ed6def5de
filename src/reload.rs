//! Hot reload: notices that the configuration changed, and puts its rules in force.
//!
//! It notices a change in two ways, because each alone misses something: the system reports changes in the folders
//! (editors that write in place or rename, a ConfigMap's `..data` swap), and a poll compares the content of the files. A
//! bad file changes nothing: the running rules stay, the faults are logged, counted and shown.

use std::panic::{self, AssertUnwindSafe};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tracing::{info, warn};

use crate::admin::status::Status;
use crate::clock::Clock;
use crate::telemetry::{RELOADS, Telemetry};
use tidegate_config::{self, Config};
use tidegate_core::engine::Engine;

/// The time between two comparisons of the files. Only a change that the system does not report waits for one.
const POLL_EVERY: Duration = Duration::from_secs(5);
/// How long the files must stay the same before they are read: their writer may not be done.
const SETTLE: Duration = Duration::from_millis(100);
/// After so many changes in a row, the files are read anyway.
const SETTLE_ROUNDS_MAX: usize = 20;

/// The fault that is shown after a panic.
const PANICKED: &str = "tidegate panicked while it read the configuration; the log says where";

/// Why to look at the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something changed in a watched folder.
    Changed,
    /// Somebody sent SIGHUP.
    Requested,
    /// The daemon ends.
    Stop,
}

/// Looks up a variable of the configuration: a flag, or the process's environment.
pub type Variables = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Reads the configuration again when it changes.
pub struct Reloader {
    /// The configuration file.
    pub path: PathBuf,
    /// The configuration at the start. Sections that need a restart are compared with it.
    pub started_with: Config,
    /// The engine that gets the rules.
    pub engine: Arc<Engine>,
    /// The metrics that count reloads.
    pub telemetry: Arc<Telemetry>,
    /// The state that the admin API shows.
    pub status: Arc<Status>,
    /// Variables for the configuration.
    pub variables: Variables,
}

/// A running reloader.
#[derive(Debug)]
pub struct ReloadHandle {
    wake: Sender<Wake>,
    thread: std::thread::JoinHandle<()>,
}

impl ReloadHandle {
    /// Requests a reload now.
    pub fn request(&self) {
        // It fails only if the thread has ended, which happens only after `stop`.
        let _ = self.wake.send(Wake::Requested);
    }

    /// Ends the thread and waits for it.
    pub fn stop(self) {
        let _ = self.wake.send(Wake::Stop);
        let _ = self.thread.join();
    }
}

impl Reloader {
    /// Starts a thread that watches and reads the files, so that nothing waits for them.
    pub fn start(self) -> std::io::Result<ReloadHandle> {
        let (wake, receiver) = mpsc::channel();
        let sender = wake.clone();
        let thread = std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || self.run_on(&receiver, &sender))?;
        Ok(ReloadHandle { wake, thread })
    }

    /// Runs until [`Wake::Stop`]. A panic ends one attempt, which counts as refused; later reloads go on.
    fn run_on(&self, receiver: &Receiver<Wake>, sender: &Sender<Wake>) {
        while panic::catch_unwind(AssertUnwindSafe(|| self.run(receiver, sender))).is_err() {
            self.telemetry.restarted("reload");
            self.telemetry.refused();
            self.status.configuration().faults = vec![PANICKED.to_owned()];
        }
    }

    fn run(&self, receiver: &Receiver<Wake>, sender: &Sender<Wake>) {
        let mut sources = self.started_with.sources.clone();
        let mut seen = self.started_with.hash;
        let mut watch = FolderWatch::of(&sources, sender);
        loop {
            let wake = match receiver.recv_timeout(POLL_EVERY) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(wake) => wake,
                Err(RecvTimeoutError::Timeout) => Wake::Changed,
            };
            let now = tidegate_config::fingerprint(&sources);
            if now == seen && wake != Wake::Requested {
                continue;
            }
            let Some(now) = settled(now, receiver, &sources) else {
                return;
            };
            // If a file changed since this fingerprint or during the reading, the next poll reads it again.
            match self.attempt() {
                Ok((read, hash)) => (sources, seen) = (read, hash),
                Err(read) => {
                    seen = now;
                    // Keep watching sources that a broken file no longer names: their absence is not a change.
                    if read.iter().any(|source| !sources.contains(source)) {
                        sources = read;
                    }
                }
            }
            watch = watch.moved_to(&sources, sender);
        }
    }

    /// Reads the configuration and puts it in force if it has no faults. Returns the sources; on success with their
    /// fingerprint.
    fn attempt(&self) -> Result<(Vec<PathBuf>, u64), Vec<PathBuf>> {
        match tidegate_config::load(&self.path, &*self.variables) {
            Ok(config) => {
                let read = (config.sources.clone(), config.hash);
                self.apply(config);
                Ok(read)
            }
            Err(faults) => {
                self.telemetry.refused();
                for fault in faults.iter() {
                    warn!(%fault, "configuration refused");
                }
                self.status.configuration().faults =
                    faults.iter().map(ToString::to_string).collect();
                Err(faults.sources().to_vec())
            }
        }
    }

    fn apply(&self, config: Config) {
        let mut configuration = self.status.configuration();
        configuration.faults.clear();
        self.telemetry.configured(config.hash);
        if config.hash == configuration.hash {
            self.telemetry.counter(RELOADS, &["unchanged"]).increment(1);
            info!("configuration unchanged");
            return;
        }
        self.warn_of_restart(&config);
        for warning in &config.warnings {
            warn!(%warning, "configuration");
        }
        let rules = config.rules.all().len();
        self.engine.reload(config.rules);
        let snapshot = self.engine.snapshot();
        self.telemetry.rules_changed(&snapshot);
        self.telemetry.counter(RELOADS, &["applied"]).increment(1);
        configuration.version = snapshot.version();
        configuration.hash = config.hash;
        configuration.applied_at = Some(Clock::get().calendar());
        configuration.warnings = config.warnings.iter().map(ToString::to_string).collect();
        info!(rules, version = snapshot.version(), "configuration applied");
    }

    fn warn_of_restart(&self, config: &Config) {
        let before = &self.started_with;
        let changed = [
            ("listen", before.listen != config.listen),
            ("store", before.store != config.store),
            ("sync", before.sync != config.sync),
            ("bounds", before.bounds != config.bounds),
            ("headers", before.headers != config.headers),
            ("keys", before.keys != config.keys),
            ("log", before.log != config.log),
            ("drain", before.drain != config.drain),
            ("pod", before.pod_id != config.pod_id),
        ];
        for (section, _) in changed.into_iter().filter(|(_, changed)| *changed) {
            warn!(
                section,
                "changed, and needs a restart: rules are reloaded, this is not"
            );
        }
    }
}

/// Waits until the files stay the same. `None` if it is time to stop.
fn settled(mut seen: u64, receiver: &Receiver<Wake>, sources: &[PathBuf]) -> Option<u64> {
    for _ in 0..SETTLE_ROUNDS_MAX {
        pause(receiver)?;
        let now = tidegate_config::fingerprint(sources);
        if now == seen {
            break;
        }
        seen = now;
    }
    Some(seen)
}

/// Waits for [`SETTLE`]. Further changes do not extend the wait: somebody may write another file in the folder all the
/// time. `None` if it is time to stop.
fn pause(receiver: &Receiver<Wake>) -> Option<()> {
    let clock = Clock::get();
    let begun = clock.moment().now;
    while let Some(left) = SETTLE.checked_sub(clock.since(begun)) {
        match receiver.recv_timeout(left) {
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return None,
            Ok(Wake::Changed | Wake::Requested) => {}
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    Some(())
}

/// The watched folders.
struct FolderWatch {
    folders: Vec<PathBuf>,
    /// Watches until it is dropped.
    _watcher: Option<RecommendedWatcher>,
}

impl FolderWatch {
    /// Watches the folders of `sources`. Where the system cannot watch, only the poll is left.
    fn of(sources: &[PathBuf], sender: &Sender<Wake>) -> Self {
        let folders = folders(sources);
        let sender = sender.clone();
        let changed = move |event: notify::Result<notify::Event>| {
            // The system also reports reads, including our own; they are not changes.
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = sender.send(Wake::Changed);
            }
        };
        let watcher = notify::recommended_watcher(changed).and_then(|mut watcher| {
            for folder in &folders {
                watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            info!(%error, "the system cannot watch the folders, so only the poll every 5 s finds changes");
        }
        Self {
            folders,
            _watcher: watcher.ok(),
        }
    }

    fn moved_to(self, sources: &[PathBuf], sender: &Sender<Wake>) -> Self {
        match folders(sources) == self.folders {
            true => self,
            false => Self::of(sources, sender),
        }
    }
}

/// The folder of each file, and each folder itself.
fn folders(sources: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = sources
        .iter()
        .map(|source| match source.is_dir() {
            true => source.clone(),
            false => match source.parent() {
                Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
                Some(_) | None => Path::new(".").to_owned(),
            },
        })
        .collect();
    folders.sort();
    folders.dedup();
    folders
}
