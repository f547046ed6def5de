//! Hears what other pods tell through the store, and goes on hearing whatever happens to the servers.
//!
//! One connection per server that speaks, apart from those of the calls. It is asked now and then whether it still
//! lives, because a silent connection and a dead one look alike. What is missed costs accuracy until the next round,
//! so nothing is kept for those who were away, and a crowd of messages is thinned rather than stored.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tracing::{debug, info, warn};

use super::address::Address;
use super::cluster::Cluster;
use super::codec::{self, Names};
use super::connect::{Connector, Place, Purpose};
use super::error::{ErrorKind, StoreError};
use tidegate_core::pure::sync::{Lane, News};

/// Messages that wait to be heard, at most.
const MESSAGES_MAX: usize = 1024;
/// How often a silent connection is asked whether it lives.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// The pauses between attempts.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// How often a cluster that has told nothing yet is asked again.
const MAP_EVERY: Duration = Duration::from_secs(1);

/// A server to listen to, and what for.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    place: Place,
    command: &'static str,
    channels: Vec<String>,
}

/// Listens to the one server there is.
pub(super) async fn to_one(
    place: &Place,
    connector: &Arc<Connector>,
    names: &Names,
    mut news_received: impl FnMut(News) + Send,
) -> Infallible {
    let (sender, mut receiver) = mpsc::channel(MESSAGES_MAX);
    let source = Source {
        place: place.clone(),
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

/// Listens to every server of a cluster that has lanes.
pub(super) async fn to_all(
    cluster: &Arc<Cluster>,
    connector: &Arc<Connector>,
    names: &Names,
    mut news_received: impl FnMut(News) + Send,
) -> Infallible {
    let (sender, mut receiver) = mpsc::channel(MESSAGES_MAX);
    let mut map_changed = cluster.watch();
    let mut listening = JoinSet::new();
    let mut sources: BTreeMap<Address, (Source, AbortHandle)> = BTreeMap::new();
    loop {
        let wanted = wanted(cluster, names);
        sources.retain(|address, (source, task)| {
            let stays = wanted.get(address) == Some(source);
            if !stays {
                task.abort();
            }
            stays
        });
        for (address, source) in wanted {
            sources.entry(address).or_insert_with(|| {
                let doubted = Arc::clone(cluster);
                let follow = follow(
                    source.clone(),
                    Arc::clone(connector),
                    sender.clone(),
                    move || doubted.refresh_soon(),
                );
                (source, listening.spawn(follow))
            });
        }
        if sources.is_empty() {
            cluster.refresh_soon();
        }
        loop {
            tokio::select! {
                Some(message) = receiver.recv() => codec::news(&message).for_each(&mut news_received),
                _ = map_changed.changed() => break,
                // Ended tasks are cleared away.
                Some(_) = listening.join_next() => {}
                () = sleep(MAP_EVERY), if sources.is_empty() => break,
            }
        }
    }
}

fn wanted(cluster: &Cluster, names: &Names) -> BTreeMap<Address, Source> {
    let lanes = cluster.map().lanes_by_server();
    let source = |(address, lanes): (Address, Vec<Lane>)| {
        let source = Source {
            place: Place::At(address.clone()),
            command: "SSUBSCRIBE",
            channels: lanes.into_iter().map(|lane| names.channel(lane)).collect(),
        };
        (address, source)
    };
    lanes.into_iter().map(source).collect()
}

/// Follows one source for ever. `doubted` is called whenever it was lost.
async fn follow(
    source: Source,
    connector: Arc<Connector>,
    messages: mpsc::Sender<Vec<u8>>,
    doubted: impl Fn() + Send,
) -> Infallible {
    let mut pause = PAUSE_MIN;
    loop {
        let mut subscribed = false;
        let error = subscription(&source, &connector, &messages, &mut subscribed).await;
        if subscribed {
            pause = PAUSE_MIN;
        }
        connector.trigger_reached(error.kind);
        // The first loss is worth a line, its repetition is not.
        if pause == PAUSE_MIN {
            warn!(error = %error, cause = std::error::Error::source(&error).map(tracing::field::display), "does not hear other pods");
        } else {
            debug!(error = %error, "still does not hear other pods");
        }
        doubted();
        sleep(pause).await;
        pause = pause.saturating_mul(2).min(PAUSE_MAX);
    }
}

/// Subscribes, and stays until that is lost.
async fn subscription(
    source: &Source,
    connector: &Arc<Connector>,
    messages: &mpsc::Sender<Vec<u8>>,
    subscribed: &mut bool,
) -> StoreError {
    let (lost, confirmed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (waker, confirm) = (Arc::clone(&lost), Arc::clone(&confirmed));
    let messages = messages.clone();
    let pushed = Box::new(move |info: PushInfo| {
        use PushKind::{
            Disconnection, Message, SMessage, SSubscribe, SUnsubscribe, Subscribe, Unsubscribe,
        };
        if matches!(info.kind, Message | SMessage) {
            if let Some(Value::BulkString(message)) = info.data.into_iter().nth(1) {
                // A full queue loses news, which is only news.
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
        source.place.open(connector, Purpose::News, Some(pushed)),
    );
    let link = match opened.await {
        Ok(Ok(link)) => link,
        Ok(Err(error)) => return error,
        Err(_) => return StoreError::timeout("news"),
    };
    let server = link.address.to_string();
    let mut connection = link.connection.handle();
    for channel in &source.channels {
        let mut command = redis::cmd(source.command);
        command.arg(channel);
        let answer = timeout(
            connector.timeout,
            command.query_async::<Value>(&mut connection),
        );
        match answer.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return connector.error(&link.address, &error),
            Err(_) => return StoreError::timeout(&server),
        }
        // An answer that is no confirmation leaves us deaf.
        if timeout(connector.timeout, confirmed.notified())
            .await
            .is_err()
        {
            return StoreError::new(ErrorKind::Protocol, &server, "it did not subscribe");
        }
    }
    *subscribed = true;
    info!(server, "hears other pods");
    loop {
        if timeout(ASK_EVERY, lost.notified()).await.is_ok() {
            return StoreError::new(ErrorKind::Cut, &server, "the subscription ended");
        }
        let ping = redis::cmd("PING");
        let answer = timeout(
            connector.timeout,
            ping.query_async::<Value>(&mut connection),
        );
        match answer.await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return connector.error(&link.address, &error),
            Err(_) => return StoreError::timeout(&server),
        }
    }
}
