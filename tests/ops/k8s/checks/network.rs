//! Who is meant, who is reached: selectors, Services, NetworkPolicies, PodMonitors.

use serde_json::Value;

use crate::k8s::objects::{Objects, Pod, has, list, selects, text};

/// Every selector means somebody.
pub fn selectors(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    let pods = objects.pods();
    for pod in &pods {
        if !selects(&pod.workload["spec"]["selector"], pod.labels) {
            faults.push(format!(
                "{}: its selector does not match its own pods",
                pod.name
            ));
        }
        for spread in list(pod.spec, "/topologySpreadConstraints") {
            if !selects(&spread["labelSelector"], pod.labels) {
                faults.push(format!("{}: spreads others than itself", pod.name));
            }
        }
    }
    for each in &objects.all {
        let kind = text(each, "/kind");
        let means = |pod: &Pod<'_>| match kind {
            "Service" => {
                each["spec"]["selector"].is_object() && has(pod.labels, &each["spec"]["selector"])
            }
            "NetworkPolicy" => selects(&each["spec"]["podSelector"], pod.labels),
            "PodDisruptionBudget" | "PodMonitor" => selects(&each["spec"]["selector"], pod.labels),
            _ => true,
        };
        if !pods.iter().any(means) && !pods.is_empty() {
            let name = text(each, "/metadata/name");
            faults.push(format!("{kind} {name} selects nobody"));
        }
    }
    faults
}

/// A Service's ports are those of its pods, and not a sidecar's: networks differ in whether they find them there.
pub fn services(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    for service in objects.of("Service") {
        let pods = objects.pods();
        for pod in pods
            .iter()
            .filter(|pod| has(pod.labels, &service["spec"]["selector"]))
        {
            let apps: Vec<_> = pod.apps().iter().collect();
            for port in list(service, "/spec/ports") {
                if Pod::port(&apps, &port["targetPort"]).is_none() {
                    let name = text(service, "/metadata/name");
                    faults.push(format!(
                        "Service {name}: no app of {} listens there",
                        pod.name
                    ));
                }
            }
        }
    }
    faults
}

/// The policies that hold for a pod, in one direction.
fn policies_of<'a>(objects: &'a Objects, pod: &Pod<'_>, way: &str) -> Vec<&'a Value> {
    let selected = objects.of("NetworkPolicy").filter(|policy| {
        selects(&policy["spec"]["podSelector"], pod.labels)
            && list(policy, "/spec/policyTypes").contains(&Value::from(way))
    });
    selected.collect()
}

/// Whether a rule is about this port. Ports are numbers here: not every network finds the name of a sidecar's.
fn is_about(rule: &Value, port: u64, protocol: &str) -> bool {
    rule.get("ports").is_none()
        || list(rule, "/ports").iter().any(|known| {
            let kind = known.get("protocol").and_then(Value::as_str);
            known["port"] == port && kind.unwrap_or("TCP") == protocol
        })
}

/// Whether policies let a port through.
fn lets(policies: &[&Value], rules: &str, port: u64, protocol: &str) -> bool {
    let mut rules = policies.iter().flat_map(|policy| list(policy, rules));
    policies.is_empty() || rules.any(|rule| is_about(rule, port, protocol))
}

/// Where there are policies, each pod has one, and it lets through what has to pass.
pub fn policies(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    if objects.of("NetworkPolicy").next().is_none() {
        return faults;
    }
    for pod in objects.pods() {
        let ways = ["Ingress", "Egress"].map(|way| policies_of(objects, &pod, way));
        let [ingress, egress] = &ways;
        if ingress.is_empty() || egress.is_empty() {
            faults.push(format!("{}: no policy for both directions", pod.name));
        }
        let apps: Vec<_> = pod.apps().iter().collect();
        let served = objects
            .of("Service")
            .filter(|service| has(pod.labels, &service["spec"]["selector"]));
        for port in served.flat_map(|service| list(service, "/spec/ports")) {
            let number = Pod::port(&apps, &port["targetPort"]).unwrap_or_default();
            if !lets(ingress, "/spec/ingress", number, "TCP") {
                faults.push(format!("{}: nobody may ask its port {number}", pod.name));
            }
        }
        let Ok(config) = pod.config(objects) else {
            continue;
        };
        for address in config.listen.metrics {
            let port = address.to_string();
            let port = port.rsplit(':').next().and_then(|port| port.parse().ok());
            if !port.is_some_and(|port| lets(ingress, "/spec/ingress", port, "TCP")) {
                faults.push(format!("{}: nobody may scrape {address}", pod.name));
            }
        }
        for protocol in ["UDP", "TCP"] {
            if !lets(egress, "/spec/egress", 53, protocol) {
                faults.push(format!("{}: no names over {protocol}", pod.name));
            }
        }
    }
    faults
}

