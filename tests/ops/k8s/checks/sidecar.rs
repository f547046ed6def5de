//! What holds for the sidecar, with its configuration in hand.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use tidegate_config::Address;

use super::pods::quantity;
use crate::k8s::objects::{Objects, Pod, list, named, number, text};

/// Of a key, with what the sync keeps of it while it is reported: docs/operations.md has what was seen.
const BYTES_PER_KEY: u64 = 400;
/// Of all the rest.
const BYTES_BESIDE: u64 = 32 << 20;

/// A fault for each pod with a sidecar of which `wrong` says something.
fn each(objects: &Objects, wrong: impl Fn(&Pod<'_>, &Value) -> Vec<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in objects.limited() {
        if let Some(sidecar) = pod.sidecar() {
            let found = wrong(&pod, sidecar).into_iter();
            faults.extend(found.map(|fault| format!("{}: {fault}", pod.name)));
        }
    }
    faults
}

/// It starts before all others and ends after the app: an init container, the first, that is never done.
pub fn is_native_and_first(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in objects.limited() {
        let first = pod.inits().first();
        if !first.is_some_and(|first| first["name"] == "tidegate") {
            faults.push(format!(
                "{}: the first init container is not tidegate",
                pod.name
            ));
        }
        if !first.is_some_and(|first| first["restartPolicy"] == "Always") {
            faults.push(format!("{}: tidegate is not a native sidecar", pod.name));
        }
        if named(pod.spec, "/containers", "tidegate").is_some() {
            faults.push(format!("{}: tidegate is among the apps", pod.name));
        }
    }
    faults
}

/// Sound, without warnings, and where changes reach it.
pub fn configuration(objects: &Objects) -> Vec<String> {
    each(objects, |pod, sidecar| {
        let config = match pod.config(objects) {
            Ok(config) => config,
            Err(fault) => return vec![fault],
        };
        let warnings = config.warnings.iter();
        let mut faults: Vec<_> = warnings.map(|warning| format!("{warning:?}")).collect();
        for mount in list(sidecar, "/volumeMounts") {
            if mount.get("subPath").is_some() || mount.get("subPathExpr").is_some() {
                faults.push("a subPath does not follow changes".to_owned());
            }
            let volume = pod
                .volume(text(mount, "/name"))
                .cloned()
                .unwrap_or_default();
            if volume.pointer("/configMap").is_some()
                && text(&volume, "/configMap/name") != "tidegate"
            {
                faults.push(
                    "a ConfigMap with another name at each change restarts the pods".to_owned(),
                );
            }
        }
        let settings = list(sidecar, "/env")
            .iter()
            .map(|variable| text(variable, "/name"));
        let settings = settings.filter(|name| name.starts_with("TIDEGATE_LISTEN"));
        faults.extend(settings.map(|name| format!("{name} hides what the file says")));
        let id = named(sidecar, "/env", "POD_NAME");
        let id = id.map(|id| text(id, "/valueFrom/fieldRef/fieldPath"));
        if id != Some("metadata.name") {
            faults.push("does not know the name of its pod".to_owned());
        }
        faults
    })
}

/// The kubelet asks the right pages, on the port of the metrics.
pub fn health(objects: &Objects) -> Vec<String> {
    each(objects, |pod, sidecar| {
        let mut faults = Vec::new();
        let metrics = metrics_port(objects, pod);
        for (probe, path) in [
            ("startupProbe", "/readyz"),
            ("readinessProbe", "/readyz"),
            ("livenessProbe", "/livez"),
        ] {
            let asked = &sidecar[probe]["httpGet"];
            if text(asked, "/path") != path {
                faults.push(format!("its {probe} does not ask {path}"));
            }
            if metrics.is_none() || Pod::port(&[sidecar], &asked["port"]) != metrics {
                faults.push(format!(
                    "its {probe} asks a port where there is no such page"
                ));
            }
        }
        faults
    })
}

fn metrics_port(objects: &Objects, pod: &Pod<'_>) -> Option<u64> {
    let config = pod.config(objects).ok()?;
    let found = config.listen.metrics.iter().find_map(port);
    found.map(u64::from)
}

fn port(address: &Address) -> Option<u16> {
    match address {
        Address::Tcp(address) => Some(address.port()),
        Address::Unix(_) => None,
    }
}

