//! Real stores for the tests: Redis alone, with sentinels, as a cluster, behind TLS; Valkey; and a proxy that fails.
//!
//! Everything is started on ports that were free, in folders of its own, and ended by its id.

pub mod cluster;
pub mod frame;
pub mod proxy;
pub mod sentinel;
pub mod server;
pub mod tls;
pub mod unix;
pub mod valkey;

use std::time::Duration;

use server::{Server, field};

/// For a failover on a busy machine: detection takes a second, the election a few.
pub const FAILOVER_WITHIN: Duration = Duration::from_secs(30);

/// What a test asks of a store, whatever its shape.
pub trait Store {
    /// The fields of `store:` in a sidecar's configuration.
    fn section(&self) -> String;

    /// Those of its servers that hold keys and take writes, now.
    fn masters(&self) -> Vec<&Server>;

    /// Ends a master as a crash would and waits until another has taken its place. False where there is none to do so.
    fn fail_over(&mut self) -> bool {
        false
    }

    /// Starts again what a failover ended, and waits until it is in step: another failover can follow.
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
fn is_replica_in_step(server: &Server) -> bool {
    let info = server.cli(&["INFO", "replication"]);
    field(&info, "master_link_status") == Some("up")
}

impl Store for Server {
    fn section(&self) -> String {
        format!("url: \"{}\"", self.url())
    }

    fn masters(&self) -> Vec<&Server> {
        vec![self]
    }
}
