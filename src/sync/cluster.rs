//! Which server of a cluster has which lane, and one connection to each of them.
//!
//! The map is asked for when first needed, corrected by every redirection, and asked for again when a call fails in a
//! way that doubts it, at most once a second and beside the calls. A server that is gone delays only its own lanes.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::address::Address;
use super::codec::Request;
use super::connect::{Connector, Node, Place};
use super::error::{ErrorKind, StoreError};
use super::script::Script;
use crate::clock::Clock;
use tidegate_core::pure::sync::{LANES, Lane};

/// Servers remembered, at most: their places in the list are the shards' numbers, so they are kept while it may be.
const NODES_MAX: usize = 256;
/// Servers asked for the map at a time.
const ASKED_MAX: usize = 8;
/// The map is asked for this often, at most.
const REFRESH_EVERY: Duration = Duration::from_secs(1);
/// Slots of a cluster.
const SLOTS: u16 = 16_384;

/// Who has each lane, as a cluster tells it.
type Layout = Vec<Option<Address>>;

/// The servers, and which of them has each lane.
#[derive(Clone, Debug)]
pub(super) struct Map {
    nodes: Vec<Arc<Node>>,
    owners: Vec<Option<usize>>,
}

impl Map {
    fn owner(&self, lane: Lane) -> Option<usize> {
        self.owners
            .get(usize::from(lane.number()))
            .copied()
            .flatten()
    }

    fn node(&self, lane: Lane) -> Option<&Arc<Node>> {
        self.nodes.get(self.owner(lane)?)
    }

    /// The servers that have lanes, and those lanes.
    pub(super) fn lanes_by_server(&self) -> BTreeMap<Address, Vec<Lane>> {
        let mut found: BTreeMap<Address, Vec<Lane>> = BTreeMap::new();
        for lane in Lane::all() {
            if let Some(Place::At(address)) = self.node(lane).map(|node| &node.place) {
                found.entry(address.clone()).or_default().push(lane);
            }
        }
        found
    }

    /// The number of the server there, which is added if it is new.
    fn place(&mut self, address: &Address, connector: &Arc<Connector>) -> usize {
        let place = Place::At(address.clone());
        let known = self.nodes.iter().position(|node| node.place == place);
        known.unwrap_or_else(|| {
            self.nodes
                .push(Arc::new(Node::new(place, Arc::clone(connector))));
            self.nodes.len().saturating_sub(1)
        })
    }

    fn with(&self, layout: &Layout, connector: &Arc<Connector>) -> Self {
        let mut next = self.clone();
        for (lane, address) in layout.iter().enumerate() {
            // A lane that nobody has now stays with whom it was: that one will say what is the matter.
            if let (Some(address), Some(_)) = (address, next.owners.get(lane)) {
                let number = next.place(address, connector);
                if let Some(owner) = next.owners.get_mut(lane) {
                    *owner = Some(number);
                }
            }
        }
        if next.nodes.len() > NODES_MAX {
            next.forget_the_gone();
        }
        next
    }

    fn forget_the_gone(&mut self) {
        let nodes = std::mem::take(&mut self.nodes);
        for owner in self.owners.iter_mut().flatten() {
            let Some(node) = nodes.get(*owner) else {
                continue;
            };
            let known = self.nodes.iter().position(|kept| kept.place == node.place);
            *owner = known.unwrap_or_else(|| {
                self.nodes.push(Arc::clone(node));
                self.nodes.len().saturating_sub(1)
            });
        }
    }
}

/// How often the map was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Refreshes {
    begun: u64,
    ended: u64,
}

