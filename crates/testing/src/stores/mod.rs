//! Real stores for the tests: Redis alone, with sentinels, as a cluster, behind TLS; Valkey; and a proxy that fails.
//!
//! Each server listens on a port that was free, has a folder of its own, and is ended by its process id.

pub mod frame;
pub mod tls;
pub mod valkey;

mod cluster;
mod proxy;
mod sentinel;
mod server;
mod unix;

pub use cluster::RedisCluster;
pub use proxy::{FaultPlan, Proxy, ProxyFault};
pub use sentinel::RedisSentinel;
pub use server::{CommandStats, RedisServer, ServerPlan, field};
pub use tls::RedisTls;
pub use unix::RedisUnixSocket;

use std::time::Duration;

/// For a failover on a busy machine: detection takes a second, the election a few.
pub const FAILOVER_WITHIN: Duration = Duration::from_secs(30);

/// A store of any topology, as tests use it.
pub trait StoreUnderTest {
    /// The fields of `store:` in a sidecar's configuration.
    fn section(&self) -> String;

    /// Those of its servers that hold keys and take writes at present.
    fn masters(&self) -> Vec<&RedisServer>;

    /// Kills a master and waits until a replica has taken its place. False if the store has no replica.
    fn fail_over(&mut self) -> bool {
        false
    }

    /// Restarts the servers that a failover ended, and waits until they are synced: another failover can follow.
    fn recover(&mut self) {}

    /// What `redis-cli` with these words prints, on each master.
    fn cli(&self, words: &[&str]) -> Vec<String> {
        let masters = self.masters();
        masters.iter().map(|master| master.cli(words)).collect()
    }

    /// Every key like `pattern`, with its value.
    fn values(&self, pattern: &str) -> Vec<(String, Vec<u8>)> {
        let mut values = Vec::new();
        for master in self.masters() {
            for key in master.cli(&["KEYS", pattern]).lines() {
                values.push((key.to_owned(), master.cli_bytes(&["GET", key])));
            }
        }
        values
    }
}

/// Whether it is a replica that has everything its master has.
fn is_synced_replica(server: &RedisServer) -> bool {
    let info = server.cli(&["INFO", "replication"]);
    field(&info, "master_link_status") == Some("up")
}

impl StoreUnderTest for RedisServer {
    fn section(&self) -> String {
        format!("url: \"{}\"", self.url())
    }

    fn masters(&self) -> Vec<&RedisServer> {
        vec![self]
    }
}
