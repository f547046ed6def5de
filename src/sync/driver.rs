//! Drives the rounds: carries calls to the store and answers back, gives signs of life, listens to news, runs errands.
//!
//! It decides nothing: `engine/rounds` says what to send and is told what happened. It has a thread of its own, so that a
//! large turn keeps no check waiting.

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
use super::error::StoreError;
use super::store::Store;
use crate::clock::Clock;
use crate::telemetry::Telemetry;
use tidegate_config::{self, Config};
use tidegate_core::engine::Engine;
use tidegate_core::engine::store_request::{StoreClient, StoreFailure, StoreRequest};
use tidegate_core::engine::sync::{Pace, PodSync, RoundTrip, SyncActions};
use tidegate_core::pure::sync::{
    Call, HeartbeatReply, Lane, News, Refund, Reply, Share, StoreState,
};
use tidegate_core::pure::{Nanos, Span};

/// Errands that wait to be taken.
const REQUESTS_MAX: usize = 1_024;
/// News that waits to be heard. What does not fit is lost, which costs accuracy until the next round.
const NEWS_MAX: usize = 8_192;
/// Pieces of news that are heard before the next turn.
const NEWS_PER_TURN_MAX: usize = 512;
/// How long after a fault of ours news is listened to again.
const NEWS_PAUSE: Duration = Duration::from_secs(1);
/// The longest between two turns.
const TURN_MAX: Span = Span::seconds(1);
/// Timers here have a grain of a millisecond and ring late, never early. Less than half of it is not worth one.
const GRAIN: Span = Span::nanos(500_000);

/// Why the store cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its settings are wrong in a way that only shows when they are used.
    #[error("set up the store")]
    Setup(#[from] StoreSetupError),
    /// The system refuses a thread.
    #[error("start the thread of the rounds")]
    Thread(#[from] std::io::Error),
}

/// The running rounds.
#[derive(Debug)]
pub struct Driver {
    client: StoreClient,
    stop: oneshot::Sender<Duration>,
    stopped: oneshot::Receiver<()>,
}

impl Driver {
    /// Whether there can be rounds with this store: reads the files that its settings name, and asks nobody.
    pub fn check(store: &tidegate_config::Store) -> Result<(), StartError> {
        Store::new(store, 0)?;
        Ok(())
    }

    /// Starts the rounds of this pod with the store of `config`.
    pub fn start(
        config: &Config,
        store: &tidegate_config::Store,
        incarnation: u128,
        (engine, telemetry): (Arc<Engine>, Arc<Telemetry>),
    ) -> Result<Self, StartError> {
        let store = Arc::new(Store::new(store, incarnation)?);
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
                    let running =
                        Running::new(store, PodSync::new(pace, keys_max), engine, telemetry);
                    running.run(requests, asked_to_stop).await;
                });
                let _ = ended.send(());
            })?;
        Ok(Self {
            client,
            stop,
            stopped,
        })
    }

    /// Takes requests to the store.
    pub fn client(&self) -> StoreClient {
        self.client.clone()
    }

    /// Waits until the rounds end, which they do not by themselves.
    pub async fn ended(&mut self) {
        let _ = (&mut self.stopped).await;
    }

    /// Tells what is pending, leaves the fleet, and ends; after `within` at the latest.
    pub async fn stop(self, within: Duration) {
        let _ = self.stop.send(within);
        let _ = timeout(within, self.stopped).await;
    }
}

/// What came back.
enum Done {
    Call {
        lane: Lane,
        sent: Nanos,
        answer: Result<Reply, StoreError>,
    },
    Heartbeat(Result<HeartbeatReply, StoreError>),
    StoreRequest(Lane, Result<(), StoreError>),
    GivenBack {
        refund: Refund,
        sent: Nanos,
        answer: Result<StoreState, StoreError>,
    },
}

struct Running {
    store: Arc<Store>,
    rounds: PodSync,
    engine: Arc<Engine>,
    telemetry: Arc<Telemetry>,
    clock: Clock,
    under_way: JoinSet<Done>,
    random: RandomState,
    shards: Vec<String>,
    failing: bool,
}