/// A cluster.
#[derive(Debug)]
pub(super) struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<Arc<Node>>,
    map: ArcSwap<Map>,
    /// Held while the map is changed.
    changing: Mutex<()>,
    changed: watch::Sender<u64>,
    refreshes: watch::Sender<Refreshes>,
    /// When it was last asked for, on the clock's line.
    asked_at: AtomicU64,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Place>, connector: Arc<Connector>) -> Self {
        let node = |place| Arc::new(Node::new(place, Arc::clone(&connector)));
        let seeds: Vec<Arc<Node>> = seeds.into_iter().map(node).collect();
        let map = Map {
            nodes: seeds.iter().take(1).cloned().collect(),
            owners: vec![None; usize::from(LANES)],
        };
        Self {
            connector,
            seeds,
            map: ArcSwap::from_pointee(map),
            changing: Mutex::new(()),
            changed: watch::Sender::new(0),
            refreshes: watch::Sender::new(Refreshes::default()),
            asked_at: AtomicU64::new(0),
        }
    }

    pub(super) fn shard_of(&self, lane: Lane) -> usize {
        self.map.load().owner(lane).unwrap_or(0)
    }

    pub(super) fn shards(&self) -> Vec<String> {
        let label = |node: &Arc<Node>| match &node.place {
            Place::At(address) => address.to_string(),
            Place::Sentinels(_, name) => name.clone(),
        };
        self.map.load().nodes.iter().map(label).collect()
    }

    pub(super) fn map(&self) -> Arc<Map> {
        self.map.load_full()
    }

    /// Told whenever the map changed.
    pub(super) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// What a script answers, wherever its lane is now.
    pub(super) async fn run(
        self: &Arc<Self>,
        lane: Lane,
        script: &Script,
        request: &Request,
    ) -> Result<(Value, Arc<Node>), StoreError> {
        let node = self.owner(lane).await?;
        let answer = node.run(script, request).await;
        let Err(error) = answer else {
            return answer.map(|value| (value, node));
        };
        let elsewhere = self.elsewhere(&node, &error);
        let answer = match (error.kind, elsewhere) {
            (ErrorKind::Moved, Some(address)) => {
                let node = self.moved(lane, &address);
                node.run(script, request).await.map(|value| (value, node))
            }
            (ErrorKind::Ask, Some(address)) => {
                let node = self.node_at(&address);
                node.run_asking(script, request)
                    .await
                    .map(|value| (value, node))
            }
            (_, _) => Err(error.clone()),
        };
        if error.kind.doubts_map() && error.kind != ErrorKind::Ask {
            self.refresh_soon();
        }
        answer
    }

    /// What one command on a key of the lane answers.
    pub(super) async fn ask(
        self: &Arc<Self>,
        lane: Lane,
        command: &redis::Cmd,
    ) -> Result<Value, StoreError> {
        let node = self.owner(lane).await?;
        let answer = node.ask(command).await;
        let Err(error) = answer else { return answer };
        if error.kind.doubts_map() {
            self.refresh_soon();
        }
        match (error.kind, self.elsewhere(&node, &error)) {
            (ErrorKind::Moved, Some(address)) => self.moved(lane, &address).ask(command).await,
            (ErrorKind::Ask, Some(address)) => {
                self.node_at(&address).ask_asking(command.clone()).await
            }
            (_, _) => Err(error),
        }
    }

    fn elsewhere(&self, node: &Node, error: &StoreError) -> Option<Address> {
        let Place::At(asked) = &node.place else {
            return None;
        };
        Address::redirected(error.elsewhere.as_deref()?, asked)
    }

    /// The lane's server; if none is known yet, after asking for the map.
    async fn owner(self: &Arc<Self>, lane: Lane) -> Result<Arc<Node>, StoreError> {
        if let Some(node) = self.map.load().node(lane) {
            return Ok(Arc::clone(node));
        }
        let mut refreshes = self.refreshes.subscribe();
        self.refresh_soon();
        // Not for ever: the caller's time is bounded. At once, if it was asked for just now and in vain.
        let _ = refreshes
            .wait_for(|refreshes| refreshes.begun == refreshes.ended)
            .await;
        let map = self.map.load();
        let words = "no server of the cluster has told who has this lane";
        map.node(lane)
            .cloned()
            .ok_or_else(|| StoreError::new(ErrorKind::ClusterDown, "cluster", words))
    }

    /// Takes down that the lane is there now.
    fn moved(&self, lane: Lane, address: &Address) -> Arc<Node> {
        let mut layout: Layout = vec![None; usize::from(LANES)];
        if let Some(entry) = layout.get_mut(usize::from(lane.number())) {
            *entry = Some(address.clone());
        }
        self.adopt(&layout);
        self.node_at(address)
    }

    /// The server there. One that has no lane yet is not remembered: it is in the map when it has.
    fn node_at(&self, address: &Address) -> Arc<Node> {
        let place = Place::At(address.clone());
        let map = self.map.load();
        let known = map.nodes.iter().find(|node| node.place == place);
        known
            .cloned()
            .unwrap_or_else(|| Arc::new(Node::new(place, Arc::clone(&self.connector))))
    }

    fn adopt(&self, layout: &Layout) {
        let _alone = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.map.load_full();
        let after = before.with(layout, &self.connector);
        let same = after.lanes_by_server() == before.lanes_by_server();
        self.map.store(Arc::new(after));
        if !same {
            self.changed
                .send_modify(|version| *version = version.wrapping_add(1));
        }
    }

    /// Whether it is time to ask again; if so, it is taken as done.
    fn may_refresh(&self) -> bool {
        let now = Clock::get().moment().now.get();
        let every = u64::try_from(REFRESH_EVERY.as_nanos()).unwrap_or(u64::MAX);
        // Ordering: Relaxed. One word that only spaces attempts out.
        let due = |last: u64| (last == 0 || now.saturating_sub(last) >= every).then_some(now);
        self.asked_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, due)
            .is_ok()
    }

    /// Asks for the map beside the calls, unless that was done just now.
    pub(super) fn refresh_soon(self: &Arc<Self>) {
        if self.may_refresh() {
            self.refreshes
                .send_modify(|refreshes| refreshes.begun = refreshes.begun.wrapping_add(1));
            let cluster = Arc::clone(self);
            tokio::spawn(async move {
                cluster.refresh().await;
                let refreshes = &cluster.refreshes;
                refreshes
                    .send_modify(|refreshes| refreshes.ended = refreshes.ended.wrapping_add(1));
            });
        }
    }

    /// Asks several servers for the map and takes what most of them say: one that was cut off is behind.
    async fn refresh(&self) {
        // Half of a call's time, so that a call that waits for the map has the other half.
        let patience = self.connector.timeout / 2;
        let mut asked = JoinSet::new();
        for node in self.candidates() {
            asked.spawn(async move {
                let mut command = redis::cmd("CLUSTER");
                command.arg("SLOTS");
                let answer = timeout(patience, node.ask(&command)).await.ok()?.ok()?;
                let Place::At(address) = &node.place else {
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

    /// Servers with lanes, then those it is entered by.
    fn candidates(&self) -> Vec<Arc<Node>> {
        let map = self.map.load();
        let mut candidates: Vec<Arc<Node>> = Vec::new();
        let owners = map
            .owners
            .iter()
            .flatten()
            .filter_map(|number| map.nodes.get(*number));
        for node in owners.chain(&self.seeds) {
            if !candidates.iter().any(|known| known.place == node.place) {
                candidates.push(Arc::clone(node));
            }
        }
        // The seeds are last, and must not be crowded out: names outlive addresses.
        if candidates.len() > ASKED_MAX {
            let seeds = self.seeds.len().min(ASKED_MAX / 2);
            let kept = candidates.len().saturating_sub(seeds);
            candidates.drain(ASKED_MAX.saturating_sub(seeds)..kept);
        }
        candidates
    }
}

/// Who has each lane, by an answer to `CLUSTER SLOTS`. `None` if it is none.
fn layout(answer: &Value, asked: &Address) -> Option<Layout> {
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
        // A server that does not know its own host says nothing.
        let host = if let Value::BulkString(host) = host {
            str::from_utf8(host).ok()?
        } else {
            ""
        };
        let address = Address::announced(host, u16::try_from(*port).ok()?, asked);
        for (lane, entry) in Lane::all().zip(&mut layout) {
            if (*first..=*last).contains(&i64::from(slot(lane))) {
                entry.clone_from(&address);
            }
        }
    }
    layout.iter().any(Option::is_some).then_some(layout)
}

/// The slot of a lane: its number is the hash tag.
fn slot(lane: Lane) -> u16 {
    crc16(lane.number().to_string().as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, which clusters hash with.
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
        // As `CLUSTER KEYSLOT` says of 0 and 63.
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
        let asked = Address::Tcp("a".to_owned(), 1);
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
    fn what_is_no_layout_is_none() {
        let asked = Address::Tcp("a".to_owned(), 1);
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
