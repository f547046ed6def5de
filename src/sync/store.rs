//! The fleet's store: everything that a pod may ask of it.
//!
//! Callers need not know where the servers are or whether a connection is open. This file sees to it that every call
//! ends within `store.timeout` (a take: within three times that).

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::timeout;

use super::address::StoreTarget;
use super::cluster::Cluster;
use super::codec::{self, Names, ScriptRequest};
use super::connect::{Connector, ServerLocation, StoreServer, StoreSetupError};
use super::error::{ErrorKind, StoreError};
use super::listen;
use super::script::{self, Script};
use tidegate_config::{self, Topology};
use tidegate_core::pure::sync::{
    Call, Delta, Grouping, Heartbeat, HeartbeatReply, KnownUsage, Lane, NEWS_STEP, News, Refund,
    Share, StoreKey, StoreReply, StoreState, Take, TakeReply, Terms,
};
use tidegate_core::pure::{Cells, Span};

/// The ports of servers and of sentinels, where the URL names none.
const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26_379;

/// The client of the fleet's store. It connects at the first call, and again whenever a connection is lost.
pub struct RedisStore {
    names: Names,
    connector: Arc<Connector>,
    servers: Servers,
}

enum Servers {
    One(Arc<StoreServer>),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore")
            .field("shards", &self.shards())
            .finish_non_exhaustive()
    }
}

impl RedisStore {
    /// A client for these settings, for the pod with this incarnation. Reads the files that the settings name; sends
    /// nothing.
    pub fn new(
        settings: &tidegate_config::StoreSettings,
        incarnation: u128,
    ) -> Result<Self, StoreSetupError> {
        let port = match settings.topology {
            Topology::Single | Topology::Cluster => REDIS_PORT,
            Topology::Sentinel { .. } => SENTINEL_PORT,
        };
        let target =
            StoreTarget::parse(settings.url.expose(), port).ok_or(StoreSetupError::Database)?;
        let connector = Connector::new(
            &target,
            settings.password_file.as_deref(),
            &settings.tls,
            settings.timeout,
        )?;
        let connector = Arc::new(connector);
        let mut locations = ServerLocation::all(target, &settings.topology)?;
        let sharded = settings.topology == Topology::Cluster;
        let servers = if sharded {
            Servers::Cluster(Arc::new(Cluster::new(locations, Arc::clone(&connector))))
        } else {
            let location = locations.pop().ok_or(StoreSetupError::Database)?;
            Servers::One(Arc::new(StoreServer::new(location, Arc::clone(&connector))))
        };
        let names = Names::new(&settings.key_prefix, sharded, incarnation);
        Ok(Self {
            names,
            connector,
            servers,
        })
    }

    /// Calls `observer` with every failure that is returned to no caller: a script that had to be loaded, a subscription
    /// that ended.
    pub fn set_failure_observer(&self, observer: impl Fn(ErrorKind) + Send + Sync + 'static) {
        self.connector.set_failure_observer(Box::new(observer));
    }

    /// `store.timeout`.
    pub fn timeout(&self) -> Duration {
        self.connector.timeout
    }

    /// The number of the shard that owns `lane`, as far as is known.
    pub fn shard_of(&self, lane: Lane) -> usize {
        match &self.servers {
            Servers::One(_) => 0,
            Servers::Cluster(cluster) => cluster.shard_of(lane),
        }
    }

    /// How a pod groups the lanes: a call may have keys of several slots only on a server that has all of them.
    pub const fn grouping(&self) -> Grouping {
        match self.servers {
            Servers::One(_) => Grouping::Whole,
            Servers::Cluster(_) => Grouping::PerLane,
        }
    }

    /// The name of every shard, in the order of their numbers.
    pub fn shards(&self) -> Vec<String> {
        match &self.servers {
            Servers::One(_) => vec!["0".to_owned()],
            Servers::Cluster(cluster) => cluster.shards(),
        }
    }

    /// Books a batch, exactly once, and returns the state of its keys.
    pub async fn apply(&self, call: &Call) -> Result<StoreReply, StoreError> {
        let request = self.names.apply(call);
        self.run(call.group.lane(), &script::APPLY, &request, |value| {
            codec::reply(value, call)
        })
        .await
    }

