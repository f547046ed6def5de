//! What manifests have to mean, beyond what their schema says. `broken.rs` breaks each of these once.

mod network;
mod pods;
mod sidecar;

use super::objects::Objects;

/// Says what is wrong.
pub type Check = fn(&Objects) -> Vec<String>;

pub const CHECKS: [(&str, Check); 21] = [
    ("selectors", network::selectors),
    ("services", network::services),
    ("policies", network::policies),
    ("store", network::store),
    ("podmonitors", network::podmonitors),
    ("namespaces", network::namespaces),
    ("mounts", pods::mounts),
    ("references", pods::references),
    ("ports", pods::ports),
    ("probes", pods::probes),
    ("security", pods::security),
    ("host", pods::host),
    ("tokens", pods::tokens),
    ("resources", pods::resources),
    ("images", pods::images),
    ("sidecar", sidecar::is_native_and_first),
    ("configuration", sidecar::configuration),
    ("health", sidecar::health),
    ("listeners", sidecar::listeners),
    ("sockets", sidecar::sockets),
    ("time and memory", sidecar::time_and_memory),
];

/// All that is wrong, by all of them.
pub fn faults(objects: &Objects) -> Vec<String> {
    let each = CHECKS.iter().flat_map(|(name, check)| {
        let found = check(objects).into_iter();
        found.map(move |fault| format!("{name}: {fault}"))
    });
    each.collect()
}
