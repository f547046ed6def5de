//! Ports for servers that cannot choose one themselves.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wait::{SOON, until};

/// Below the ports that the system gives to clients, and so are a cluster's buses, ten thousand above: a client that
/// finds its server gone cannot take the server's port.
const PORT_FIRST: u32 = 11_000;
const PORTS: u32 = 11_000;

/// A port that nobody listens on, and that this process has not given away before.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Tests of other processes begin elsewhere.
    let first = std::process::id().wrapping_mul(251);
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    until("a free port", SOON, || {
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = PORT_FIRST + first.wrapping_add(nth) % PORTS;
        let port = u16::try_from(port).expect("a port");
        (free(port) && free(port + 10_000)).then_some(port)
    })
}
