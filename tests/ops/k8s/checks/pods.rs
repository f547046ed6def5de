//! What holds for every container of ours: what it may do, what it is given, where it finds things.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::k8s::objects::{Objects, Pod, is_true, list, named, number, text};

/// A fault for each container of which `wrong` says something.
fn each(objects: &Objects, wrong: impl Fn(&Pod<'_>, &Value) -> Vec<String>) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in objects.pods() {
        for container in pod.containers() {
            let place = format!("{}/{}", pod.name, text(container, "/name"));
            let found = wrong(&pod, container).into_iter();
            faults.extend(found.map(|fault| format!("{place}: {fault}")));
        }
    }
    faults
}

/// `conditions` that do not hold.
fn unless(conditions: &[(bool, &str)]) -> Vec<String> {
    let broken = conditions.iter().filter(|(holds, _)| !holds);
    broken.map(|(_, fault)| (*fault).to_owned()).collect()
}

/// What is mounted is there, and what is there is mounted.
pub fn mounts(objects: &Objects) -> Vec<String> {
    let mut faults = each(objects, |pod, container| {
        let mounts = list(container, "/volumeMounts");
        let names = mounts.iter().map(|mount| text(mount, "/name"));
        let absent = names.filter(|name| pod.volume(name).is_none());
        let mut faults: Vec<_> = absent
            .map(|name| format!("there is no volume {name}"))
            .collect();
        let paths: BTreeSet<_> = mounts
            .iter()
            .map(|mount| text(mount, "/mountPath"))
            .collect();
        if paths.len() < mounts.len() {
            faults.push("mounts two at one path".to_owned());
        }
        faults
    });
    for pod in objects.pods() {
        for volume in list(pod.spec, "/volumes") {
            let name = text(volume, "/name");
            let used = |container: &Value| named(container, "/volumeMounts", name).is_some();
            if !pod.containers().any(used) {
                faults.push(format!("{}: nobody mounts {name}", pod.name));
            }
        }
    }
    faults
}

/// A ConfigMap or Secret that is asked for, and the key in it, if one is.
type Reference<'a> = (&'a str, &'a str, Option<&'a str>, bool);

fn references_of<'a>(pod: &Pod<'a>) -> Vec<Reference<'a>> {
    let mut found = Vec::new();
    for volume in list(pod.spec, "/volumes") {
        for (kind, field, name) in [
            ("ConfigMap", "/configMap", "/name"),
            ("Secret", "/secret", "/secretName"),
        ] {
            if let Some(asked) = volume.pointer(field) {
                found.push((kind, text(asked, name), None, is_true(asked, "/optional")));
            }
        }
    }
    let variables = pod
        .containers()
        .flat_map(|container| list(container, "/env"));
    for variable in variables {
        for (kind, field) in [
            ("ConfigMap", "/valueFrom/configMapKeyRef"),
            ("Secret", "/valueFrom/secretKeyRef"),
        ] {
            if let Some(asked) = variable.pointer(field) {
                let key = Some(text(asked, "/key"));
                found.push((kind, text(asked, "/name"), key, is_true(asked, "/optional")));
            }
        }
    }
    found
}

/// What a pod asks for is there, or may be absent, or is said to be the user's to bring.
pub fn references(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in objects.pods() {
        for (kind, name, key, optional) in references_of(&pod) {
            let asked = format!("{kind} {name}");
            let found = objects.find(kind, name);
            let key = key.filter(|key| found.is_some_and(|found| found["data"].get(key).is_none()));
            if let Some(key) = key {
                faults.push(format!("{}: {asked} has no {key}", pod.name));
            }
            if found.is_none() && !optional && !objects.yours.contains(&asked) {
                faults.push(format!("{}: there is no {asked}", pod.name));
            }
        }
        let account = text(pod.spec, "/serviceAccountName");
        if !account.is_empty() && objects.find("ServiceAccount", account).is_none() {
            faults.push(format!(
                "{}: there is no ServiceAccount {account}",
                pod.name
            ));
        }
    }
    faults
}

/// A pod's ports have different numbers and names, and names that Kubernetes takes.
pub fn ports(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in objects.pods() {
        let ports = || {
            pod.containers()
                .flat_map(|container| list(container, "/ports"))
        };
        let names: BTreeSet<_> = ports().map(|port| text(port, "/name")).collect();
        let numbers: BTreeSet<_> = ports().map(|port| number(port, "/containerPort")).collect();
        let count = ports().count();
        if names.len() < count || numbers.len() < count {
            faults.push(format!("{}: two ports share a name or a number", pod.name));
        }
        let long = names
            .iter()
            .filter(|name| name.len() > 15 || name.is_empty());
        faults.extend(long.map(|name| format!("{}: no name for a port: {name:?}", pod.name)));
    }
    faults
}

