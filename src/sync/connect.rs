//! Connections: the credentials, and one connection per server, which is opened when a call needs it and dropped when
//! it is in doubt.
//!
//! A call that ends without an answer closes its connection, also when the call is cancelled. So a server that hangs
//! is treated like one that is gone, and after a failover the next connection asks the sentinels again.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, Pipeline, ProtocolVersion, PushInfo, RedisConnectionInfo, Value,
};
use tokio::sync::Mutex;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::address::{StoreAddress, StoreTarget};
use super::codec::ScriptRequest;
use super::dial::{Certificates, OwnCertificate, dial};
use super::error::{ErrorKind, StoreError};
use super::script::Script;
use super::sentinel;
use super::stream::BoundedStream;
use tidegate_config::{TlsSettings, Topology};

/// The longest answer to a call. The longest useful one is the map of a cluster whose slots are scattered; the
/// answers of our scripts have a few kilobytes.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// The longest message of news, with its frame. Our own have at most 12 kilobytes.
const NEWS_BYTES_MAX: usize = 64 << 10;

/// Why the store cannot be used with these settings.
#[derive(Debug, thiserror::Error)]
pub enum StoreSetupError {
    /// A file cannot be read.
    #[error("read store.{field} {}", path.display())]
    File {
        /// The setting that names the file.
        field: &'static str,
        /// The file's path.
        path: PathBuf,
        /// Why it cannot be read.
        #[source]
        source: std::io::Error,
    },
    /// A file is empty.
    #[error("store.{field} {} is empty", path.display())]
    Empty {
        /// The setting that names the file.
        field: &'static str,
        /// The file's path.
        path: PathBuf,
    },
    /// The files hold no certificates or no key.
    #[error("store.tls does not hold certificates and a key in PEM")]
    TlsSettings,
    /// The database is not a number.
    #[error("store.url must end in the number of a database, or without one")]
    Database,
    /// Only a single server can have a Unix socket or a database other than 0.
    #[error("store.url must name hosts, and no database but 0, with topology {0}")]
    Topology(&'static str),
}

/// Opens connections: holds the credentials, the certificates and the timeout.
pub(super) struct Connector {
    user: Option<String>,
    password: Option<String>,
    database: i64,
    tls: Option<TlsConnector>,
    pub(super) timeout: Duration,
    observer: OnceLock<FailureObserver>,
}

/// Receives the kind of every failure that is returned to no caller.
pub(super) type FailureObserver = Box<dyn Fn(ErrorKind) + Send + Sync>;

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector(..)")
    }
}

/// What a connection is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Calls to a server that holds our data.
    Calls,
    /// News from such a server.
    News,
    /// Questions to a sentinel, which neither knows our password nor has databases.
    Sentinel,
}

impl Connector {
    /// Sets who receives the failures that are returned to no caller. Only the first call counts.
    pub(super) fn set_failure_observer(&self, observer: FailureObserver) {
        let _ = self.observer.set(observer);
    }

    /// Reports a failure that is returned to no caller.
    pub(super) fn report_failure(&self, kind: ErrorKind) {
        if let Some(observer) = self.observer.get() {
            observer(kind);
        }
    }

    /// A connector for these settings. Reads the files that they name.
    pub(super) fn new(
        target: &StoreTarget,
        password_file: Option<&Path>,
        tls: &TlsSettings,
        timeout: Duration,
    ) -> Result<Self, StoreSetupError> {
        let password = match password_file {
            Some(path) => {
                let field = "password_file";
                let text = read(field, path)?;
                let text = String::from_utf8_lossy(&text);
                if text.trim().is_empty() {
                    let path = path.to_owned();
                    return Err(StoreSetupError::Empty { field, path });
                }
                Some(text.trim_end_matches(['\r', '\n']).to_owned())
            }
            None => target.password.clone(),
        };
        let tls = if target.tls {
            Some(tls_connector(tls)?)
        } else {
            None
        };
        Ok(Self {
            user: target.user.clone(),
            password,
            database: target.database,
            tls,
            timeout,
            observer: OnceLock::new(),
        })
    }

