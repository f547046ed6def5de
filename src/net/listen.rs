//! Binding an address, on TCP or on a Unix socket, and the file of that socket.
//!
//! It never removes anything from a path but a socket on which nobody listens. `accept.rs` accepts on what is bound
//! here.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::net::{TcpListener, TcpSocket, UnixListener, UnixStream};

use tidegate_config::Address;

/// Connections that wait to be accepted. The system does not refuse a client beyond them: that client tries again after
/// a second.
const BACKLOG_MAX: u32 = 4096;

/// Why the process cannot listen on an address.
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
    /// Something that is not ours to remove is at that path.
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
                ensure_vacant(address, path).await?;
                let (listener, file) = bind_unix(path, unix_mode).map_err(failed)?;
                Ok(Self::Unix(listener, file))
            }
        }
    }

    /// Where it listens: with the port that the system chose, if the configuration left that to it.
    pub fn address(&self) -> Address {
        match self {
            Self::Tcp(listener) => listener
                .local_addr()
                .map_or_else(|_| Address::Unix(PathBuf::new()), Address::Tcp),
            Self::Unix(_, file) => Address::Unix(file.path.clone()),
        }
    }
}

/// The file of a bound Unix socket. Dropping it removes the file.
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

/// Makes sure that `path` is free, or holds a socket on which nobody listens.
async fn ensure_vacant(address: &Address, path: &Path) -> Result<(), BindError> {
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
    // A successor may bind the port while connections of this process still linger.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG_MAX)
}

/// Binds under another name first and renames: the socket appears at `path` at once, with its mode, and replaces a
/// stale one.
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
