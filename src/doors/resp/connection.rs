//! One connection: read what is there, answer every whole command of it, send all answers at once.
//!
//! Answers keep the order of the commands; one that waits for the store keeps those behind it waiting. Nothing is read
//! while answers are not taken: a client that does not read is not heard either.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::Sleep;
use tracing::debug;

use super::command::{self, Does};
use super::session::{Session, Then};
use crate::doors::limiter::Limiter;
use crate::net::accept::ConnectionHandler;
use crate::net::drain::{Drain, DrainWatch};
use crate::protocol::Refusal;
use crate::protocol::resp::decode::RespCheck;
use crate::protocol::resp::encode::{self, Replies};
use crate::protocol::resp::frame::{self, Arguments, ProtocolFault};
use tidegate_core::engine::{Answer, CheckStep, StorePlan};
use tidegate_core::pure::Moment;

/// How long a client may take over a command that it has begun. Between commands it may rest: clients keep pools.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client may leave its answers.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes read at once, as long as that is all that comes.
const READ_BYTES: usize = 4 * 1024;
/// Bytes read at once from a client that sends a lot.
const READ_BYTES_MAX: usize = 64 * 1024;
/// Bytes of answers that are gathered before they are sent.
const SEND_BYTES_MAX: usize = 64 * 1024;

/// The RESP door's speaker.
#[derive(Clone, Debug)]
pub struct Resp(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limiter: Limiter,
    password: Option<Arc<[u8]>>,
}

impl Resp {
    /// A door that decides with `limiter`, and asks clients for the password if there is one.
    pub fn new(limiter: Limiter, password: Option<Arc<[u8]>>) -> Self {
        Self(Arc::new(Inner { limiter, password }))
    }
}

impl ConnectionHandler for Resp {
    const BUSY: &'static [u8] = b"-ERR max number of clients reached\r\n";

    async fn handle<T>(self, stream: T, drain: Drain)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Self(door) = self;
        let mut drain_watch = DrainWatch::new(drain.clone());
        let mut connection = Connection {
            session: Session::new(door.password.clone()),
            door,
            stream,
            input: BytesMut::new(),
            replies: Replies::default(),
            has_more: false,
            late: None,
        };
        while let Then::GoOn = connection.answer_all().await {
            let is_idle = connection.input.is_empty();
            if is_idle && drain.has_begun() {
                return;
            }
            let mut more = pin!(connection.more());
            let then = poll_fn(|context| {
                match more.as_mut().poll(context) {
                    // A command that the client has begun to send is waited for.
                    Poll::Pending if drain_watch.has_begun(context) && is_idle => {
                        Poll::Ready(Then::Close)
                    }
                    polled => polled,
                }
            });
            if then.await == Then::Close {
                return;
            }
        }
    }
}

struct Connection<T> {
    door: Arc<Inner>,
    session: Session,
    stream: T,
    input: BytesMut,
    replies: Replies,
    /// Whether the last read took as much as it could.
    has_more: bool,
    /// When the command that has begun is late.
    late: Option<Pin<Box<Sleep>>>,
}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection<T> {
    /// Answers every whole command that was read, and sends the answers.
    async fn answer_all(&mut self) -> Then {
        let (length, then) = self.answer_read().await;
        if length > 0 {
            self.late = None;
        }
        self.input.advance(length);
        match send(&mut self.stream, &mut self.replies).await {
            true => then,
            false => Then::Close,
        }
    }

    /// Answers every whole command that was read: how many bytes they took.
    async fn answer_read(&mut self) -> (usize, Then) {
        let mut at = 0;
        let mut then = Then::GoOn;
        let mut arguments = Arguments::new();
        while then == Then::GoOn {
            let rest = self.input.get(at..).unwrap_or_default();
            match frame::next(
                rest,
                self.door.limiter.bounds.body_bytes_max,
                &mut arguments,
            ) {
                Ok(Some(length)) => at += length,
                Ok(None) => break,
                Err(fault) => {
                    then = self.door.refuse(fault, &mut self.replies);
                    break;
                }
            }
            let told = (&mut self.session, &mut self.replies);
            then = match self.door.begin(&arguments, told) {
                Next::Then(then) => then,
                // Who waits for the store keeps back only what was asked after it.
                Next::Ask(asking) => match send(&mut self.stream, &mut self.replies).await {
                    true => self.door.ask(asking, &mut self.replies).await,
                    false => Then::Close,
                },
            };
            if self.replies.bytes().len() >= SEND_BYTES_MAX
                && !send(&mut self.stream, &mut self.replies).await
            {
                then = Then::Close;
            }
        }
        (at, then)
    }

    /// Waits for more, but not for long if a command has begun.
    async fn more(&mut self) -> Then {
        let wanted = match self.has_more {
            true => READ_BYTES_MAX,
            false => READ_BYTES,
        };
        if self.input.is_empty() && self.input.capacity() > READ_BYTES_MAX {
            self.input = BytesMut::new();
        }
        self.input.reserve(wanted);
        let room = self.input.capacity() - self.input.len();
        let begun = !self.input.is_empty();
        let late = &mut self.late;
        let read = tokio::select! {
            biased;
            read = self.stream.read_buf(&mut self.input) => read.unwrap_or(0),
            () = overdue(late), if begun => {
                debug!("connection closed: a command did not come in time");
                0
            }
        };
        self.has_more = read == room;
        match read {
            0 => Then::Close,
            _ => Then::GoOn,
        }
    }
}

