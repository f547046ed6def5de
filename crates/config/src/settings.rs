//! The checked configuration that the rest of the program uses.
//!
//! Only this crate's checks build it. It does not record where a value came from.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use super::address::Address;
use super::error::Warning;
use tidegate_core::pure::{KeyDisplay, Rules};

/// A checked configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of this pod.
    pub pod_id: String,
    /// The addresses of its doors.
    pub listen: ListenSettings,
    /// The fleet's store; without one this pod limits alone.
    pub store: Option<StoreSettings>,
    /// When the pod reports to the store.
    pub sync: SyncSettings,
    /// The most it holds and accepts.
    pub bounds: Bounds,
    /// The headers of a check's answer.
    pub headers: Vec<HeaderStyle>,
    /// How keys are shown to operators.
    pub keys: KeyDisplay,
    /// What the daemon logs.
    pub log: LogSettings,
    /// The longest that an orderly stop may take.
    pub drain: Duration,
    /// Every rule, compiled.
    pub rules: Rules,
    /// The warnings, sorted by file, line and column.
    pub warnings: Vec<Warning>,
    /// The hash of everything that was read: `fingerprint` of `sources` until one of them changes. 0 if no file was
    /// read.
    pub hash: u64,
    /// Every file and directory to watch; the configuration file first.
    pub sources: Vec<PathBuf>,
}

/// The addresses of the doors. A door without an address is off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    /// Checks over HTTP.
    pub http: Vec<Address>,
    /// Envoy's rate limit service.
    pub grpc: Vec<Address>,
    /// The Redis protocol.
    pub resp: Vec<Address>,
    /// Metrics and health, read-only.
    pub metrics: Vec<Address>,
    /// The admin API.
    pub admin: Vec<Address>,
    /// The permissions of Unix sockets.
    pub unix_mode: u32,
    /// The file that holds the bearer token of the admin door.
    pub token_file: Option<PathBuf>,
    /// The file that holds the password of the Redis protocol's door.
    pub resp_password_file: Option<PathBuf>,
}

impl Default for ListenSettings {
    /// The addresses without a `listen` section: loopback only.
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

impl ListenSettings {
    /// The same settings with every door off.
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

/// How to reach the fleet's store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreSettings {
    /// Its address.
    pub url: StoreUrl,
    /// The kind of Redis at that address.
    pub topology: Topology,
    /// The file that holds its password.
    pub password_file: Option<PathBuf>,
    /// Certificates, for `rediss://`.
    pub tls: TlsSettings,
    /// The timeout of a call.
    pub timeout: Duration,
    /// The prefix of every key in it.
    pub key_prefix: String,
    /// The file that holds the secret that keys are hashed with.
    pub hash_key_file: Option<PathBuf>,
}

impl StoreSettings {
    /// A store at `url` with the default settings.
    pub(super) fn at(url: StoreUrl) -> Self {
        Self {
            url,
            topology: Topology::Single,
            password_file: None,
            tls: TlsSettings::default(),
            timeout: Duration::from_millis(250),
            key_prefix: "tidegate".to_owned(),
            hash_key_file: None,
        }
    }
}

/// The address of a store. It prints without user and password.
#[derive(Clone, PartialEq, Eq)]
pub struct StoreUrl(String);

impl StoreUrl {
    /// Takes `url` as it is: `store.rs` has checked it.
    pub(super) fn new(url: String) -> Self {
        Self(url)
    }

    /// The whole URL with its secrets: for the connection, never for a log.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or_default();
        // The last @ ends the secrets, because a password may hold other ones. The query after a ? may hold a password.
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

/// The kind of Redis at the store's address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    Single,
    /// Sentinels, which know the address of a named master.
    Sentinel {
        /// The name of the master.
        master: String,
    },
    /// A cluster.
    Cluster,
}

/// The certificates for a TLS connection to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The certificate authorities to trust, instead of the system's list.
    pub ca_file: Option<PathBuf>,
    /// This pod's own certificate.
    pub cert_file: Option<PathBuf>,
    /// The private key of `cert_file`.
    pub key_file: Option<PathBuf>,
}

/// When the pod reports to the store.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyncSettings {
    /// The longest that a key with unreported cells waits for its report.
    pub interval: Duration,
    /// The part of a bucket that may be unreported before the pod starts a round early.
    pub accuracy: f64,
}

impl Default for SyncSettings {
    fn default() -> Self {
        Self {
            interval: Duration::from_secs(1),
            accuracy: 0.1,
        }
    }
}

/// The most that a pod holds and accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Keys of each table.
    pub keys_max: usize,
    /// Open connections of all doors for checks.
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

/// The headers of a check's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderStyle {
    /// `RateLimit` and `RateLimit-Policy`.
    Draft11,
    /// `X-RateLimit-*`, Reset in seconds from now.
    Legacy,
    /// `X-RateLimit-*`, Reset as a Unix time.
    LegacyEpoch,
}

/// What the daemon logs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogSettings {
    /// The lowest level that is logged.
    pub level: LogLevel,
    /// The form of a line.
    pub format: LogFormat,
}

/// The lowest level that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogLevel {
    /// Everything.
    Trace,
    /// Details that help to find a fault.
    Debug,
    /// Events that happen once in a while.
    #[default]
    Info,
    /// Events that someone should look at.
    Warn,
    /// Failures.
    Error,
    /// Nothing.
    Off,
}

impl LogLevel {
    /// Every level, the most verbose first.
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

/// The form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines: one object per line.
    Json,
}