    /// What a new connection sends first: protocol, credentials, database.
    fn handshake(&self, purpose: Purpose) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if purpose == Purpose::News {
            // With RESP3 a connection with subscriptions also answers commands, so that it can be pinged.
            settings = settings.set_protocol(ProtocolVersion::RESP3);
        }
        if purpose != Purpose::Sentinel {
            settings = settings.set_db(self.database);
            if let Some(user) = &self.user {
                settings = settings.set_username(user);
            }
            if let Some(password) = &self.password {
                settings = settings.set_password(password);
            }
        }
        settings
    }

    /// Opens a connection, within `store.timeout`.
    pub(super) async fn open(
        &self,
        address: &StoreAddress,
        purpose: Purpose,
        handler: Option<PushHandler>,
    ) -> Result<StoreConnection, StoreError> {
        let mut config = AsyncConnectionConfig::new().set_response_timeout(None);
        if let Some(handler) = handler {
            config = config.set_push_sender(move |info| {
                handler(info);
                Ok::<(), ()>(())
            });
        }
        let reply_bytes_max = match purpose {
            Purpose::Calls | Purpose::Sentinel => REPLY_BYTES_MAX,
            Purpose::News => NEWS_BYTES_MAX,
        };
        let opened = async {
            let stream = dial(address, self.tls.as_ref()).await?;
            let stream = BoundedStream::new(stream, reply_bytes_max);
            let settings = self.handshake(purpose);
            let made = MultiplexedConnection::new_with_config(&settings, stream, config).await;
            made.map(|(connection, driver)| StoreConnection {
                connection,
                driver: tokio::spawn(driver).abort_handle(),
            })
        };
        match timeout(self.timeout, opened).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error)) => Err(self.error(address, &error).connecting()),
            Err(_) => Err(StoreError::timeout(&address.to_string())),
        }
    }

    pub(super) fn error(&self, address: &StoreAddress, error: &redis::RedisError) -> StoreError {
        StoreError::redis(&address.to_string(), error, self.password.as_deref())
    }
}

/// Receives the messages that a server pushes. It must not wait.
pub(super) type PushHandler = Box<dyn Fn(PushInfo) + Send + Sync>;

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>, StoreSetupError> {
    fs::read(path).map_err(|source| StoreSetupError::File {
        field,
        path: path.to_owned(),
        source,
    })
}

/// A TLS client with the certificates of these files.
fn tls_connector(tls: &TlsSettings) -> Result<TlsConnector, StoreSetupError> {
    let ca = match &tls.ca_file {
        Some(path) => Some(read("tls.ca_file", path)?),
        None => None,
    };
    let own = match (&tls.cert_file, &tls.key_file) {
        (Some(chain), Some(key)) => Some(OwnCertificate {
            chain: read("tls.cert_file", chain)?,
            key: read("tls.key_file", key)?,
        }),
        (None | Some(_), None) | (None, Some(_)) => None,
    };
    let connector = Certificates { ca, own }.connector();
    connector.ok_or(StoreSetupError::TlsSettings)
}

/// A connection to a server. Dropping it closes the connection, also while calls wait for answers.
pub(super) struct StoreConnection {
    connection: MultiplexedConnection,
    driver: AbortHandle,
}

impl StoreConnection {
    /// The handle that sends commands.
    pub(super) fn handle(&self) -> MultiplexedConnection {
        self.connection.clone()
    }
}

impl Drop for StoreConnection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// How to find a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ServerLocation {
    /// It is at this address.
    Fixed(StoreAddress),
    /// These sentinels know the address of the master with this name.
    Sentinels(Vec<StoreAddress>, String),
}

impl ServerLocation {
    /// The servers that these settings name: one, or the seeds of a cluster.
    pub(super) fn all(
        target: StoreTarget,
        topology: &Topology,
    ) -> Result<Vec<Self>, StoreSetupError> {
        let tcp = target
            .addresses
            .iter()
            .all(|address| matches!(address, StoreAddress::Tcp(..)));
        match topology {
            Topology::Single => Ok(target
                .addresses
                .into_iter()
                .take(1)
                .map(Self::Fixed)
                .collect()),
            Topology::Sentinel { .. } if !tcp => Err(StoreSetupError::Topology("sentinel")),
            Topology::Sentinel { master } => {
                Ok(vec![Self::Sentinels(target.addresses, master.clone())])
            }
            Topology::Cluster if !tcp || target.database != 0 => {
                Err(StoreSetupError::Topology("cluster"))
            }
            Topology::Cluster => Ok(target.addresses.into_iter().map(Self::Fixed).collect()),
        }
    }

    /// Finds the server and opens a connection to it.
    pub(super) async fn open(
        &self,
        connector: &Arc<Connector>,
        purpose: Purpose,
        handler: Option<PushHandler>,
    ) -> Result<OpenConnection, StoreError> {
        let address = match self {
            Self::Fixed(address) => address.clone(),
            Self::Sentinels(sentinels, master) => {
                sentinel::master(connector, sentinels, master).await?
            }
        };
        let connection = connector.open(&address, purpose, handler).await?;
        Ok(OpenConnection {
            address,
            connection,
        })
    }
}

/// A connection, and the address that it leads to.
pub(super) struct OpenConnection {
    pub(super) address: StoreAddress,
    pub(super) connection: StoreConnection,
}

