//! Receives the news that other pods publish through the store, and subscribes again whatever happens to the servers.
//!
//! There is one connection per server, apart from the connection of the calls. It is pinged now and then, because a
//! silent connection and a dead one look alike. News that is missed costs accuracy until the next round. So nothing is
//! stored for a pod that was away, and messages beyond the queue are dropped.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::address::StoreAddress;
use super::cluster::Cluster;
use super::codec::{self, Names};
use super::connect::{Connector, OpenConnection, Purpose, ServerLocation};
use super::error::{ErrorKind, StoreError};
use tidegate_core::pure::sync::{Lane, News};

/// The most messages that wait to be read.
const MESSAGES_MAX: usize = 1024;
/// How often the connection is pinged.
const PING_EVERY: Duration = Duration::from_secs(2);
/// The shortest and the longest pause between two attempts to subscribe.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often the map of a cluster is read while no server of it is known.
const MAP_EVERY: Duration = Duration::from_secs(1);

/// A server to subscribe at, and the channels.
#[derive(Clone, Debug, PartialEq, Eq)]
struct NewsSource {
    location: ServerLocation,
    command: &'static str,
    channels: Vec<String>,
}

/// A running subscription.
struct Subscription {
    source: NewsSource,
    task: AbortHandle,
}

/// Listens to the only server.
pub(super) async fn to_one(
    location: &ServerLocation,
    connector: &Arc<Connector>,
    names: &Names,
    mut news_received: impl FnMut(News) + Send,
) -> Infallible {
    let (sender, mut receiver) = mpsc::channel(MESSAGES_MAX);
    let source = NewsSource {
        location: location.clone(),
        command: "SUBSCRIBE",
        channels: vec![names.channel(Lane::new(0))],
    };
    let mut listening = JoinSet::new();
    listening.spawn(follow(source, Arc::clone(connector), sender.clone(), || {}));
    loop {
        if let Some(message) = receiver.recv().await {
            codec::news(&message).for_each(&mut news_received);
        }
    }
}

/// Listens to every server of a cluster that owns lanes.
pub(super) async fn to_all(
    cluster: &Arc<Cluster>,
    connector: &Arc<Connector>,
    names: &Names,
    mut news_received: impl FnMut(News) + Send,
) -> Infallible {
    let (sender, mut receiver) = mpsc::channel(MESSAGES_MAX);
    let mut map_changed = cluster.watch();
    let mut listening = JoinSet::new();
    let mut running: BTreeMap<StoreAddress, Subscription> = BTreeMap::new();
    loop {
        let wanted = wanted(cluster, names);
        running.retain(|address, Subscription { source, task }| {
            let stays = wanted.get(address) == Some(source);
            if !stays {
                task.abort();
            }
            stays
        });
        for (address, source) in wanted {
            running.entry(address).or_insert_with(|| {
                let cluster = Arc::clone(cluster);
                let follow = follow(
                    source.clone(),
                    Arc::clone(connector),
                    sender.clone(),
                    move || cluster.refresh_soon(),
                );
                let task = listening.spawn(follow);
                Subscription { source, task }
            });
        }
        if running.is_empty() {
            cluster.refresh_soon();
        }
        loop {
            tokio::select! {
                Some(message) = receiver.recv() => codec::news(&message).for_each(&mut news_received),
                _ = map_changed.changed() => break,
                // Removes ended tasks from the set.
                Some(_) = listening.join_next() => {}
                () = sleep(MAP_EVERY), if running.is_empty() => break,
            }
        }
    }
}

fn wanted(cluster: &Cluster, names: &Names) -> BTreeMap<StoreAddress, NewsSource> {
    let lanes = cluster.map().lanes_by_server();
    let source = |(address, lanes): (StoreAddress, Vec<Lane>)| {
        let source = NewsSource {
            location: ServerLocation::Fixed(address.clone()),
            command: "SSUBSCRIBE",
            channels: lanes.into_iter().map(|lane| names.channel(lane)).collect(),
        };
        (address, source)
    };
    lanes.into_iter().map(source).collect()
}

/// Subscribes at one server for ever. Calls `lost` each time the subscription ends.
async fn follow(
    source: NewsSource,
    connector: Arc<Connector>,
    messages: mpsc::Sender<Vec<u8>>,
    lost: impl Fn() + Send,
) -> Infallible {
    let mut pause = PAUSE_MIN;
    loop {
        let mut subscribed = false;
        let error = subscription(&source, &connector, &messages, &mut subscribed).await;
        if subscribed {
            pause = PAUSE_MIN;
        }
        connector.report_failure(error.kind);
        // The first loss is logged as a warning, its repetition is not.
        if pause == PAUSE_MIN {
            warn!(error = %error, cause = std::error::Error::source(&error).map(tracing::field::display), "receives no news from other pods");
        } else {
            debug!(error = %error, "still receives no news from other pods");
        }
        lost();
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(PAUSE_MAX);
    }
}

/// Subscribes, and returns when the subscription ends, with the reason.
async fn subscription(
    source: &NewsSource,
    connector: &Arc<Connector>,
    messages: &mpsc::Sender<Vec<u8>>,
    subscribed: &mut bool,
) -> StoreError {
    let (lost, confirmed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (waker, confirm) = (Arc::clone(&lost), Arc::clone(&confirmed));
    let messages = messages.clone();
    let handler = Box::new(move |info: PushInfo| {
        use PushKind::{
            Disconnection, Message, SMessage, SSubscribe, SUnsubscribe, Subscribe, Unsubscribe,
        };
        if matches!(info.kind, Message | SMessage) {
            if let Some(Value::BulkString(message)) = info.data.into_iter().nth(1) {
                // A full queue drops the message: news is never needed for a correct result.
                let _ = messages.try_send(message);
            }
        } else if matches!(info.kind, Subscribe | SSubscribe) {
            confirm.notify_one();
        } else if matches!(info.kind, Disconnection | Unsubscribe | SUnsubscribe) {
            waker.notify_one();
        }
    });
    let opened = timeout(
        connector.timeout,
        source
            .location
            .open(connector, Purpose::News, Some(handler)),
    );
    let open = match opened.await {
        Ok(Ok(open)) => open,
        Ok(Err(error)) => return error,
        Err(_) => return StoreError::timeout("news"),
    };
    let server = open.address.to_string();
    for channel in &source.channels {
        let mut command = redis::cmd(source.command);
        command.arg(channel);
        if let Err(error) = send(connector, &open, &command).await {
            return error;
        }
        // Without a confirmation there would be no news.
        if timeout(connector.timeout, confirmed.notified())
            .await
            .is_err()
        {
            let words = "the server did not confirm the subscription";
            return StoreError::new(ErrorKind::Protocol, &server, words);
        }
    }
    *subscribed = true;
    info!(server, "receives news from other pods");
    loop {
        if timeout(PING_EVERY, lost.notified()).await.is_ok() {
            return StoreError::new(ErrorKind::Cut, &server, "the subscription ended");
        }
        if let Err(error) = send(connector, &open, &redis::cmd("PING")).await {
            return error;
        }
    }
}

/// Sends a command, and waits for its answer within `store.timeout`.
async fn send(
    connector: &Connector,
    open: &OpenConnection,
    command: &Cmd,
) -> Result<(), StoreError> {
    let mut connection = open.connection.handle();
    let answer = command.query_async::<Value>(&mut connection);
    match timeout(connector.timeout, answer).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(connector.error(&open.address, &error)),
        Err(_) => Err(StoreError::timeout(&open.address.to_string())),
    }
}
