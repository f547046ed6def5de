//! One connection: read what is there, answer every whole command in it, send all replies at once.
//!
//! Replies keep the order of the commands; a command that waits for the store delays those behind it. The connection
//! reads nothing while the client does not take its replies.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Sleep;
use tracing::debug;

use super::command::{self, CommandKind};
use super::session::{ConnectionFate, Session};
use crate::doors::limiter::{CheckProgress, CheckRequest, Limiter, PendingCheck};
use crate::net::accept::ConnectionHandler;
use crate::net::drain::{Drain, DrainWatch};
use crate::protocol::Refusal;
use crate::protocol::resp::decode::RespCheck;
use crate::protocol::resp::encode::{self, Replies};
use crate::protocol::resp::frame::{self, Arguments, ProtocolFault};
use tidegate_config::Bounds;
use tidegate_core::engine::Question;

/// How long a client may take over a command that it has begun. Between commands it may idle: clients keep pools.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may leave its replies unread.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read at once, as long as that is all that comes.
const READ_BYTES: usize = 4 * 1024;
/// Bytes read at once from a client that sends a lot.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Bytes of replies that are gathered before they are sent.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// The RESP door.
#[derive(Clone, Debug)]
pub struct RespDoor(Arc<RespChecks>);

#[derive(Debug)]
struct RespChecks {
    limiter: Limiter,
    password: Option<Arc<[u8]>>,
}

impl RespDoor {
    /// A door that decides with `limiter`, and asks clients for the password if there is one.
    pub fn new(limiter: Limiter, password: Option<Arc<[u8]>>) -> Self {
        Self(Arc::new(RespChecks { limiter, password }))
    }
}

impl ConnectionHandler for RespDoor {
    const BUSY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    async fn handle<T>(self, stream: T, drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(checks) = self;
        let mut drain_watch = DrainWatch::new(drain.clone());
        let mut connection = RespConnection {
            session: Session::new(checks.password.clone()),
            checks,
            stream,
            input: BytesMut::new(),
            replies: Replies::default(),
            has_more: false,
            command_timeout: None,
        };
        while let ConnectionFate::Continue = connection.answer_all().await {
            let is_idle = connection.input.is_empty();
            if is_idle && drain.has_begun() {
                return;
            }
            let mut more = pin!(connection.more());
            let fate = poll_fn(|context| {
                match more.as_mut().poll(context) {
                    // A command that the client has begun to send is waited for.
                    Poll::Pending if drain_watch.has_begun(context) && is_idle => {
                        Poll::Ready(ConnectionFate::Close)
                    }
                    polled @ (Poll::Ready(_) | Poll::Pending) => polled,
                }
            });
            if fate.await == ConnectionFate::Close {
                return;
            }
        }
    }
}

struct RespConnection<T> {
    checks: Arc<RespChecks>,
    session: Session,
    stream: T,
    input: BytesMut,
    replies: Replies,
    /// Whether the last read took as much as it could.
    has_more: bool,
    /// Runs while the client is in the middle of a command.
    command_timeout: Option<Pin<Box<Sleep>>>,
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> RespConnection<T> {
    /// Answers every whole command that was read, and sends the replies.
    async fn answer_all(&mut self) -> ConnectionFate {
        let ReadCommands { length, fate } = self.answer_read().await;
        if length > 0 {
            self.command_timeout = None;
        }
        self.input.advance(length);
        match send(&mut self.stream, &mut self.replies).await {
            true => fate,
            false => ConnectionFate::Close,
        }
    }

    /// Answers every whole command that was read.
    async fn answer_read(&mut self) -> ReadCommands {
        let mut length = 0;
        let mut fate = ConnectionFate::Continue;
        let mut arguments = Arguments::new();
        let bytes_max = self.checks.limiter.bounds().body_bytes_max;
        while fate == ConnectionFate::Continue {
            let rest = self.input.get(length..).unwrap_or_default();
            match frame::next(rest, bytes_max, &mut arguments) {
                Ok(Some(command_length)) => length += command_length,
                Ok(None) => break,
                Err(fault) => {
                    fate = self.checks.refuse(fault, &mut self.replies);
                    break;
                }
            }
            let (session, replies) = (&mut self.session, &mut self.replies);
            fate = match self.checks.answer(&arguments, session, replies) {
                CommandProgress::Answered(fate) => fate,
                // A command that waits for the store delays only the replies after it.
                CommandProgress::NeedsStore(command) => {
                    match send(&mut self.stream, &mut self.replies).await {
                        true => self.checks.answer_late(command, &mut self.replies).await,
                        false => ConnectionFate::Close,
                    }
                }
            };
            if self.replies.bytes().len() >= SEND_BYTES_MAX
                && !send(&mut self.stream, &mut self.replies).await
            {
                fate = ConnectionFate::Close;
            }
        }
        ReadCommands { length, fate }
    }

    /// Waits for more input; in the middle of a command, no longer than [`COMMAND_TIMEOUT`].
    async fn more(&mut self) -> ConnectionFate {
        let wanted = match self.has_more {
            true => READ_BYTES_MAX,
            false => READ_BYTES,
        };
        if self.input.is_empty() && self.input.capacity() > READ_BYTES_MAX {
            self.input = BytesMut::new();
        }
        self.input.reserve(wanted);
        let room = self.input.capacity() - self.input.len();
        let in_command = !self.input.is_empty();
        let timeout = &mut self.command_timeout;
        let read = tokio::select! {
            biased;
            read = self.stream.read_buf(&mut self.input) => read.unwrap_or(0),
            () = times_out(timeout), if in_command => {
                debug!("connection closed: a command did not come in time");
                0
            }
        };
        self.has_more = read == room;
        match read {
            0 => ConnectionFate::Close,
            _ => ConnectionFate::Continue,
        }
    }
}

/// Sends the replies. False if the client does not take them.
async fn send(stream: &mut (impl AsyncWrite + Unpin), replies: &mut Replies) -> bool {
    if replies.bytes().is_empty() {
        return true;
    }
    let sent = tokio::select! {
        biased;
        sent = stream.write_all(replies.bytes()) => sent.is_ok(),
        // The timer is made only if the write has to wait.
        () = async { tokio::time::sleep(SEND_TIMEOUT).await } => false,
    };
    replies.clear();
    sent
}

/// Waits until the command that has begun is late.
async fn times_out(timeout: &mut Option<Pin<Box<Sleep>>>) {
    let start = || Box::pin(tokio::time::sleep(COMMAND_TIMEOUT));
    timeout.get_or_insert_with(start).await;
}

/// What came of the commands that were read.
struct ReadCommands {
    /// Bytes that they took.
    length: usize,
    fate: ConnectionFate,
}

/// How far a command has come.
enum CommandProgress<'a> {
    Answered(ConnectionFate),
    /// The store has to be asked.
    NeedsStore(Box<PendingCommand<'a>>),
}

/// A check that the store has to be asked for.
struct PendingCommand<'a> {
    check: RespCheck<'a>,
    pending: PendingCheck,
}

