//! Redis behind TLS, with client certificates, and a user that may do no more than a sidecar has to.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::StoreUnderTest;
use super::server::{RedisServer, ServerPlan};

/// The commands of the sidecar's user: to log in, to run the scripts, what the scripts call, and to subscribe to news.
/// The same as in docs/sync.md.
pub const COMMANDS: &str = "-@all +evalsha +script|load +mget +get +set +del +exists +type +time +incr \
    +pexpire +zadd +zrem +zcard +zrangebyscore +zrevrange +zremrangebyscore +zremrangebyrank +ping \
    +publish +subscribe";
/// The keys and the channels of the sidecar's user.
pub const NAMES: &str = "resetkeys ~tidegate:v1:* resetchannels &tidegate:v1:news";
const PASSWORD: &str = "tide-and-gate";
/// Of the user that the tests themselves ask as.
const KEEPER_PASSWORD: &str = "keeper-of-tides";

/// The server.
#[derive(Debug)]
pub struct RedisTls(RedisServer);

impl RedisTls {
    /// Makes certificates and starts the server with them.
    pub fn start() -> Self {
        let plan = ServerPlan::new();
        let folder = plan.folder().to_owned();
        certificates(&folder);
        let users = format!(
            "user default off\n\
            user tidegate on >{PASSWORD} {NAMES} {COMMANDS}\n\
            user keeper on >{KEEPER_PASSWORD} ~* &* +@all\n"
        );
        fs::write(folder.join("users.acl"), users).expect("a file");
        fs::write(folder.join("password"), PASSWORD).expect("a file");
        let path = |name: &str| folder.join(name).display().to_string();
        let (ca, cert, key) = (path("ca.crt"), path("server.crt"), path("server.key"));
        let client = (path("client.crt"), path("client.key"));
        let server = plan
            .tls([&cert, &key, &ca], "yes")
            .arguments(&["--aclfile", &path("users.acl")])
            .client(&[
                "--tls", "--cacert", &ca, "--cert", &client.0, "--key", &client.1,
            ])
            .client(&[
                "--user",
                "keeper",
                "--pass",
                KEEPER_PASSWORD,
                "--no-auth-warning",
            ])
            .start();
        Self(server)
    }

    /// Fails unless the server refuses clients without a certificate or a user, and refuses the sidecar's user what is
    /// not the sidecar's.
    pub fn assert_least_privilege(&self) {
        let tidegate = [
            "--cert",
            "client.crt",
            "--key",
            "client.key",
            "--user",
            "tidegate",
            "--pass",
            PASSWORD,
        ];
        let ask = |credentials: &[&str], words: &[&str]| {
            let output = Command::new("redis-cli")
                .current_dir(self.0.folder())
                .args([
                    "-p",
                    &self.0.port().to_string(),
                    "--tls",
                    "--cacert",
                    "ca.crt",
                ])
                .args(credentials)
                .args(words)
                .output()
                .expect("redis-cli runs");
            let printed = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&printed).into_owned()
        };
        for (credentials, words, expected) in [
            (&tidegate[..], &["SET", "tidegate:v1:a", "1"][..], "OK"),
            (&tidegate, &["SET", "other:a", "1"], "NOPERM"),
            (&tidegate, &["PUBLISH", "other", "1"], "NOPERM"),
            (&tidegate, &["CONFIG", "GET", "*"], "NOPERM"),
            (&tidegate, &["FLUSHALL"], "NOPERM"),
            (&tidegate[..4], &["PING"], "NOAUTH"),
            (&[], &["PING"], "rror"),
        ] {
            let printed = ask(credentials, words);
            assert!(
                printed.contains(expected),
                "{words:?}: {printed:?}, not {expected:?}"
            );
        }
    }
}

impl StoreUnderTest for RedisTls {
    fn section(&self) -> String {
        let path = |name: &str| self.0.folder().join(name).display().to_string();
        format!(
            "url: \"rediss://tidegate@{}\", password_file: \"{}\", \
            tls: {{ ca_file: \"{}\", cert_file: \"{}\", key_file: \"{}\" }}",
            self.0.address(),
            path("password"),
            path("ca.crt"),
            path("client.crt"),
            path("client.key"),
        )
    }

    fn masters(&self) -> Vec<&RedisServer> {
        vec![&self.0]
    }
}

/// An authority, and what it signed for a server and for a client.
fn certificates(folder: &Path) {
    openssl(
        folder,
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=tides \
        -keyout ca.key -out ca.crt",
    );
    let names = "subjectAltName=DNS:localhost,IP:127.0.0.1\nbasicConstraints=CA:FALSE\n";
    fs::write(folder.join("names"), names).expect("a file");
    for name in ["server", "client"] {
        openssl(
            folder,
            &format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN={name} \
                -keyout {name}.key -out {name}.csr"
            ),
        );
        openssl(
            folder,
            &format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 \
                -extfile names -out {name}.crt"
            ),
        );
    }
}

fn openssl(folder: &Path, line: &str) {
    let output = Command::new("openssl")
        .args(line.split_whitespace())
        .current_dir(folder)
        .output()
        .expect("openssl runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "openssl {line}: {said}");
}
