//! Redis on a Unix socket.

use super::Store;
use super::server::{Plan, Server};

/// The server.
#[derive(Debug)]
pub struct Unix(Server);

impl Unix {
    pub fn start() -> Self {
        let plan = Plan::new();
        let socket = plan.folder().join("redis.sock").display().to_string();
        Self(plan.arguments(&["--unixsocket", &socket]).start())
    }
}

impl Store for Unix {
    fn section(&self) -> String {
        let socket = self.0.folder().join("redis.sock");
        format!("url: \"unix://{}\"", socket.display())
    }

    fn masters(&self) -> Vec<&Server> {
        vec![&self.0]
    }
}