/// Only the metrics are open to others, and the ports that are named are those that are open.
pub fn listeners(objects: &Objects) -> Vec<String> {
    each(objects, |pod, sidecar| {
        let Ok(config) = pod.config(objects) else {
            return Vec::new();
        };
        let mut faults = Vec::new();
        let listen = &config.listen;
        if listen.metrics.iter().all(Address::is_local) {
            faults.push("the kubelet does not reach its metrics on loopback".to_owned());
        }
        if listen.admin.is_empty() {
            faults.push("has no admin API".to_owned());
        }
        let inner = [&listen.http, &listen.grpc, &listen.resp, &listen.admin];
        let inner = inner.into_iter().flatten();
        let open = inner.filter(|address| !address.is_local());
        faults.extend(open.map(|address| format!("{address} is open to other pods")));
        let open = listen.metrics.iter().filter(|address| !address.is_local());
        let mut open: Vec<_> = open.filter_map(port).map(u64::from).collect();
        let told = list(sidecar, "/ports").iter();
        let mut told: Vec<_> = told
            .filter_map(|port| number(port, "/containerPort"))
            .collect();
        open.sort_unstable();
        told.sort_unstable();
        if open != told {
            faults.push(format!("names the ports {told:?} and listens on {open:?}"));
        }
        faults
    })
}

/// Its sockets are in memory, where an app finds them at the same path and may use them.
pub fn sockets(objects: &Objects) -> Vec<String> {
    each(objects, |pod, sidecar| {
        let Ok(config) = pod.config(objects) else {
            return Vec::new();
        };
        let listen = &config.listen;
        let paths = [&listen.http, &listen.grpc, &listen.resp]
            .into_iter()
            .flatten();
        let paths = paths.filter_map(|address| match address {
            Address::Unix(path) => path.parent(),
            Address::Tcp(_) => None,
        });
        let paths: Vec<_> = paths.collect();
        let mut faults = Vec::new();
        if paths.is_empty() {
            faults.push("has no socket".to_owned());
        }
        for path in paths {
            faults.extend(socket_faults(pod, sidecar, path));
        }
        let group = number(sidecar, "/securityContext/runAsGroup");
        let groups = list(pod.spec, "/securityContext/supplementalGroups");
        let shared = groups.iter().any(|known| known.as_u64() == group);
        if number(pod.spec, "/securityContext/fsGroup").is_none() && !shared {
            faults.push("an app under another user may not use the socket: no fsGroup".to_owned());
        }
        faults
    })
}

fn socket_faults(pod: &Pod<'_>, sidecar: &Value, path: &Path) -> Vec<String> {
    let path = path.display().to_string();
    let mounts = |container: &Value| {
        let mut mounts = list(container, "/volumeMounts").iter();
        let found = mounts.find(|mount| text(mount, "/mountPath") == path);
        found.map(|mount| text(mount, "/name").to_owned())
    };
    let Some(volume) = mounts(sidecar) else {
        return vec![format!("may not write to {path}")];
    };
    let mut faults = Vec::new();
    let found = pod.volume(&volume).cloned().unwrap_or_default();
    if text(&found, "/emptyDir/medium") != "Memory" {
        faults.push(format!("{volume} is not in memory"));
    }
    if !pod
        .apps()
        .iter()
        .any(|app| mounts(app).as_deref() == Some(&volume))
    {
        faults.push(format!("no app finds its socket at {path}"));
    }
    faults
}

/// How long a container is kept from its signal.
fn before_the_signal(container: &Value) -> Duration {
    let seconds = number(container, "/lifecycle/preStop/sleep/seconds");
    Duration::from_secs(seconds.unwrap_or_default())
}

/// It has the time to drain once the apps are gone, and the memory for its keys.
pub fn time_and_memory(objects: &Objects) -> Vec<String> {
    each(objects, |pod, sidecar| {
        let Ok(config) = pod.config(objects) else {
            return Vec::new();
        };
        let mut faults = Vec::new();
        let before = pod.apps().iter().map(before_the_signal).max();
        let needed = before.unwrap_or_default() + before_the_signal(sidecar) + config.drain;
        if pod.grace() <= needed {
            faults.push(format!(
                "is killed after {:?} and needs {needed:?}",
                pod.grace()
            ));
        }
        let keys = u64::try_from(config.bounds.keys_max).unwrap_or(u64::MAX);
        let needed = keys
            .saturating_mul(BYTES_PER_KEY)
            .saturating_add(BYTES_BESIDE);
        let limit = quantity(sidecar, "/resources/limits/memory");
        let limit = limit.unwrap_or_default() / 1000;
        if limit < needed {
            faults.push(format!(
                "{keys} keys need {needed} bytes, and it may have {limit}"
            ));
        }
        faults
    })
}
