//! A Redis Cluster: three masters, each with a replica.

use std::process::{Command, Stdio};

use super::server::{RedisServer, field};
use super::{FAILOVER_WITHIN, StoreUnderTest, is_synced_replica};
use crate::wait::until;

const ARGUMENTS: [&str; 6] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    // Otherwise a replica takes five seconds to sync, and one that has not synced never takes over.
    "--repl-diskless-sync-delay",
    "0",
];

/// The six servers.
#[derive(Debug)]
pub struct RedisCluster {
    servers: Vec<RedisServer>,
    /// Those that a failover has ended.
    dead: Vec<usize>,
}

impl RedisCluster {
    /// Starts all six. Every slot has its master then, and every master a synced replica.
    pub fn start() -> Self {
        let servers: Vec<RedisServer> = (0..6).map(|_| RedisServer::start(&ARGUMENTS)).collect();
        let addresses: Vec<String> = servers.iter().map(RedisServer::address).collect();
        let mut words = vec!["create"];
        words.extend(addresses.iter().map(String::as_str));
        words.extend(["--cluster-replicas", "1"]);
        manage(&words);
        let cluster = Self {
            servers,
            dead: Vec::new(),
        };
        cluster.wait_until_whole();
        cluster.wait_for_replicas();
        cluster
    }

    fn living(&self) -> impl Iterator<Item = &RedisServer> {
        let living = |nth: &usize| !self.dead.contains(nth);
        (0..self.servers.len())
            .filter(living)
            .map(|nth| &self.servers[nth])
    }

    /// Waits until every living server says that the cluster is whole.
    pub fn wait_until_whole(&self) {
        until("cluster_state:ok", FAILOVER_WITHIN, || {
            let whole = |server: &RedisServer| {
                let info = server.cli(&["CLUSTER", "INFO"]);
                field(&info, "cluster_state") == Some("ok")
            };
            self.living().all(whole).then_some(())
        });
    }

    fn wait_for_replicas(&self) {
        until("replicas synced", FAILOVER_WITHIN, || {
            let is_synced = |server: &&RedisServer| is_synced_replica(server);
            (self.living().filter(is_synced).count() == 3).then_some(())
        });
    }

    /// Moves so many slots from one master to another.
    pub fn reshard(&self, slots: u32) {
        let masters = self.masters();
        let id = |server: &RedisServer| server.cli(&["CLUSTER", "MYID"]);
        let (address, from, to) = (masters[0].address(), id(masters[0]), id(masters[1]));
        let slots = slots.to_string();
        manage(&[
            "reshard",
            &address,
            "--cluster-from",
            &from,
            "--cluster-to",
            &to,
            "--cluster-slots",
            &slots,
        ]);
        self.wait_until_whole();
    }
}

impl StoreUnderTest for RedisCluster {
    fn section(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(RedisServer::address).collect();
        format!(
            "url: \"redis://{}\", topology: cluster",
            addresses.join(",")
        )
    }

    fn masters(&self) -> Vec<&RedisServer> {
        let is_master = |server: &&RedisServer| {
            let info = server.cli(&["INFO", "replication"]);
            field(&info, "role") == Some("master")
        };
        self.living().filter(is_master).collect()
    }

    fn fail_over(&mut self) -> bool {
        let port = self.masters()[0].port();
        let is_it = |server: &RedisServer| server.port() == port;
        let nth = self.servers.iter().position(is_it).expect("one of ours");
        self.servers[nth].kill();
        self.dead.push(nth);
        until("a replica is promoted", FAILOVER_WITHIN, || {
            (self.masters().len() == 3).then_some(())
        });
        self.wait_until_whole();
        true
    }
    fn recover(&mut self) {
        for nth in std::mem::take(&mut self.dead) {
            self.servers[nth].restart();
        }
        self.wait_until_whole();
        self.wait_for_replicas();
    }
}

/// Runs `redis-cli --cluster` with these words until it succeeds: the nodes have to agree first.
fn manage(words: &[&str]) {
    until("redis-cli --cluster", FAILOVER_WITHIN, || {
        Command::new("redis-cli")
            .arg("--cluster")
            .args(words)
            .arg("--cluster-yes")
            .stdin(Stdio::null())
            .output()
            .expect("redis-cli runs")
            .status
            .success()
            .then_some(())
    });
}