impl Running {
    fn new(
        store: Arc<Store>,
        rounds: PodSync,
        engine: Arc<Engine>,
        telemetry: Arc<Telemetry>,
    ) -> Self {
        Self {
            store,
            rounds,
            engine,
            telemetry,
            clock: Clock::get(),
            under_way: JoinSet::new(),
            random: RandomState::new(),
            shards: Vec::new(),
            failing: false,
        }
    }

    async fn run(
        mut self,
        mut errands: mpsc::Receiver<StoreRequest>,
        mut stop: oneshot::Receiver<Duration>,
    ) {
        let waker = Arc::new(Notify::new());
        let bell = Arc::clone(&waker);
        self.engine.set_waker(Box::new(move || bell.notify_one()));
        let telemetry = Arc::clone(&self.telemetry);
        self.store
            .set_notice(move |kind| telemetry.redis_error(kind.name()));
        let mut news = self.listen();
        self.know_shards();
        let within = loop {
            let wait = self.turn();
            tokio::select! {
                asked = &mut stop => break asked.unwrap_or_default(),
                Some(done) = self.under_way.join_next(), if !self.under_way.is_empty() => {
                    self.done(ended(done));
                }
                Some(first) = news.recv() => self.receive_news(first, &mut news),
                Some(store_request) = errands.recv() => self.unsent(store_request),
                () = waker.notified() => {}
                () = sleep(wait) => {}
            }
        };
        if timeout(within, self.drain()).await.is_err() {
            warn!("stopped with cells that the store has not confirmed");
        }
    }

    /// Hears what other pods tell, in a task of its own.
    fn listen(&self) -> mpsc::Receiver<News> {
        let (tell, news) = mpsc::channel(NEWS_MAX);
        let (store, telemetry) = (Arc::clone(&self.store), Arc::clone(&self.telemetry));
        tokio::spawn(async move {
            loop {
                let (store, tell) = (Arc::clone(&store), tell.clone());
                // What does not fit is lost: it is never needed to be right.
                let news_received = move |news| {
                    let _ = tell.try_send(news);
                };
                let listening = tokio::spawn(async move { store.listen(news_received).await });
                // It ends by a fault of ours only.
                let _ = listening.await;
                telemetry.restarted("news");
                sleep(NEWS_PAUSE).await;
            }
        });
        news
    }

    /// Sends what is to be sent, and says how long nothing has to be done.
    fn turn(&mut self) -> Duration {
        let moment = self.clock.moment();
        let SyncActions {
            calls,
            heartbeat,
            give_back,
        } = self.rounds.turn(&self.engine, moment);
        // First: what is told of the same keys from now on is told after it.
        for refund in give_back {
            self.give_back(refund);
        }
        for call in calls {
            self.send(call);
        }
        if let Some(heartbeat) = heartbeat {
            let store = Arc::clone(&self.store);
            self.under_way
                .spawn(async move { Done::Heartbeat(store.heartbeat(&heartbeat).await) });
        }
        let next = self.rounds.next_turn(moment.now);
        let wait = next.since(moment.now).min(TURN_MAX);
        Duration::from_nanos(wait.less(GRAIN).get())
    }

    fn send(&mut self, call: Call) {
        let (store, clock) = (Arc::clone(&self.store), self.clock);
        self.under_way.spawn(async move {
            let sent = clock.moment().now;
            Done::Call {
                lane: call.lane,
                sent,
                answer: store.apply(&call).await,
            }
        });
    }

