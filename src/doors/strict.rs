//! The one file of the doors that waits: a check of a `strict` rule waits for the store.
//!
//! It waits at most `store.timeout`; if the store has not answered by then, the rules' `on_store_error` decides. Cells
//! that the store took for nobody are given back: those of a check that was denied after all, those of a late answer,
//! and those of a client that has left.

use std::fmt;
use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Sleep;

use crate::clock::Clock;
use tidegate_core::engine::store_request::{StoreFailure, StoreRequest};
use tidegate_core::engine::{Answer, CheckStep, Engine, StoreClient, StorePlan};
use tidegate_core::pure::Moment;
use tidegate_core::pure::sync::{Take, TakeReply};

/// The store, as strict checks use it.
#[derive(Clone, Debug)]
pub struct StrictStore {
    /// Takes the requests.
    pub store: StoreClient,
    /// How long a check waits for an answer.
    pub timeout: Duration,
}

/// An answer, and when it was decided.
#[derive(Debug)]
pub struct TimedAnswer {
    pub(super) answer: Answer,
    pub(super) moment: Moment,
}

impl StrictStore {
    /// Asks the store for what `plan` needs and ends the check. `begin_again` begins it anew if the rules were swapped
    /// meanwhile. All of it takes no longer than the timeout.
    pub(super) async fn decide<E>(
        &self,
        engine: &Engine,
        mut plan: Box<StorePlan>,
        begin_again: impl Fn(Moment) -> Result<CheckStep, E>,
    ) -> Result<TimedAnswer, E> {
        let mut deadline = pin!(tokio::time::sleep(self.timeout));
        loop {
            let mut wait = StoreWait::begin(&self.store, plan.takes());
            wait.until(deadline.as_mut()).await;
            let moment = Clock::get().moment();
            let end = engine.finish(plan, &wait.end(), moment);
            for take in end.give_back {
                self.store.submit(StoreRequest::GiveBack(take));
            }
            if let Some(answer) = end.answer {
                return Ok(TimedAnswer { answer, moment });
            }
            match begin_again(moment)? {
                CheckStep::Decided(answer) => return Ok(TimedAnswer { answer, moment }),
                CheckStep::NeedsStore(next) => plan = next,
            }
        }
    }
}

/// The requests of one check that the store has not answered yet. Dropped before its end, it gives back what the store
/// took.
struct StoreWait<'a> {
    store: &'a StoreClient,
    takes: Vec<PendingTake>,
}

struct PendingTake {
    take: Take,
    answer: oneshot::Receiver<Result<TakeReply, StoreFailure>>,
    result: Option<Result<TakeReply, StoreFailure>>,
}

impl<'a> StoreWait<'a> {
    fn begin(store: &'a StoreClient, takes: impl Iterator<Item = Take>) -> Self {
        let takes = takes.map(|take| {
            let (sender, answer) = oneshot::channel();
            let respond = Box::new(move |result| sender.send(result).is_ok());
            store.submit(StoreRequest::Take(take, respond));
            PendingTake {
                take,
                answer,
                result: None,
            }
        });
        Self {
            takes: takes.collect(),
            store,
        }
    }

    /// Waits until the store has answered everything, or until `deadline`.
    async fn until(&mut self, mut deadline: Pin<&mut Sleep>) {
        for pending in &mut self.takes {
            tokio::select! {
                biased;
                answer = &mut pending.answer => {
                    pending.result = Some(answer.unwrap_or(Err(StoreFailure)));
                }
                () = &mut deadline => return,
            }
        }
    }

    /// The answers. A later answer finds that nobody waits for it.
    fn end(mut self) -> Vec<Result<TakeReply, StoreFailure>> {
        let takes = std::mem::take(&mut self.takes);
        takes.into_iter().map(PendingTake::end).collect()
    }
}

impl Drop for StoreWait<'_> {
    fn drop(&mut self) {
        for pending in std::mem::take(&mut self.takes) {
            let take = pending.take;
            if let Ok(TakeReply { taken: true, .. }) = pending.end() {
                self.store.submit(StoreRequest::GiveBack(take));
            }
        }
    }
}

