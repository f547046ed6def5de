//! Parses the store's URL: `redis[s]://[user:password@]host[:port],...[/database]` or
//! `unix:///path[?db=&user=&pass=]`.
//!
//! The configuration (`store.rs` there) has already refused every text that is no such URL. User and password are
//! percent-encoded, as in any URL.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::percent_decode_str;

/// Where one server listens.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum StoreAddress {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl StoreAddress {
    /// Parses the `host:port` of a redirection. If it has no host, the host of `asked` is meant.
    pub(super) fn redirected(text: &str, asked: &Self) -> Option<Self> {
        let (host, port) = text.rsplit_once(':')?;
        Self::announced(host, port.parse().ok()?, asked)
    }

    /// The address that a cluster announces for a server. A server that does not know its own host means the host
    /// that we asked it under.
    pub(super) fn announced(host: &str, port: u16, asked: &Self) -> Option<Self> {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match (host, asked) {
            (_, _) if port == 0 => None,
            ("" | "?", Self::Tcp(host, _)) => Some(Self::Tcp(host.clone(), port)),
            ("" | "?", Self::Unix(_)) => None,
            (host, _) => Some(Self::Tcp(host.to_owned(), port)),
        }
    }
}

impl fmt::Display for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What the URL says: the servers' addresses, and the credentials to use there.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct StoreTarget {
    pub(super) tls: bool,
    pub(super) addresses: Vec<StoreAddress>,
    pub(super) user: Option<String>,
    pub(super) password: Option<String>,
    pub(super) database: i64,
}

impl StoreTarget {
    /// Parses `url`. A host without a port gets `port`. `None` if the database is not a number.
    pub(super) fn parse(url: &str, port: u16) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        if scheme == "unix" {
            return Self::unix(rest);
        }
        let (secrets, open) = match rest.rsplit_once('@') {
            Some((secrets, open)) => (Some(secrets), open),
            None => (None, rest),
        };
        let (hosts, path) = open.split_once(['/', '?']).unwrap_or((open, ""));
        let path = path.split('?').next().unwrap_or_default();
        let database = if path.is_empty() {
            0
        } else {
            path.parse().ok()?
        };
        let (user, password) =
            match secrets.map(|secrets| secrets.split_once(':').unwrap_or((secrets, ""))) {
                Some((user, password)) => (decode_nonempty(user), decode_nonempty(password)),
                None => (None, None),
            };
        let addresses = hosts.split(',').map(|host| tcp(host, port)).collect();
        Some(Self {
            tls: scheme == "rediss",
            addresses,
            user,
            password,
            database,
        })
    }

    fn unix(rest: &str) -> Option<Self> {
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let path = percent_decode_str(path).decode_utf8_lossy().into_owned();
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let database = match value("db") {
            Some(number) => number.parse().ok()?,
            None => 0,
        };
        Some(Self {
            tls: false,
            addresses: vec![StoreAddress::Unix(PathBuf::from(path))],
            user: value("user").and_then(decode_nonempty),
            password: value("pass").and_then(decode_nonempty),
            database,
        })
    }
}

fn decode_nonempty(text: &str) -> Option<String> {
    let text = percent_decode_str(text).decode_utf8_lossy().into_owned();
    (!text.is_empty()).then_some(text)
}

fn tcp(host: &str, default: u16) -> StoreAddress {
    // The colons of an IPv6 address are inside brackets.
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => (name, port.parse().unwrap_or(default)),
        Some(_) | None => (host, default),
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    StoreAddress::Tcp(name.to_owned(), port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, addresses: &str, secrets: (Option<&str>, Option<&str>), database: i64) {
        let target = StoreTarget::parse(url, 6379).expect(url);
        let found: Vec<String> = target.addresses.iter().map(ToString::to_string).collect();
        assert_eq!(found.join(" "), addresses, "{url}");
        assert_eq!(
            (target.user.as_deref(), target.password.as_deref()),
            secrets,
            "{url}"
        );
        assert_eq!(target.database, database, "{url}");
        assert_eq!(target.tls, url.starts_with("rediss"), "{url}");
    }

    #[test]
    fn a_url_is_parsed() {
        check("redis://redis", "redis:6379", (None, None), 0);
        check("rediss://[::1]:7000/3", "::1:7000", (None, None), 3);
        check("redis://a:1,b", "a:1 b:6379", (None, None), 0);
        check(
            "redis://ada:p%40ss@h/",
            "h:6379",
            (Some("ada"), Some("p@ss")),
            0,
        );
        check("redis://:p@s:s@h:1", "h:1", (None, Some("p@s:s")), 0);
        check(
            "unix:///run/r.sock?db=2&user=ada&pass=x",
            "/run/r.sock",
            (Some("ada"), Some("x")),
            2,
        );
        assert!(StoreTarget::parse("redis://h/x", 6379).is_none());
    }

    #[test]
    fn a_redirection_without_a_host_means_the_host_that_was_asked() {
        let asked = StoreAddress::Tcp("a".to_owned(), 1);
        for (text, expected) in [
            ("b:2", Some("b:2")),
            (":2", Some("a:2")),
            ("::1:2", Some("::1:2")),
            ("b:0", None),
            ("b", None),
        ] {
            let found = StoreAddress::redirected(text, &asked).map(|address| address.to_string());
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
