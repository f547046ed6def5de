//! What a client says to set its connection up, and what it is answered: so that the usual libraries connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command::{self, ConnectionCommand, Does, Refused, unknown_part, wrong_number};
use crate::net::is_secret;
use crate::protocol::resp::encode::Replies;
use crate::protocol::resp::frame::Arguments;

/// Bytes of a connection's name.
const NAME_BYTES_MAX: usize = 256;
/// What clients look at to learn which commands there are: the Redis whose manners these are.
const REDIS_VERSION: &str = "7.0.0";

const NO_AUTH: &str = "NOAUTH Authentication required.";
const NO_AUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
    the same time";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you \
    sure your configuration is correct?";

/// Whether a connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// It does.
    GoOn,
    /// It ends, once everything is sent.
    Close,
}

/// One client's connection.
#[derive(Debug)]
pub struct Session {
    id: u64,
    name: Vec<u8>,
    password: Option<Arc<[u8]>>,
    authenticated: bool,
}

impl Session {
    /// A connection that has said nothing yet. With a password it has to say that first.
    pub fn new(password: Option<Arc<[u8]>>) -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        Self {
            // Ordering: Relaxed. Each gets another number, whoever comes first.
            id: CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1,
            name: Vec::new(),
            authenticated: password.is_none(),
            password,
        }
    }

    /// Whether it may ask for that.
    pub fn permits(&self, does: Does) -> Result<(), Refused> {
        let always = matches!(
            does,
            Does::ConnectionCommand(
                ConnectionCommand::Auth
                    | ConnectionCommand::Hello
                    | ConnectionCommand::Quit
                    | ConnectionCommand::Reset
            )
        );
        match self.authenticated || always {
            true => Ok(()),
            false => Err(refused(NO_AUTH)),
        }
    }

    /// Answers anything but a check.
    pub fn answer(
        &mut self,
        courtesy: ConnectionCommand,
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<Then, Refused> {
        let first = arguments.get(1).copied();
        match (courtesy, first) {
            (ConnectionCommand::Ping, None) => replies.simple("PONG"),
            (ConnectionCommand::Ping | ConnectionCommand::Echo, message) => {
                replies.bulk(message.unwrap_or_default())
            }
            (ConnectionCommand::Hello, version) => self.hello(version, arguments, replies)?,
            (ConnectionCommand::Auth, _) => {
                self.authenticate(arguments.get(1..).unwrap_or_default())?;
                replies.simple("OK");
            }
            (ConnectionCommand::Client, part) => {
                self.client(part.unwrap_or_default(), arguments, replies)?
            }
            (ConnectionCommand::Command, _) => command::tell(arguments, replies)?,
            (ConnectionCommand::Info, _) => replies.bulk(info().as_bytes()),
            (ConnectionCommand::Select, Some(b"0")) => replies.simple("OK"),
            (ConnectionCommand::Select, _) => return Err(refused("ERR DB index is out of range")),
            (ConnectionCommand::Reset, _) => {
                *self = Self {
                    id: self.id,
                    ..Self::new(self.password.take())
                };
                replies.resp3 = false;
                replies.simple("RESET");
            }
            (ConnectionCommand::Quit, _) => {
                replies.simple("OK");
                return Ok(Then::Close);
            }
        }
        Ok(Then::GoOn)
    }

    /// `[user] password`, of the one user there is.
    fn authenticate(&mut self, words: &[&[u8]]) -> Result<(), Refused> {
        let (user, given) = match words {
            [given] => (&b"default"[..], *given),
            [user, given] => (*user, *given),
            _ => return Err(wrong_number("auth")),
        };
        match &self.password {
            None if words.len() == 1 => Err(refused(NO_PASSWORD)),
            // As in Redis: without a password the default user takes any.
            None if user == b"default" => Ok(()),
            Some(password) if user == b"default" && is_secret(given, password) => {
                self.authenticated = true;
                Ok(())
            }
            None | Some(_) => Err(refused(WRONG_PASS)),
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`.
    fn hello(
        &mut self,
        version: Option<&[u8]>,
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let resp3 = match version {
            None => replies.resp3,
            Some(b"2") => false,
            Some(b"3") => true,
            Some(other) if other.iter().all(u8::is_ascii_digit) => {
                return Err(refused("NOPROTO unsupported protocol version"));
            }
            Some(_) => {
                return Err(refused(
                    "ERR Protocol version is not an integer or out of range",
                ));
            }
        };
        let mut options = arguments.get(2..).unwrap_or_default();
        let mut name = None;
        while let [option, rest @ ..] = options {
            options = match (option.to_ascii_lowercase().as_slice(), rest) {
                (b"auth", [user, given, rest @ ..]) => {
                    self.authenticate(&[user, given])?;
                    rest
                }
                (b"setname", [given, rest @ ..]) => {
                    name = Some(checked_name(given)?);
                    rest
                }
                _ => {
                    let option = String::from_utf8_lossy(option);
                    return Err(Refused(format!(
                        "ERR Syntax error in HELLO option '{option}'"
                    )));
                }
            };
        }
        if !self.authenticated {
            return Err(refused(NO_AUTH_HELLO));
        }
        if let Some(name) = name {
            name.clone_into(&mut self.name);
        }
        replies.resp3 = resp3;
        self.write_hello(replies);
        Ok(())
    }

    fn write_hello(&self, replies: &mut Replies) {
        replies.map(7);
        for (field, text) in [
            ("server", "redis"),
            ("version", REDIS_VERSION),
            ("mode", "standalone"),
            ("role", "master"),
        ] {
            replies.bulk(field.as_bytes());
            replies.bulk(text.as_bytes());
        }
        replies.bulk(b"proto");
        replies.integer(if replies.resp3 { 3 } else { 2 });
        replies.bulk(b"id");
        replies.integer(i64::try_from(self.id).unwrap_or(i64::MAX));
        replies.bulk(b"modules");
        replies.array(0);
    }

    fn client(
        &mut self,
        part: &[u8],
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<(), Refused> {
        let given = arguments.get(2..).unwrap_or_default();
        match (part.to_ascii_lowercase().as_slice(), given) {
            (b"setname", [name]) => {
                checked_name(name)?.clone_into(&mut self.name);
                replies.simple("OK");
            }
            (b"getname", []) if self.name.is_empty() => replies.nil(),
            (b"getname", []) => replies.bulk(&self.name),
            (b"id", []) => replies.integer(i64::try_from(self.id).unwrap_or(i64::MAX)),
            (b"info" | b"list", _) => {
                let name = String::from_utf8_lossy(&self.name);
                let proto = if replies.resp3 { 3 } else { 2 };
                let line = format!("id={} name={name} db=0 resp={proto}\n", self.id);
                replies.bulk(line.as_bytes());
            }
            // Nothing is evicted or touched here, and nobody is silenced.
            (b"setinfo", [_, _])
            | (b"no-evict" | b"no-touch", [_])
            | (b"reply", [b"on" | b"ON"]) => {
                replies.simple("OK");
            }
            (
                part @ (b"setname" | b"getname" | b"id" | b"setinfo" | b"no-evict" | b"no-touch"),
                _,
            ) => {
                let part = String::from_utf8_lossy(part);
                return Err(wrong_number(&format!("client|{part}")));
            }
            _ => return Err(unknown_part("client", part)),
        }
        Ok(())
    }
}

/// A name that would not break the line it is told in.
fn checked_name(name: &[u8]) -> Result<&[u8], Refused> {
    match name.len() {
        length if length > NAME_BYTES_MAX => Err(Refused(format!(
            "ERR Client names must be at most {NAME_BYTES_MAX} bytes, is {length}"
        ))),
        _ if name.iter().all(u8::is_ascii_graphic) => Ok(name),
        _ => Err(refused(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        )),
    }
}

fn refused(text: &str) -> Refused {
    Refused(text.to_owned())
}

/// What clients read of it: whether the server is ready, and its version.
fn info() -> String {
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ntidegate_version:{}\r\n\r\n\
        # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION")
    )
}
