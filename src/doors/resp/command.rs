//! The commands by name, how many arguments each takes, and what `COMMAND` tells of them.

use std::fmt;

use crate::protocol::resp::encode::Replies;
use crate::protocol::resp::frame::Arguments;

/// Bytes of an unknown command, and of its arguments, that its refusal repeats: as Redis does.
const REPEATED_BYTES_MAX: usize = 128;

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Does {
    /// A check whose caller carries the limit.
    Throttle,
    /// A check under the rules.
    Check,
    /// What belongs to a connection.
    ConnectionCommand(ConnectionCommand),
}

/// What clients say besides checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionCommand {
    /// Whether anybody is there.
    Ping,
    /// The same, with an answer of the caller's choice.
    Echo,
    /// Protocol, password and name, at once.
    Hello,
    /// The password.
    Auth,
    /// About the connection.
    Client,
    /// About the commands.
    Command,
    /// About the server.
    Info,
    /// A database. There is one.
    Select,
    /// The connection as it was at first.
    Reset,
    /// The end.
    Quit,
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// Its name, as Redis would have it in errors and lists.
    pub name: &'static str,
    /// What it does.
    pub does: Does,
    /// Its arguments with its name, as Redis says it: less than zero is at least so many.
    arity: i64,
    /// Which argument is a key; zero if none is.
    key: i64,
}

const fn known(name: &'static str, does: Does, arity: i64, key: i64) -> Known {
    Known {
        name,
        does,
        arity,
        key,
    }
}

/// Every command, the most frequent first.
const KNOWN: [Known; 13] = [
    known("cl.throttle", Does::Throttle, -5, 1),
    known("tg.check", Does::Check, -4, 0),
    known("throttle", Does::Throttle, -5, 1),
    known(
        "ping",
        Does::ConnectionCommand(ConnectionCommand::Ping),
        -1,
        0,
    ),
    known(
        "echo",
        Does::ConnectionCommand(ConnectionCommand::Echo),
        2,
        0,
    ),
    known(
        "hello",
        Does::ConnectionCommand(ConnectionCommand::Hello),
        -1,
        0,
    ),
    known(
        "auth",
        Does::ConnectionCommand(ConnectionCommand::Auth),
        -2,
        0,
    ),
    known(
        "client",
        Does::ConnectionCommand(ConnectionCommand::Client),
        -2,
        0,
    ),
    known(
        "command",
        Does::ConnectionCommand(ConnectionCommand::Command),
        -1,
        0,
    ),
    known(
        "info",
        Does::ConnectionCommand(ConnectionCommand::Info),
        -1,
        0,
    ),
    known(
        "select",
        Does::ConnectionCommand(ConnectionCommand::Select),
        2,
        0,
    ),
    known(
        "reset",
        Does::ConnectionCommand(ConnectionCommand::Reset),
        1,
        0,
    ),
    known(
        "quit",
        Does::ConnectionCommand(ConnectionCommand::Quit),
        -1,
        0,
    ),
];

/// The most arguments of a command, with its name. Others mind them themselves.
const fn arguments_max(does: Does) -> usize {
    match does {
        Does::Throttle => 6,
        Does::ConnectionCommand(ConnectionCommand::Ping) => 2,
        Does::ConnectionCommand(ConnectionCommand::Auth) => 3,
        Does::Check | Does::ConnectionCommand(_) => usize::MAX,
    }
}

