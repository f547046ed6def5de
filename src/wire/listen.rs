//! Listening, on TCP or on a Unix socket: bind, accept, bound the connections, drain.
//!
//! Nothing here knows what is spoken on a connection: that is a [`Speak`].

use std::fs;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use metrics::{Counter, Gauge};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::Instant;
use tracing::warn;

use tidegate_config::Address;

/// Connections that wait to be accepted. A client beyond them is not refused: it tries again after a second.
const BACKLOG_MAX: u32 = 4096;
/// How long to wait before accepting again when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often it is said that accepting fails: it is tried twenty times a second.
const ACCEPT_SAID_EVERY: Duration = Duration::from_secs(60);
/// How long a connection that gives way may take to end.
const GIVE_WAY_WAIT_MAX: Duration = Duration::from_millis(250);

/// Why an address cannot be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// The system refused.
    #[error("listen on {address}")]
    Io {
        /// Where.
        address: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Another process answers on that socket.
    #[error("listen on {address}: another process is listening there")]
    Live {
        /// Where.
        address: String,
    },
    /// There is something at that path which is not ours to remove.
    #[error("listen on {address}: there is a {what} at that path, which is left alone")]
    Occupied {
        /// Where.
        address: String,
        /// What is there.
        what: &'static str,
    },
}

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    /// On TCP.
    Tcp(TcpListener),
    /// On a Unix socket.
    Unix(UnixListener, SocketFile),
}

impl Listener {
    /// Binds `address`. A Unix socket gets `unix_mode`.
    pub async fn bind(address: &Address, unix_mode: u32) -> Result<Self, BindError> {
        let failed = |source| BindError::Io {
            address: address.to_string(),
            source,
        };
        match address {
            Address::Tcp(address) => Ok(Self::Tcp(bind_tcp(*address).map_err(failed)?)),
            Address::Unix(path) => {
                vacate(address, path).await?;
                let (listener, file) = bind_unix(path, unix_mode).map_err(failed)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// Where it listens: with the port the system chose, if it was asked to.
    pub fn address(&self) -> Address {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| Address::Unix(PathBuf::new()), Address::Tcp),
            Self::Unix(_, file) => Address::Unix(file.path.clone()),
        }
    }
}

/// The file of a bound Unix socket, removed when it is no longer listened on.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // Only if it is still ours: a successor may have bound the path already.
        if fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Makes sure that nothing but a socket nobody listens on is at `path`.
async fn vacate(address: &Address, path: &Path) -> Result<(), BindError> {
    let occupied = |what| BindError::Occupied {
        address: address.to_string(),
        what,
    };
    let kind = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(source) => {
            return Err(BindError::Io {
                address: address.to_string(),
                source,
            });
        }
    };
    match () {
        () if kind.is_symlink() => Err(occupied("symbolic link")),
        () if kind.is_dir() => Err(occupied("directory")),
        () if !kind.is_socket() => Err(occupied("file")),
        () => match UnixStream::connect(path).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(source) => Err(BindError::Io {
                address: address.to_string(),
                source,
            }),
            Ok(_) => Err(BindError::Live {
                address: address.to_string(),
            }),
        },
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4()?,
        SocketAddr::V6(_) => TcpSocket::new_v6()?,
    };
    // A successor may have the port while connections of this process still linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG_MAX)
}

/// Binds under another name first, so that the socket appears at `path` at once, with its mode, in place of a stale one.
fn bind_unix(path: &Path, mode: u32) -> io::Result<(UnixListener, SocketFile)> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}", std::process::id()));
    let hidden = path.with_file_name(name);
    let _ = fs::remove_file(&hidden);
    let listener = UnixListener::bind(&hidden)?;
    let placed = fs::set_permissions(&hidden, fs::Permissions::from_mode(mode))
        .and_then(|()| fs::rename(&hidden, path))
        .and_then(|()| fs::symlink_metadata(path));
    match placed {
        Ok(metadata) => Ok((
            listener,
            SocketFile {
                path: path.to_owned(),
                inode: metadata.ino(),
            },
        )),
        Err(error) => {
            let _ = fs::remove_file(&hidden);
            Err(error)
        }
    }
}

/// Tells every connection that it is time to go.
#[derive(Clone, Debug)]
pub struct Drain {
    begun: Arc<AtomicBool>,
    told: watch::Receiver<()>,
}

/// Begins a drain.
#[derive(Debug)]
pub struct DrainSwitch {
    begun: Arc<AtomicBool>,
    tell: watch::Sender<()>,
}

impl Drain {
    /// A drain and its switch.
    pub fn new() -> (DrainSwitch, Self) {
        let begun = Arc::new(AtomicBool::new(false));
        let (tell, told) = watch::channel(());
        (
            DrainSwitch {
                begun: Arc::clone(&begun),
                tell,
            },
            Self { begun, told },
        )
    }

    /// Whether it has begun.
    pub fn has_begun(&self) -> bool {
        // Ordering: Acquire pairs with `begin`. The channel wakes whoever waits.
        self.begun.load(Ordering::Acquire)
    }

    /// Waits until it begins.
    pub async fn begins(&mut self) {
        while !self.has_begun() && self.told.changed().await.is_ok() {}
    }
}

