//! The configuration as the rest of the program sees it: values that cannot be wrong.
//!
//! Built by `validate.rs` only. Says nothing of where a value came from.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::address::Address;
use super::error::Warning;
use tidegate_core::pure::{KeyDisplay, Rules};

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// What this pod calls itself.
    pub pod_id: String,
    /// Where its doors are.
    pub listen: Listen,
    /// The fleet's store; without one this pod limits alone.
    pub store: Option<Store>,
    /// When it talks to the store.
    pub sync: Sync,
    /// How much it holds at most.
    pub bounds: Bounds,
    /// Which headers a check's answer has.
    pub headers: Vec<HeaderStyle>,
    /// How keys are shown to operators.
    pub keys: KeyDisplay,
    /// What it logs.
    pub log: Log,
    /// How long an orderly stop may take.
    pub drain: Duration,
    /// Every rule, compiled.
    pub rules: Rules,
    /// What is legal but surprising, sorted by file, line and column.
    pub warnings: Vec<Warning>,
    /// Of everything that was read: what `fingerprint` says of `sources` until one of them changes. 0
    /// if no file was read.
    pub hash: u64,
    /// Every file and directory to watch; the configuration file first.
    pub sources: Vec<PathBuf>,
}

/// Where the doors are. A door with no address is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Checks over HTTP.
    pub http: Vec<Address>,
    /// Envoy's rate limit service.
    pub grpc: Vec<Address>,
    /// Redis protocol.
    pub resp: Vec<Address>,
    /// Metrics and health, read-only.
    pub metrics: Vec<Address>,
    /// What changes things.
    pub admin: Vec<Address>,
    /// The permissions of Unix sockets.
    pub unix_mode: u32,
    /// The file that holds the bearer token of the admin door.
    pub token_file: Option<PathBuf>,
    /// The file that holds the password of the Redis protocol's door.
    pub resp_password_file: Option<PathBuf>,
}

impl Default for Listen {
    /// What holds without a `listen` section: loopback only.
    fn default() -> Self {
        let loopback = |port: u16| vec![Address::Tcp(([127, 0, 0, 1], port).into())];
        Self {
            http: loopback(7600),
            grpc: Vec::new(),
            resp: Vec::new(),
            metrics: loopback(9464),
            admin: loopback(7601),
            unix_mode: 0o660,
            token_file: None,
            resp_password_file: None,
        }
    }
}

impl Listen {
    /// Every door off.
    pub(super) fn off(self) -> Self {
        Self {
            http: Vec::new(),
            grpc: Vec::new(),
            resp: Vec::new(),
            metrics: Vec::new(),
            admin: Vec::new(),
            ..self
        }
    }
}

/// The fleet's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Store {
    /// Where it is.
    pub url: StoreUrl,
    /// What stands there.
    pub topology: Topology,
    /// The file that holds its password.
    pub password_file: Option<PathBuf>,
    /// Certificates, for `rediss://`.
    pub tls: Tls,
    /// How long an answer may take.
    pub timeout: Duration,
    /// What every key in it starts with.
    pub key_prefix: String,
    /// The file that holds the fleet's key of the identity hash.
    pub hash_key_file: Option<PathBuf>,
}

impl Store {
    /// A store at `url` and every default.
    pub(super) fn at(url: StoreUrl) -> Self {
        Self {
            url,
            topology: Topology::Single,
            password_file: None,
            tls: Tls::default(),
            timeout: Duration::from_millis(250),
            key_prefix: "tidegate".to_owned(),
            hash_key_file: None,
        }
    }
}

/// The address of a store. Prints without user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// `url` as it is: `store.rs` has checked it.
    pub(super) fn new(url: String) -> Self {
        Self(url)
    }

    /// The whole of it, with its secrets: for the connection, never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        // The last @ ends the secrets, wherever a careless password put others; what follows a ? may hold one.
        let open = rest.rsplit_once('@').map_or(rest, |(_, open)| open);
        let open = open.split_once('?').map_or(open, |(open, _)| open);
        write!(f, "{scheme}://{open}")
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// What kind of Redis stands at the store's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Sentinels, which know the server of this name.
    Sentinel {
        /// The name.
        master: String,
    },
    /// A cluster.
    Cluster,
}

/// Certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whom to trust, instead of the system's list.
    pub ca_file: Option<PathBuf>,
    /// Who we are.
    pub cert_file: Option<PathBuf>,
    /// The key of `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// When to talk to the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sync {
    /// The slowest a dirty key is pushed.
    pub interval: Duration,
    /// The share of a bucket that may be unseen by the store before an early round.
    pub accuracy: f64,
}

impl Default for Sync {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            accuracy: 0.1,
        }
    }
}

/// How much a pod holds at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Keys.
    pub keys_max: usize,
    /// Open connections, of all doors.
    pub connections_max: usize,
    /// Bytes of one key.
    pub key_bytes_max: usize,
    /// Bytes of one check's body.
    pub body_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            keys_max: 1_000_000,
            connections_max: 1_024,
            key_bytes_max: 1_024,
            body_bytes_max: 65_536,
        }
    }
}

/// Which headers a check's answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy`.
    Draft11,
    /// `X-RateLimit-*`, Reset in seconds from now.
    Legacy,
    /// `X-RateLimit-*`, Reset as a Unix time.
    LegacyEpoch,
}

/// What to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log {
    /// From which level on.
    pub level: LogLevel,
    /// In which form.
    pub format: LogFormat,
}

/// From which level on to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// What helps to find a fault.
    Debug,
    /// What happens once in a while.
    #[default]
    Info,
    /// What someone should look at.
    Warn,
    /// What failed.
    Error,
    /// Nothing.
    Off,
}

impl LogLevel {
    /// Every level, most talkative first.
    pub const ALL: [Self; 6] = [
        Self::Trace,
        Self::Debug,
        Self::Info,
        Self::Warn,
        Self::Error,
        Self::Off,
    ];

    /// Its name in a configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trace => "trace",
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
            Self::Off => "off",
        }
    }
}

/// In which form to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one object per line.
    Json,
}
