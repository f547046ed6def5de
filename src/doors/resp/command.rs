//! The commands: their names, how many arguments each takes, and what `COMMAND` answers about them.

use std::fmt;

use crate::protocol::resp::encode::Replies;
use crate::protocol::resp::frame::Arguments;

/// Bytes of an unknown command, and of its arguments, that the error repeats: as many as Redis does.
const EXCERPT_BYTES_MAX: usize = 128;

/// What a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// A check under a caller-supplied limit.
    Throttle,
    /// A check under the rules.
    Check,
    /// A command about the connection itself.
    Connection(ConnectionCommand),
}

/// A command that is no check: clients send them to set a connection up and to keep it alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionCommand {
    /// Asks whether the server is alive.
    Ping,
    /// Asks for its argument back.
    Echo,
    /// Sets protocol, password and name at once.
    Hello,
    /// Sends the password.
    Auth,
    /// Sets or asks a property of the connection.
    Client,
    /// Asks about the commands.
    Command,
    /// Asks about the server.
    Info,
    /// Selects a database. There is one.
    Select,
    /// Sets the connection back to its first state.
    Reset,
    /// Ends the connection.
    Quit,
}

/// A command and what the protocol says about it.
#[derive(Clone, Copy, Debug)]
pub struct CommandSpec {
    /// Its name, as errors and lists show it.
    pub name: &'static str,
    /// What it is for.
    pub kind: CommandKind,
    /// How many arguments it has, its name included, in Redis' words: -n is at least n.
    arity: i64,
    /// Which argument is a key; zero if none.
    key: i64,
}

const fn spec(name: &'static str, kind: CommandKind, arity: i64, key: i64) -> CommandSpec {
    CommandSpec {
        name,
        kind,
        arity,
        key,
    }
}

const fn connection(name: &'static str, command: ConnectionCommand, arity: i64) -> CommandSpec {
    spec(name, CommandKind::Connection(command), arity, 0)
}

/// Every command, the most frequent first.
const COMMANDS: [CommandSpec; 13] = [
    spec("cl.throttle", CommandKind::Throttle, -5, 1),
    spec("tg.check", CommandKind::Check, -4, 0),
    spec("throttle", CommandKind::Throttle, -5, 1),
    connection("ping", ConnectionCommand::Ping, -1),
    connection("echo", ConnectionCommand::Echo, 2),
    connection("hello", ConnectionCommand::Hello, -1),
    connection("auth", ConnectionCommand::Auth, -2),
    connection("client", ConnectionCommand::Client, -2),
    connection("command", ConnectionCommand::Command, -1),
    connection("info", ConnectionCommand::Info, -1),
    connection("select", ConnectionCommand::Select, 2),
    connection("reset", ConnectionCommand::Reset, 1),
    connection("quit", ConnectionCommand::Quit, -1),
];

/// The most arguments of a command, its name included. The others check their own.
const fn arguments_max(kind: CommandKind) -> usize {
    match kind {
        CommandKind::Throttle => 6,
        CommandKind::Connection(ConnectionCommand::Ping) => 2,
        CommandKind::Connection(ConnectionCommand::Auth) => 3,
        CommandKind::Check | CommandKind::Connection(_) => usize::MAX,
    }
}

