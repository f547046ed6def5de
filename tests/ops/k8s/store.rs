//! The Redis for trying, and the one of production: real servers with these files, and sidecars that hold one limit.

use std::fs;

use serde_json::Value;
use tidegate_testing::stores::{RedisServer, ServerPlan};
use tidegate_testing::{Folder, SOON, Sidecar, now, until};

use super::live::{put, setup};
use super::objects::{list, number, text};
use super::tree;

/// The server by its files, on a port and in a folder of its own.
fn redis() -> RedisServer {
    let plan = ServerPlan::bare();
    let (folder, port) = (plan.folder().to_owned(), plan.port());
    let at = |name: &str| folder.join(name).display().to_string();
    let conf = tree::read("redis/redis.conf");
    let conf = put(&conf, "bind 0.0.0.0", "bind 127.0.0.1");
    let conf = put(&conf, "port 6379", &format!("port {port}"));
    let conf = put(&conf, "/etc/redis-users/users.acl", &at("users.acl"));
    let conf = put(&conf, "dir /data", &format!("dir {}", folder.display()));
    fs::write(folder.join("redis.conf"), conf).unwrap();
    fs::write(folder.join("users.acl"), tree::read("redis/users.acl")).unwrap();
    plan.arguments(&[&at("redis.conf")]).start()
}

/// The URL that the sidecars are given.
fn url(server: &RedisServer) -> String {
    let kustomization: Value =
        serde_saphyr::from_str(&tree::read("redis/kustomization.yaml")).unwrap();
    let secrets = list(&kustomization, "/secretGenerator");
    let store = secrets
        .iter()
        .find(|each| text(each, "/name") == "tidegate-store");
    let literal = text(store.unwrap(), "/literals/0");
    let url = literal.strip_prefix("url=").unwrap();
    put(url, "tidegate-redis:6379", &server.address())
}

fn pod(name: &str, url: &str) -> Sidecar {
    setup(&tree::read("base/sidecar.yaml"))
        .variable("REDIS_URL", url)
        .variable("POD_NAME", name)
        .start_as_is()
}

fn link(sidecar: &Sidecar) -> String {
    let status = sidecar.admin("/admin/v1/status");
    text(&status, "/store/link").to_owned()
}

#[test]
fn two_pods_and_the_redis_for_trying_hold_one_limit() {
    let server = redis();
    let url = url(&server);
    let pods = ["a", "b"].map(|name| pod(name, &url));
    for pod in &pods {
        until("both pods", SOON, || {
            let status = pod.admin("/admin/v1/status");
            let both = number(&status, "/pods") == Some(2) && link(pod) == "closed";
            both.then_some(())
        });
    }
    let check = "/v1/check?domain=hello&api_key=both";
    let (begun, [first, second]) = (now(), &pods);
    for _ in 0..18 {
        assert_eq!(first.connect().get(check).status, 200);
    }
    // The other one has the rest: two, and what came back meanwhile, and what it may be off by. Alone it had twenty.
    let mut passed = 0;
    until("the fleet's limit at the other pod", SOON, || {
        let status = second.connect().get(check).status;
        passed += u64::from(status == 200);
        (status == 429).then_some(())
    });
    let most = 2 + begun.elapsed().as_secs() + 1 + 4;
    assert!(passed <= most, "{passed} passed, not {most}");
    for pod in &pods {
        let metrics = pod.metrics().series.into_iter();
        let mut errors = metrics.filter(|each| {
            // A script that the server has not met yet is sent to it.
            let unknown = ("kind".to_owned(), "noscript".to_owned());
            each.name == "ratelimit_redis_errors_total"
                && each.value > 0.0
                && !each.labels.contains(&unknown)
        });
        assert_eq!(
            errors.next(),
            None,
            "users.acl lets the sidecar do what it has to"
        );
    }
}

