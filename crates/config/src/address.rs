//! The address of a door: `127.0.0.1:7600`, `localhost:7600`, `[::1]:7600` or `unix:tidegate.sock`.
//!
//! It never resolves a name: where a door listens must not depend on a resolver.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// The longest path of a Unix socket. The system's own limit is 108 or 104 bytes, the final zero included.
const UNIX_PATH_BYTES_MAX: usize = 100;

/// The address on which a door listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A TCP port.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Whether only this host can reach it.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }

    /// Whether only one door can have this address. Port 0 takes a new port each time.
    pub(super) fn is_exclusive(&self) -> bool {
        match self {
            Self::Tcp(address) => address.port() != 0,
            Self::Unix(_) => true,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// Why a text is not an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressFault {
    /// It has none of the known forms.
    #[error("must be \"host:port\" with an IP address or localhost as its host, or \"unix:/path\"")]
    Form,
    /// Longer than the system allows.
    #[error("must be a path of at most {UNIX_PATH_BYTES_MAX} bytes (a limit of Unix sockets)")]
    Long,
}

impl FromStr for Address {
    type Err = AddressFault;

    /// ```
    /// use tidegate_config::Address;
    /// assert_eq!("localhost:7600".parse::<Address>().map(|address| address.to_string()), Ok("127.0.0.1:7600".into()));
    /// assert!("example.org:80".parse::<Address>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.len() {
                0 => Err(AddressFault::Form),
                1..=UNIX_PATH_BYTES_MAX if !path.contains('\0') => Ok(Self::Unix(path.into())),
                1..=UNIX_PATH_BYTES_MAX => Err(AddressFault::Form),
                _ => Err(AddressFault::Long),
            };
        }
        let address = match text.strip_prefix("localhost:") {
            Some(port) => port
                .parse()
                .map(|port| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port))
                .ok(),
            None => text.parse().ok(),
        };
        address.map(Self::Tcp).ok_or(AddressFault::Form)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: Option<&str>) {
        let address = text.parse::<Address>().ok();
        assert_eq!(
            address.as_ref().map(Address::to_string).as_deref(),
            expected,
            "{text}"
        );
    }

    #[test]
    fn both_forms_print_as_they_are_written() {
        check("127.0.0.1:7600", Some("127.0.0.1:7600"));
        check("localhost:7600", Some("127.0.0.1:7600"));
        check("[::1]:7600", Some("[::1]:7600"));
        check("unix:tidegate.sock", Some("unix:tidegate.sock"));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "7600",
            ":7600",
            "127.0.0.1",
            "127.0.0.1:",
            "127.0.0.1:70000",
            "example.org:80",
            "unix:",
            "::1:7600",
            "localhost",
        ] {
            check(text, None);
        }
        let long = format!("unix:/{}", "a".repeat(100));
        assert_eq!(long.parse::<Address>(), Err(AddressFault::Long));
    }

    #[test]
    fn local_is_loopback_or_unix() {
        for (text, local) in [
            ("127.9.9.9:1", true),
            ("[::ffff:127.0.0.1]:1", true),
            ("unix:x", true),
            ("0.0.0.0:1", false),
            ("[::]:1", false),
        ] {
            assert_eq!(
                text.parse::<Address>().map(|address| address.is_local()),
                Ok(local),
                "{text}"
            );
        }
    }
}
