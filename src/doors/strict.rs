//! The one place of the doors that waits: a check of a `strict` rule, for the store.
//!
//! It waits at most `store.timeout`; what was not answered by then is decided by the rules' `on_store_error`. Cells that
//! the store took for nobody are given back: those of a check that was denied after all, those of a late answer, and
//! those of a client that has left.

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
use tidegate_core::pure::sync::{Take, Taken};

/// How to ask the store.
#[derive(Clone, Debug)]
pub struct Strict {
    /// Where to leave what is asked.
    pub store: StoreClient,
    /// How long to wait for it.
    pub timeout: Duration,
}

impl Strict {
    /// Asks the store for what `plan` wants and ends the check. `again` begins it anew, under rules that were swapped
    /// meanwhile. All of it takes no longer than the timeout.
    pub(super) async fn decide<E>(
        &self,
        engine: &Engine,
        mut plan: Box<StorePlan>,
        again: impl Fn(Moment) -> Result<CheckStep, E>,
    ) -> Result<(Answer, Moment), E> {
        let mut deadline = pin!(tokio::time::sleep(self.timeout));
        loop {
            let mut waiting = Waiting::leave(&self.store, plan.takes());
            waiting.wait(deadline.as_mut()).await;
            let moment = Clock::get().moment();
            let finished = engine.finish(plan, &waiting.end(), moment);
            for take in finished.give_back {
                self.store.submit(StoreRequest::GiveBack(take));
            }
            if let Some(answer) = finished.answer {
                return Ok((answer, moment));
            }
            match again(moment)? {
                CheckStep::Decided(answer) => return Ok((answer, moment)),
                CheckStep::NeedsStore(next) => plan = next,
            }
        }
    }
}

/// What was asked of the store. Dropped before its end, it gives back what was taken.
struct Waiting<'a> {
    store: &'a StoreClient,
    takes: Vec<Pending>,
}

struct Pending {
    take: Take,
    answer: oneshot::Receiver<Result<Taken, StoreFailure>>,
    result: Option<Result<Taken, StoreFailure>>,
}

