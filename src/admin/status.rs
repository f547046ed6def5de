//! What the daemon says of itself: whether it is ready, and how its configuration came about.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};

/// The state of the daemon, told by the daemon and read by the pages.
#[derive(Debug)]
pub struct Status {
    pod_id: String,
    incarnation: u128,
    ready: AtomicBool,
    configuration: Mutex<Configuration>,
}

/// How the rules in force came about.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// Counts up with every reload that was applied.
    pub version: u64,
    /// Of the files it was read from.
    pub hash: u64,
    /// When it was applied.
    pub applied_at: Option<SystemTime>,
    /// What is legal but surprising in it.
    pub warnings: Vec<String>,
    /// Why the last attempt to reload was refused, if it was.
    pub faults: Vec<String>,
}

impl Configuration {
    /// For the admin API.
    pub fn json(&self) -> Value {
        json!({
            "version": self.version,
            "hash": format!("{:016x}", self.hash),
            "applied_at": self.applied_at.map(|at| humantime::format_rfc3339_seconds(at).to_string()),
            "warnings": self.warnings,
            "last_reload_faults": self.faults,
        })
    }
}

impl Status {
    /// A daemon that is not ready yet.
    pub fn new(pod_id: String, incarnation: u128, configuration: Configuration) -> Self {
        Self {
            pod_id,
            incarnation,
            ready: AtomicBool::new(false),
            configuration: Mutex::new(configuration),
        }
    }

    /// What the pod calls itself.
    pub fn pod_id(&self) -> &str {
        &self.pod_id
    }

    /// Tells this start of the pod from every other.
    pub const fn incarnation(&self) -> u128 {
        self.incarnation
    }

    /// Whether rules are loaded and listeners bound, and no drain has begun.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Says whether it is.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// How the rules in force came about.
    pub fn configuration(&self) -> MutexGuard<'_, Configuration> {
        self.configuration
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
