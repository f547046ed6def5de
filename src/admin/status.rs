//! The state of the daemon: whether it is ready, and which configuration is in force.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::{Value, json};

/// The state of the daemon. The daemon and the reloader set it; the admin services read it.
#[derive(Debug)]
pub struct Status {
    pod_id: String,
    incarnation: u128,
    ready: AtomicBool,
    configuration: Mutex<Configuration>,
}

/// The configuration in force, and the last attempt to reload it.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// Grows with every reload that was applied.
    pub version: u64,
    /// The hash of its files.
    pub hash: u64,
    /// When it was applied.
    pub applied_at: Option<SystemTime>,
    /// Its warnings.
    pub warnings: Vec<String>,
    /// The faults of the last reload, if it was refused.
    pub faults: Vec<String>,
}

impl Configuration {
    /// Its form in the admin API.
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

    /// The name of the pod.
    pub fn pod_id(&self) -> &str {
        &self.pod_id
    }

    /// A random id of this process; every start has a new one.
    pub const fn incarnation(&self) -> u128 {
        self.incarnation
    }

    /// Whether rules are loaded and listeners bound, and no drain has begun.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Sets what [`Status::is_ready`] answers.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Locks the configuration in force.
    pub fn configuration(&self) -> MutexGuard<'_, Configuration> {
        self.configuration
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