impl PendingTake {
    fn end(mut self) -> Result<TakeReply, StoreFailure> {
        // The channel is closed first: whoever sends an answer that is not found here learns that it was not received.
        self.answer.close();
        let unread = || self.answer.try_recv().unwrap_or(Err(StoreFailure));
        self.result.unwrap_or_else(unread)
    }
}

/// A reply that waits for the store.
pub struct LateReply<R>(Pin<Box<dyn Future<Output = R> + Send>>);

impl<R> LateReply<R> {
    pub(super) fn new(reply: impl Future<Output = R> + Send + 'static) -> Self {
        Self(Box::pin(reply))
    }
}

impl<R> fmt::Debug for LateReply<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LateReply")
    }
}

impl<R> Future for LateReply<R> {
    type Output = R;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<R> {
        self.0.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use http_body_util::BodyExt;
    use hyper::StatusCode;
    use hyper::header::HeaderMap;

    use super::*;
    use crate::net::HttpReply;
    use crate::protocol::headers::HeaderStyles;
    use crate::protocol::native::encode::{self, ResponseStyle};
    use tidegate_core::engine::store_request::Responder;
    use tidegate_core::engine::{FleetKey, Question, Setup};
    use tidegate_core::pure::rule::{
        Consistency, DomainSpec, Matching, NodeSpec, OnStoreError, RuleSpec,
    };
    use tidegate_core::pure::sync::{StoreKey, StoreState, Terms};
    use tidegate_core::pure::{
        Addresses, Cells, Check, Descriptor, Entry, Limit, Rules, Span, Unit, ValueKind,
    };

    const TAKE: Take = Take {
        key: StoreKey::level(1, 2),
        terms: Terms::Level {
            interval: Span::nanos(1),
            capacity: Span::nanos(1),
            debt_max: Span::ZERO,
        },
        cost: Cells::ONE,
        charge: false,
    };
    const TAKEN: TakeReply = TakeReply {
        taken: true,
        state: StoreState::Level {
            level: Span::nanos(1),
            demand: 0,
            capped: false,
        },
    };

    /// A store that keeps its requests until the test answers them, and counts what is given back.
    #[derive(Clone, Default)]
    struct SlowStore(Arc<Mutex<(Vec<Responder<TakeReply>>, usize)>>);

    impl SlowStore {
        fn client(&self) -> StoreClient {
            let slow = self.clone();
            StoreClient::new(move |store_request| {
                let mut kept = slow.0.lock().unwrap();
                match store_request {
                    StoreRequest::Take(_, respond) => kept.0.push(respond),
                    StoreRequest::GiveBack(_) => kept.1 += 1,
                    StoreRequest::Read(..) | StoreRequest::Reset(..) => return Err(store_request),
                }
                Ok(())
            })
        }

        fn answer(&self) -> bool {
            let respond = self.0.lock().unwrap().0.remove(0);
            respond(Ok(TAKEN))
        }

        fn given_back(&self) -> usize {
            self.0.lock().unwrap().1
        }
    }

    #[tokio::test]
    async fn an_answer_after_the_deadline_finds_nobody_and_is_undone() {
        let slow = SlowStore::default();
        let store = slow.client();
        let mut wait = StoreWait::begin(&store, [TAKE, TAKE].into_iter());
        assert!(slow.answer());
        let deadline = pin!(tokio::time::sleep(Duration::ZERO));
        wait.until(deadline).await;
        assert_eq!(wait.end(), [Ok(TAKEN), Err(StoreFailure)]);
        assert!(!slow.answer());
        assert_eq!(slow.given_back(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_came_with_the_deadline_counts() {
        let slow = SlowStore::default();
        let store = slow.client();
        let mut wait = StoreWait::begin(&store, [TAKE, TAKE].into_iter());
        wait.until(pin!(tokio::time::sleep(Duration::ZERO))).await;
        assert!(slow.answer() && slow.answer());
        assert_eq!(wait.end(), [Ok(TAKEN), Ok(TAKEN)]);
    }

    #[test]
    fn a_client_that_leaves_gives_back_what_was_taken_for_it() {
        let slow = SlowStore::default();
        let store = slow.client();
        let wait = StoreWait::begin(&store, [TAKE, TAKE].into_iter());
        assert!(slow.answer());
        drop(wait);
        assert_eq!(slow.given_back(), 1);
        assert!(!slow.answer());
    }

    fn engine(on_store_error: OnStoreError) -> Engine {
        let rule = RuleSpec {
            consistency: Consistency::Strict,
            on_store_error,
            ..RuleSpec::new(Limit::new(1, Unit::Hour, 1, None).unwrap())
        };
        let node = NodeSpec {
            key: "key".to_owned(),
            value: None,
            share_threshold: false,
            rule: Some(rule),
            children: Vec::new(),
        };
        let domain = DomainSpec {
            name: "api".to_owned(),
            matching: Matching::Specific,
            nodes: vec![node],
        };
        let setup = Setup {
            keys_max: 100,
            fleet: FleetKey::derived(b"fleet"),
            seeds: [1, 2],
            reporting: true,
        };
        Engine::new(setup, Rules::compile(vec![domain], Addresses::default()))
    }

    const CHECK: Check<'static> = Check {
        domain: "api",
        descriptors: &[Descriptor::of(&[Entry {
            key: b"key",
            value: b"v",
            kind: ValueKind::Sent,
        }])],
        cost: Cells::ONE,
        peek: false,
    };

    /// The reply to a check whose store does not answer.
    async fn reply_without_store(engine: &Engine, deny_status: Option<StatusCode>) -> HttpReply {
        let strict = StrictStore {
            store: SlowStore::default().client(),
            timeout: Duration::ZERO,
        };
        let begin = |moment| Ok::<_, ()>(engine.begin(Question::Check(&CHECK), moment));
        let Ok(CheckStep::NeedsStore(plan)) = begin(Clock::get().moment()) else {
            unreachable!("the store was to be asked");
        };
        let TimedAnswer { answer, moment } = strict.decide(engine, plan, begin).await.unwrap();
        let style = ResponseStyle {
            shown_bytes_max: 1_024,
            styles: HeaderStyles::new(&[]),
            deny_status,
            moment,
        };
        encode::response(HeaderMap::new(), &CHECK, &answer, style)
    }

    /// The body's values at these places.
    async fn body_at<const N: usize>(reply: HttpReply, places: [&str; N]) -> [String; N] {
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        places.map(|place| body.pointer(place).unwrap().to_string())
    }

    #[tokio::test]
    async fn a_denial_because_the_store_is_unavailable_is_a_503_and_says_when_to_retry() {
        let engine = engine(OnStoreError::Deny);
        let reply = reply_without_store(&engine, None).await;
        assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reply.headers()["retry-after"], "1");
        let places = ["/error/code", "/error/retry_after", "/statuses/0/source"];
        let expected = ["\"STORE_UNAVAILABLE\"", "1", "\"fallback\""];
        assert_eq!(body_at(reply, places).await, expected);
        let chosen = reply_without_store(&engine, Some(StatusCode::FORBIDDEN)).await;
        assert_eq!(chosen.status(), StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn a_check_that_the_store_does_not_answer_passes_if_its_rule_says_so() {
        let engine = engine(OnStoreError::LocalFull);
        let reply = reply_without_store(&engine, None).await;
        assert_eq!(reply.status(), StatusCode::OK);
        let source = body_at(reply, ["/statuses/0/source"]).await;
        assert_eq!(source, ["\"fallback\""]);
    }

    #[test]
    fn a_closed_store_client_answers_at_once() {
        let wait = StoreWait::begin(&StoreClient::CLOSED, [TAKE].into_iter());
        assert_eq!(wait.end(), [Err(StoreFailure)]);
    }
}
