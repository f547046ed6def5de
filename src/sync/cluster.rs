//! Knows which server of a cluster owns which lane, and keeps one connection to each of them.
//!
//! The client reads the map of the cluster when it first needs it, corrects it with every redirection, and reads it
//! again after a call fails in a way that makes the map doubtful: at most once a second, and while other calls go on.
//! A server that is gone delays only the calls to its own lanes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::address::StoreAddress;
use super::codec::ScriptRequest;
use super::connect::{Connector, ServerLocation, StoreServer};
use super::error::{ErrorKind, StoreError};
use super::script::Script;
use crate::clock::Clock;
use tidegate_core::pure::sync::{LANES, Lane};

/// The most servers to remember. A server's index in the list is its shard's number, so a server stays in the list
/// as long as there is room.
const SERVERS_MAX: usize = 256;
/// The most servers to ask for the map at a time.
const ASKED_MAX: usize = 8;
/// The shortest time between two reads of the map.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// The server of each lane, as one server of the cluster reports it.
type Layout = Vec<Option<StoreAddress>>;

/// The servers, and which of them owns each lane.
#[derive(Clone, Debug)]
pub(super) struct LaneMap {
    servers: Vec<Arc<StoreServer>>,
    owners: Vec<Option<usize>>,
}

impl LaneMap {
    fn owner(&self, lane: Lane) -> Option<usize> {
        self.owners
            .get(usize::from(lane.number()))
            .copied()
            .flatten()
    }

    fn server(&self, lane: Lane) -> Option<&Arc<StoreServer>> {
        self.servers.get(self.owner(lane)?)
    }

    /// The servers that own lanes, and those lanes.
    pub(super) fn lanes_by_server(&self) -> BTreeMap<StoreAddress, Vec<Lane>> {
        let mut found: BTreeMap<StoreAddress, Vec<Lane>> = BTreeMap::new();
        for lane in Lane::all() {
            if let Some(ServerLocation::Fixed(address)) =
                self.server(lane).map(|server| &server.location)
            {
                found.entry(address.clone()).or_default().push(lane);
            }
        }
        found
    }

    /// The number of the server at `address`. A new server is added.
    fn number_of(&mut self, address: &StoreAddress, connector: &Arc<Connector>) -> usize {
        let location = ServerLocation::Fixed(address.clone());
        let known = self
            .servers
            .iter()
            .position(|server| server.location == location);
        known.unwrap_or_else(|| {
            self.servers
                .push(Arc::new(StoreServer::new(location, Arc::clone(connector))));
            self.servers.len().saturating_sub(1)
        })
    }

    fn with(&self, layout: &Layout, connector: &Arc<Connector>) -> Self {
        let mut next = self.clone();
        for (lane, address) in layout.iter().enumerate() {
            // A lane without an owner stays with its last one: that server will say what is wrong.
            if let (Some(address), Some(_)) = (address, next.owners.get(lane)) {
                let number = next.number_of(address, connector);
                if let Some(owner) = next.owners.get_mut(lane) {
                    *owner = Some(number);
                }
            }
        }
        if next.servers.len() > SERVERS_MAX {
            next.forget_servers_without_lanes();
        }
        next
    }

    fn forget_servers_without_lanes(&mut self) {
        let servers = std::mem::take(&mut self.servers);
        for owner in self.owners.iter_mut().flatten() {
            let Some(server) = servers.get(*owner) else {
                continue;
            };
            let known = self
                .servers
                .iter()
                .position(|kept| kept.location == server.location);
            *owner = known.unwrap_or_else(|| {
                self.servers.push(Arc::clone(server));
                self.servers.len().saturating_sub(1)
            });
        }
    }
}

/// How many reads of the map were started, and how many ended.
#[derive(Clone, Copy, Debug, Default)]
struct Refreshes {
    started: u64,
    ended: u64,
}

