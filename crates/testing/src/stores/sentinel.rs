//! A master, a replica, and three sentinels that watch them.

use std::fs;

use super::server::{RedisServer, ServerPlan, field};
use super::{FAILOVER_WITHIN, StoreUnderTest, is_synced_replica};
use crate::wait::until;

/// The name that the sentinels know the master by.
const MASTER: &str = "tides";

/// The five servers.
#[derive(Debug)]
pub struct RedisSentinel {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    master: usize,
}

impl RedisSentinel {
    /// Starts all five. The replica is synced then, and every sentinel knows the replica and the other sentinels.
    pub fn start() -> Self {
        let no_delay = ["--repl-diskless-sync-delay", "0"];
        let master = RedisServer::start(&no_delay);
        let port = master.port().to_string();
        let replica = ServerPlan::new().arguments(&no_delay);
        let replica = replica.arguments(&["--replicaof", "127.0.0.1", &port]);
        let servers = vec![master, replica.start()];
        let sentinels = (0..3).map(|_| sentinel(&port)).collect();
        let stores = Self {
            servers,
            sentinels,
            master: 0,
        };
        stores.wait_for_replica();
        let knows = |sentinel: &RedisServer, what: &str, count: &str| {
            let answer = sentinel.cli(&["SENTINEL", "MASTER", MASTER]);
            let mut lines = answer.lines();
            lines.any(|line| line == what) && lines.next() == Some(count)
        };
        until("sentinels that know each other", FAILOVER_WITHIN, || {
            let ready = |sentinel| {
                knows(sentinel, "num-slaves", "1") && knows(sentinel, "num-other-sentinels", "2")
            };
            stores.sentinels.iter().all(ready).then_some(())
        });
        stores
    }

    fn wait_for_replica(&self) {
        until("a replica synced", FAILOVER_WITHIN, || {
            self.servers.iter().any(is_synced_replica).then_some(())
        });
    }

    /// The port of the master, if all sentinels agree on it.
    fn master_port(&self) -> Option<u16> {
        let ask = |sentinel: &RedisServer| {
            let answer = sentinel.cli(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
            answer.lines().nth(1)?.parse().ok()
        };
        let ports: Vec<Option<u16>> = self.sentinels.iter().map(ask).collect();
        let first = *ports.first()?;
        ports.iter().all(|port| *port == first).then_some(first)?
    }
}

impl StoreUnderTest for RedisSentinel {
    fn section(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(RedisServer::address).collect();
        let addresses = addresses.join(",");
        format!("url: \"redis://{addresses}\", topology: sentinel, master: {MASTER}")
    }

    fn masters(&self) -> Vec<&RedisServer> {
        vec![&self.servers[self.master]]
    }

    fn fail_over(&mut self) -> bool {
        let old = self.servers[self.master].port();
        self.servers[self.master].kill();
        let new = until("a new master", FAILOVER_WITHIN, || {
            self.master_port().filter(|port| *port != old)
        });
        let is_new = |server: &RedisServer| server.port() == new;
        self.master = self.servers.iter().position(is_new).expect("one of ours");
        until("the new master takes writes", FAILOVER_WITHIN, || {
            let info = self.servers[self.master].cli(&["INFO", "replication"]);
            (field(&info, "role") == Some("master")).then_some(())
        });
        true
    }
    fn recover(&mut self) {
        let master = self.master;
        self.servers[1 - master].restart();
        // The sentinels make it a replica.
        self.wait_for_replica();
    }
}

fn sentinel(port: &str) -> RedisServer {
    let plan = ServerPlan::bare();
    let file = plan.folder().join("sentinel.conf");
    let text = format!(
        "port {}\nbind 127.0.0.1\ndir {}\n\
        sentinel monitor {MASTER} 127.0.0.1 {port} 2\n\
        sentinel down-after-milliseconds {MASTER} 1000\n\
        sentinel failover-timeout {MASTER} 3000\n",
        plan.port(),
        plan.folder().display(),
    );
    fs::write(&file, text).expect("a file");
    let file = file.display().to_string();
    plan.arguments(&[&file, "--sentinel"]).start()
}
