//! Accepting connections: a bounded number of them, until the drain begins.
//!
//! Nothing here knows what a connection speaks: a [`ConnectionHandler`] does. A connection beyond the bound is refused
//! in the words of its protocol.

use std::future::Future;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge};
use rustix::io::Errno;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;
use tracing::warn;

use super::drain::Drain;
use super::listen::Listener;

/// How long to wait before the next attempt when the system has no more file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How often the log repeats that accepting fails: there are twenty attempts a second.
const ACCEPT_WARNING_EVERY: Duration = Duration::from_secs(60);
/// How long a connection that is evicted may take to end.
const EVICTION_WAIT_MAX: Duration = Duration::from_millis(250);
/// How long a refused client may take to receive the refusal.
const REFUSAL_WAIT_MAX: Duration = Duration::from_millis(5);

/// Accepts the connections of one protocol: what all its listeners share.
#[derive(Clone, Debug)]
pub struct Acceptor {
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
    /// Times that the accept loop panicked and was started again.
    pub restarted: Counter,
}

/// Speaks a protocol on connections.
pub trait ConnectionHandler: Clone + Send + Sync + 'static {
    /// What a connection beyond the bound is sent.
    const BUSY: &'static [u8];

    /// Ends a connection of its own choice to make room for another one. False if it has none that may be ended.
    fn evict_one(&self) -> bool {
        false
    }

    /// Frees a file descriptor for the next connection when the process has no other. False if none is free yet.
    fn free_descriptor(&self) -> bool {
        false
    }

    /// Serves one connection until it ends, or until the drain has begun and the current request is answered.
    fn handle<T>(self, stream: T, drain: Drain) -> impl Future<Output = ()> + Send
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static;
}

impl Acceptor {
    /// Accepts on `listener` until the drain begins, and has `handler` serve each connection. A panic does not end it:
    /// the accept loop starts again on the same listener.
    pub async fn serve<H: ConnectionHandler>(self, listener: Listener, handler: H) {
        let listener = Arc::new(listener);
        loop {
            let accepting = self
                .clone()
                .accept_all(Arc::clone(&listener), handler.clone());
            if tokio::spawn(accepting).await.is_ok() {
                return;
            }
            self.restarted.increment(1);
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }

    async fn accept_all<H: ConnectionHandler>(mut self, listener: Arc<Listener>, handler: H) {
        let mut warned: Option<Instant> = None;
        loop {
            let drain = self.drain.clone();
            let accepted = tokio::select! {
                () = self.drain.begins() => return,
                accepted = accept(&listener) => accepted,
            };
            match accepted {
                Ok(stream) => self.admit(stream, &handler, drain).await,
                Err(error) => {
                    self.failed.increment(1);
                    if warned.is_none_or(|warned| warned.elapsed() > ACCEPT_WARNING_EVERY) {
                        warned = Some(Instant::now());
                        let listener = listener.address();
                        warn!(%error, %listener, "accept failed, trying again");
                    }
                    recover(&error, &handler).await;
                }
            }
        }
    }

    /// Has `handler` serve the connection, if there is room for it.
    async fn admit<H: ConnectionHandler>(&self, stream: ClientStream, handler: &H, drain: Drain) {
        let Some(permit) = self.permit(handler).await else {
            self.refused.increment(1);
            stream.refuse(H::BUSY).await;
            return;
        };
        let (permit, handler) = (self.counted(permit), handler.clone());
        match stream {
            ClientStream::Tcp(stream) => {
                tokio::spawn(permit.hold_during(handler.handle(stream, drain)))
            }
            ClientStream::Unix(stream) => {
                tokio::spawn(permit.hold_during(handler.handle(stream, drain)))
            }
        };
    }

    /// A place for one more connection; if need be, that of an evicted one.
    async fn permit(&self, handler: &impl ConnectionHandler) -> Option<OwnedSemaphorePermit> {
        let permits = || Arc::clone(&self.permits);
        if let Ok(permit) = permits().try_acquire_owned() {
            return Some(permit);
        }
        if !handler.evict_one() {
            return None;
        }
        let freed = tokio::time::timeout(EVICTION_WAIT_MAX, permits().acquire_owned());
        freed.await.ok()?.ok()
    }

    fn counted(&self, permit: OwnedSemaphorePermit) -> ConnectionPermit {
        self.open.increment(1);
        ConnectionPermit {
            _permit: permit,
            open: self.open.clone(),
        }
    }
}

/// Waits until another attempt to accept is worth making. The listener itself is well: one connection failed, or the
/// system has no more descriptors.
async fn recover(error: &io::Error, handler: &impl ConnectionHandler) {
    let of_client = matches!(
        error.kind(),
        ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset | ErrorKind::Interrupted
    );
    let errno = Errno::from_io_error(error);
    let exhausted = matches!(errno, Some(Errno::MFILE | Errno::NFILE));
    let at_once = of_client || (exhausted && handler.free_descriptor());
    if !at_once {
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// A connection's place among those allowed.
struct ConnectionPermit {
    _permit: OwnedSemaphorePermit,
    open: Gauge,
}

impl ConnectionPermit {
    /// Keeps the place until `connection` has ended.
    async fn hold_during(self, connection: impl Future<Output = ()>) {
        connection.await;
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.open.decrement(1);
    }
}

enum ClientStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl ClientStream {
    /// Sends the refusal. A client that does not take it at once goes without.
    async fn refuse(self, busy: &[u8]) {
        let wait = REFUSAL_WAIT_MAX;
        let _ = match self {
            Self::Tcp(mut stream) => tokio::time::timeout(wait, stream.write_all(busy)).await,
            Self::Unix(mut stream) => tokio::time::timeout(wait, stream.write_all(busy)).await,
        };
    }
}

async fn accept(listener: &Listener) -> io::Result<ClientStream> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // It fails for a client that has left already; the first read finds that out.
            let _ = stream.set_nodelay(true);
            Ok(ClientStream::Tcp(stream))
        }
        Listener::Unix(listener, _) => Ok(ClientStream::Unix(listener.accept().await?.0)),
    }
}