/// What the kubelet runs in the container, as far as it can be run here.
#[test]
fn the_probe_of_redis_asks_redis() {
    let mut server = redis();
    let deployment: Value = serde_saphyr::from_str(&tree::read("redis/deployment.yaml")).unwrap();
    let container = &deployment["spec"]["template"]["spec"]["containers"][0];
    let line = text(container, "/readinessProbe/exec/command/2");
    assert_eq!(line, text(container, "/livenessProbe/exec/command/2"));
    let line = put(line, "127.0.0.1:6379", &server.address());
    let folder = Folder::new();
    assert_eq!(folder.shell(&line).code, Some(0));
    // Others are kept out: who has no name, and who has one and wants more.
    assert!(server.cli(&["PING"]).contains("NOAUTH"));
    assert_eq!(
        folder.shell(&line.replace(" ping", " keys '*'")).code,
        Some(1)
    );
    server.kill();
    assert_ne!(folder.shell(&line).code, Some(0));
}

/// The rights are those that docs/sync.md names, to the letter.
#[test]
fn the_user_has_the_least_rights() {
    let page = fs::read_to_string(tree::root().join("docs/sync.md")).unwrap();
    let documented = page
        .lines()
        .find(|line| line.starts_with("user tidegate on >PASSWORD "));
    let users = tree::read("redis/users.acl");
    let ours = users
        .lines()
        .find(|line| line.starts_with("user tidegate "));
    assert_eq!(
        ours.unwrap().replace("for-trying-only", "PASSWORD"),
        documented.unwrap()
    );
}

/// TLS, a password and a hash key from files, and a rule in shadow mode: the file of production, on a server of ours.
#[test]
fn production_speaks_tls_and_only_watches() {
    let setup = setup(&tree::read("overlays/prod/sidecar.yaml"));
    let plan = ServerPlan::new();
    let (folder, port) = (plan.folder().to_owned(), plan.port().to_string());
    let ran = setup.folder.shell(&format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=tides \
         -addext subjectAltName=IP:127.0.0.1 -addext basicConstraints=CA:FALSE \
         -keyout {0}/key.pem -out {0}/cert.pem && cp {0}/cert.pem store/ca.pem",
        folder.display()
    ));
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let users = put(
        &tree::read("redis/users.acl"),
        ">for-trying-only",
        ">for-production",
    );
    fs::write(folder.join("users.acl"), users).unwrap();
    setup.folder.write("store/password", "for-production\n");
    setup
        .folder
        .write("store/hash-key", "0123456789abcdef0123456789abcdef\n");
    let at = |name: &str| folder.join(name).display().to_string();
    let _server = plan
        .tls([&at("cert.pem"), &at("key.pem"), &at("cert.pem")], "no")
        .arguments(&["--aclfile", &at("users.acl")])
        .client(&["--tls", "--cacert", &at("cert.pem")])
        .start();
    let url = format!("rediss://tidegate@127.0.0.1:{port}");
    let sidecar = setup.variable("REDIS_URL", &url).start_as_is();
    until("a link", SOON, || {
        (link(&sidecar) == "closed").then_some(())
    });
    for path in ["/readyz", "/livez"] {
        assert_eq!(sidecar.door("metrics").unwrap().get(path).status, 200);
    }
    let mut client = sidecar.connect();
    for _ in 0..150 {
        assert_eq!(client.get("/v1/check?domain=hello&api_key=x").status, 200);
    }
    let shadow = "decision=\"shadow_deny\"";
    let page = sidecar.door("metrics").unwrap().get("/metrics").text();
    let line = page
        .lines()
        .find(|line| line.contains(shadow) && !line.ends_with(" 0"));
    assert!(line.is_some(), "{page}");
}

/// Without the Secret it does not start: a fleet that limits pod by pod would go unnoticed.
#[test]
fn production_does_not_start_without_its_secret() {
    let setup = setup(&tree::read("overlays/prod/sidecar.yaml"));
    let ran = setup.folder.run(&["--config", "sidecar.yaml"]);
    assert_eq!(ran.code, Some(78), "{ran:?}");
    assert!((ran.stdout + &ran.stderr).contains("REDIS_URL"));
}
