//! Connections: who we are to a server, and one connection per server that is made when needed and dropped when in
//! doubt.
//!
//! A call that ends without an answer takes its connection with it, also when it is cancelled: a server that hangs is
//! a server that is gone, and after a failover the next connection asks the sentinels again.

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

use super::address::{Address, Target};
use super::codec::Request;
use super::dial::{Certificates, dial};
use super::error::{ErrorKind, StoreError};
use super::script::Script;
use super::sentinel;
use super::stream::Bounded;
use tidegate_config::{TlsSettings, Topology};

/// The longest answer to a call: the map of a cluster whose slots are scattered. Ours are a few kilobytes.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// The longest message, with what is around it. Ours are at most 12 kilobytes.
const NEWS_BYTES_MAX: usize = 64 << 10;

/// Why there can be no store with these settings.
#[derive(Debug, thiserror::Error)]
pub enum StoreSetupError {
    /// A file cannot be read.
    #[error("read store.{field} {}", path.display())]
    File {
        /// Which setting names it.
        field: &'static str,
        /// Where it is.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file holds nothing.
    #[error("store.{field} {} is empty", path.display())]
    Empty {
        /// Which setting names it.
        field: &'static str,
        /// Where it is.
        path: PathBuf,
    },
    /// The certificates are none.
    #[error("store.tls does not hold certificates and a key in PEM")]
    Tls,
    /// The database is no number.
    #[error("store.url must end in a database's number, or in none")]
    Database,
    /// Only a single server has a socket and a database.
    #[error("store.url must name hosts, and no database but 0, with topology {0}")]
    Topology(&'static str),
}

/// Who we are to a server, and how to reach one.
pub(super) struct Connector {
    user: Option<String>,
    password: Option<String>,
    database: i64,
    tls: Option<TlsConnector>,
    pub(super) timeout: Duration,
    notice: OnceLock<Notice>,
}

/// Who is told of failures that no caller hears of.
pub(super) type Notice = Box<dyn Fn(ErrorKind) + Send + Sync>;

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector(..)")
    }
}

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Calls to a server with our data.
    Calls,
    /// Messages from it.
    News,
    /// Asking a sentinel, which neither knows our password nor has databases.
    Sentinel,
}

impl Connector {
    /// Says whom to tell of failures that no caller hears of. Only the first call counts.
    pub(super) fn set_notice(&self, notice: Notice) {
        let _ = self.notice.set(notice);
    }

    /// Something failed that no caller hears of.
    pub(super) fn trigger_reached(&self, kind: ErrorKind) {
        if let Some(notice) = self.notice.get() {
            notice(kind);
        }
    }

