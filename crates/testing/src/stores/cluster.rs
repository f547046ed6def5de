//! A Redis Cluster: three masters, each with a replica.

use std::process::{Command, Stdio};

use super::server::{Server, field, until};
use super::{FAILOVER_WITHIN, Store, is_replica_in_step};

const ARGUMENTS: [&str; 6] = [
    "--cluster-enabled",
    "yes",
    "--cluster-node-timeout",
    "1000",
    // Else a replica is not in step for five seconds, and one that is not never takes over.
    "--repl-diskless-sync-delay",
    "0",
];

/// The six servers.
#[derive(Debug)]
pub struct Cluster {
    servers: Vec<Server>,
    /// Ended by a failover.
    dead: Vec<usize>,
}

impl Cluster {
    /// Started: every slot has its master, every master a replica in step.
    pub fn start() -> Self {
        let servers: Vec<Server> = (0..6).map(|_| Server::start(&ARGUMENTS)).collect();
        let addresses: Vec<String> = servers.iter().map(Server::address).collect();
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

    fn living(&self) -> impl Iterator<Item = &Server> {
        let living = |nth: &usize| !self.dead.contains(nth);
        (0..self.servers.len())
            .filter(living)
            .map(|nth| &self.servers[nth])
    }

    /// Every server that lives says that the cluster is whole.
    pub fn wait_until_whole(&self) {
        until("cluster_state:ok", FAILOVER_WITHIN, || {
            let whole = |server: &Server| {
                let info = server.cli(&["CLUSTER", "INFO"]);
                field(&info, "cluster_state") == Some("ok")
            };
            self.living().all(whole).then_some(())
        });
    }

    fn wait_for_replicas(&self) {
        until("replicas in step", FAILOVER_WITHIN, || {
            let in_step = |server: &&Server| is_replica_in_step(server);
            (self.living().filter(in_step).count() == 3).then_some(())
        });
    }

    /// Moves so many slots from one master to another.
    pub fn reshard(&self, slots: u32) {
        let masters = self.masters();
        let id = |server: &Server| server.cli(&["CLUSTER", "MYID"]);
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

impl Store for Cluster {
    fn section(&self) -> String {
        let addresses: Vec<String> = self.servers.iter().map(Server::address).collect();
        format!(
            "url: \"redis://{}\", topology: cluster",
            addresses.join(",")
        )
    }

    fn masters(&self) -> Vec<&Server> {
        let is_master = |server: &&Server| {
            let info = server.cli(&["INFO", "replication"]);
            field(&info, "role") == Some("master")
        };
        self.living().filter(is_master).collect()
    }

    fn fail_over(&mut self) -> bool {
        let port = self.masters()[0].port();
        let is_it = |server: &Server| server.port() == port;
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

/// `redis-cli --cluster` with these words, until the cluster's nodes agree enough for it to succeed.
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
