//! Runs the sync rounds: sends calls and heartbeats to the store, passes the answers and the news of other pods to the
//! engine, and executes store requests.
//!
//! It decides nothing: `engine/sync` says what to send, and is told what happened. It has a thread of its own, so that
//! a large turn delays no check.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use super::connect::StoreSetupError;
use super::error::{ErrorKind, StoreError};
use super::store::RedisStore;
use crate::clock::Clock;
use crate::telemetry::Telemetry;
use tidegate_config::{self, Config};
use tidegate_core::engine::Engine;
use tidegate_core::engine::store_request::{StoreClient, StoreFailure, StoreRequest};
use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip, SyncActions};
use tidegate_core::pure::sync::{
    Call, CallId, Grouping, HeartbeatReply, Lane, News, Refund, Share, StoreReply, StoreState,
};
use tidegate_core::pure::{Nanos, Span};

/// The most store requests that wait to be started.
const REQUESTS_MAX: usize = 1_024;
/// The most pieces of news that wait to be read. Further ones are dropped, which costs accuracy until the next round.
const NEWS_MAX: usize = 8_192;
/// The most pieces of news that are read between two turns.
const NEWS_PER_TURN_MAX: usize = 512;
/// The pause before listening again after a panic of the listener.
const NEWS_PAUSE: Duration = Duration::from_secs(1);
/// The longest time between two turns.
const TURN_MAX: Span = Span::seconds(1);
/// Timers here have a resolution of a millisecond and fire late, never early. A wait shorter than half of that needs
/// no timer.
const GRAIN: Span = Span::nanos(500_000);

/// Why the sync rounds cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings of the store are wrong in a way that only shows when they are used.
    #[error("set up the store")]
    Setup(#[from] StoreSetupError),
    /// The operating system refuses a thread.
    #[error("start the thread of the sync rounds")]
    Thread(#[from] std::io::Error),
}

/// What the sync rounds of a pod work with.
#[derive(Debug)]
pub struct DriverSetup {
    /// The random id of this process.
    pub incarnation: u128,
    /// The buckets, and what to report of them.
    pub engine: Arc<Engine>,
    /// Where failures and times are counted.
    pub telemetry: Arc<Telemetry>,
}

/// A handle to the thread that runs the sync rounds.
#[derive(Debug)]
pub struct Driver {
    client: StoreClient,
    stop: oneshot::Sender<Duration>,
    stopped: oneshot::Receiver<()>,
}

impl Driver {
    /// Checks the settings of the store: reads the files that they name, and sends nothing.
    pub fn check(store: &tidegate_config::StoreSettings) -> Result<(), StartError> {
        RedisStore::new(store, 0)?;
        Ok(())
    }

    /// Starts the sync rounds of this pod.
    pub fn start(
        config: &Config,
        store: &tidegate_config::StoreSettings,
        setup: DriverSetup,
    ) -> Result<Self, StartError> {
        let store = Arc::new(RedisStore::new(store, setup.incarnation)?);
        let pace = Pace {
            interval: Span::nanos(
                u64::try_from(config.sync.interval.as_nanos()).unwrap_or(u64::MAX),
            ),
            accuracy: Share::of((config.sync.accuracy * 65_536.0).ceil() as u64, 65_536),
        };
        let (submit, requests) = mpsc::channel(REQUESTS_MAX);
        let client = StoreClient::new(move |request| {
            submit.try_send(request).map_err(|full| full.into_inner())
        });
        let (stop, asked_to_stop) = oneshot::channel();
        let (ended, stopped) = oneshot::channel();
        let keys_max = config.bounds.keys_max;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        thread::Builder::new()
            .name("rounds".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let rounds = PodSync::new(pace, keys_max, store.grouping());
                    let sync_loop = SyncLoop::new(store, rounds, setup);
                    sync_loop.run(requests, asked_to_stop).await;
                });
                let _ = ended.send(());
            })?;
        Ok(Self {
            client,
            stop,
            stopped,
        })
    }

    /// The handle through which doors submit store requests.
    pub fn client(&self) -> StoreClient {
        self.client.clone()
    }

    /// Waits until the thread ends, which it only does by a fault.
    pub async fn ended(&mut self) {
        let _ = (&mut self.stopped).await;
    }

    /// Reports the pending cells, leaves the fleet, and stops; after `within` at the latest.
    pub async fn stop(self, within: Duration) {
        let _ = self.stop.send(within);
        let _ = timeout(within, self.stopped).await;
    }
}

/// What a task of the loop ended with.
enum TaskOutcome {
    Call {
        id: CallId,
        sent: Nanos,
        answer: Result<StoreReply, StoreError>,
    },
    Heartbeat(Result<HeartbeatReply, StoreError>),
    StoreRequest(Lane, Result<(), StoreError>),
    Refund {
        refund: Refund,
        sent: Nanos,
        answer: Result<StoreState, StoreError>,
    },
}

/// The loop that runs on the thread.
struct SyncLoop {
    store: Arc<RedisStore>,
    rounds: PodSync,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    tasks: JoinSet<TaskOutcome>,
    random: RandomState,
    shards: Vec<String>,
    failing: bool,
}

