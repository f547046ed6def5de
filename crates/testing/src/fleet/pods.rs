//! Real sidecars that share a store, or have none.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::client::Endpoint;
use crate::prometheus::MetricsPage;
use crate::sidecar::{Sidecar, SidecarSetup};
use crate::wait::until;

use super::load::{FleetLoad, RunningLoad};

/// How long sidecars may take to count each other, or to settle what they hold.
pub const SETTLES_WITHIN: Duration = Duration::from_secs(60);

/// A pod sends a heartbeat every second, so the last answer of a store in reach is no older.
const FRESH_SECONDS: f64 = 2.5;

/// One sidecar.
#[derive(Debug)]
pub struct FleetPod {
    pub sidecar: Sidecar,
    metrics: Endpoint,
    socket: PathBuf,
    /// The Unix socket of its RESP door.
    pub resp: PathBuf,
}

impl FleetPod {
    /// Starts the pod of that number with this `store:` section, if any.
    fn start(nth: usize, store: Option<&str>, rules: &str) -> Self {
        let store = store.map_or(String::new(), |store| {
            format!("store: {{ {store} }}\nsync: {{ interval: 1s, accuracy: 0.1 }}\n")
        });
        let top = format!("log: {{ format: json }}\npod: {{ id: pod-{nth} }}\n{store}");
        let setup = SidecarSetup::rules(rules).top(&top);
        let sidecar = setup.listen_also(r#"resp: ["unix:r.sock"]"#).start();
        Self {
            metrics: sidecar.door("metrics").expect("metrics"),
            socket: unix_socket(&sidecar, "http"),
            resp: unix_socket(&sidecar, "resp"),
            sidecar,
        }
    }

    pub fn metrics(&self) -> MetricsPage {
        MetricsPage::parse(&self.metrics.get("/metrics").text())
    }

    /// All series of a metric together, if there are any.
    pub fn sum(&self, name: &str) -> Option<f64> {
        let page = self.metrics();
        let of_name = page.series.iter().filter(|series| series.name == name);
        of_name
            .map(|series| series.value)
            .reduce(|sum, value| sum + value)
    }
}

/// The Unix socket of a door.
fn unix_socket(sidecar: &Sidecar, door: &str) -> PathBuf {
    let mut endpoints = sidecar.doors(door).into_iter();
    let unix = endpoints.find_map(|endpoint| match endpoint {
        Endpoint::Unix(path) => Some(path),
        Endpoint::Tcp(_) => None,
    });
    unix.expect("a Unix socket")
}

/// Several pods.
#[derive(Debug)]
pub struct SidecarFleet {
    pub pods: Vec<FleetPod>,
}

impl SidecarFleet {
    /// Sidecars without a store: each limits for itself.
    pub fn apart(pods: usize, rules: &str) -> Self {
        let pods = (0..pods)
            .map(|nth| FleetPod::start(nth, None, rules))
            .collect();
        Self { pods }
    }

    /// One sidecar with this `store:` section, whether or not the store runs.
    pub fn lone(store: &str, rules: &str) -> Self {
        Self {
            pods: vec![FleetPod::start(0, Some(store), rules)],
        }
    }

    /// Sidecars with these `store:` sections. They have counted each other when this returns.
    pub fn start(stores: &[String], rules: &str) -> Self {
        let start = |(nth, store): (usize, &String)| FleetPod::start(nth, Some(store), rules);
        let fleet = Self {
            pods: stores.iter().enumerate().map(start).collect(),
        };
        until("every pod counts all", SETTLES_WITHIN, || {
            let all = fleet.pods.len() as f64;
            let counts = |pod: &FleetPod| pod.sum("ratelimit_pods") == Some(all);
            fleet.pods.iter().all(counts).then_some(())
        });
        fleet
    }

    /// So many sidecars with the same `store:` section.
    pub fn sharing(pods: usize, store: &str, rules: &str) -> Self {
        Self::start(&vec![store.to_owned(); pods], rules)
    }

    /// All series of a metric on all pods together. None if a pod has no such series.
    pub fn sum(&self, name: &str) -> Option<f64> {
        self.pods.iter().map(|pod| pod.sum(name)).sum()
    }

    /// Waits until every pod is connected to its store: no breaker is open, and the last answer is fresh.
    pub fn wait_for_links(&self) {
        let linked = |pod: &FleetPod| {
            let open = pod.sum("ratelimit_circuit_state").unwrap_or(0.0);
            let staleness = pod.sum("ratelimit_sync_staleness_seconds");
            open == 0.0 && staleness.is_some_and(|seconds| seconds < FRESH_SECONDS)
        };
        until(
            "every pod is in touch with its store",
            SETTLES_WITHIN,
            || self.pods.iter().all(linked).then_some(()),
        );
    }

    pub fn ask(&self, load: FleetLoad) -> RunningLoad {
        let sockets: Vec<&Path> = self.pods.iter().map(|pod| pod.socket.as_path()).collect();
        load.start(&sockets)
    }
}

/// One domain whose keys are `client`, under this limit.
pub fn rules(limit: &str) -> String {
    format!("  - domain: fleet\n    descriptors:\n      - key: client\n        rate_limit: {limit}")
}