    /// Returns the state of `key`. Changes nothing: a call without a sequence number is never applied.
    pub async fn read(&self, key: StoreKey, terms: Terms) -> Result<StoreState, StoreError> {
        let nothing = Delta {
            key,
            terms,
            gross: Cells::ZERO,
            price: Span::ZERO,
            billed: Cells::ZERO,
            age: Span::ZERO,
            share: Share::WHOLE,
            live: false,
            known: KnownUsage::default(),
        };
        let call = Call {
            group: Grouping::PerLane.group_of(key.lane()),
            previous: 0,
            sequence: 0,
            deltas: vec![nothing],
            news_step: NEWS_STEP,
        };
        let reply = self.apply(&call).await?;
        let store_state = reply.states.first().copied();
        store_state.ok_or_else(|| StoreError::protocol("the answer has no key"))
    }

    /// Sends a heartbeat.
    pub async fn heartbeat(&self, heartbeat: &Heartbeat) -> Result<HeartbeatReply, StoreError> {
        let request = self.names.heartbeat(heartbeat);
        self.run(
            Lane::new(0),
            &script::HEARTBEAT,
            &request,
            codec::heartbeat_answered,
        )
        .await
    }

    /// Takes cells if all of them are available.
    pub async fn take(&self, take: &Take) -> Result<TakeReply, StoreError> {
        let request = self.names.take(take);
        let decode = |value: &Value| codec::taken(value, take.terms);
        self.run(take.key.lane(), &script::TAKE, &request, decode)
            .await
    }

    /// Gives back cells that were taken, and returns the state of the key after that.
    pub async fn give_back(&self, refund: &Refund) -> Result<StoreState, StoreError> {
        let request = self.names.give_back(refund);
        let decode = |value: &Value| codec::taken(value, refund.terms);
        let lane = refund.key.lane();
        let given_back = self.run(lane, &script::TAKE, &request, decode).await;
        given_back.map(|taken| taken.state)
    }

    /// Empties `key`, and lets every pod know.
    pub async fn reset(&self, key: StoreKey) -> Result<(), StoreError> {
        let mut delete = redis::cmd("DEL");
        delete.arg(self.names.key(&key));
        let deleted = async {
            match &self.servers {
                Servers::One(server) => server.query(&delete).await,
                Servers::Cluster(cluster) => cluster.query(key.lane(), &delete).await,
            }
        };
        self.within(key.lane(), 1, deleted).await?;
        let request = self.names.reset(&key);
        self.run(Lane::new(0), &script::RESET, &request, |_| Ok(()))
            .await
    }

    /// Calls `news_received` with the news that other pods publish, for ever.
    pub async fn listen(&self, news_received: impl FnMut(News) + Send) -> Infallible {
        match &self.servers {
            Servers::One(server) => {
                listen::to_one(
                    &server.location,
                    &self.connector,
                    &self.names,
                    news_received,
                )
                .await
            }
            Servers::Cluster(cluster) => {
                listen::to_all(cluster, &self.connector, &self.names, news_received).await
            }
        }
    }

    async fn run<T>(
        &self,
        lane: Lane,
        script: &Script,
        request: &ScriptRequest,
        decode: impl FnOnce(&Value) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let answered = async {
            match &self.servers {
                Servers::One(server) => {
                    Ok((server.run(script, request).await?, Arc::clone(server)))
                }
                Servers::Cluster(cluster) => cluster.run(lane, script, request).await,
            }
        };
        let (value, server) = self.within(lane, script.patience, answered).await?;
        decode(&value).map_err(|error| {
            // The answer makes no sense: the next call opens a new connection.
            server.disconnect();
            error.with_server(&self.label(lane))
        })
    }

    async fn within<T>(
        &self,
        lane: Lane,
        patience: u32,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        match timeout(self.connector.timeout.saturating_mul(patience), call).await {
            Ok(answer) => answer,
            Err(_) => {
                if let Servers::Cluster(cluster) = &self.servers {
                    cluster.refresh_soon();
                }
                Err(StoreError::timeout(&self.label(lane)))
            }
        }
    }

    fn label(&self, lane: Lane) -> String {
        self.shards()
            .into_iter()
            .nth(self.shard_of(lane))
            .unwrap_or_default()
    }
}