impl DrainSwitch {
    /// No further connection is accepted, and those open end after the request they are in.
    pub fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.tell.send_replace(());
    }
}

/// One protocol's way in: what all its listeners share.
#[derive(Clone, Debug)]
pub struct Door {
    /// Free connections.
    pub permits: Arc<Semaphore>,
    /// When to stop.
    pub drain: Drain,
    /// Connections open.
    pub open: Gauge,
    /// Connections refused.
    pub refused: Counter,
    /// Connections that the system did not let us accept.
    pub failed: Counter,
    /// Times that accepting ended by a fault of ours and was begun again.
    pub restarted: Counter,
}

/// What is spoken on a door's connections.
pub trait Speak: Clone + Send + Sync + 'static {
    /// What a connection beyond the bound is told.
    const BUSY: &'static [u8];

    /// Ends a connection of its own choice, so that another one can be had. False if it has none that may be ended.
    fn make_way(&self) -> bool {
        false
    }

    /// Frees a file descriptor for the next connection, because the process has no other. False if none is free yet.
    fn free_descriptor(&self) -> bool {
        false
    }

    /// Serves one connection until it ends, or until the drain has begun and what was asked is answered.
    fn speak<T>(self, stream: T, drain: Drain) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static;
}

impl Door {
    /// Accepts on `listener` until the drain begins, and has `speaker` speak on each connection. A fault of ours does not
    /// end it: accepting begins again on the same listener.
    pub async fn serve<S: Speak>(self, listener: Listener, speaker: S) {
        let listener = Arc::new(listener);
        loop {
            let accepting = self
                .clone()
                .accept_all(Arc::clone(&listener), speaker.clone());
            if tokio::spawn(accepting).await.is_ok() {
                return;
            }
            self.restarted.increment(1);
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    async fn accept_all<S: Speak>(mut self, listener: Arc<Listener>, speaker: S) {
        let mut said: Option<Instant> = None;
        loop {
            let drain = self.drain.clone();
            let accepted = tokio::select! {
                () = self.drain.begins() => return,
                accepted = accept(&listener) => accepted,
            };
            match accepted {
                Ok(stream) => self.admit(stream, &speaker, drain).await,
                Err(error) => {
                    self.failed.increment(1);
                    if said.is_none_or(|said| said.elapsed() > ACCEPT_SAID_EVERY) {
                        said = Some(Instant::now());
                        let listener = listener.address();
                        warn!(%error, %listener, "accept failed, and is tried again");
                    }
                    recover(&error, &speaker).await;
                }
            }
        }
    }

    /// Has `speaker` speak on the connection, if there is room for it.
    async fn admit<S: Speak>(&self, stream: Stream, speaker: &S, drain: Drain) {
        let Some(permit) = self.permit(speaker).await else {
            self.refused.increment(1);
            stream.refuse(S::BUSY).await;
            return;
        };
        let (held, speaker) = (self.held(permit), speaker.clone());
        match stream {
            Stream::Tcp(stream) => tokio::spawn(held.until(speaker.speak(stream, drain))),
            Stream::Unix(stream) => tokio::spawn(held.until(speaker.speak(stream, drain))),
        };
    }

    /// A place for one more connection; if need be, that of one that gives way.
    async fn permit(&self, speaker: &impl Speak) -> Option<OwnedSemaphorePermit> {
        let permits = || Arc::clone(&self.permits);
        if let Ok(permit) = permits().try_acquire_owned() {
            return Some(permit);
        }
        if !speaker.make_way() {
            return None;
        }
        let given = tokio::time::timeout(GIVE_WAY_WAIT_MAX, permits().acquire_owned());
        given.await.ok()?.ok()
    }

    fn held(&self, permit: OwnedSemaphorePermit) -> Held {
        self.open.increment(1);
        Held {
            _permit: permit,
            open: self.open.clone(),
        }
    }
}

/// Waits until it is worth trying to accept again. The listener itself is well: what failed is one connection, or the
/// system has no more descriptors.
async fn recover(error: &io::Error, speaker: &impl Speak) {
    let of_client = matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    );
    let errno = Errno::from_io_error(error);
    let exhausted = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
    let at_once = of_client || (exhausted && speaker.free_descriptor());
    if !at_once {
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// A connection's place among those allowed.
struct Held {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl Held {
    /// Keeps the place until `spoken` has ended.
    async fn until(self, spoken: impl Future<Output = ()>) {
        spoken.await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.open.decrement(1);
    }
}

enum Stream {
    Tcp(tokio::net::TcpStream),
    Unix(UnixStream),
}

impl Stream {
    /// Says that there is no room. Whoever does not take it at once is not waited for.
    async fn refuse(self, busy: &[u8]) {
        let wait = Duration::from_millis(5);
        let _ = match self {
            Self::Tcp(mut stream) => tokio::time::timeout(wait, stream.write_all(busy)).await,
            Self::Unix(mut stream) => tokio::time::timeout(wait, stream.write_all(busy)).await,
        };
    }
}

async fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // A client that has left already shows when it is read.
            let _ = stream.set_nodelay(true);
            Ok(Stream::Tcp(stream))
        }
        Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}