impl<'a> Waiting<'a> {
    fn leave(store: &'a StoreClient, takes: impl Iterator<Item = Take>) -> Self {
        let takes = takes.map(|take| {
            let (tell, answer) = oneshot::channel();
            let report = Box::new(move |result| tell.send(result).is_ok());
            store.submit(StoreRequest::Take(take, report));
            Pending {
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

    /// Waits until everything is answered, or until `deadline`.
    async fn wait(&mut self, mut deadline: Pin<&mut Sleep>) {
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

    /// What was answered. Who answers from now on learns that nobody waits.
    fn end(mut self) -> Vec<Result<Taken, StoreFailure>> {
        let takes = std::mem::take(&mut self.takes);
        takes.into_iter().map(Pending::end).collect()
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        for pending in std::mem::take(&mut self.takes) {
            let take = pending.take;
            if let Ok(Taken { taken: true, .. }) = pending.end() {
                self.store.submit(StoreRequest::GiveBack(take));
            }
        }
    }
}

impl Pending {
    fn end(mut self) -> Result<Taken, StoreFailure> {
        // Closed first: an answer that is not found then has not been taken for told.
        self.answer.close();
        let untold = || self.answer.try_recv().unwrap_or(Err(StoreFailure));
        self.result.unwrap_or_else(untold)
    }
}

/// An answer that waits for the store.
pub struct Late<R>(Pin<Box<dyn Future<Output = R> + Send>>);

impl<R> Late<R> {
    pub(super) fn new(reply: impl Future<Output = R> + Send + 'static) -> Self {
        Self(Box::pin(reply))
    }
}

impl<R> fmt::Debug for Late<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Late")
    }
}

impl<R> Future for Late<R> {
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
    use crate::doors::encode::{self, Form, ResponseStyle};
    use crate::doors::headers::HeaderStyles;
    use crate::wire::Reply;
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
    const TAKEN: Taken = Taken {
        taken: true,
        state: StoreState::Level {
            level: Span::nanos(1),
            demand: 0,
            capped: false,
        },
    };

    /// A desk where errands lie until the test does them.
    #[derive(Clone, Default)]
    struct Counter(Arc<Mutex<(Vec<Responder<Taken>>, usize)>>);

    impl Counter {
        fn store(&self) -> StoreClient {
            let counter = self.clone();
            StoreClient::new(move |store_request| {
                let mut lying = counter.0.lock().unwrap();
                match store_request {
                    StoreRequest::Take(_, report) => lying.0.push(report),
                    StoreRequest::GiveBack(_) => lying.1 += 1,
                    StoreRequest::Read(..) | StoreRequest::Reset(..) => return Err(store_request),
                }
                Ok(())
            })
        }

        fn answer(&self) -> bool {
            let report = self.0.lock().unwrap().0.remove(0);
            report(Ok(TAKEN))
        }

        fn given_back(&self) -> usize {
            self.0.lock().unwrap().1
        }
    }

    #[tokio::test]
    async fn what_is_not_answered_in_time_is_undone_and_its_answer_finds_nobody() {
        let counter = Counter::default();
        let store = counter.store();
        let mut waiting = Waiting::leave(&store, [TAKE, TAKE].into_iter());
        assert!(counter.answer());
        let deadline = pin!(tokio::time::sleep(Duration::ZERO));
        waiting.wait(deadline).await;
        assert_eq!(waiting.end(), [Ok(TAKEN), Err(StoreFailure)]);
        assert!(!counter.answer());
        assert_eq!(counter.given_back(), 0);
    }

    #[tokio::test]
    async fn an_answer_that_came_with_the_deadline_counts() {
        let counter = Counter::default();
        let store = counter.store();
        let mut waiting = Waiting::leave(&store, [TAKE, TAKE].into_iter());
        waiting.wait(pin!(tokio::time::sleep(Duration::ZERO))).await;
        assert!(counter.answer() && counter.answer());
        assert_eq!(waiting.end(), [Ok(TAKEN), Ok(TAKEN)]);
    }

    #[test]
    fn a_client_that_leaves_gives_back_what_was_taken_for_it() {
        let counter = Counter::default();
        let store = counter.store();
        let waiting = Waiting::leave(&store, [TAKE, TAKE].into_iter());
        assert!(counter.answer());
        drop(waiting);
        assert_eq!(counter.given_back(), 1);
        assert!(!counter.answer());
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

    /// What a check is told whose store does not answer.
    async fn told_alone(engine: &Engine, deny_status: Option<StatusCode>) -> Reply {
        let strict = Strict {
            store: Counter::default().store(),
            timeout: Duration::ZERO,
        };
        let begin = |moment| Ok::<_, ()>(engine.begin(Question::Check(&CHECK), moment));
        let Ok(CheckStep::NeedsStore(plan)) = begin(Clock::get().moment()) else {
            unreachable!("the store was to be asked");
        };
        let (answer, moment) = strict.decide(engine, plan, begin).await.unwrap();
        let telling = ResponseStyle {
            shown_bytes_max: 1_024,
            form: Form::Own,
            styles: HeaderStyles::new(&[]),
            deny_status,
            moment,
        };
        encode::response(HeaderMap::new(), &CHECK, &answer, telling)
    }

    /// What the body has at each of these places.
    async fn said<const N: usize>(reply: Reply, places: [&str; N]) -> [String; N] {
        let body = reply.into_body().collect().await.unwrap().to_bytes();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        places.map(|place| body.pointer(place).unwrap().to_string())
    }

    #[tokio::test]
    async fn a_denial_for_want_of_the_store_is_a_503_and_says_when_to_retry() {
        let engine = engine(OnStoreError::Deny);
        let reply = told_alone(&engine, None).await;
        assert_eq!(reply.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reply.headers()["retry-after"], "1");
        let places = ["/error/code", "/error/retry_after", "/statuses/0/source"];
        let expected = ["\"STORE_UNAVAILABLE\"", "1", "\"fallback\""];
        assert_eq!(said(reply, places).await, expected);
        let chosen = told_alone(&engine, Some(StatusCode::FORBIDDEN)).await;
        assert_eq!(chosen.status(), StatusCode::FORBIDDEN);
    }

    #[tokio::test]
    async fn a_check_that_the_store_does_not_answer_passes_where_the_rule_has_it_so() {
        let engine = engine(OnStoreError::LocalFull);
        let reply = told_alone(&engine, None).await;
        assert_eq!(reply.status(), StatusCode::OK);
        let source = said(reply, ["/statuses/0/source"]).await;
        assert_eq!(source, ["\"fallback\""]);
    }

    #[test]
    fn a_closed_desk_answers_at_once() {
        let waiting = Waiting::leave(&StoreClient::CLOSED, [TAKE].into_iter());
        assert_eq!(waiting.end(), [Err(StoreFailure)]);
    }
}
