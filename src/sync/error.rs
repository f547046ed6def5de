//! The failures between a pod and the store. The text of a server is kept, but shortened, and never with a secret.

use std::fmt;

use redis::{RedisError, ServerErrorKind};

use super::stream::TOO_LONG;

/// How many bytes of a server's text are kept.
const TEXT_BYTES_MAX: usize = 200;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $name:literal;)*) => {
        /// The kind of a failure.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ErrorKind { $($(#[$doc])* $kind),* }

        impl ErrorKind {
            /// Every kind.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// Its name, which is also the label of a metric.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$kind => $name),* }
            }
        }
    };
}

kinds! {
    /// The server does not have the script, not even after it was loaded.
    NoScript = "noscript";
    /// The server is reading its data from disk.
    Loading = "loading";
    /// The server has no memory left.
    OutOfMemory = "oom";
    /// The server is a replica.
    ReadOnly = "readonly";
    /// Another server owns the lane, and that one redirected the call again.
    Moved = "moved";
    /// The lane is being moved to another server.
    Ask = "ask";
    /// The lane is being moved, and its keys are on both servers.
    TryAgain = "tryagain";
    /// The keys of a call are in several slots, and the server is a part of a cluster.
    CrossSlot = "crossslot";
    /// The cluster does not serve this lane.
    ClusterDown = "clusterdown";
    /// Somebody's script runs for too long.
    Busy = "busy";
    /// The server does not accept our credentials.
    NoAuth = "noauth";
    /// The server accepts our credentials, but does not permit the command.
    NoPermission = "noperm";
    /// A value in the store has another type.
    WrongType = "wrongtype";
    /// No answer in time.
    Timeout = "timeout";
    /// No connection.
    Connect = "connect";
    /// The connection was lost before the answer.
    Cut = "cut";
    /// An answer that makes no sense.
    Protocol = "protocol";
    /// Anything else.
    Other = "other";
}

impl ErrorKind {
    /// Whether the connection must not be used again: it is broken, or leads to the wrong server.
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

    /// Whether our map of the cluster may be out of date.
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

    /// The kind that the first word of a server's error means.
    fn of_code(code: &str) -> Self {
        match code {
            "NOSCRIPT" => Self::NoScript,
            "LOADING" => Self::Loading,
            "OOM" => Self::OutOfMemory,
            "READONLY" | "MASTERDOWN" => Self::ReadOnly,
            "MOVED" => Self::Moved,
            "ASK" => Self::Ask,
            "TRYAGAIN" => Self::TryAgain,
            "CROSSSLOT" => Self::CrossSlot,
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
            reason = "the library may add kinds, and does with its features"
        )]
        match error.kind() {
            Redis::Server(ServerErrorKind::NoPerm) => Self::NoPermission,
            Redis::AuthenticationFailed => Self::NoAuth,
            // The library reports an answer that breaks off as one that cannot be parsed.
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

/// The code of a server's error, also if it is the error of one command of a pipeline.
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

/// Why a call to the store failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("store {server}: {kind}")]
pub struct StoreError {
    /// What went wrong.
    pub kind: ErrorKind,
    /// The server that was called.
    server: String,
    /// The address of a redirection.
    pub(super) redirection: Option<String>,
    #[source]
    source: Option<ErrorText>,
}

/// The text of a server or of the library.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
struct ErrorText(String);

impl StoreError {
    /// A failure that we found ourselves.
    pub(super) fn new(kind: ErrorKind, server: &str, words: &str) -> Self {
        Self {
            kind,
            server: server.to_owned(),
            redirection: None,
            source: Some(ErrorText(bounded(words))),
        }
    }

    /// No answer in time.
    pub(super) fn timeout(server: &str) -> Self {
        Self {
            kind: ErrorKind::Timeout,
            server: server.to_owned(),
            redirection: None,
            source: None,
        }
    }

    /// An answer that makes no sense.
    pub(super) fn protocol(words: &str) -> Self {
        Self::new(ErrorKind::Protocol, "", words)
    }

    /// A failure that the library reports. A text with `secret` in it is left out: old servers repeat a command that
    /// they do not understand.
    pub(super) fn redis(server: &str, error: &RedisError, secret: Option<&str>) -> Self {
        let words = bounded(&error.to_string());
        let repeats_secret =
            secret.is_some_and(|secret| !secret.is_empty() && error.to_string().contains(secret));
        Self {
            kind: ErrorKind::of_redis(error),
            server: server.to_owned(),
            redirection: error.redirect_node().map(|(address, _)| bounded(address)),
            source: (!repeats_secret).then_some(ErrorText(words)),
        }
    }

    /// The same, while connecting: there was no connection yet that could be lost.
    pub(super) fn connecting(mut self) -> Self {
        if self.kind == ErrorKind::Cut {
            self.kind = ErrorKind::Connect;
        }
        self
    }

    /// The same, for this server.
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
