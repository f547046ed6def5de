//! What can go wrong between a pod and the store. The texts of servers are kept, but cut, and never with a secret.

use std::fmt;

use redis::{RedisError, ServerErrorKind};

use super::stream::TOO_LONG;

/// Bytes of a server's text that are kept.
const TEXT_BYTES_MAX: usize = 200;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// What went wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorKind { $($(#[$doc])* $kind),* }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name, as a metric's label.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
        }
    };
}

kinds! {
    /// The script is not there, even after it was loaded.
    NoScript = "noscript";
    /// It reads its data from disk.
    Loading = "loading";
    /// It has no memory left.
    OutOfMemory = "oom";
    /// It is a replica.
    ReadOnly = "readonly";
    /// The lane lives elsewhere, and there too.
    Moved = "moved";
    /// The lane is moving.
    Ask = "ask";
    /// The lane is moving, and split.
    TryAgain = "tryagain";
    /// The cluster does not serve this lane.
    ClusterDown = "clusterdown";
    /// A script of somebody runs for too long.
    Busy = "busy";
    /// It does not know us.
    NoAuth = "noauth";
    /// It knows us, and does not let us.
    NoPermission = "noperm";
    /// A value is of another type.
    WrongType = "wrongtype";
    /// No answer in time.
    Timeout = "timeout";
    /// No connection.
    Connect = "connect";
    /// The connection was lost before the answer.
    Cut = "cut";
    /// An answer that is none.
    Protocol = "protocol";
    /// Anything else.
    Other = "other";
}

impl ErrorKind {
    /// Whether the connection is not to be used again: it is broken, or leads to the wrong server.
    pub(super) const fn spoils_connection(self) -> bool {
        matches!(
            self,
            Self::Timeout
                | Self::Connect
                | Self::Cut
                | Self::Protocol
                | Self::ReadOnly
                | Self::NoAuth
        )
    }

    /// Whether a cluster may look different from what we think.
    pub(super) const fn doubts_map(self) -> bool {
        matches!(
            self,
            Self::Timeout
                | Self::Connect
                | Self::Cut
                | Self::ReadOnly
                | Self::Moved
                | Self::Ask
                | Self::TryAgain
                | Self::ClusterDown
        )
    }

    /// What the first word of a server's error says.
    fn of_code(code: &str) -> Self {
        match code {
            "NOSCRIPT" => Self::NoScript,
            "LOADING" => Self::Loading,
            "OOM" => Self::OutOfMemory,
            "READONLY" | "MASTERDOWN" => Self::ReadOnly,
            "MOVED" => Self::Moved,
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "CLUSTERDOWN" => Self::ClusterDown,
            "BUSY" => Self::Busy,
            "NOAUTH" | "WRONGPASS" | "DENIED" => Self::NoAuth,
            "NOPERM" => Self::NoPermission,
            "WRONGTYPE" => Self::WrongType,
            _ => Self::Other,
        }
    }

    fn of_redis(error: &RedisError) -> Self {
        use redis::ErrorKind as Redis;
        #[expect(
            clippy::wildcard_enum_match_arm,
            reason = "the library's kinds may grow, and grow with its features"
        )]
        match error.kind() {
            Redis::Server(ServerErrorKind::NoPerm) => Self::NoPermission,
            Redis::AuthenticationFailed => Self::NoAuth,
            // The library takes an answer that breaks off for one that is wrong.
            Redis::Parse if error.to_string().contains("end of input") => Self::Cut,
            Redis::Parse | Redis::UnexpectedReturnType | Redis::RESP3NotSupported => Self::Protocol,
            Redis::Io if error.is_timeout() => Self::Timeout,
            Redis::Io if error.to_string().contains(TOO_LONG) => Self::Protocol,
            Redis::Io => Self::Cut,
            Redis::Server(_) | Redis::Extension => match server_code(error) {
                Some(code) => Self::of_code(&code),
                None => Self::Other,
            },
            _ => Self::Other,
        }
    }
}

/// The code of a server's error, also where it is the error of one command among several.
fn server_code(error: &RedisError) -> Option<String> {
    if let Some(code) = error.code() {
        return Some(code.to_owned());
    }
    let errors = error.clone().into_server_errors()?;
    errors.first().map(|(_, error)| error.code().to_owned())
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Why the store did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[error("store {server}: {kind}")]
pub struct StoreError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// With whom.
    server: String,
    /// Where a cluster says to go instead.
    pub(super) elsewhere: Option<String>,
    #[source]
    source: Option<Words>,
}

/// What a server or the library said.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct Words(String);

impl StoreError {
    /// Something of ours.
    pub(super) fn new(kind: ErrorKind, server: &str, words: &str) -> Self {
        Self {
            kind,
            server: server.to_owned(),
            elsewhere: None,
            source: Some(Words(bounded(words))),
        }
    }

    /// No answer in time.
    pub(super) fn timeout(server: &str) -> Self {
        Self {
            kind: ErrorKind::Timeout,
            server: server.to_owned(),
            elsewhere: None,
            source: None,
        }
    }

    /// An answer that is none.
    pub(super) fn protocol(words: &str) -> Self {
        Self::new(ErrorKind::Protocol, "", words)
    }

    /// What the library reports. `secret` is kept out of it: old servers repeat what they do not understand.
    pub(super) fn redis(server: &str, error: &RedisError, secret: Option<&str>) -> Self {
        let words = bounded(&error.to_string());
        let tells =
            secret.is_some_and(|secret| !secret.is_empty() && error.to_string().contains(secret));
        Self {
            kind: ErrorKind::of_redis(error),
            server: server.to_owned(),
            elsewhere: error.redirect_node().map(|(address, _)| bounded(address)),
            source: (!tells).then_some(Words(words)),
        }
    }

    /// The same, while connecting: what was lost then was never there.
    pub(super) fn connecting(mut self) -> Self {
        if self.kind == ErrorKind::Cut {
            self.kind = ErrorKind::Connect;
        }
        self
    }

    /// The same, with this server.
    pub(super) fn with_server(mut self, server: &str) -> Self {
        server.clone_into(&mut self.server);
        self
    }
}

/// The beginning of `text`, in one line.
fn bounded(text: &str) -> String {
    let mut kept = String::new();
    for character in text.trim_end().chars() {
        if kept.len().saturating_add(character.len_utf8()) > TEXT_BYTES_MAX {
            break;
        }
        kept.push(if character.is_control() {
            ' '
        } else {
            character
        });
    }
    kept
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn every_kind_has_a_name_of_its_own() {
        let mut names: Vec<&str> = ErrorKind::ALL.iter().map(|kind| kind.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ErrorKind::ALL.len());
    }

    #[test]
    fn a_long_text_is_cut_between_characters() {
        let text = "é".repeat(TEXT_BYTES_MAX);
        assert_eq!(bounded(&text).len(), TEXT_BYTES_MAX);
        assert_eq!(bounded(&format!("x{text}")).len(), TEXT_BYTES_MAX - 1);
        assert_eq!(bounded("two\nlines\n"), "two lines");
    }

    #[test]
    fn a_text_with_the_secret_is_not_repeated() {
        let said = "unknown command 'HELLO', with args beginning with: 'hunter2'";
        let error = RedisError::from((redis::ErrorKind::Client, "x", said.to_owned()));
        let shown = StoreError::redis("a:1", &error, Some("hunter2"));
        assert!(shown.source().is_none());
        assert!(!format!("{shown:?}").contains("hunter2"));
        assert!(
            StoreError::redis("a:1", &error, Some(""))
                .source()
                .is_some()
        );
    }
}
