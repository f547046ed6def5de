//! Every kustomization, rendered, against the schema and against `checks`.

use super::checks;
use super::objects::{Objects, text};
use super::tree::{self, aloud};

/// What the README says the user brings: `Secret \`name\``.
fn yours() -> Vec<String> {
    let readme = tree::read("README.md");
    let names = readme.split("Secret `").skip(1);
    let names = names.filter_map(|rest| rest.split('`').next());
    names.map(|name| format!("Secret {name}")).collect()
}

pub fn objects(rendering: &str) -> Objects {
    Objects {
        yours: yours(),
        ..Objects::parse(rendering)
    }
}

#[test]
fn every_kustomization_renders_to_what_kubernetes_takes() {
    for (folder, rendering) in tree::renderings().unwrap_or_default() {
        let objects = objects(rendering);
        for version in [tree::OLDEST, tree::NEWEST] {
            let ran = tree::schema(version, rendering);
            let said = ran.stdout + &ran.stderr;
            assert_eq!(ran.code, Some(0), "k8s/{folder}: {said}");
            // All of it was looked at: kinds that the schema does not know have checks of their own.
            let known = objects.all.iter();
            let known = known.filter(|each| text(each, "/kind") != "PodMonitor");
            let passed = said.matches(" passed for resource ").count();
            assert_eq!(passed, known.count(), "k8s/{folder}: {said}");
        }
    }
    assert!(tree::read("README.md").contains(&format!("Kubernetes {} ", tree::OLDEST)));
}

#[test]
fn the_schema_is_strict() {
    let rendering = "apiVersion: v1\nkind: Service\nmetadata: { name: a }\nspec: { selectr: {} }\n";
    let ran = tree::schema(tree::NEWEST, rendering);
    assert_ne!(ran.code, Some(0), "{ran:?}");
    assert!((ran.stdout + &ran.stderr).contains("selectr"));
}

#[test]
fn every_rendering_means_what_it_should() {
    for (folder, rendering) in tree::renderings().unwrap_or_default() {
        let objects = objects(rendering);
        let faults = checks::faults(&objects);
        assert!(faults.is_empty(), "k8s/{folder}:\n{}", faults.join("\n"));
        let sidecars = objects.limited().len();
        assert_eq!(sidecars, usize::from(folder != "redis"), "k8s/{folder}");
    }
}

#[test]
fn rendering_again_gives_the_same() {
    for (folder, rendering) in tree::renderings().unwrap_or_default() {
        let again = tree::kustomize(&tree::root().join("k8s").join(folder)).unwrap();
        assert_eq!(again.as_ref(), Ok(rendering), "k8s/{folder}");
    }
}

/// What the overlays promise, beyond what holds for all.
#[test]
fn the_overlays_are_what_they_say() {
    let Some(prod) = tree::rendering("overlays/prod").map(objects) else {
        return aloud("NOT CHECKED: k8s/overlays");
    };
    let [pod] = prod.limited()[..] else {
        panic!("not one workload");
    };
    assert!(pod.workload["spec"]["replicas"].as_u64() >= Some(3));
    assert_eq!(prod.of("PodDisruptionBudget").count(), 1);
    assert_eq!(prod.of("Secret").count(), 0, "a Secret is the user's");
    let config = pod.config(&prod).unwrap();
    assert!(config.store.is_some(), "prod has a store");
    let dev = tree::rendering("overlays/dev").map(objects).unwrap();
    assert!(dev.find("Deployment", "tidegate-redis").is_some());
    assert!(dev.limited()[0].workload["spec"]["replicas"].as_u64() <= Some(2));
    let level = super::objects::named(
        dev.limited()[0].sidecar().unwrap(),
        "/env",
        "TIDEGATE_LOG_LEVEL",
    );
    assert_eq!(text(level.unwrap(), "/value"), "debug");
    for (folder, rendering) in tree::renderings().unwrap_or_default() {
        let monitors = objects(rendering).of("PodMonitor").count();
        // Where its kind is unknown, applying it fails: only where it is asked for.
        assert_eq!(
            monitors,
            usize::from(folder == "examples/monitored"),
            "k8s/{folder}"
        );
    }
}
