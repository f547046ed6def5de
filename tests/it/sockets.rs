//! Where the daemon listens: modes, what is at the path already, ports that are taken.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use tidegate_testing::{Endpoint, SOON, SidecarSetup};

const RULES: &str = "- { domain: api, descriptors: [{ key: client, rate_limit: 3/day }] }";
const ONLY_UNIX: &str = r#"http: ["unix:t.sock"]"#;
const CHECK: &str = "/v1/check?domain=api&client=x";

/// Puts something at a path.
type Put = fn(&Path);

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_socket_has_the_mode_of_the_configuration() {
    for (more, expected) in [
        ("", 0o660),
        (r#", unix_mode: "0600""#, 0o600),
        (r#", unix_mode: "0666""#, 0o666),
    ] {
        let sidecar = SidecarSetup::rules(RULES)
            .listen(&format!("{ONLY_UNIX}{more}"))
            .start();
        let found = mode(&sidecar.folder().path("t.sock"));
        assert_eq!(found, expected, "{found:o} with {more:?}");
        let names: Vec<_> = fs::read_dir(sidecar.folder().path(""))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .filter(|name| name.to_string_lossy().contains("sock"))
            .collect();
        assert_eq!(names, ["t.sock"], "something was left behind");
    }
}

#[test]
fn a_stale_socket_is_replaced() {
    let sidecar = SidecarSetup::rules(RULES).listen(ONLY_UNIX).start();
    let before = sidecar.folder().path("t.sock");
    let setup = sidecar.kill();
    assert!(
        fs::symlink_metadata(&before)
            .unwrap()
            .file_type()
            .is_socket()
    );
    let sidecar = setup.start_as_is();
    assert_eq!(sidecar.http().get(CHECK).status, 200);
}

#[test]
fn a_live_socket_is_refused_and_keeps_working() {
    let sidecar = SidecarSetup::rules(RULES).listen(ONLY_UNIX).start();
    let inode = || {
        fs::symlink_metadata(sidecar.folder().path("t.sock"))
            .unwrap()
            .ino()
    };
    let before = inode();
    let ran = sidecar.folder().run(&["--config", "sidecar.yaml"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expected = "tidegate: listen on unix:t.sock: another process is listening there\n";
    assert_eq!(ran.stderr, expected, "{ran:?}");
    assert_eq!(inode(), before);
    assert_eq!(sidecar.http().get(CHECK).status, 200);
}

#[test]
fn what_is_no_socket_is_refused_and_left_alone() {
    let put: [(&str, Put); 4] = [
        ("file", |path| fs::write(path, "precious").unwrap()),
        ("directory", |path| fs::create_dir(path).unwrap()),
        ("symbolic link", |path| symlink("nowhere", path).unwrap()),
        ("symbolic link", |path| {
            fs::write(path.with_file_name("target"), "precious").unwrap();
            symlink("target", path).unwrap();
        }),
    ];
    for (what, put) in put {
        let setup = SidecarSetup::rules(RULES).listen(ONLY_UNIX);
        let path = setup.folder.path("t.sock");
        put(&path);
        let before = fs::symlink_metadata(&path).unwrap();
        let (ran, _folder) = setup.fail();
        assert_eq!(ran.code, Some(1), "{what}: {ran:?}");
        let expected = format!(
            "tidegate: listen on unix:t.sock: there is a {what} at that path, which is left alone"
        );
        assert_eq!(ran.stderr.trim_end(), expected, "{ran:?}");
        let after = fs::symlink_metadata(&path).unwrap();
        assert_eq!((after.ino(), after.mode()), (before.ino(), before.mode()));
    }
}

#[test]
fn a_folder_that_is_not_there_is_told() {
    let (ran, _folder) = SidecarSetup::rules(RULES)
        .listen(r#"http: ["unix:no/t.sock"]"#)
        .fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let expected = "tidegate: listen on unix:no/t.sock: No such file or directory";
    assert!(ran.stderr.starts_with(expected), "{ran:?}");
}

/// A socket on which nobody can connect is not known to be stale, and a path that is too long says so.
#[test]
fn a_socket_of_another_kind_is_refused() {
    let setup = SidecarSetup::rules(RULES).listen(ONLY_UNIX);
    let path = setup.folder.path("t.sock");
    let _datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let (ran, _folder) = setup.fail();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(
        ran.stderr.starts_with("tidegate: listen on unix:t.sock: "),
        "{ran:?}"
    );
    assert!(path.exists(), "it was removed");
}

/// Ten times: whether the file is removed must not depend on which thread ends first.
#[test]
fn the_socket_is_removed_at_the_end() {
    for signal in ["TERM", "INT"].repeat(5) {
        let mut sidecar = SidecarSetup::rules(RULES).start();
        assert_eq!(sidecar.doors("http")[1].get(CHECK).status, 200);
        let path = sidecar.folder().path("t.sock");
        assert!(path.exists());
        sidecar.signal(signal);
        assert_eq!(sidecar.wait(SOON).code(), Some(0));
        assert!(!path.exists(), "{signal} left the socket behind");
    }
}

#[test]
fn a_socket_that_was_replaced_meanwhile_is_not_removed() {
    let mut sidecar = SidecarSetup::rules(RULES).start();
    let path = sidecar.folder().path("t.sock");
    let _successor = UnixListener::bind(sidecar.folder().path("next.sock")).unwrap();
    fs::rename(sidecar.folder().path("next.sock"), &path).unwrap();
    let inode = fs::symlink_metadata(&path).unwrap().ino();
    sidecar.signal("TERM");
    assert_eq!(sidecar.wait(SOON).code(), Some(0));
    let after = fs::symlink_metadata(&path).map(|file| file.ino());
    assert_eq!(after.ok(), Some(inode), "the successor's socket is gone");
    assert!(Endpoint::Unix(path).is_open());
}

/// A daemon that cannot have all its addresses has none: the socket it bound before is gone again.
#[test]
fn a_port_in_use_is_told() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    for door in ["http", "metrics", "admin"] {
        let listen = match door {
            "http" => format!(r#"http: ["unix:t.sock", "{address}"]"#),
            _ => format!(r#"{ONLY_UNIX}, {door}: ["{address}"]"#),
        };
        let (ran, folder) = SidecarSetup::rules(RULES).listen(&listen).fail();
        assert_eq!(ran.code, Some(1), "{door}: {ran:?}");
        let expected = format!("tidegate: listen on {address}: Address already in use");
        assert!(ran.stderr.starts_with(&expected), "{door}: {ran:?}");
        assert!(!folder.path("t.sock").exists(), "{door}: half started");
    }
}