/// Sidecars get to the store that comes along, by both sides' policies; or to somewhere, where it is the user's.
pub fn store(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    let stores: Vec<_> = objects
        .pods()
        .into_iter()
        .filter(|pod| pod.name.ends_with("redis"))
        .collect();
    for pod in objects.limited() {
        let egress = policies_of(objects, &pod, "Egress");
        let rules: Vec<_> = egress
            .iter()
            .flat_map(|policy| list(policy, "/spec/egress"))
            .collect();
        let to = |store: &Pod<'_>, rule: &&Value| {
            is_about(rule, 6379, "TCP") && reaches(rule, "/to", store.labels)
        };
        for store in &stores {
            if !egress.is_empty() && !rules.iter().any(|rule| to(store, rule)) {
                faults.push(format!("{}: may not call {}", pod.name, store.name));
            }
            let ingress = policies_of(objects, store, "Ingress");
            let mut rules = ingress
                .iter()
                .flat_map(|policy| list(policy, "/spec/ingress"));
            let lets =
                |rule: &Value| is_about(rule, 6379, "TCP") && reaches(rule, "/from", pod.labels);
            if !ingress.is_empty() && !rules.any(lets) {
                faults.push(format!("{}: does not let {} in", store.name, pod.name));
            }
        }
        let other = |rule: &&Value| list(rule, "/ports").iter().any(|port| port["port"] != 53);
        if stores.is_empty() && !egress.is_empty() && !rules.iter().any(other) {
            faults.push(format!("{}: may call no store at all", pod.name));
        }
    }
    faults
}

/// Whether a rule's other side has these labels; all have that if it names none.
fn reaches(rule: &Value, side: &str, labels: &Value) -> bool {
    rule.pointer(side).is_none()
        || list(rule, side)
            .iter()
            .any(|peer| selects(&peer["podSelector"], labels))
}

/// No schema here knows this kind: its fields, and that its port is one of the pods'.
pub fn podmonitors(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    let only = |value: &Value, allowed: &[&str]| {
        let names = value.as_object().into_iter().flat_map(|map| map.keys());
        let unknown = names.filter(|name| !allowed.contains(&name.as_str()));
        unknown.cloned().collect::<Vec<_>>()
    };
    for monitor in objects.of("PodMonitor") {
        let name = text(monitor, "/metadata/name");
        if monitor["apiVersion"] != "monitoring.coreos.com/v1" {
            faults.push(format!("{name}: unknown version"));
        }
        let mut unknown = only(
            &monitor["spec"],
            &[
                "selector",
                "namespaceSelector",
                "podMetricsEndpoints",
                "podTargetLabels",
            ],
        );
        let endpoints = list(monitor, "/spec/podMetricsEndpoints");
        for endpoint in endpoints {
            unknown.extend(only(
                endpoint,
                &["port", "path", "interval", "scrapeTimeout"],
            ));
            let pods = objects.pods();
            let selected = pods
                .iter()
                .filter(|pod| selects(&monitor["spec"]["selector"], pod.labels));
            for pod in selected {
                let containers: Vec<_> = pod.containers().collect();
                let by_name = endpoint["port"].is_string();
                if !by_name || Pod::port(&containers, &endpoint["port"]).is_none() {
                    faults.push(format!("{name}: {} has no such port", pod.name));
                }
            }
            if text(endpoint, "/path") != "/metrics" {
                faults.push(format!("{name}: metrics are at /metrics"));
            }
        }
        if endpoints.is_empty() {
            faults.push(format!("{name}: scrapes nothing"));
        }
        faults.extend(
            unknown
                .iter()
                .map(|field| format!("{name}: unknown field {field}")),
        );
    }
    faults
}

/// All in one namespace, and in the one that comes along.
pub fn namespaces(objects: &Objects) -> Vec<String> {
    let mut made = objects.of("Namespace");
    let here = made.next().map_or("", |made| text(made, "/metadata/name"));
    let others = objects.all.iter().filter(|each| {
        text(each, "/kind") != "Namespace" && text(each, "/metadata/namespace") != here
    });
    let told = others.map(|each| {
        let (kind, name) = (text(each, "/kind"), text(each, "/metadata/name"));
        format!("{kind} {name} is not in the namespace {here:?}")
    });
    told.collect()
}