/// The client of a Redis Cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<Arc<StoreServer>>,
    map: ArcSwap<LaneMap>,
    /// Held by whoever changes the map.
    changing: Mutex<()>,
    changed: watch::Sender<u64>,
    refreshes: watch::Sender<Refreshes>,
    /// When the last read of the map started, in nanoseconds on this pod's clock; 0 if there was none.
    refreshed_at: AtomicU64,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<ServerLocation>, connector: Arc<Connector>) -> Self {
        let server = |location| Arc::new(StoreServer::new(location, Arc::clone(&connector)));
        let seeds: Vec<Arc<StoreServer>> = seeds.into_iter().map(server).collect();
        let map = LaneMap {
            servers: seeds.iter().take(1).cloned().collect(),
            owners: vec![None; usize::from(LANES)],
        };
        Self {
            connector,
            seeds,
            map: ArcSwap::from_pointee(map),
            changing: Mutex::new(()),
            changed: watch::Sender::new(0),
            refreshes: watch::Sender::new(Refreshes::default()),
            refreshed_at: AtomicU64::new(0),
        }
    }

    pub(super) fn shard_of(&self, lane: Lane) -> usize {
        self.map.load().owner(lane).unwrap_or(0)
    }

    pub(super) fn shards(&self) -> Vec<String> {
        let label = |server: &Arc<StoreServer>| match &server.location {
            ServerLocation::Fixed(address) => address.to_string(),
            ServerLocation::Sentinels(_, name) => name.clone(),
        };
        self.map.load().servers.iter().map(label).collect()
    }

    pub(super) fn map(&self) -> Arc<LaneMap> {
        self.map.load_full()
    }

    /// Reports every change of the map.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Runs a script on the server that owns `lane` now. Follows one redirection.
    pub(super) async fn run(
        self: &Arc<Self>,
        lane: Lane,
        script: &Script,
        request: &ScriptRequest,
    ) -> Result<(Value, Arc<StoreServer>), StoreError> {
        let server = self.owner(lane).await?;
        let answer = server.run(script, request).await;
        let Err(error) = answer else {
            return answer.map(|value| (value, server));
        };
        let redirection = self.redirection(&server, &error);
        let answer = match (error.kind, redirection) {
            (ErrorKind::Moved, Some(address)) => {
                let server = self.moved(lane, &address);
                server
                    .run(script, request)
                    .await
                    .map(|value| (value, server))
            }
            (ErrorKind::Ask, Some(address)) => {
                let server = self.server_at(&address);
                server
                    .run_asking(script, request)
                    .await
                    .map(|value| (value, server))
            }
            (_, _) => Err(error.clone()),
        };
        if error.kind.doubts_map() && error.kind != ErrorKind::Ask {
            self.refresh_soon();
        }
        answer
    }

    /// Sends one command on a key of `lane`. Follows one redirection.
    pub(super) async fn query(
        self: &Arc<Self>,
        lane: Lane,
        command: &redis::Cmd,
    ) -> Result<Value, StoreError> {
        let server = self.owner(lane).await?;
        let answer = server.query(command).await;
        let Err(error) = answer else { return answer };
        if error.kind.doubts_map() {
            self.refresh_soon();
        }
        match (error.kind, self.redirection(&server, &error)) {
            (ErrorKind::Moved, Some(address)) => self.moved(lane, &address).query(command).await,
            (ErrorKind::Ask, Some(address)) => {
                self.server_at(&address).query_asking(command.clone()).await
            }
            (_, _) => Err(error),
        }
    }

    fn redirection(&self, server: &StoreServer, error: &StoreError) -> Option<StoreAddress> {
        let ServerLocation::Fixed(asked) = &server.location else {
            return None;
        };
        StoreAddress::redirected(error.redirection.as_deref()?, asked)
    }

    /// The server that owns `lane`. If none is known yet, this waits for a read of the map.
    async fn owner(self: &Arc<Self>, lane: Lane) -> Result<Arc<StoreServer>, StoreError> {
        if let Some(server) = self.map.load().server(lane) {
            return Ok(Arc::clone(server));
        }
        let mut refreshes = self.refreshes.subscribe();
        self.refresh_soon();
        // The caller limits the time of this wait. It returns at once if the last read failed less than a second ago.
        let _ = refreshes
            .wait_for(|refreshes| refreshes.started == refreshes.ended)
            .await;
        let map = self.map.load();
        let words = "no server of the cluster has said which server owns this lane";
        map.server(lane)
            .cloned()
            .ok_or_else(|| StoreError::new(ErrorKind::ClusterDown, "cluster", words))
    }

    /// Notes that the server at `address` owns `lane` now.
    fn moved(&self, lane: Lane, address: &StoreAddress) -> Arc<StoreServer> {
        let mut layout: Layout = vec![None; usize::from(LANES)];
        if let Some(entry) = layout.get_mut(usize::from(lane.number())) {
            *entry = Some(address.clone());
        }
        self.adopt(&layout);
        self.server_at(address)
    }

    /// The server at `address`. One that owns no lane yet is not remembered: the map has it once it does.
    fn server_at(&self, address: &StoreAddress) -> Arc<StoreServer> {
        let location = ServerLocation::Fixed(address.clone());
        let map = self.map.load();
        let known = map
            .servers
            .iter()
            .find(|server| server.location == location);
        known
            .cloned()
            .unwrap_or_else(|| Arc::new(StoreServer::new(location, Arc::clone(&self.connector))))
    }

    fn adopt(&self, layout: &Layout) {
        let _guard = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.map.load_full();
        let after = before.with(layout, &self.connector);
        let same = after.lanes_by_server() == before.lanes_by_server();
        self.map.store(Arc::new(after));
        if !same {
            self.changed
                .send_modify(|version| *version = version.wrapping_add(1));
        }
    }

    /// Whether the map may be read again now. If so, this counts as a read.
    fn may_refresh(&self) -> bool {
        let now = Clock::get().moment().now.get();
        let every = u64::try_from(REFRESH_EVERY.as_nanos()).unwrap_or(u64::MAX);
        // Ordering: Relaxed. One number that only spaces the attempts.
        let due = |last: u64| (last == 0 || now.saturating_sub(last) >= every).then_some(now);
        self.refreshed_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, due)
            .is_ok()
    }

    /// Starts a read of the map in a task of its own, unless one started less than a second ago.
    pub(super) fn refresh_soon(self: &Arc<Self>) {
        if self.may_refresh() {
            self.refreshes
                .send_modify(|refreshes| refreshes.started = refreshes.started.wrapping_add(1));
            let cluster = Arc::clone(self);
            tokio::spawn(async move {
                cluster.refresh().await;
                let refreshes = &cluster.refreshes;
                refreshes
                    .send_modify(|refreshes| refreshes.ended = refreshes.ended.wrapping_add(1));
            });
        }
    }

    /// Asks several servers for the map and adopts the answer that most of them give: a server that was cut off may
    /// have an old one.
    async fn refresh(&self) {
        // Half of the time of a call: a call that waits for the map has the other half for itself.
        let patience = self.connector.timeout / 2;
        let mut asked = JoinSet::new();
        for server in self.candidates() {
            asked.spawn(async move {
                let mut command = redis::cmd("CLUSTER");
                command.arg("SLOTS");
                let answer = timeout(patience, server.query(&command)).await.ok()?.ok()?;
                let ServerLocation::Fixed(address) = &server.location else {
                    return None;
                };
                layout(&answer, address)
            });
        }
        let mut votes: BTreeMap<Layout, usize> = BTreeMap::new();
        while let Some(answer) = asked.join_next().await {
            if let Ok(Some(layout)) = answer {
                let count = votes.entry(layout).or_default();
                *count = count.saturating_add(1);
            }
        }
        if let Some((layout, _)) = votes.iter().max_by_key(|(_, count)| **count) {
            self.adopt(layout);
        }
    }

    /// The servers to ask for the map: those that own lanes, then those that the settings name.
    fn candidates(&self) -> Vec<Arc<StoreServer>> {
        let map = self.map.load();
        let mut candidates: Vec<Arc<StoreServer>> = Vec::new();
        let owners = map
            .owners
            .iter()
            .flatten()
            .filter_map(|number| map.servers.get(*number));
        for server in owners.chain(&self.seeds) {
            if !candidates
                .iter()
                .any(|known| known.location == server.location)
            {
                candidates.push(Arc::clone(server));
            }
        }
        // The seeds come last and must keep their location: their names stay valid when addresses change.
        if candidates.len() > ASKED_MAX {
            let seeds = self.seeds.len().min(ASKED_MAX / 2);
            let kept = candidates.len().saturating_sub(seeds);
            candidates.drain(ASKED_MAX.saturating_sub(seeds)..kept);
        }
        candidates
    }
}