impl CheckRequest for RespCheck<'_> {
    type Context<'a> = ();

    #[inline]
    fn with_question<R>(
        &self,
        _bounds: Bounds,
        then: impl for<'a> FnOnce(Question<'a>, ()) -> R,
    ) -> Result<R, Refusal> {
        Ok(RespCheck::with_question(self, |question| {
            then(question, ())
        }))
    }
}

impl RespChecks {
    /// Answers one command, at once unless the store has to be asked.
    fn answer<'a>(
        &self,
        arguments: &Arguments<'a>,
        session: &mut Session,
        replies: &mut Replies,
    ) -> CommandProgress<'a> {
        if arguments.is_empty() {
            return CommandProgress::Answered(ConnectionFate::Continue);
        }
        let permitted =
            command::find(arguments).and_then(|spec| session.permit(spec.kind).map(|()| spec.kind));
        let answered = match permitted {
            Ok(CommandKind::Throttle) => {
                return self.decide(RespCheck::throttle(arguments), replies);
            }
            Ok(CommandKind::Check) => {
                let key_bytes_max = self.limiter.bounds().key_bytes_max;
                return self.decide(RespCheck::rules(arguments, key_bytes_max), replies);
            }
            Ok(CommandKind::Connection(command)) => session.answer(command, arguments, replies),
            Err(error) => Err(error),
        };
        CommandProgress::Answered(answered.unwrap_or_else(|error| {
            replies.error(error);
            ConnectionFate::Continue
        }))
    }

    /// Decides a check and writes its answer, unless the store has to be asked.
    fn decide<'a>(
        &self,
        check: Result<RespCheck<'a>, Refusal>,
        replies: &mut Replies,
    ) -> CommandProgress<'a> {
        let refusal = match check {
            Err(refusal) => Some(refusal),
            Ok(check) => {
                let progress = self.limiter.decide(&check, |decided| {
                    encode::write_answer(replies, &check, decided.answer);
                });
                match progress {
                    CheckProgress::Decided(()) => None,
                    CheckProgress::Refused(refusal) => Some(refusal),
                    CheckProgress::NeedsStore(pending) => {
                        let command = PendingCommand { check, pending };
                        return CommandProgress::NeedsStore(Box::new(command));
                    }
                }
            }
        };
        if let Some(refusal) = refusal {
            self.refuse_check(&refusal, replies);
        }
        CommandProgress::Answered(ConnectionFate::Continue)
    }

    /// Answers a command once the store has answered.
    async fn answer_late(
        &self,
        command: Box<PendingCommand<'_>>,
        replies: &mut Replies,
    ) -> ConnectionFate {
        let PendingCommand { check, pending } = *command;
        let decided = self.limiter.decide_with_store(&check, pending, |decided| {
            encode::write_answer(replies, &check, decided.answer);
        });
        if let Err(refusal) = decided.await {
            self.refuse_check(&refusal, replies);
        }
        ConnectionFate::Continue
    }

    fn refuse_check(&self, refusal: &Refusal, replies: &mut Replies) {
        self.limiter.count_malformed();
        replies.error(format_args!("ERR {refusal}"));
    }

    /// Ends a connection whose bytes are no command. HTTP gets no reply: a page may have made a browser send it.
    fn refuse(&self, fault: ProtocolFault, replies: &mut Replies) -> ConnectionFate {
        self.limiter.count_malformed();
        debug!(%fault, "connection closed");
        match fault {
            ProtocolFault::Http => {}
            ProtocolFault::Count
            | ProtocolFault::Length
            | ProtocolFault::Kind(_)
            | ProtocolFault::NoEnd
            | ProtocolFault::Quotes
            | ProtocolFault::Start(_)
            | ProtocolFault::TooMany
            | ProtocolFault::TooLarge(_) => {
                replies.error(format_args!("ERR Protocol error: {fault}"));
            }
        }
        ConnectionFate::Close
    }
}