/// What is probed over HTTP is a port of the pod.
pub fn probes(objects: &Objects) -> Vec<String> {
    each(objects, |pod, container| {
        let known = ["startupProbe", "readinessProbe", "livenessProbe"];
        let probes = known.iter().filter_map(|name| container.get(name));
        let ports = probes.filter_map(|probe| probe.pointer("/httpGet/port"));
        // A name is looked for in the container itself, a number is any port of the pod.
        let found = |port: &Value| match port.is_string() {
            true => Pod::port(&[container], port),
            false => Pod::port(&pod.containers().collect::<Vec<_>>(), port),
        };
        let absent = ports.filter(|port| found(port).is_none());
        absent
            .map(|port| format!("nothing is at the port {port}"))
            .collect()
    })
}

/// The strictest of the pod security standards, and a read-only root besides.
pub fn security(objects: &Objects) -> Vec<String> {
    each(objects, |pod, container| {
        let own = &container["securityContext"];
        let either = |pointer: &str| {
            let of_pod = pod.spec.pointer(&format!("/securityContext{pointer}"));
            own.pointer(pointer).or(of_pod).cloned().unwrap_or_default()
        };
        let user = either("/runAsUser");
        let dropped = list(own, "/capabilities/drop");
        unless(&[
            (either("/runAsNonRoot") == true, "may run as root"),
            (
                user != 0 && user.is_u64(),
                "runs as a user that the image chooses, or as root",
            ),
            (
                is_true(own, "/readOnlyRootFilesystem"),
                "may write to its image",
            ),
            (
                own.get("allowPrivilegeEscalation") == Some(&Value::Bool(false)),
                "may gain privileges",
            ),
            (!is_true(own, "/privileged"), "is privileged"),
            (dropped.contains(&Value::from("ALL")), "keeps capabilities"),
            (
                own.pointer("/capabilities/add").is_none(),
                "asks for capabilities",
            ),
            (
                either("/seccompProfile/type") == "RuntimeDefault",
                "may make any system call",
            ),
        ])
    })
}

/// Nothing of the node's.
pub fn host(objects: &Objects) -> Vec<String> {
    let mut faults = Vec::new();
    for pod in objects.pods() {
        let of_host = ["hostNetwork", "hostPID", "hostIPC"];
        let shares = of_host.iter().any(|field| pod.spec.get(field).is_some());
        let volumes = list(pod.spec, "/volumes");
        if shares
            || volumes
                .iter()
                .any(|volume| volume.get("hostPath").is_some())
        {
            faults.push(format!("{}: uses what is the node's", pod.name));
        }
    }
    faults
}

/// Nothing here speaks to the API server.
pub fn tokens(objects: &Objects) -> Vec<String> {
    let pods = objects.pods().into_iter();
    let given = pods
        .filter(|pod| pod.spec.get("automountServiceAccountToken") != Some(&Value::Bool(false)));
    given
        .map(|pod| format!("{}: is given a token of the API server", pod.name))
        .collect()
}

/// `64Mi`, `50m` or a plain number, in thousandths. `None` if there is none.
pub fn quantity(value: &Value, pointer: &str) -> Option<u64> {
    let value = value.pointer(pointer)?;
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, unit) = text.split_at(digits);
    let factor = match unit {
        "m" => 1,
        "" => 1000,
        "Ki" => 1000 << 10,
        "Mi" => 1000 << 20,
        "Gi" => 1000 << 30,
        _ => panic!("{text:?} is no quantity"),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

/// Each asks for what it needs, and has no more memory than it says.
pub fn resources(objects: &Objects) -> Vec<String> {
    each(objects, |_, container| {
        let of = |pointer: &str| quantity(&container["resources"], pointer);
        let fits = |name: &str| match (
            of(&format!("/requests/{name}")),
            of(&format!("/limits/{name}")),
        ) {
            (Some(request), Some(limit)) => request <= limit,
            (_, None) => true,
            (None, Some(_)) => false,
        };
        unless(&[
            (of("/requests/cpu").is_some(), "asks for no CPU"),
            (of("/requests/memory").is_some(), "asks for no memory"),
            (of("/limits/memory").is_some(), "may use all memory"),
            (
                fits("memory") && fits("cpu"),
                "asks for more than it may have",
            ),
        ])
    })
}

/// The same image tomorrow.
pub fn images(objects: &Objects) -> Vec<String> {
    each(objects, |_, container| {
        let image = text(container, "/image");
        let name = image.rsplit('/').next().unwrap_or_default();
        let tag = name.split_once(':').map(|(_, tag)| tag);
        let pinned = tag.is_some_and(|tag| {
            !tag.starts_with("latest") && tag.contains(|c: char| c.is_ascii_digit())
        });
        unless(&[(pinned, "its image is not pinned")])
    })
}