/// The owner of each lane, from an answer to `CLUSTER SLOTS`. `None` if the answer has another form.
fn layout(answer: &Value, asked: &StoreAddress) -> Option<Layout> {
    let Value::Array(ranges) = answer else {
        return None;
    };
    let mut layout: Layout = vec![None; usize::from(LANES)];
    for range in ranges {
        let Value::Array(parts) = range else {
            return None;
        };
        let [
            Value::Int(first),
            Value::Int(last),
            Value::Array(server),
            ..,
        ] = parts.as_slice()
        else {
            return None;
        };
        let [host, Value::Int(port), ..] = server.as_slice() else {
            return None;
        };
        // A server that does not know its own host sends nil or an empty text.
        let host = if let Value::BulkString(host) = host {
            str::from_utf8(host).ok()?
        } else {
            ""
        };
        let address = StoreAddress::announced(host, u16::try_from(*port).ok()?, asked);
        for (lane, entry) in Lane::all().zip(&mut layout) {
            if (*first..=*last).contains(&i64::from(slot(lane))) {
                entry.clone_from(&address);
            }
        }
    }
    layout.iter().any(Option::is_some).then_some(layout)
}

/// The slot of a lane. The lane's number is the hash tag.
fn slot(lane: Lane) -> u16 {
    crc16(lane.number().to_string().as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, the hash of Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 {
                shifted
            } else {
                shifted ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_servers() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // What `CLUSTER KEYSLOT` answers for 0 and 63.
        assert_eq!(slot(Lane::new(0)), 13_907);
        assert_eq!(slot(Lane::new(63)), 10_499);
    }

    fn server(first: i64, last: i64, host: &str, port: i64) -> Value {
        let host = Value::BulkString(host.into());
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(vec![host, Value::Int(port)]),
        ])
    }

    #[test]
    fn a_layout_names_the_server_of_each_lane() {
        let asked = StoreAddress::Tcp("a".to_owned(), 1);
        let answer = Value::Array(vec![server(0, 8191, "", 7), server(8192, 16383, "b", 8)]);
        let layout = layout(&answer, &asked).unwrap();
        let names: Vec<String> = layout
            .into_iter()
            .flatten()
            .map(|address| address.to_string())
            .collect();
        assert_eq!(names.len(), 64);
        assert_eq!(names[0], "b:8");
        assert!(names.iter().any(|name| name == "a:7"));
    }

    #[test]
    fn an_answer_of_another_form_is_no_layout() {
        let asked = StoreAddress::Tcp("a".to_owned(), 1);
        for strange in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![server(0, 1, "b", 70_000)]),
        ] {
            assert_eq!(layout(&strange, &asked), None, "{strange:?}");
        }
    }
}