/// Sends the answers. False if they are not taken.
async fn send(stream: &mut (impl AsyncWrite + Unpin), replies: &mut Replies) -> bool {
    if replies.bytes().is_empty() {
        return true;
    }
    let sent = tokio::select! {
        biased;
        sent = stream.write_all(replies.bytes()) => sent.is_ok(),
        // Made only if it has to be waited for.
        () = async { tokio::time::sleep(SEND_TIMEOUT).await } => false,
    };
    replies.clear();
    sent
}

/// Waits until the command that has begun is late.
async fn overdue(late: &mut Option<Pin<Box<Sleep>>>) {
    let timeout = || Box::pin(tokio::time::sleep(COMMAND_TIMEOUT));
    late.get_or_insert_with(timeout).await;
}

/// What follows a command.
enum Next<'a> {
    /// It is answered.
    Then(Then),
    /// The store has to be asked.
    Ask(Box<Asking<'a>>),
}

/// A check that the store has to be asked for.
struct Asking<'a> {
    asked: RespCheck<'a>,
    plan: Box<StorePlan>,
    began: Moment,
}

impl Inner {
    /// Answers one command, at once if that can be.
    fn begin<'a>(
        &self,
        arguments: &Arguments<'a>,
        (session, replies): (&mut Session, &mut Replies),
    ) -> Next<'a> {
        if arguments.is_empty() {
            return Next::Then(Then::GoOn);
        }
        let permitted = command::find(arguments)
            .and_then(|known| session.permits(known.does).map(|()| known.does));
        let answered = match permitted {
            Ok(Does::Throttle) => {
                return self.decide(RespCheck::throttle(arguments), replies);
            }
            Ok(Does::Check) => {
                return self.decide(
                    RespCheck::rules(arguments, self.limiter.bounds.key_bytes_max),
                    replies,
                );
            }
            Ok(Does::ConnectionCommand(courtesy)) => session.answer(courtesy, arguments, replies),
            Err(refused) => Err(refused),
        };
        Next::Then(answered.unwrap_or_else(|refused| {
            replies.error(refused);
            Then::GoOn
        }))
    }

    /// Decides a check and tells it, unless the store has to be asked.
    fn decide<'a>(&self, asked: Result<RespCheck<'a>, Refusal>, replies: &mut Replies) -> Next<'a> {
        let began = self.limiter.clock.moment();
        match asked {
            Err(refused) => {
                self.limiter.malformed();
                replies.error(format_args!("ERR {refused}"));
            }
            Ok(asked) => {
                match asked.with_question(|question| self.limiter.engine.begin(question, began)) {
                    // An answer is large: it stays where it is.
                    CheckStep::Decided(ref answer) => self.tell(&asked, answer, (replies, began)),
                    CheckStep::NeedsStore(plan) => {
                        return Next::Ask(Box::new(Asking { asked, plan, began }));
                    }
                }
            }
        }
        Next::Then(Then::GoOn)
    }

    /// Asks the store, decides and tells.
    async fn ask(&self, asking: Box<Asking<'_>>, replies: &mut Replies) -> Then {
        let Asking { asked, plan, began } = *asking;
        let again = |moment| {
            Ok::<_, Infallible>(
                asked.with_question(|question| self.limiter.engine.begin(question, moment)),
            )
        };
        let Ok((answer, _)) = self
            .limiter
            .strict
            .decide(&self.limiter.engine, plan, again)
            .await;
        self.tell(&asked, &answer, (replies, began));
        Then::GoOn
    }

    /// Counts and writes what was decided.
    fn tell(
        &self,
        asked: &RespCheck<'_>,
        answer: &Answer,
        (replies, began): (&mut Replies, Moment),
    ) {
        asked.with_question(|question| self.limiter.decided(answer, question, began));
        encode::write_answer(replies, asked, answer);
    }

    /// What follows bytes that are no command. HTTP is not answered: its sender may be a browser that was made to send.
    fn refuse(&self, fault: ProtocolFault, replies: &mut Replies) -> Then {
        self.limiter.malformed();
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
        Then::Close
    }
}
