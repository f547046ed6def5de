//! The admin listener's page, in a browser: `page.mjs` drives it and says what it saw.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use tidegate_testing::stores::RedisServer;
use tidegate_testing::{SOON, Sidecar, SidecarSetup, until};

use super::load::Load;

const RULES: &str = r#"
  - domain: api
    descriptors:
      - { key: client, rate_limit: 600/minute burst 5 }
      - { key: remote_address, rate_limit: 30/minute, shadow_mode: true }
"#;

/// A client whose name is markup, and would be a picture with a script if it were taken for that.
const MARKUP: &str = "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E";

/// Denies some of them, and one that is markup.
fn load(sidecar: &Sidecar) -> Load {
    Load::on(sidecar.http(), |nth, client| {
        for name in ["a", "a", "b", MARKUP, "c", "a"] {
            client.get(&format!("/v1/check?domain=api&client={name}"));
        }
        let host = nth % 9;
        client.get(&format!(
            "/v1/check?domain=api&remote_address=10.0.0.{host}"
        ));
    })
}

/// What `page.mjs` saw at that address.
fn visit(sidecar: &Sidecar, token: &str, test: &str) -> Value {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let playwright = root.join("target/tools/playwright/node_modules/playwright-core");
    assert!(playwright.is_dir(), "run `make tools`");
    let pictures = root.join("target/page").join(test);
    std::fs::create_dir_all(&pictures).unwrap();
    let url = format!("http://{}/", sidecar.door("admin").unwrap().to());
    let visited = Command::new("node")
        .arg(root.join("tests/ops/page.mjs"))
        .arg(&playwright)
        .args([&url, token])
        .arg(&pictures)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&visited.stdout);
    let complained = String::from_utf8_lossy(&visited.stderr);
    assert!(visited.status.success(), "{said}{complained}");
    let seen: Value = serde_json::from_str(&said).unwrap();
    let origin = url.trim_end_matches('/');
    assert_eq!(seen["reboundStatus"], 403, "by another's name: {seen}");
    let notice = seen["later"]["interrupted"].as_str().unwrap();
    assert!(notice.starts_with("No answer for "), "{notice}");
    for visit in ["desk", "phone", "later"] {
        assert_eq!(
            seen[visit]["asked"],
            json!([origin]),
            "the page asks nobody else: {seen}"
        );
    }
    seen
}

fn contains(rows: &Value, parts: &[&str]) -> bool {
    let rows = rows.as_array().unwrap().iter();
    let mut rows = rows.map(|row| row.as_str().unwrap());
    rows.any(|row| parts.iter().all(|part| row.contains(part)))
}

#[test]
fn numbers_move_on_a_desk_and_on_a_phone() {
    let store = RedisServer::start(&[]);
    let sidecar = SidecarSetup::rules(RULES)
        .top(&format!(
            "log: {{ format: json }}\npod: {{ id: pod-7 }}\nstore: {{ url: \"{}\" }}\nsync: {{ interval: 100ms }}",
            store.url()
        ))
        .start();
    let load = load(&sidecar);
    let seen = visit(&sidecar, "", "live");
    load.end();
    for visit in ["desk", "phone"] {
        let seen = &seen[visit];
        assert_eq!(seen["complaints"], json!([]), "{seen}");
        let beside = &seen["overflow"];
        assert_eq!(beside, &json!([0, 0, 0]), "nothing is beside the screen");
        assert_eq!(
            (&seen["ready"], &seen["link"]),
            (&"ready".into(), &"store connected".into())
        );
        assert!(seen["pod"].as_str().unwrap().starts_with("pod-7"), "{seen}");
        assert!(seen["p99"].as_str().unwrap().ends_with('s'), "{seen}");
        assert_eq!(
            seen["staleness"].as_str().unwrap().split(' ').nth(1),
            Some("ms")
        );
        assert_eq!(seen["notice"], Value::Null);
        assert!(contains(&seen["rules"], &["api/client"]), "{seen}");
        assert!(
            contains(&seen["rules"], &["api/remote_address", "shadow"]),
            "{seen}"
        );
        assert!(contains(&seen["top"], &["client=a"]), "{seen}");
        assert!(
            contains(&seen["top"], &["client=<img src=x onerror=alert(1)>"]),
            "{seen}"
        );
        assert_eq!(seen["injected"], 0, "what a client sent became markup");
    }
}

#[test]
fn the_page_asks_for_the_token_and_tells_of_a_refused_reload() {
    let setup = SidecarSetup::rules(RULES).listen_also("token_file: token");
    setup.folder.write("token", "s3cret");
    let sidecar = setup.start();
    sidecar.folder().replace("sidecar.yaml", "rules: 7");
    until("the reload to be refused", SOON, || {
        (!sidecar.said("configuration refused").is_empty()).then_some(())
    });
    let load = load(&sidecar);
    let seen = visit(&sidecar, "s3cret", "token");
    load.end();
    assert_eq!(seen["desk"]["ready"], "ready");
    assert_eq!(seen["desk"]["link"], "no store");
    let notice = seen["desk"]["notice"].as_str().unwrap();
    assert!(
        notice.starts_with("The last reload was refused: sidecar.yaml:1:"),
        "{notice}"
    );
    assert!(contains(&seen["desk"]["top"], &["client=a"]), "{seen}");
}
