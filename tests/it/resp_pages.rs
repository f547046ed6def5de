//! `docs/resp.md` and the guide from redis-cell: what they show is run, and answers as they say.

use std::fs;
use std::path::Path;

use tidegate_testing::stores::RedisServer;
use tidegate_testing::{Endpoint, Sidecar, SidecarSetup};

use super::guides::{Block, blocks, is_ours, tool};

/// The port that the pages ask.
const PORT: &str = "6380";

fn page(path: &str) -> Vec<Block> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    blocks(&fs::read_to_string(path).unwrap())
}

/// A daemon with the page's configuration, but for its addresses, and the port it has instead.
fn start(page: &[Block], replaced: &[(&str, &str)]) -> (Sidecar, String) {
    let [yaml] = &page
        .iter()
        .filter(|block| is_ours(block))
        .collect::<Vec<_>>()[..]
    else {
        panic!("one configuration");
    };
    let mut text = format!("log: {{ format: json }}\n{}", yaml.text);
    for (from, to) in [
        ("127.0.0.1:6380", "127.0.0.1:0"),
        ("127.0.0.1:9464", "127.0.0.1:0"),
    ] {
        text = text.replace(from, to);
    }
    for (from, to) in replaced {
        assert!(text.contains(from), "{text}");
        text = text.replace(from, to);
    }
    let setup = SidecarSetup::rules("");
    setup.folder.write("sidecar.yaml", &text);
    let sidecar = setup.start_as_is();
    let Some(Endpoint::Tcp(address)) = sidecar.door("resp") else {
        panic!("a door on TCP");
    };
    (sidecar, address.port().to_string())
}

/// Runs each line after a `$` and compares what it prints with what follows. Time passes: large numbers may be a bit less.
fn run(sidecar: &Sidecar, page: &[Block], port: &str) {
    let consoles: Vec<&Block> = page
        .iter()
        .filter(|block| block.language == "console")
        .collect();
    assert!(!consoles.is_empty());
    for block in consoles {
        for step in block.text.split("$ ").skip(1) {
            let (line, expected) = step.split_once('\n').unwrap();
            let ran = sidecar.folder().shell(&line.replace(PORT, port));
            let (shown, seen): (Vec<_>, Vec<_>) =
                (expected.lines().collect(), ran.stdout.lines().collect());
            let same = shown.iter().zip(&seen).all(|(shown, seen)| {
                let close = || {
                    let (shown, seen) = (shown.parse::<f64>().ok()?, seen.parse::<f64>().ok()?);
                    Some(shown > 100.0 && (shown - seen).abs() < shown / 100.0)
                };
                shown == seen || close().unwrap_or(false)
            });
            assert!(
                same && shown.len() == seen.len(),
                "{line}: {ran:?}, the page says {expected}"
            );
        }
    }
}

#[test]
fn the_page_of_the_protocol_says_what_is() {
    let page = page("docs/resp.md");
    let (sidecar, port) = start(&page, &[]);
    run(&sidecar, &page, &port);
}

#[test]
fn the_guide_from_redis_cell_says_what_is() {
    let page = page("docs/guides/from-redis-cell.md");
    let redis = RedisServer::start(&[]);
    let (sidecar, port) = start(&page, &[("redis://127.0.0.1:6379", &redis.url())]);
    let python = page
        .iter()
        .find(|block| block.language == "python")
        .unwrap();
    let mut command = tool("python3");
    let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/target/tools/redis-py");
    assert!(
        Path::new(tools).exists(),
        "no redis-py here: run `make tools`"
    );
    // Asked first: of the same key the console then finds less.
    let text = python.text.replace(PORT, &port).replace("0.25", "10");
    let output = command
        .env("PYTHONPATH", tools)
        .args(["-c", &text.replace("user:", "py:")])
        .output();
    let output = output.unwrap();
    // Sixteen at once; a busy machine may take two seconds and get a cell back.
    let allowed = String::from_utf8_lossy(&output.stdout)
        .trim()
        .parse::<u32>();
    assert!(matches!(allowed, Ok(16..=18)), "{output:?}");
    run(&sidecar, &page, &port);
}