impl Known {
    /// The command of that name, in any case.
    fn named(name: &[u8]) -> Option<&'static Self> {
        KNOWN
            .iter()
            .find(|known| known.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether it can have so many arguments.
    fn takes(&self, arguments: usize) -> bool {
        let count = i64::try_from(arguments).unwrap_or(i64::MAX);
        let enough = match self.arity < 0 {
            true => count >= -self.arity,
            false => count == self.arity,
        };
        enough && arguments <= arguments_max(self.does)
    }

    fn write_info(&self, replies: &mut Replies) {
        replies.array(6);
        replies.bulk(self.name.as_bytes());
        replies.integer(self.arity);
        replies.array(1);
        replies.simple("fast");
        for key in [self.key, self.key, self.key] {
            replies.integer(key);
        }
    }
}

/// Which command these arguments are.
pub fn find(arguments: &Arguments<'_>) -> Result<Known, Refused> {
    let name = arguments.first().copied().unwrap_or_default();
    match Known::named(name) {
        Some(known) if known.takes(arguments.len()) => Ok(*known),
        Some(known) => Err(wrong_number(known.name)),
        None => Err(unknown(name, arguments)),
    }
}

/// What is said instead of an answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused(pub String);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Too few arguments, or too many.
pub fn wrong_number(name: &str) -> Refused {
    Refused(format!(
        "ERR wrong number of arguments for '{name}' command"
    ))
}

/// A part of a command that its container does not know.
pub fn unknown_part(name: &str, part: &[u8]) -> Refused {
    let part = repeated(part, REPEATED_BYTES_MAX);
    let container = name.to_ascii_uppercase();
    Refused(format!(
        "ERR unknown subcommand '{part}'. Try {container} HELP."
    ))
}

fn unknown(name: &[u8], arguments: &Arguments<'_>) -> Refused {
    let mut text = format!(
        "ERR unknown command '{}', with args beginning with: ",
        repeated(name, REPEATED_BYTES_MAX)
    );
    let mut left = REPEATED_BYTES_MAX;
    for argument in arguments.iter().skip(1) {
        if left == 0 {
            break;
        }
        let argument = repeated(argument, left);
        left = left.saturating_sub(argument.len());
        text += &format!("'{argument}' ");
    }
    Refused(text)
}

fn repeated(bytes: &[u8], bytes_max: usize) -> String {
    let bytes = bytes.get(..bytes_max).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// `COMMAND` and its parts: `COUNT`, `LIST`, `INFO`, `DOCS`.
pub fn tell(arguments: &Arguments<'_>, replies: &mut Replies) -> Result<(), Refused> {
    let names = arguments.get(2..).unwrap_or_default();
    let part = arguments.get(1).copied().unwrap_or_default();
    match part.to_ascii_lowercase().as_slice() {
        b"" => all(replies, Known::write_info),
        b"info" if names.is_empty() => all(replies, Known::write_info),
        b"info" => {
            replies.array(names.len());
            for name in names {
                match Known::named(name) {
                    Some(known) => known.write_info(replies),
                    None => replies.nil(),
                }
            }
        }
        b"count" => replies.integer(i64::try_from(KNOWN.len()).unwrap_or(i64::MAX)),
        b"list" => all(replies, |known, replies| {
            replies.bulk(known.name.as_bytes())
        }),
        // Clients show it as help and do well without.
        b"docs" => replies.map(0),
        _ => return Err(unknown_part("command", part)),
    }
    Ok(())
}

fn all(replies: &mut Replies, write: fn(&Known, &mut Replies)) {
    replies.array(KNOWN.len());
    KNOWN.iter().for_each(|known| write(known, replies));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<Does, &str>) {
        let arguments = line.split(' ').map(str::as_bytes).collect();
        let found = find(&arguments).map(|known| known.does);
        let expected = expected.map_err(|text| Refused(text.to_owned()));
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn names_are_found_in_any_case() {
        check("CL.THROTTLE k 1 2 3", Ok(Does::Throttle));
        check("Throttle k 1 2 3 4", Ok(Does::Throttle));
        check("tg.CHECK d e v", Ok(Does::Check));
        check(
            "QUIT now",
            Ok(Does::ConnectionCommand(ConnectionCommand::Quit)),
        );
    }

    #[test]
    fn arguments_are_counted() {
        let wrong = |name: &str| format!("ERR wrong number of arguments for '{name}' command");
        check("cl.throttle k 1 2", Err(&wrong("cl.throttle")));
        check("CL.THROTTLE k 1 2 3 4 5", Err(&wrong("cl.throttle")));
        check("TG.CHECK d e", Err(&wrong("tg.check")));
        check("PING a b", Err(&wrong("ping")));
        check("ECHO", Err(&wrong("echo")));
        check("AUTH a b c", Err(&wrong("auth")));
    }

    #[test]
    fn what_is_not_known_is_repeated_in_part() {
        check(
            "GET",
            Err("ERR unknown command 'GET', with args beginning with: "),
        );
        check(
            "SET a b",
            Err("ERR unknown command 'SET', with args beginning with: 'a' 'b' "),
        );
        let (long, cut) = ("x".repeat(500), "x".repeat(128));
        check(
            &format!("{long} {long} {long}"),
            Err(&format!(
                "ERR unknown command '{cut}', with args beginning with: '{cut}' "
            )),
        );
    }
}
