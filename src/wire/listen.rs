//! Listening, on TCP or on a Unix socket: bind, accept, bound the connections, drain.
//!
//! Nothing here knows what is spoken on a connection; [`Door::serve`] is given what to do with it.

use std::fs;
use std::future::Future;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::Service;
use hyper_util::rt::TokioIo;
use metrics::{Counter, Gauge};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tracing::{debug, warn};

use super::Reply;
use super::heads::Heads;
use crate::config::Address;

/// Bytes of a request's head. Its headers are bounded by hyper, at 100: any other bound costs each request a copy.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Connections that wait to be accepted. A client beyond them is not refused: it tries again after a second.
const BACKLOG_MAX: u32 = 4096;
/// How long to wait before accepting again when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// What a connection beyond the bound is told.
const BUSY: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: 79\r\n\
    retry-after: 1\r\nconnection: close\r\n\r\n\
    {\"error\":{\"code\":\"TOO_MANY_CONNECTIONS\",\"message\":\"connections_max are open\"}}\n";

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

    fn has_begun(&self) -> bool {
        // Ordering: Acquire pairs with `begin`. The channel wakes whoever waits.
        self.begun.load(Ordering::Acquire)
    }

    async fn begins(&mut self) {
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
}

impl Door {
    /// Accepts on `listener` until the drain begins, and serves HTTP/1.1 on each connection with a service of its own.
    pub async fn serve<S>(mut self, listener: Listener, service: S)
    where
        S: Service<Request<Incoming>, Response = Reply> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: std::error::Error + Send + Sync + 'static,
    {
        loop {
            let drain = self.drain.clone();
            let accepted = tokio::select! {
                () = self.drain.begins() => return,
                accepted = accept(&listener) => accepted,
            };
            match (accepted, Arc::clone(&self.permits).try_acquire_owned()) {
                (Ok(Stream::Tcp(stream)), Ok(permit)) => {
                    tokio::spawn(connection(
                        stream,
                        service.clone(),
                        drain,
                        self.held(permit),
                    ));
                }
                (Ok(Stream::Unix(stream)), Ok(permit)) => {
                    tokio::spawn(connection(
                        stream,
                        service.clone(),
                        drain,
                        self.held(permit),
                    ));
                }
                (Ok(stream), Err(_)) => {
                    self.refused.increment(1);
                    stream.refuse().await;
                }
                (Err(error), _) => {
                    // The listener itself is well: what failed is this connection, or file descriptors ran out.
                    warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn held(&self, permit: OwnedSemaphorePermit) -> Held {
        self.open.increment(1);
        Held {
            _permit: permit,
            open: self.open.clone(),
        }
    }
}

/// A connection's place among those allowed.
struct Held {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
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
    async fn refuse(self) {
        let wait = Duration::from_millis(5);
        let _ = match self {
            Self::Tcp(mut stream) => tokio::time::timeout(wait, stream.write_all(BUSY)).await,
            Self::Unix(mut stream) => tokio::time::timeout(wait, stream.write_all(BUSY)).await,
        };
    }
}

async fn accept(listener: &Listener) -> io::Result<Stream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
        Listener::Unix(listener, _) => Ok(Stream::Unix(listener.accept().await?.0)),
    }
}

async fn connection<T, S>(stream: T, service: S, mut drain: Drain, held: Held)
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Reply>,
    S::Error: std::error::Error + Send + Sync + 'static,
{
    let (service, mut heads) = Heads::of(service);
    let mut served = pin!(
        http1::Builder::new()
            .max_buf_size(HEAD_BYTES_MAX)
            .half_close(true)
            .writev(false)
            .serve_connection(TokioIo::new(stream), service)
    );
    let begun = Arc::clone(&drain.begun);
    let mut begins = pin!(drain.begins());
    let (mut waiting, mut draining) = (false, false);
    std::future::poll_fn(|context| {
        // The drain is asked once, to be woken by it; after that a flag tells, which costs a request nothing.
        if !waiting || begun.load(Ordering::Acquire) {
            waiting = true;
            if !draining && begins.as_mut().poll(context).is_ready() {
                draining = true;
                served.as_mut().graceful_shutdown();
            }
        }
        match served.as_mut().poll(context) {
            Poll::Ready(Ok(())) => Poll::Ready(()),
            Poll::Ready(Err(error)) => {
                debug!(%error, "connection ended early");
                Poll::Ready(())
            }
            Poll::Pending if heads.overdue(context) => {
                debug!("connection closed: no request came in time");
                Poll::Ready(())
            }
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    drop(held);
}
