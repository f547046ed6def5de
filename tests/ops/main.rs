//! What operators use, with the real tools: the image, the manifests, dashboards and alerts, the page. `make test-ops`
//! runs it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on fails"
)]

#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/client.rs"]
mod client;
#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/prometheus.rs"]
mod prometheus;
#[expect(dead_code, reason = "tests/fleet uses the rest")]
#[path = "../redis/server.rs"]
mod redis_server;
#[expect(dead_code, reason = "tests/it uses the rest")]
#[path = "../it/sidecar.rs"]
mod sidecar;

mod image;
mod k8s;
mod load;
mod monitoring;
mod page;
