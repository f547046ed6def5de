//! The component that adds the sidecar to any workload: it adds, and changes nothing.

use serde_json::Value;

use super::checks;
use super::objects::{Objects, list, text};
use super::tree::{self, aloud};

const FOREIGN: &str = include_str!("foreign.yaml");

/// What `kubectl kustomize` makes of these workloads and the component.
fn with_sidecar(workloads: &str) -> Option<String> {
    let copy = tree::copy();
    let folder = copy.path("k8s/mine");
    std::fs::create_dir(&folder).unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    write("workloads.yaml", workloads);
    write(
        "sidecar.yaml",
        &tree::read("examples/any-deployment/sidecar.yaml"),
    );
    let example = tree::read("examples/any-deployment/kustomization.yaml");
    let mine = example
        .replace("shop.yaml", "workloads.yaml")
        .replace("../../", "../");
    assert_ne!(mine, example);
    write("kustomization.yaml", &mine);
    match tree::kustomize(&folder)? {
        Ok(made) => Some(made),
        Err(error) => panic!("{error}"),
    }
}

/// `added` without what the component brings.
fn taken_away(mut added: Value) -> Value {
    let pod = &mut added["spec"]["template"];
    drop_from(&mut pod["metadata"]["labels"], "tidegate.dev/sidecar");
    let spec = &mut pod["spec"];
    let ours = |each: &Value| text(each, "/name").starts_with("tidegate");
    for field in ["initContainers", "volumes"] {
        without(spec, field, ours);
    }
    for container in spec["containers"].as_array_mut().unwrap() {
        without(container, "volumeMounts", ours);
    }
    let mut context = spec["securityContext"].take();
    without(&mut context, "supplementalGroups", |group| group == 65532);
    match context.as_object().is_some_and(serde_json::Map::is_empty) {
        true => drop_from(spec, "securityContext"),
        false => spec["securityContext"] = context,
    }
    added
}

fn drop_from(map: &mut Value, field: &str) {
    map.as_object_mut().unwrap().remove(field);
}

/// Takes elements out of a list, and the list if nothing is left.
fn without(map: &mut Value, field: &str, ours: impl Fn(&Value) -> bool) {
    let list = map[field].as_array_mut().unwrap();
    let before = list.len();
    list.retain(|each| !ours(each));
    assert!(list.len() < before, "nothing was added to {field}");
    if list.is_empty() {
        drop_from(map, field);
    }
}

#[test]
fn it_only_adds() {
    let Some(rendering) = with_sidecar(FOREIGN) else {
        return aloud("NOT CHECKED: k8s/components/sidecar");
    };
    let (before, after) = (Objects::parse(FOREIGN), Objects::parse(&rendering));
    assert_eq!(after.all.len(), before.all.len() + 1, "and the ConfigMap");
    for original in &before.all {
        let (kind, name) = (text(original, "/kind"), text(original, "/metadata/name"));
        let added = after.find(kind, name).unwrap().clone();
        let left = match name {
            "other" => added,
            _ => taken_away(added),
        };
        assert_eq!(&left, original, "{kind} {name}");
    }
    let ran = tree::schema(tree::NEWEST, &rendering);
    assert_eq!(ran.code, Some(0), "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn each_workload_has_the_whole_sidecar() {
    let Some(rendering) = with_sidecar(FOREIGN) else {
        return aloud("NOT CHECKED: k8s/components/sidecar");
    };
    let objects = Objects::parse(&rendering);
    // Of what is not ours, only the sidecar is judged.
    let faults = checks::faults(&objects);
    let ours = [
        "sidecar",
        "configuration",
        "health",
        "listeners",
        "sockets",
        "time and memory",
    ];
    let ours = |fault: &&String| {
        fault.contains("/tidegate: ")
            || ours
                .iter()
                .any(|check| fault.starts_with(&format!("{check}: ")))
    };
    let faults: Vec<_> = faults.iter().filter(ours).collect();
    assert!(faults.is_empty(), "{faults:#?}");
    let pods = objects.limited();
    assert_eq!(pods.len(), 4);
    let first = pods[0].sidecar();
    for pod in &pods {
        assert_eq!(pod.sidecar(), first, "{}", pod.name);
        for app in pod.apps() {
            let mounts = list(app, "/volumeMounts");
            let paths = mounts.iter().map(|mount| text(mount, "/mountPath"));
            assert_eq!(
                paths.filter(|path| *path == "/run/tidegate").count(),
                1,
                "{}",
                pod.name
            );
        }
    }
    let full = pods.iter().find(|pod| pod.name == "full").unwrap();
    let names: Vec<_> = full
        .inits()
        .iter()
        .map(|init| text(init, "/name"))
        .collect();
    assert_eq!(names, ["tidegate", "migrate", "proxy"]);
    let groups = &full.spec["securityContext"]["supplementalGroups"];
    assert_eq!(groups, &serde_json::json!([3000, 4000, 65532]));
}

/// The overlays patch what the component made, and whoever uses it can do so too.
#[test]
fn what_it_adds_can_be_patched() {
    let copy = tree::copy();
    let folder = copy.path("k8s/mine");
    std::fs::create_dir(&folder).unwrap();
    let kustomization = "resources: [../examples/any-deployment]\n\
        namePrefix: eu-\n\
        patches:\n  - target: { kind: Deployment }\n    patch: |\n      - op: replace\n        \
        path: /spec/template/spec/initContainers/0/resources/limits/memory\n        value: 1Gi\n";
    std::fs::write(folder.join("kustomization.yaml"), kustomization).unwrap();
    let Some(made) = tree::kustomize(&folder) else {
        return aloud("NOT CHECKED: k8s/components/sidecar with a patch");
    };
    let objects = Objects::parse(&made.unwrap());
    let [pod] = objects.limited()[..] else {
        panic!("{objects:?}");
    };
    let sidecar = pod.sidecar().unwrap();
    assert_eq!(text(sidecar, "/resources/limits/memory"), "1Gi");
    // A prefix reaches the ConfigMap and who asks for it.
    assert!(objects.find("ConfigMap", "eu-tidegate").is_some());
    assert!(pod.config(&objects).is_ok(), "{:?}", pod.config(&objects));
}