/// A server of the store, and the connection to it if there is one.
pub(super) struct StoreServer {
    pub(super) location: ServerLocation,
    pub(super) connector: Arc<Connector>,
    current: ArcSwapOption<OpenConnection>,
    /// Held by the one call that connects; holds why the last attempt failed.
    connecting: Mutex<Option<StoreError>>,
    /// How many attempts to connect have ended.
    attempts: AtomicU64,
}

impl fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("StoreServer").field(&self.location).finish()
    }
}

impl StoreServer {
    pub(super) fn new(location: ServerLocation, connector: Arc<Connector>) -> Self {
        Self {
            location,
            connector,
            current: ArcSwapOption::empty(),
            connecting: Mutex::new(None),
            attempts: AtomicU64::new(0),
        }
    }

    async fn connection(&self) -> Result<Arc<OpenConnection>, StoreError> {
        if let Some(open) = self.current.load_full() {
            return Ok(open);
        }
        // Ordering: Relaxed. It is written under the lock. If this read sees an older value, that costs one attempt
        // more.
        let before = self.attempts.load(Ordering::Relaxed);
        let mut failure = self.connecting.lock().await;
        if let Some(open) = self.current.load_full() {
            return Ok(open);
        }
        // A call that waited for an attempt shares its result: many calls do not try one after the other.
        if let Some(failure) = failure
            .as_ref()
            .filter(|_| self.attempts.load(Ordering::Relaxed) != before)
        {
            return Err(failure.clone());
        }
        let opened = self
            .location
            .open(&self.connector, Purpose::Calls, None)
            .await;
        self.attempts.fetch_add(1, Ordering::Relaxed);
        match opened {
            Ok(open) => {
                let open = Arc::new(open);
                self.current.store(Some(Arc::clone(&open)));
                *failure = None;
                Ok(open)
            }
            Err(error) => {
                *failure = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Closes the current connection.
    pub(super) fn disconnect(&self) {
        self.current.store(None);
    }

    /// Sends one command and returns the answer.
    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, StoreError> {
        let open = self.connection().await?;
        let guard = CallGuard {
            server: self,
            open: &open,
        };
        let answer = command.query_async(&mut open.connection.handle()).await;
        guard.ended(answer)
    }

    /// Sends several commands at once and returns the answer to the last one.
    async fn query_all(&self, commands: &Pipeline) -> Result<Value, StoreError> {
        let open = self.connection().await?;
        let guard = CallGuard {
            server: self,
            open: &open,
        };
        let answers = commands.query_async(&mut open.connection.handle()).await;
        let mut answers: Vec<Value> = guard.ended(answers)?;
        answers
            .pop()
            .ok_or_else(|| StoreError::protocol("there is no answer"))
    }

    /// Runs a script and returns its answer. Loads the script if the server does not have it.
    pub(super) async fn run(
        &self,
        script: &Script,
        request: &ScriptRequest,
    ) -> Result<Value, StoreError> {
        let by_hash = command("EVALSHA", &script.hash, request);
        match self.query(&by_hash).await {
            Err(error) if error.kind == ErrorKind::NoScript => {
                self.connector.report_failure(error.kind);
                self.query(redis::cmd("SCRIPT").arg("LOAD").arg(&script.text))
                    .await?;
                self.query(&by_hash).await
            }
            answer => answer,
        }
    }

    /// Sends a command on a lane that is being moved to this server.
    pub(super) async fn query_asking(&self, command: Cmd) -> Result<Value, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("ASKING").add_command(command);
        self.query_all(&commands).await
    }

    /// Runs a script on such a lane. The whole text is sent: to load it first would take another redirection.
    pub(super) async fn run_asking(
        &self,
        script: &Script,
        request: &ScriptRequest,
    ) -> Result<Value, StoreError> {
        self.query_asking(command("EVAL", &script.text, request))
            .await
    }
}

fn command(name: &str, script: &str, request: &ScriptRequest) -> Cmd {
    let mut command = redis::cmd(name);
    command
        .arg(script)
        .arg(request.keys.len())
        .arg(&request.keys);
    for argument in &request.arguments {
        command.arg(argument);
    }
    command
}

/// Watches a call until its answer is there. Dropped before that, it closes the call's connection.
struct CallGuard<'a> {
    server: &'a StoreServer,
    open: &'a Arc<OpenConnection>,
}

impl CallGuard<'_> {
    fn ended<T>(self, answer: Result<T, redis::RedisError>) -> Result<T, StoreError> {
        let answer =
            answer.map_err(|error| self.server.connector.error(&self.open.address, &error));
        if !answer
            .as_ref()
            .is_err_and(|error| error.kind.spoils_connection())
        {
            std::mem::forget(self);
        }
        answer
    }
}

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        // Only if it is still the current one: another call may have opened a new one.
        self.server.current.compare_and_swap(self.open, None);
    }
}