impl CommandSpec {
    /// The command of that name, in any case.
    fn named(name: &[u8]) -> Option<&'static Self> {
        COMMANDS
            .iter()
            .find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
    }

    /// Whether it can have that many arguments.
    fn takes(&self, arguments: usize) -> bool {
        let count = i64::try_from(arguments).unwrap_or(i64::MAX);
        let enough = match self.arity < 0 {
            true => count >= -self.arity,
            false => count == self.arity,
        };
        enough && arguments <= arguments_max(self.kind)
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

/// The command that these arguments name.
pub fn find(arguments: &Arguments<'_>) -> Result<CommandSpec, CommandError> {
    let name = arguments.first().copied().unwrap_or_default();
    match CommandSpec::named(name) {
        Some(spec) if spec.takes(arguments.len()) => Ok(*spec),
        Some(spec) => Err(wrong_number(spec.name)),
        None => Err(unknown(name, arguments)),
    }
}

/// Why a command is not answered, in the words of the protocol.
#[derive(Debug, PartialEq, Eq)]
pub struct CommandError(pub String);

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The error for too few arguments, or too many.
pub fn wrong_number(name: &str) -> CommandError {
    CommandError(format!(
        "ERR wrong number of arguments for '{name}' command"
    ))
}

/// The error for a subcommand that its command does not know.
pub fn unknown_subcommand(name: &str, subcommand: &[u8]) -> CommandError {
    let subcommand = excerpt(subcommand, EXCERPT_BYTES_MAX);
    let container = name.to_ascii_uppercase();
    CommandError(format!(
        "ERR unknown subcommand '{subcommand}'. Try {container} HELP."
    ))
}

fn unknown(name: &[u8], arguments: &Arguments<'_>) -> CommandError {
    let mut text = format!(
        "ERR unknown command '{}', with args beginning with: ",
        excerpt(name, EXCERPT_BYTES_MAX)
    );
    let mut left = EXCERPT_BYTES_MAX;
    for argument in arguments.iter().skip(1) {
        if left == 0 {
            break;
        }
        let argument = excerpt(argument, left);
        left = left.saturating_sub(argument.len());
        text += &format!("'{argument}' ");
    }
    CommandError(text)
}

fn excerpt(bytes: &[u8], bytes_max: usize) -> String {
    let bytes = bytes.get(..bytes_max).unwrap_or(bytes);
    String::from_utf8_lossy(bytes).into_owned()
}

/// Answers `COMMAND` and its subcommands: `COUNT`, `LIST`, `INFO`, `DOCS`.
pub fn write_commands(
    arguments: &Arguments<'_>,
    replies: &mut Replies,
) -> Result<(), CommandError> {
    let names = arguments.get(2..).unwrap_or_default();
    let subcommand = arguments.get(1).copied().unwrap_or_default();
    match subcommand.to_ascii_lowercase().as_slice() {
        b"" => write_all(replies, CommandSpec::write_info),
        b"info" if names.is_empty() => write_all(replies, CommandSpec::write_info),
        b"info" => {
            replies.array(names.len());
            for name in names {
                match CommandSpec::named(name) {
                    Some(spec) => spec.write_info(replies),
                    None => replies.nil(),
                }
            }
        }
        b"count" => replies.integer(i64::try_from(COMMANDS.len()).unwrap_or(i64::MAX)),
        b"list" => write_all(replies, |spec, replies| replies.bulk(spec.name.as_bytes())),
        // Clients show it as help and work without it.
        b"docs" => replies.map(0),
        _ => return Err(unknown_subcommand("command", subcommand)),
    }
    Ok(())
}

fn write_all(replies: &mut Replies, write: fn(&CommandSpec, &mut Replies)) {
    replies.array(COMMANDS.len());
    COMMANDS.iter().for_each(|spec| write(spec, replies));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expected: Result<CommandKind, &str>) {
        let arguments = line.split(' ').map(str::as_bytes).collect();
        let found = find(&arguments).map(|spec| spec.kind);
        let expected = expected.map_err(|text| CommandError(text.to_owned()));
        assert_eq!(found, expected, "{line}");
    }

    #[test]
    fn names_are_found_in_any_case() {
        check("CL.THROTTLE k 1 2 3", Ok(CommandKind::Throttle));
        check("Throttle k 1 2 3 4", Ok(CommandKind::Throttle));
        check("tg.CHECK d e v", Ok(CommandKind::Check));
        check(
            "QUIT now",
            Ok(CommandKind::Connection(ConnectionCommand::Quit)),
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
    fn an_unknown_command_is_repeated_in_part() {
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
