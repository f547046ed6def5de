//! Hot reload: notices that the configuration changed, and puts its rules in force.
//!
//! Two ways to notice, because each alone misses something: the system tells of changes in the folders (editors that
//! write in place or rename, a ConfigMap's `..data` swap), and a poll compares what the files hold. A bad file changes
//! nothing: the running rules stay, the faults are logged, counted and shown.

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

/// How often the files are compared, told or not.
const POLL_EVERY: Duration = Duration::from_secs(2);
/// How long the files must stay the same before they are read: whoever writes them may not be done.
const SETTLE: Duration = Duration::from_millis(100);
/// After so long a file that never rests is read anyway.
const SETTLE_ROUNDS_MAX: usize = 20;

/// What is shown when a fault of ours ended an attempt.
const PANICKED: &str =
    "tidegate failed by a fault of its own while it read the configuration; the log tells where";

/// Why to look at the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something changed in a watched folder.
    Changed,
    /// Somebody asked (SIGHUP).
    Asked,
    /// The daemon ends.
    Stop,
}

/// Looks a variable of the configuration up: a flag, or the process's environment.
pub type Variables = Box<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// Reads the configuration again when it changes.
pub struct Reloader {
    /// The configuration file.
    pub path: PathBuf,
    /// What the daemon was started with: what of it a reload cannot change is compared with this.
    pub started_with: Config,
    /// Where the rules go.
    pub engine: Arc<Engine>,
    /// Where it is counted.
    pub telemetry: Arc<Telemetry>,
    /// Where it is shown.
    pub status: Arc<Status>,
    /// Variables for the configuration.
    pub variables: Variables,
}

/// A running reloader.
#[derive(Debug)]
pub struct Handle {
    wake: Sender<Wake>,
    thread: std::thread::JoinHandle<()>,
}

impl Handle {
    /// Reads the configuration again now.
    pub fn ask(&self) {
        // It fails only if the thread is gone, which it is only after `stop`.
        let _ = self.wake.send(Wake::Asked);
    }

    /// Ends the thread and waits for it.
    pub fn stop(self) {
        let _ = self.wake.send(Wake::Stop);
        let _ = self.thread.join();
    }
}

impl Reloader {
    /// Starts watching, in a thread of its own: files are read without holding up anything.
    pub fn start(self) -> std::io::Result<Handle> {
        let (wake, woken) = mpsc::channel();
        let told = wake.clone();
        let thread = std::thread::Builder::new()
            .name("reload".to_owned())
            .spawn(move || self.run_on(&woken, &told))?;
        Ok(Handle { wake, thread })
    }

    /// Runs until it is told to stop. A fault of ours ends one attempt, which counts as refused, and not the reloads.
    fn run_on(&self, woken: &Receiver<Wake>, told: &Sender<Wake>) {
        while panic::catch_unwind(AssertUnwindSafe(|| self.run(woken, told))).is_err() {
            self.telemetry.restarted("reload");
            self.telemetry.refused();
            self.status.configuration().faults = vec![PANICKED.to_owned()];
        }
    }

    fn run(&self, woken: &Receiver<Wake>, told: &Sender<Wake>) {
        let mut sources = self.started_with.sources.clone();
        let mut seen = self.started_with.hash;
        let mut watch = Watch::of(&sources, told);
        loop {
            let wake = match woken.recv_timeout(POLL_EVERY) {
                Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                Ok(wake) => wake,
                Err(RecvTimeoutError::Timeout) => Wake::Changed,
            };
            let now = tidegate_config::fingerprint(&sources);
            if now == seen && wake != Wake::Asked {
                continue;
            }
            let Some(now) = settled(now, woken, &sources) else {
                return;
            };
            // A file that changed since this fingerprint or since the reading is read again by the next poll.
            match self.attempt() {
                Ok((read, hash)) => (sources, seen) = (read, hash),
                Err(read) => {
                    seen = now;
                    // What a broken file no longer names is watched on: it does not count as a change.
                    if read.iter().any(|source| !sources.contains(source)) {
                        sources = read;
                    }
                }
            }
            watch = watch.moved_to(&sources, told);
        }
    }

    /// Reads the configuration and puts it in force if it is sound. Answers what was read: then with its fingerprint.
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
        self.say_what_needs_a_restart(&config);
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

    fn say_what_needs_a_restart(&self, config: &Config) {
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

/// Waits until the files hold still. `None` if it is time to stop.
fn settled(mut seen: u64, woken: &Receiver<Wake>, sources: &[PathBuf]) -> Option<u64> {
    for _ in 0..SETTLE_ROUNDS_MAX {
        pause(woken)?;
        let now = tidegate_config::fingerprint(sources);
        if now == seen {
            break;
        }
        seen = now;
    }
    Some(seen)
}

/// Lets [`SETTLE`] pass. What is told meanwhile does not make it longer: the folder may hold a file that somebody else
/// writes all the time. `None` if it is time to stop.
fn pause(woken: &Receiver<Wake>) -> Option<()> {
    let clock = Clock::get();
    let begun = clock.moment().now;
    while let Some(left) = SETTLE.checked_sub(clock.since(begun)) {
        match woken.recv_timeout(left) {
            Ok(Wake::Stop) | Err(RecvTimeoutError::Disconnected) => return None,
            Ok(Wake::Changed | Wake::Asked) => {}
            Err(RecvTimeoutError::Timeout) => break,
        }
    }
    Some(())
}

/// The folders that are watched.
struct Watch {
    folders: Vec<PathBuf>,
    /// Watches as long as it lives.
    _watcher: Option<RecommendedWatcher>,
}

impl Watch {
    /// Watches the folders of `sources`. Where the system cannot, the poll alone has to do.
    fn of(sources: &[PathBuf], told: &Sender<Wake>) -> Self {
        let folders = folders(sources);
        let told = told.clone();
        let changed = move |event: notify::Result<notify::Event>| {
            // Reading a file is told of too, and we read them: only what is not a reading counts.
            if event.map_or(true, |event| !event.kind.is_access()) {
                let _ = told.send(Wake::Changed);
            }
        };
        let watcher = notify::recommended_watcher(changed).and_then(|mut watcher| {
            for folder in &folders {
                watcher.watch(folder, RecursiveMode::NonRecursive)?;
            }
            Ok(watcher)
        });
        if let Err(error) = &watcher {
            info!(%error, "the system does not tell of changes, so the files are compared every 2 s");
        }
        Self {
            folders,
            _watcher: watcher.ok(),
        }
    }

    fn moved_to(self, sources: &[PathBuf], told: &Sender<Wake>) -> Self {
        match folders(sources) == self.folders {
            true => self,
            false => Self::of(sources, told),
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
