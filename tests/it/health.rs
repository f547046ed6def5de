//! `tidegate health`: what it prints, and with which status it ends.

use std::io::{Read, Write};
use std::net::TcpListener;

use tidegate_testing::{Folder, SidecarSetup};

const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 3/day }] }";

#[test]
fn health_tells_readiness_in_a_line() {
    let sidecar = SidecarSetup::rules(RULES)
        .listen(r#"http: ["127.0.0.1:0"], metrics: ["127.0.0.1:0", "unix:m.sock"]"#)
        .start();
    for door in sidecar.doors("metrics") {
        let health = |more: &[&str]| {
            sidecar
                .folder()
                .run(&[&["health", "--to", &door.to()], more].concat())
        };
        let ran = health(&[]);
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{ran:?}");
        let told = "ok; rules: 1, configuration version 1; store: none";
        assert!(ran.stdout.starts_with(told), "{ran:?}");
        assert_eq!(ran.stdout.lines().count(), 1, "{ran:?}");
        let ran = health(&["--live"]);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(0), "ok\n"),
            "{ran:?}"
        );
    }
    let to = sidecar.door("metrics").unwrap().to();
    let mut command = sidecar.folder().command(&["health"]);
    let ran = command.env("TIDEGATE_HEALTH_TO", to).output().unwrap();
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
}

/// A sidecar that is not ready answers so for moments only: here the answer is written down.
#[test]
fn health_ends_with_1_if_not_ready_and_with_2_if_it_cannot_ask() {
    let folder = Folder::new();
    let unready = "503 Service Unavailable\r\ncontent-length: 20\r\n\r\nnot ready\nrules: 4\n.";
    let endless = format!("200 OK\r\n\r\n{}", "x".repeat(5 << 20));
    for (answer, code, stdout, stderr) in [
        (unready, 1, "not ready; rules: 4; .\n", ""),
        (
            "404 Not Found\r\ncontent-length: 0\r\n\r\n",
            2,
            "",
            "answered 404 Not Found\n",
        ),
        (&endless, 2, "", "length limit exceeded\n"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let to = listener.local_addr().unwrap().to_string();
        let answer = format!("HTTP/1.1 {answer}");
        let answering = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let length = stream.read(&mut head).unwrap();
            // Who has heard enough hangs up.
            let _ = stream.write_all(answer.as_bytes());
            String::from_utf8_lossy(&head[..length]).into_owned()
        });
        let ran = folder.run(&["health", "--to", &to]);
        assert_eq!(
            (ran.code, ran.stdout.as_str()),
            (Some(code), stdout),
            "{ran:?}"
        );
        assert!(ran.stderr.ends_with(stderr), "{ran:?}");
        let asked = answering.join().unwrap();
        assert!(
            asked.starts_with("GET /readyz?verbose HTTP/1.1\r\n"),
            "{asked}"
        );
    }
    let ran = folder.run(&["health", "--to", "unix:absent.sock"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{ran:?}");
    let told = "tidegate: ask unix:absent.sock: No such file";
    assert!(ran.stderr.starts_with(told), "{ran:?}");
}
