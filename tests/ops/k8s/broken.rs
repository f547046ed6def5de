//! Each check finds what it is for: manifests without a fault, broken in one line.

use super::checks::{self, CHECKS};
use super::objects::Objects;

const SOUND: &str = include_str!("sound.yaml");

/// With `from`, which has to be there once, in other words, `check` says `expected`.
fn breaks(check: &str, from: &str, to: &str, expected: &str) {
    assert_eq!(SOUND.matches(from).count(), 1, "{from}");
    let broken = Objects::parse(&SOUND.replace(from, to));
    let (_, found) = CHECKS.iter().find(|(name, _)| *name == check).expect(check);
    let faults = found(&broken);
    let told = faults.iter().any(|fault| fault.contains(expected));
    assert!(
        told,
        "{check} does not say {expected:?} of {to:?}: {faults:?}"
    );
}

#[test]
fn the_sound_one_is() {
    let faults = checks::faults(&Objects::parse(SOUND));
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Check, what stands there, what is put there, what is said of it.
type Case = (&'static str, &'static str, &'static str, &'static str);

#[rustfmt::skip]
const NETWORK: [Case; 23] = [
    ("selectors", "spec:\n  selector: { matchLabels: { app: api } }\n  template", "spec:\n  selector: { matchLabels: { app: other } }\n  template", "its own pods"),
    ("selectors", "          labelSelector: { matchLabels: { app: api } }", "          labelSelector: { matchLabels: { app: other } }", "spreads others"),
    ("selectors", "  selector: { app: api }", "  selector: { app: other }", "Service api selects nobody"),
    ("selectors", "maxUnavailable: 1, selector: { matchLabels: { app: api } }", "maxUnavailable: 1, selector: { matchLabels: { app: ap } }", "PodDisruptionBudget api selects nobody"),
    ("selectors", "  podSelector: { matchLabels: { app: api } }", "  podSelector: { matchLabels: { app: ap } }", "NetworkPolicy api selects nobody"),
    ("selectors", "  selector: { matchLabels: { tidegate.dev/sidecar: \"true\" } }", "  selector: { matchLabels: { tidegate.dev/sidecar: \"yes\" } }", "PodMonitor tidegate selects nobody"),
    ("services", "targetPort: http", "targetPort: web", "no app of api listens"),
    ("services", "targetPort: http", "targetPort: tg-metrics", "no app of api listens"),
    ("policies", "policyTypes: [Ingress, Egress]\n", "policyTypes: [Ingress]\n", "both directions"),
    ("policies", "    - ports: [{ port: 8080 }]", "    - ports: [{ port: 8081 }]", "nobody may ask its port 8080"),
    ("policies", "    - ports: [{ port: 9464 }]", "    - ports: [{ port: tg-metrics }]", "nobody may scrape"),
    ("policies", "    - ports: [{ port: 53, protocol: UDP }]", "    - ports: [{ port: 53, protocol: SCTP }]", "no names over UDP"),
    ("policies", "    - ports: [{ port: 53, protocol: TCP }]", "    - ports: [{ port: 54, protocol: TCP }]", "no names over TCP"),
    ("store", "to: [{ podSelector: { matchLabels: { app: redis } } }]", "to: [{ podSelector: { matchLabels: { app: cache } } }]", "api: may not call redis"),
    ("store", "    - { from: [{ podSelector: { matchLabels: { tidegate.dev/sidecar: \"true\" } } }]", "    - { from: [{ podSelector: { matchLabels: { app: web } } }]", "redis: does not let api in"),
    ("podmonitors", "port: tg-metrics, path: /metrics", "port: metrics, path: /metrics", "api has no such port"),
    ("podmonitors", "port: tg-metrics, path: /metrics", "port: 9464, path: /metrics", "api has no such port"),
    ("podmonitors", "path: /metrics, interval", "path: /stats, interval", "metrics are at /metrics"),
    ("podmonitors", "path: /metrics, interval", "path: /metrics, every", "unknown field every"),
    ("podmonitors", "monitoring.coreos.com/v1", "monitoring.coreos.com/v1alpha1", "unknown version"),
    ("podmonitors", "  podMetricsEndpoints: [", "  endpoints: [", "scrapes nothing"),
    ("namespaces", "metadata: { name: shop }", "metadata: { name: store }", "is not in the namespace"),
    ("namespaces", "metadata: { name: tidegate-store, namespace: shop }", "metadata: { name: tidegate-store }", "Secret tidegate-store is not"),
];

#[rustfmt::skip]
const PODS: [Case; 33] = [
    ("mounts", "{ name: config, mountPath: /etc/tidegate }", "{ name: cfg, mountPath: /etc/tidegate }", "there is no volume cfg"),
    ("mounts", "{ name: config, mountPath: /etc/tidegate }", "{ name: config, mountPath: /run/tidegate }", "two at one path"),
    ("mounts", "      volumes:\n", "      volumes:\n        - { name: unused, emptyDir: {} }\n", "nobody mounts unused"),
    ("references", "configMap: { name: tidegate }", "configMap: { name: tidegates }", "there is no ConfigMap tidegates"),
    ("references", "secretKeyRef: { name: tidegate-store,", "secretKeyRef: { name: store,", "there is no Secret store"),
    ("references", "key: url }", "key: uri }", "Secret tidegate-store has no uri"),
    ("references", "serviceAccountName: api", "serviceAccountName: shop", "no ServiceAccount shop"),
    ("ports", "{ name: http, containerPort: 8080 }", "{ name: http, containerPort: 9464 }", "share a name or a number"),
    ("ports", "{ name: http, containerPort: 8080 }", "{ name: tg-metrics, containerPort: 8080 }", "share a name or a number"),
    ("ports", "{ name: http, containerPort: 8080 }", "{ name: much-too-long-a-name, containerPort: 8080 }", "no name for a port"),
    ("probes", "{ path: /, port: http }", "{ path: /, port: web }", "nothing is at the port \"web\""),
    ("probes", "{ path: /, port: http }", "{ path: /, port: 8081 }", "nothing is at the port 8081"),
    ("security", "        runAsNonRoot: true\n", "        runAsNonRoot: false\n", "may run as root"),
    ("security", "            runAsUser: 1000\n", "            runAsUser: 0\n", "or as root"),
    ("security", "            runAsUser: 1000\n", "", "that the image chooses"),
    ("security", "readOnlyRootFilesystem: true # api", "readOnlyRootFilesystem: false", "may write to its image"),
    ("security", "            readOnlyRootFilesystem: true\n", "", "api/tidegate: may write to its image"),
    ("security", "allowPrivilegeEscalation: false # api", "privileged: false", "may gain privileges"),
    ("security", "allowPrivilegeEscalation: false # api", "privileged: true", "is privileged"),
    ("security", "capabilities: { drop: [ALL] } # api", "capabilities: { drop: [KILL] }", "keeps capabilities"),
    ("security", "capabilities: { drop: [ALL] } # api", "capabilities: { drop: [ALL], add: [CHOWN] }", "asks for capabilities"),
    ("security", "        seccompProfile: { type: RuntimeDefault }\n      topo", "        seccompProfile: { type: Unconfined }\n      topo", "any system call"),
    ("host", "serviceAccountName: api", "hostNetwork: true", "the node's"),
    ("host", "emptyDir: { medium: Memory }", "hostPath: { path: /run }", "the node's"),
    ("tokens", "      automountServiceAccountToken: false\n", "", "api: is given a token"),
    ("resources", "requests: { cpu: 100m, memory: 128Mi }", "requests: { memory: 128Mi }", "no CPU"),
    ("resources", "requests: { cpu: 100m, memory: 128Mi }", "requests: { cpu: 100m }", "no memory"),
    ("resources", "requests: { cpu: 100m, memory: 128Mi }", "requests: { cpu: 1001m, memory: 128Mi }", "more than it may have"),
    ("resources", "limits: { memory: 33Mi }", "limits: { memory: 31Mi }", "more than it may have"),
    ("resources", "limits: { memory: 33Mi }", "limits: {}", "all memory"),
    ("images", "redis:7.2.11-alpine", "redis", "not pinned"),
    ("images", "redis:7.2.11-alpine", "redis:latest", "not pinned"),
    ("images", "registry.example.com:5000/shop/api:1.4.2", "registry.example.com:5000/shop/api", "not pinned"),
];

#[rustfmt::skip]
const SIDECAR: [Case; 33] = [
    ("sidecar", "restartPolicy: Always", "restartPolicy: OnFailure", "not a native sidecar"),
    ("sidecar", "          restartPolicy: Always\n", "", "not a native sidecar"),
    ("sidecar", "      initContainers:\n", "      initContainers:\n        - { name: migrate, image: \"m:1\" }\n", "first init container"),
    ("sidecar", "        - name: api\n", "        - name: tidegate\n", "among the apps"),
    ("configuration", "mountPath: /etc/tidegate }", "mountPath: /etc/tidegate, subPath: sidecar.yaml }", "subPath"),
    ("configuration", "mountPath: /etc/tidegate }", "mountPath: /etc/other }", "mounts nothing at /etc/tidegate"),
    ("configuration", "value: /etc/tidegate/sidecar.yaml", "value: /etc/tidegate/config.yaml", "no ConfigMap with config.yaml"),
    ("configuration", "{ name: TIDEGATE_CONFIG, value: /etc/tidegate/sidecar.yaml }", "{ name: A, value: b }", "TIDEGATE_CONFIG"),
    ("configuration", "configMap: { name: tidegate }", "configMap: { name: tidegate-h5gk2t9b7m }", "no ConfigMap"),
    ("configuration", "rate_limit: 10/second", "rate_limit: ten/second", "sidecar.yaml:"),
    ("configuration", "\"127.0.0.1:7600\"", "\"0.0.0.0:7600\"", "open to other hosts"),
    ("configuration", "fieldPath: metadata.name", "fieldPath: metadata.uid", "name of its pod"),
    ("configuration", "          env:\n", "          env:\n            - { name: TIDEGATE_LISTEN_ADMIN, value: \"127.0.0.1:1\" }\n", "hides what the file says"),
    ("health", "startupProbe: { httpGet: { path: /readyz", "startupProbe: { httpGet: { path: /ready", "startupProbe does not ask /readyz"),
    ("health", "readinessProbe: { httpGet: { path: /readyz", "readinessProbe: { httpGet: { path: /livez", "readinessProbe does not ask /readyz"),
    ("health", "livenessProbe: { httpGet: { path: /livez, port: tg-metrics } }", "command: []", "livenessProbe does not ask /livez"),
    ("health", "{ path: /livez, port: tg-metrics }", "{ path: /livez, port: 7601 }", "no such page"),
    ("health", "\"0.0.0.0:9464\"", "\"0.0.0.0:9465\"", "no such page"),
    ("listeners", "\"0.0.0.0:9464\"", "\"127.0.0.1:9464\"", "does not reach"),
    ("listeners", "\"127.0.0.1:7600\"", "\"0.0.0.0:7600\"", "0.0.0.0:7600 is open"),
    ("listeners", "admin: [\"127.0.0.1:7601\"]", "admin: []", "no admin API"),
    ("listeners", "containerPort: 9464", "containerPort: 9465", "names the ports [9465]"),
    ("sockets", "medium: Memory", "sizeLimit: 1Mi", "not in memory"),
    ("sockets", "            - { name: sockets, mountPath: /run/tidegate } # api\n", "", "no app finds"),
    ("sockets", "{ name: sockets, mountPath: /run/tidegate } # api", "{ name: sockets, mountPath: /run/other }", "no app finds"),
    ("sockets", "{ name: sockets, mountPath: /run/tidegate }\n", "{ name: sockets, mountPath: /run/other }\n", "may not write to /run/tidegate"),
    ("sockets", "\"unix:/run/tidegate/tidegate.sock\", ", "", "has no socket"),
    ("sockets", "        fsGroup: 65532\n", "", "no fsGroup"),
    ("time and memory", "terminationGracePeriodSeconds: 30", "terminationGracePeriodSeconds: 15", "is killed after 15s and needs 15s"),
    ("time and memory", "drain: 10s", "drain: 30s", "needs 35s"),
    ("time and memory", "sleep: { seconds: 5 }", "sleep: { seconds: 20 }", "needs 30s"),
    ("time and memory", "keys_max: 250000", "keys_max: 1000000", "1000000 keys need"),
    ("time and memory", "limits: { memory: 128Mi }", "limits: { memory: 64Mi }", "250000 keys need"),
];

/// Two lines, for a store that does not come along.
#[test]
fn a_store_elsewhere_has_to_be_reachable() {
    let broken = SOUND.replace(
        "name: redis, namespace: shop }\nspec:\n  selector",
        "name: cache, namespace: shop }\nspec:\n  selector",
    );
    assert_ne!(broken, SOUND);
    assert!(checks::faults(&Objects::parse(&broken)).is_empty());
    let broken = broken.replace(
        "app: redis } } }], ports: [{ port: 6379 }]",
        "app: redis } } }], ports: [{ port: 53 }]",
    );
    let faults = checks::faults(&Objects::parse(&broken));
    assert_eq!(faults, ["store: api: may call no store at all"]);
}

#[test]
fn each_check_finds_what_it_is_for() {
    let all = [&NETWORK[..], &PODS, &SIDECAR].concat();
    for (check, from, to, expected) in &all {
        breaks(check, from, to, expected);
    }
    for (check, _) in CHECKS {
        let tried = all.iter().any(|(known, ..)| *known == check);
        assert!(tried, "nothing breaks {check}");
    }
}