impl SyncLoop {
    fn new(store: Arc<RedisStore>, rounds: PodSync, setup: DriverSetup) -> Self {
        Self {
            store,
            rounds,
            engine: setup.engine,
            telemetry: setup.telemetry,
            clock: Clock::get(),
            tasks: JoinSet::new(),
            random: RandomState::new(),
            shards: Vec::new(),
            failing: false,
        }
    }

    async fn run(
        mut self,
        mut requests: mpsc::Receiver<StoreRequest>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let waker = Arc::new(Notify::new());
        let notify = Arc::clone(&waker);
        self.engine.set_waker(Box::new(move || notify.notify_one()));
        let telemetry = Arc::clone(&self.telemetry);
        self.store
            .set_failure_observer(move |kind| telemetry.redis_error(kind.name()));
        let mut news = self.listen();
        self.update_shards();
        let within = loop {
            let wait = self.turn();
            tokio::select! {
                asked = &mut stop => break asked.unwrap_or_default(),
                Some(joined) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.finish(outcome_of(joined));
                }
                Some(first) = news.recv() => self.receive_news(first, &mut news),
                Some(request) = requests.recv() => self.start_request(request),
                () = waker.notified() => {}
                () = sleep(wait) => {}
            }
        };
        if timeout(within, self.drain()).await.is_err() {
            warn!("stopped with cells that the store has not confirmed");
        }
    }

    /// Starts a task that receives the news of other pods.
    fn listen(&self) -> mpsc::Receiver<News> {
        let (sender, news) = mpsc::channel(NEWS_MAX);
        let (store, telemetry) = (Arc::clone(&self.store), Arc::clone(&self.telemetry));
        tokio::spawn(async move {
            loop {
                let (store, sender) = (Arc::clone(&store), sender.clone());
                // A full queue drops news: it is never needed for a correct result.
                let news_received = move |news| {
                    let _ = sender.try_send(news);
                };
                let listening = tokio::spawn(async move { store.listen(news_received).await });
                // It only ends by a panic.
                let _ = listening.await;
                telemetry.restarted("news");
                sleep(NEWS_PAUSE).await;
            }
        });
        news
    }

    /// Sends everything that is due, and returns the time until the next turn.
    fn turn(&mut self) -> Duration {
        let moment = self.clock.moment();
        let SyncActions {
            calls,
            heartbeat,
            give_back,
        } = self.rounds.turn(&self.engine, moment);
        // Refunds first: later reports of the same keys must follow them.
        for refund in give_back {
            self.give_back(refund);
        }
        for call in calls {
            self.send(call);
        }
        if let Some(heartbeat) = heartbeat {
            let store = Arc::clone(&self.store);
            self.tasks
                .spawn(async move { TaskOutcome::Heartbeat(store.heartbeat(&heartbeat).await) });
        }
        let next = self.rounds.next_turn(moment.now);
        let wait = next.since(moment.now).min(TURN_MAX);
        Duration::from_nanos(wait.less(GRAIN).get())
    }

    fn send(&mut self, call: Call) {
        let (store, clock) = (Arc::clone(&self.store), self.clock);
        self.tasks.spawn(async move {
            let sent = clock.moment().now;
            TaskOutcome::Call {
                id: call.id(),
                sent,
                answer: store.apply(&call).await,
            }
        });
    }

    /// Passes the outcome of a task to the rounds.
    fn finish(&mut self, outcome: Option<TaskOutcome>) {
        let Some(outcome) = outcome else {
            return;
        };
        let moment = self.clock.moment();
        let jitter = self.random.build_hasher().finish() ^ moment.now.get();
        let failure = match outcome {
            TaskOutcome::Call {
                id,
                sent,
                answer: Ok(reply),
            } => {
                let took = Duration::from_nanos(moment.now.since(sent).get());
                self.telemetry.sync_round.record(took);
                let trip = RoundTrip { sent, back: moment };
                self.rounds.call_answered(&self.engine, id, &reply, trip);
                None
            }
            TaskOutcome::Call {
                id,
                answer: Err(error),
                ..
            } => {
                self.call_failed(id, &error, jitter);
                Some(error)
            }
            TaskOutcome::Heartbeat(Ok(reply)) => {
                self.rounds.heartbeat_answered(&self.engine, &reply, moment);
                None
            }
            TaskOutcome::Heartbeat(Err(error)) => {
                self.rounds
                    .heartbeat_failed(&self.engine, moment.now, jitter);
                Some(error)
            }
            TaskOutcome::Refund {
                refund,
                sent,
                answer: Ok(store_state),
            } => {
                let trip = RoundTrip { sent, back: moment };
                self.rounds
                    .refund_answered(&self.engine, &refund, store_state, trip);
                let lane = refund.key.lane();
                self.rounds.request_answered(&self.engine, lane, moment.now);
                None
            }
            TaskOutcome::Refund {
                refund,
                answer: Err(error),
                ..
            } => {
                let (key, now) = (refund.key, moment.now);
                self.rounds.refund_failed(&self.engine, key, now, jitter);
                Some(error)
            }
            TaskOutcome::StoreRequest(lane, Ok(())) => {
                self.rounds.request_answered(&self.engine, lane, moment.now);
                None
            }
            TaskOutcome::StoreRequest(lane, Err(error)) => {
                self.rounds
                    .request_failed(&self.engine, lane, moment.now, jitter);
                Some(error)
            }
        };
        self.note(failure.as_ref());
    }

    fn call_failed(&mut self, id: CallId, error: &StoreError, jitter: u64) {
        let now = self.clock.moment().now;
        // Only a single server is sent calls over several slots.
        if error.kind == ErrorKind::CrossSlot && self.store.grouping() == Grouping::Whole {
            self.rounds.call_refused(&self.engine, id, now);
        } else {
            self.rounds.call_failed(&self.engine, id, now, jitter);
        }
    }

    /// Counts a failure, and logs once that the store is unreachable and once that it is back.
    fn note(&mut self, failure: Option<&StoreError>) {
        let partitioned = Lane::all().any(|lane| !self.rounds.is_reachable(lane));
        if let Some(error) = failure {
            self.telemetry.redis_error(error.kind.name());
        }
        match (self.failing, partitioned) {
            (false, true) => {
                let error = failure.map(ToString::to_string).unwrap_or_default();
                warn!(
                    error,
                    "the store is unreachable: every rule follows its on_store_error"
                );
            }
            (true, false) => info!("the store is reachable again"),
            (false, false) | (true, true) => {}
        }
        self.failing = partitioned;
        self.update_shards();
    }

    fn receive_news(&mut self, first: News, news: &mut mpsc::Receiver<News>) {
        let moment = self.clock.moment();
        self.rounds.news_received(&self.engine, first, moment);
        for _ in 1..NEWS_PER_TURN_MAX {
            match news.try_recv() {
                Ok(next) => self.rounds.news_received(&self.engine, next, moment),
                Err(_) => return,
            }
        }
    }

    fn start_request(&mut self, request: StoreRequest) {
        let store = Arc::clone(&self.store);
        match request {
            StoreRequest::Take(take, report) => {
                if !self.rounds.is_reachable(take.key.lane()) {
                    report(Err(StoreFailure));
                    return;
                }
                let lane = take.key.lane();
                self.tasks.spawn(async move {
                    let ended = match store.take(&take).await {
                        Ok(taken) => match !report(Ok(taken)) && taken.taken {
                            true => store.give_back(&Refund::from(&take)).await.map(|_| ()),
                            false => Ok(()),
                        },
                        Err(error) => {
                            report(Err(StoreFailure));
                            Err(error)
                        }
                    };
                    TaskOutcome::StoreRequest(lane, ended)
                });
            }
            StoreRequest::GiveBack(take) => self.give_back(Refund::from(&take)),
            StoreRequest::Read(key, terms, report) => {
                self.tasks.spawn(async move {
                    let (answer, ended) = split(store.read(key, terms).await);
                    report(answer);
                    TaskOutcome::StoreRequest(key.lane(), ended)
                });
            }
            StoreRequest::Reset(key, report) => {
                self.tasks.spawn(async move {
                    let (answer, ended) = split(store.reset(key).await);
                    report(answer);
                    TaskOutcome::StoreRequest(key.lane(), ended)
                });
            }
        }
    }

    fn give_back(&mut self, refund: Refund) {
        let (store, clock) = (Arc::clone(&self.store), self.clock);
        self.tasks.spawn(async move {
            let sent = clock.moment().now;
            let answer = store.give_back(&refund).await;
            TaskOutcome::Refund {
                refund,
                sent,
                answer,
            }
        });
    }

    /// Passes on which shard owns which lane: that may have changed.
    fn update_shards(&mut self) {
        let shards = self.store.shards();
        self.rounds
            .set_shards(|lane| self.store.shard_of(lane), shards.len());
        if shards != self.shards {
            self.telemetry.set_shards(shards.clone());
            self.shards = shards;
        }
    }

    /// Reports the pending cells and leaves the fleet.
    async fn drain(&mut self) {
        self.rounds.drain(&self.engine, self.clock.moment());
        loop {
            let wait = self.turn();
            if self.tasks.is_empty() && self.rounds.is_settled() {
                return;
            }
            tokio::select! {
                Some(joined) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.finish(outcome_of(joined));
                }
                () = sleep(wait) => {}
            }
        }
    }
}

/// The outcome of a task. A task that panicked ends the rounds too: a pod that does not know what it has reported must
/// not go on.
fn outcome_of(joined: Result<TaskOutcome, JoinError>) -> Option<TaskOutcome> {
    match joined.map_err(JoinError::try_into_panic) {
        Ok(outcome) => Some(outcome),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None, // cancelled, which never happens
    }
}

/// Splits a result: into what the requester gets, and what the rounds get.
fn split<T>(ended: Result<T, StoreError>) -> (Result<T, StoreFailure>, Result<(), StoreError>) {
    match ended {
        Ok(answer) => (Ok(answer), Ok(())),
        Err(error) => (Err(StoreFailure), Err(error)),
    }
}
