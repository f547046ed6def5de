//! Manifests as data: objects, the pods that they make, and the sidecar's configuration in them.

use std::time::Duration;

use serde_json::{Map, Value};
use tidegate_config::{Config, check_text};

/// The label that asks for a sidecar.
const INJECT: &str = "tidegate.dev/inject";
/// What a pod is given if it does not say.
const GRACE: u64 = 30;

/// Manifests that are applied together.
#[derive(Debug)]
pub struct Objects {
    pub all: Vec<Value>,
    /// What the user brings, as `Secret name`.
    pub yours: Vec<String>,
}

/// A list in a value, empty if it is not there.
pub fn list<'a>(value: &'a Value, pointer: &str) -> &'a [Value] {
    let found = value.pointer(pointer).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

/// A text in a value, empty if it is not there.
pub fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    let found = value.pointer(pointer).and_then(Value::as_str);
    found.unwrap_or_default()
}

pub fn number(value: &Value, pointer: &str) -> Option<u64> {
    value.pointer(pointer).and_then(Value::as_u64)
}

pub fn is_true(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer) == Some(&Value::Bool(true))
}

/// The element of a list with this name.
pub fn named<'a>(value: &'a Value, pointer: &str, name: &str) -> Option<&'a Value> {
    let mut found = list(value, pointer).iter();
    found.find(|each| text(each, "/name") == name)
}

/// Whether labels have all that is asked of them.
pub fn has(labels: &Value, wanted: &Value) -> bool {
    let nothing = Map::new();
    let mut wanted = wanted.as_object().unwrap_or(&nothing).iter();
    wanted.all(|(name, value)| labels.get(name) == Some(value))
}

/// Whether a selector means what has these labels. Ours have no expressions.
pub fn selects(selector: &Value, labels: &Value) -> bool {
    selector.is_object()
        && selector.get("matchExpressions").is_none()
        && has(labels, &selector["matchLabels"])
}

impl Objects {
    pub fn parse(text: &str) -> Self {
        let all = serde_saphyr::from_multiple(text).unwrap_or_else(|error| panic!("{error}"));
        Self {
            all,
            yours: Vec::new(),
        }
    }

    pub fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.all.iter().filter(move |each| each["kind"] == kind)
    }

    pub fn find<'a>(&'a self, kind: &'a str, name: &str) -> Option<&'a Value> {
        self.of(kind)
            .find(|each| text(each, "/metadata/name") == name)
    }

    /// The pods that these make.
    pub fn pods(&self) -> Vec<Pod<'_>> {
        let kinds = ["Deployment", "StatefulSet", "DaemonSet"];
        let workloads = self.all.iter();
        let workloads = workloads.filter(|each| kinds.contains(&text(each, "/kind")));
        workloads
            .map(|workload| Pod {
                name: text(workload, "/metadata/name"),
                workload,
                labels: &workload["spec"]["template"]["metadata"]["labels"],
                spec: &workload["spec"]["template"]["spec"],
            })
            .collect()
    }

    /// Those that are to have a sidecar.
    pub fn limited(&self) -> Vec<Pod<'_>> {
        let mut pods = self.pods();
        pods.retain(|pod| pod.workload["metadata"]["labels"][INJECT] == "true");
        pods
    }
}

/// What a workload makes.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    pub name: &'a str,
    pub workload: &'a Value,
    pub labels: &'a Value,
    pub spec: &'a Value,
}

impl<'a> Pod<'a> {
    /// Those that run before the others, and the sidecar.
    pub fn inits(&self) -> &'a [Value] {
        list(self.spec, "/initContainers")
    }

    /// Those that the pod is for.
    pub fn apps(&self) -> &'a [Value] {
        list(self.spec, "/containers")
    }

    pub fn containers(&self) -> impl Iterator<Item = &'a Value> {
        self.inits().iter().chain(self.apps())
    }

    /// tidegate, wherever it stands.
    pub fn sidecar(&self) -> Option<&'a Value> {
        self.containers()
            .find(|each| text(each, "/name") == "tidegate")
    }

    pub fn volume(&self, name: &str) -> Option<&'a Value> {
        named(self.spec, "/volumes", name)
    }

    /// The port that a name or a number means in one of these containers.
    pub fn port(containers: &[&Value], port: &Value) -> Option<u64> {
        let ports = containers.iter().flat_map(|each| list(each, "/ports"));
        let mut numbers = ports
            .filter(|known| &known["name"] == port || &known["containerPort"] == port)
            .map(|known| known["containerPort"].as_u64());
        numbers.next().flatten()
    }

    pub fn grace(&self) -> Duration {
        let seconds = number(self.spec, "/terminationGracePeriodSeconds");
        Duration::from_secs(seconds.unwrap_or(GRACE))
    }

    /// The sidecar's configuration: the text that its ConfigMap has.
    pub fn sidecar_yaml(&self, objects: &'a Objects) -> Result<&'a str, String> {
        let sidecar = self.sidecar().ok_or("has no container tidegate")?;
        let file = named(sidecar, "/env", "TIDEGATE_CONFIG").map(|found| text(found, "/value"));
        let (folder, file) = file
            .and_then(|file| file.rsplit_once('/'))
            .ok_or("does not say TIDEGATE_CONFIG")?;
        let mut mounts = list(sidecar, "/volumeMounts").iter();
        let mount = mounts.find(|mount| text(mount, "/mountPath") == folder);
        let mount = mount.ok_or_else(|| format!("mounts nothing at {folder}"))?;
        let volume = self.volume(text(mount, "/name"));
        let map = volume.map(|volume| text(volume, "/configMap/name"));
        let map = map.and_then(|name| objects.find("ConfigMap", name));
        let found = map.map(|map| text(map, &format!("/data/{file}")));
        let found = found.filter(|found| !found.is_empty());
        found.ok_or_else(|| format!("has no ConfigMap with {file} at {folder}"))
    }

    /// The same, checked. What only the cluster knows is made up.
    pub fn config(&self, objects: &Objects) -> Result<Config, String> {
        let yaml = self.sidecar_yaml(objects)?;
        let environment = |name: &str| match name {
            "REDIS_URL" => Some("rediss://tidegate@redis.example.com:6380".to_owned()),
            "POD_NAME" => Some("pod".to_owned()),
            _ => None,
        };
        check_text("sidecar.yaml", yaml, &environment).map_err(|faults| faults.to_string())
    }
}
