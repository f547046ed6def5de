//! One client's session: the commands that set its connection up, answered so that the usual libraries connect.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::command::{
    self, CommandError, CommandKind, ConnectionCommand, unknown_subcommand, wrong_number,
};
use crate::net::is_secret;
use crate::protocol::resp::encode::Replies;
use crate::protocol::resp::frame::Arguments;

/// Bytes of a connection's name.
const NAME_BYTES_MAX: usize = 256;
/// The Redis whose behaviour this is. Clients look at it to learn which commands there are.
const REDIS_VERSION: &str = "7.0.0";

const NO_AUTH: &str = "NOAUTH Authentication required.";
const NO_AUTH_HELLO: &str = "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO \
    <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
    the same time";
const WRONG_PASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";
const NO_PASSWORD: &str = "ERR AUTH <password> called without any password configured for the default user. Are you \
    sure your configuration is correct?";

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionFate {
    /// It goes on.
    Continue,
    /// It ends once everything is sent.
    Close,
}

/// The state of one client's connection.
#[derive(Debug)]
pub struct Session {
    id: u64,
    name: Vec<u8>,
    password: Option<Arc<[u8]>>,
    authenticated: bool,
}

impl Session {
    /// A new session. If there is a password, the client has to send it first.
    pub fn new(password: Option<Arc<[u8]>>) -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(0);
        Self {
            // Ordering: Relaxed. Only the numbers have to differ.
            id: CONNECTIONS.fetch_add(1, Ordering::Relaxed) + 1,
            name: Vec::new(),
            authenticated: password.is_none(),
            password,
        }
    }

    /// Refuses a command that needs the password before the client has sent it.
    pub fn permit(&self, kind: CommandKind) -> Result<(), CommandError> {
        let always = matches!(
            kind,
            CommandKind::Connection(
                ConnectionCommand::Auth
                    | ConnectionCommand::Hello
                    | ConnectionCommand::Quit
                    | ConnectionCommand::Reset
            )
        );
        match self.authenticated || always {
            true => Ok(()),
            false => Err(error(NO_AUTH)),
        }
    }

    /// Answers a command that is no check.
    pub fn answer(
        &mut self,
        command: ConnectionCommand,
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<ConnectionFate, CommandError> {
        let first = arguments.get(1).copied();
        match (command, first) {
            (ConnectionCommand::Ping, None) => replies.simple("PONG"),
            (ConnectionCommand::Ping | ConnectionCommand::Echo, message) => {
                replies.bulk(message.unwrap_or_default())
            }
            (ConnectionCommand::Hello, version) => self.hello(version, arguments, replies)?,
            (ConnectionCommand::Auth, _) => {
                self.authenticate(arguments.get(1..).unwrap_or_default())?;
                replies.simple("OK");
            }
            (ConnectionCommand::Client, subcommand) => {
                self.client(subcommand.unwrap_or_default(), arguments, replies)?
            }
            (ConnectionCommand::Command, _) => command::write_commands(arguments, replies)?,
            (ConnectionCommand::Info, _) => replies.bulk(info().as_bytes()),
            (ConnectionCommand::Select, Some(b"0")) => replies.simple("OK"),
            (ConnectionCommand::Select, _) => return Err(error("ERR DB index is out of range")),
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
                return Ok(ConnectionFate::Close);
            }
        }
        Ok(ConnectionFate::Continue)
    }

    /// `[user] password`. There is one user, `default`.
    fn authenticate(&mut self, words: &[&[u8]]) -> Result<(), CommandError> {
        let (user, given) = match words {
            [given] => (&b"default"[..], *given),
            [user, given] => (*user, *given),
            _ => return Err(wrong_number("auth")),
        };
        match &self.password {
            None if words.len() == 1 => Err(error(NO_PASSWORD)),
            // As in Redis: without a configured password the default user accepts any.
            None if user == b"default" => Ok(()),
            Some(password) if user == b"default" && is_secret(given, password) => {
                self.authenticated = true;
                Ok(())
            }
            None | Some(_) => Err(error(WRONG_PASS)),
        }
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`.
    fn hello(
        &mut self,
        version: Option<&[u8]>,
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<(), CommandError> {
        let resp3 = match version {
            None => replies.resp3,
            Some(b"2") => false,
            Some(b"3") => true,
            Some(other) if other.iter().all(u8::is_ascii_digit) => {
                return Err(error("NOPROTO unsupported protocol version"));
            }
            Some(_) => {
                return Err(error(
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
                    return Err(CommandError(format!(
                        "ERR Syntax error in HELLO option '{option}'"
                    )));
                }
            };
        }
        if !self.authenticated {
            return Err(error(NO_AUTH_HELLO));
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
        subcommand: &[u8],
        arguments: &Arguments<'_>,
        replies: &mut Replies,
    ) -> Result<(), CommandError> {
        let given = arguments.get(2..).unwrap_or_default();
        match (subcommand.to_ascii_lowercase().as_slice(), given) {
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
            // There is nothing to evict or to touch, and replies are always on.
            (b"setinfo", [_, _])
            | (b"no-evict" | b"no-touch", [_])
            | (b"reply", [b"on" | b"ON"]) => {
                replies.simple("OK");
            }
            (
                subcommand @ (b"setname" | b"getname" | b"id" | b"setinfo" | b"no-evict"
                | b"no-touch"),
                _,
            ) => {
                let subcommand = String::from_utf8_lossy(subcommand);
                return Err(wrong_number(&format!("client|{subcommand}")));
            }
            _ => return Err(unknown_subcommand("client", subcommand)),
        }
        Ok(())
    }
}

/// Refuses a connection name that `CLIENT LIST` could not show on one line.
fn checked_name(name: &[u8]) -> Result<&[u8], CommandError> {
    match name.len() {
        length if length > NAME_BYTES_MAX => Err(CommandError(format!(
            "ERR Client names must be at most {NAME_BYTES_MAX} bytes, is {length}"
        ))),
        _ if name.iter().all(u8::is_ascii_graphic) => Ok(name),
        _ => Err(error(
            "ERR Client names cannot contain spaces, newlines or special characters.",
        )),
    }
}

fn error(text: &str) -> CommandError {
    CommandError(text.to_owned())
}

/// The part of `INFO` that clients read: whether the server is ready, and its version.
fn info() -> String {
    format!(
        "# Server\r\nredis_version:{REDIS_VERSION}\r\nredis_mode:standalone\r\ntidegate_version:{}\r\n\r\n\
        # Persistence\r\nloading:0\r\n\r\n# Replication\r\nrole:master\r\n",
        env!("CARGO_PKG_VERSION")
    )
}