    fn done(&mut self, done: Option<Done>) {
        let Some(done) = done else {
            return;
        };
        let moment = self.clock.moment();
        let jitter = self.random.build_hasher().finish() ^ moment.now.get();
        let failure = match done {
            Done::Call {
                lane,
                sent,
                answer: Ok(reply),
            } => {
                let took = Duration::from_nanos(moment.now.since(sent).get());
                self.telemetry.sync_round.record(took);
                let trip = RoundTrip { sent, back: moment };
                self.rounds.call_answered(&self.engine, lane, &reply, trip);
                None
            }
            Done::Call {
                lane,
                answer: Err(error),
                ..
            } => {
                self.rounds
                    .call_failed(&self.engine, lane, moment.now, jitter);
                Some(error)
            }
            Done::Heartbeat(Ok(heartbeat_answered)) => {
                self.rounds
                    .heartbeat_answered(&self.engine, &heartbeat_answered, moment);
                None
            }
            Done::Heartbeat(Err(error)) => {
                self.rounds
                    .heartbeat_failed(&self.engine, moment.now, jitter);
                Some(error)
            }
            Done::GivenBack {
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
            Done::GivenBack {
                refund,
                answer: Err(error),
                ..
            } => {
                let (key, now) = (refund.key, moment.now);
                self.rounds.refund_failed(&self.engine, key, now, jitter);
                Some(error)
            }
            Done::StoreRequest(lane, Ok(())) => {
                self.rounds.request_answered(&self.engine, lane, moment.now);
                None
            }
            Done::StoreRequest(lane, Err(error)) => {
                self.rounds
                    .request_failed(&self.engine, lane, moment.now, jitter);
                Some(error)
            }
        };
        self.note(failure.as_ref());
    }

    /// Counts a failure, and says once that the store is gone and once that it is back.
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
                    "the store cannot be told: rules go by their on_store_error"
                );
            }
            (true, false) => info!("the store can be told again"),
            (false, false) | (true, true) => {}
        }
        self.failing = partitioned;
        self.know_shards();
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

    fn unsent(&mut self, store_request: StoreRequest) {
        let store = Arc::clone(&self.store);
        match store_request {
            StoreRequest::Take(take, report) => {
                if !self.rounds.is_reachable(take.key.lane()) {
                    report(Err(StoreFailure));
                    return;
                }
                let lane = take.key.lane();
                self.under_way.spawn(async move {
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
                    Done::StoreRequest(lane, ended)
                });
            }
            StoreRequest::GiveBack(take) => self.give_back(Refund::from(&take)),
            StoreRequest::Read(key, terms, report) => {
                self.under_way.spawn(async move {
                    let (store_state, ended) = parted(store.read(key, terms).await);
                    report(store_state);
                    Done::StoreRequest(key.lane(), ended)
                });
            }
            StoreRequest::Reset(key, report) => {
                self.under_way.spawn(async move {
                    let (done, ended) = parted(store.reset(key).await);
                    report(done);
                    Done::StoreRequest(key.lane(), ended)
                });
            }
        }
    }

    fn give_back(&mut self, refund: Refund) {
        let (store, clock) = (Arc::clone(&self.store), self.clock);
        self.under_way.spawn(async move {
            let sent = clock.moment().now;
            let answer = store.give_back(&refund).await;
            Done::GivenBack {
                refund,
                sent,
                answer,
            }
        });
    }

    /// Which shard has which lane may have changed.
    fn know_shards(&mut self) {
        let shards = self.store.shards();
        self.rounds
            .set_shards(|lane| self.store.shard_of(lane), shards.len());
        if shards != self.shards {
            self.telemetry.set_shards(shards.clone());
            self.shards = shards;
        }
    }

    /// Tells what is pending and leaves the fleet.
    async fn drain(&mut self) {
        self.rounds.drain(&self.engine, self.clock.moment());
        loop {
            let wait = self.turn();
            if self.under_way.is_empty() && self.rounds.is_settled() {
                return;
            }
            tokio::select! {
                Some(done) = self.under_way.join_next(), if !self.under_way.is_empty() => {
                    self.done(ended(done));
                }
                () = sleep(wait) => {}
            }
        }
    }
}

/// What a task came back with. One that panicked takes the rounds with it: a pod that does not know what it has told
/// must not go on as if it did.
fn ended(done: Result<Done, JoinError>) -> Option<Done> {
    match done.map_err(JoinError::try_into_panic) {
        Ok(done) => Some(done),
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        Err(Err(_)) => None, // cancelled, which nobody does
    }
}

/// What whoever asked is told, and what the rounds are.
fn parted<T>(ended: Result<T, StoreError>) -> (Result<T, StoreFailure>, Result<(), StoreError>) {
    match ended {
        Ok(done) => (Ok(done), Ok(())),
        Err(error) => (Err(StoreFailure), Err(error)),
    }
}
