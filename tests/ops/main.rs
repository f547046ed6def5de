//! What operators use, with the real tools: the image, the manifests, dashboards and alerts, the page. `make test-ops`
//! runs it.
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot go on fails"
)]

mod image;
mod k8s;
mod load;
mod monitoring;
mod page;
