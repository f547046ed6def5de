//! Redis on a Unix socket.

use super::StoreUnderTest;
use super::server::{RedisServer, ServerPlan};

/// The server.
#[derive(Debug)]
pub struct RedisUnixSocket(RedisServer);

impl RedisUnixSocket {
    pub fn start() -> Self {
        let plan = ServerPlan::new();
        let socket = plan.folder().join("redis.sock").display().to_string();
        Self(plan.arguments(&["--unixsocket", &socket]).start())
    }
}

impl StoreUnderTest for RedisUnixSocket {
    fn section(&self) -> String {
        let socket = self.0.folder().join("redis.sock");
        format!("url: \"unix://{}\"", socket.display())
    }

    fn masters(&self) -> Vec<&RedisServer> {
        vec![&self.0]
    }
}