    /// As the settings say. Reads the files they name.
    pub(super) fn new(
        target: &Target,
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
            Some(certified(tls)?)
        } else {
            None
        };
        Ok(Self {
            user: target.user.clone(),
            password,
            database: target.database,
            tls,
            timeout,
            notice: OnceLock::new(),
        })
    }

    /// Who we are to a server.
    fn introduction(&self, purpose: Purpose) -> RedisConnectionInfo {
        let mut settings = RedisConnectionInfo::default().set_skip_set_lib_name();
        if purpose == Purpose::News {
            // Subscriptions on a connection that also answers, so that it can be asked whether it lives.
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

    /// A new connection.
    pub(super) async fn open(
        &self,
        address: &Address,
        purpose: Purpose,
        pushed: Option<Pushed>,
    ) -> Result<Connection, StoreError> {
        let mut config = AsyncConnectionConfig::new().set_response_timeout(None);
        if let Some(pushed) = pushed {
            config = config.set_push_sender(move |info| {
                pushed(info);
                Ok::<(), ()>(())
            });
        }
        let reply_bytes_max = match purpose {
            Purpose::Calls | Purpose::Sentinel => REPLY_BYTES_MAX,
            Purpose::News => NEWS_BYTES_MAX,
        };
        let opened = async {
            let stream = dial(address, self.tls.as_ref()).await?;
            let stream = Bounded::new(stream, reply_bytes_max);
            let settings = self.introduction(purpose);
            let made = MultiplexedConnection::new_with_config(&settings, stream, config).await;
            made.map(|(connection, driver)| Connection {
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

    pub(super) fn error(&self, address: &Address, error: &redis::RedisError) -> StoreError {
        StoreError::redis(&address.to_string(), error, self.password.as_deref())
    }
}

/// What is called with messages. It must not wait.
pub(super) type Pushed = Box<dyn Fn(PushInfo) + Send + Sync>;

fn read(field: &'static str, path: &Path) -> Result<Vec<u8>, StoreSetupError> {
    fs::read(path).map_err(|source| StoreSetupError::File {
        field,
        path: path.to_owned(),
        source,
    })
}

/// What speaks TLS with the certificates of these files.
fn certified(tls: &TlsSettings) -> Result<TlsConnector, StoreSetupError> {
    let ca = match &tls.ca_file {
        Some(path) => Some(read("tls.ca_file", path)?),
        None => None,
    };
    let own = match (&tls.cert_file, &tls.key_file) {
        (Some(certificate), Some(key)) => Some((
            read("tls.cert_file", certificate)?,
            read("tls.key_file", key)?,
        )),
        (None | Some(_), None) | (None, Some(_)) => None,
    };
    let connector = Certificates { ca, own }.connector();
    connector.ok_or(StoreSetupError::Tls)
}

/// A connection. It ends with this, whatever is under way on it.
pub(super) struct Connection {
    connection: MultiplexedConnection,
    driver: AbortHandle,
}

impl Connection {
    /// What commands are sent by.
    pub(super) fn handle(&self) -> MultiplexedConnection {
        self.connection.clone()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Where a server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// There.
    At(Address),
    /// Where the sentinels say the master of this name is.
    Sentinels(Vec<Address>, String),
}

impl Place {
    /// The servers of these settings: one, or for a cluster those it is entered by.
    pub(super) fn all(target: Target, topology: &Topology) -> Result<Vec<Self>, StoreSetupError> {
        let tcp = target
            .addresses
            .iter()
            .all(|address| matches!(address, Address::Tcp(..)));
        match topology {
            Topology::Single => Ok(target.addresses.into_iter().take(1).map(Self::At).collect()),
            Topology::Sentinel { .. } if !tcp => Err(StoreSetupError::Topology("sentinel")),
            Topology::Sentinel { master } => {
                Ok(vec![Self::Sentinels(target.addresses, master.clone())])
            }
            Topology::Cluster if !tcp || target.database != 0 => {
                Err(StoreSetupError::Topology("cluster"))
            }
            Topology::Cluster => Ok(target.addresses.into_iter().map(Self::At).collect()),
        }
    }

    /// A new connection there, and to whom.
    pub(super) async fn open(
        &self,
        connector: &Arc<Connector>,
        purpose: Purpose,
        pushed: Option<Pushed>,
    ) -> Result<Link, StoreError> {
        let address = match self {
            Self::At(address) => address.clone(),
            Self::Sentinels(sentinels, master) => {
                sentinel::master(connector, sentinels, master).await?
            }
        };
        let connection = connector.open(&address, purpose, pushed).await?;
        Ok(Link {
            address,
            connection,
        })
    }
}

/// A connection and where it leads.
pub(super) struct Link {
    pub(super) address: Address,
    pub(super) connection: Connection,
}

/// A server, and the connection to it if there is one.
pub(super) struct Node {
    pub(super) place: Place,
    pub(super) connector: Arc<Connector>,
    current: ArcSwapOption<Link>,
    /// Held by whoever connects, so that only one does; and why the last attempt failed.
    connecting: Mutex<Option<StoreError>>,
    /// Attempts that ended.
    attempts: AtomicU64,
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.place).finish()
    }
}

impl Node {
    pub(super) fn new(place: Place, connector: Arc<Connector>) -> Self {
        Self {
            place,
            connector,
            current: ArcSwapOption::empty(),
            connecting: Mutex::new(None),
            attempts: AtomicU64::new(0),
        }
    }

    async fn link(&self) -> Result<Arc<Link>, StoreError> {
        if let Some(link) = self.current.load_full() {
            return Ok(link);
        }
        // Ordering: Relaxed. It is written under the lock; read before it, an older value only costs an attempt.
        let before = self.attempts.load(Ordering::Relaxed);
        let mut failure = self.connecting.lock().await;
        if let Some(link) = self.current.load_full() {
            return Ok(link);
        }
        // Who waited for an attempt shares its end: a crowd does not knock one by one.
        if let Some(failure) = failure
            .as_ref()
            .filter(|_| self.attempts.load(Ordering::Relaxed) != before)
        {
            return Err(failure.clone());
        }
        let opened = self.place.open(&self.connector, Purpose::Calls, None).await;
        self.attempts.fetch_add(1, Ordering::Relaxed);
        match opened {
            Ok(link) => {
                let link = Arc::new(link);
                self.current.store(Some(Arc::clone(&link)));
                *failure = None;
                Ok(link)
            }
            Err(error) => {
                *failure = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Drops the connection, whichever it is.
    pub(super) fn disconnect(&self) {
        self.current.store(None);
    }

    /// What it answers to one command.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, StoreError> {
        let link = self.link().await?;
        let unanswered = Unanswered {
            node: self,
            link: &link,
        };
        let answer = command.query_async(&mut link.connection.handle()).await;
        unanswered.ended(answer)
    }

    /// What it answers to the last of several commands, sent without a gap.
    async fn ask_all(&self, commands: &Pipeline) -> Result<Value, StoreError> {
        let link = self.link().await?;
        let unanswered = Unanswered {
            node: self,
            link: &link,
        };
        let answers = commands.query_async(&mut link.connection.handle()).await;
        let mut answers: Vec<Value> = unanswered.ended(answers)?;
        answers
            .pop()
            .ok_or_else(|| StoreError::protocol("no answer at all"))
    }

    /// What a script answers. It is loaded if the server does not have it.
    pub(super) async fn run(
        &self,
        script: &Script,
        request: &Request,
    ) -> Result<Value, StoreError> {
        let by_hash = command("EVALSHA", &script.hash, request);
        match self.ask(&by_hash).await {
            Err(error) if error.kind == ErrorKind::NoScript => {
                self.connector.trigger_reached(error.kind);
                self.ask(redis::cmd("SCRIPT").arg("LOAD").arg(&script.text))
                    .await?;
                self.ask(&by_hash).await
            }
            answer => answer,
        }
    }

    /// What it answers to a command on a lane that it is being given.
    pub(super) async fn ask_asking(&self, command: Cmd) -> Result<Value, StoreError> {
        let mut commands = redis::pipe();
        commands.cmd("ASKING").add_command(command);
        self.ask_all(&commands).await
    }

    /// What a script answers there. It is sent whole: to load it first would take another redirection.
    pub(super) async fn run_asking(
        &self,
        script: &Script,
        request: &Request,
    ) -> Result<Value, StoreError> {
        self.ask_asking(command("EVAL", &script.text, request))
            .await
    }
}

fn command(name: &str, script: &str, request: &Request) -> Cmd {
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

/// A call that has not ended well yet. Dropped so, it takes its connection out of use.
struct Unanswered<'a> {
    node: &'a Node,
    link: &'a Arc<Link>,
}

impl Unanswered<'_> {
    fn ended<T>(self, answer: Result<T, redis::RedisError>) -> Result<T, StoreError> {
        let answer = answer.map_err(|error| self.node.connector.error(&self.link.address, &error));
        if !answer
            .as_ref()
            .is_err_and(|error| error.kind.spoils_connection())
        {
            std::mem::forget(self);
        }
        answer
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        // Only if it is still this one: another call may have made a new one already.
        self.node.current.compare_and_swap(self.link, None);
    }
}
