//! Names are found in the image: a static binary, with no `/etc/nsswitch.conf` and no libraries to load.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tidegate_testing::podman::{done, storage};
use tidegate_testing::stores::{RedisServer, ServerPlan};
use tidegate_testing::{Folder, SOON, free_port, until};

const RULES: &str = "rules: [{ domain: api, descriptors: [{ key: client, rate_limit: 3/day }] }]";
const NAME: &str = "store.test";
const TYPE_A: u16 = 1;

/// A name server that knows one name, on port 53 of a loopback address of its own.
struct NameServer {
    address: Ipv4Addr,
    ended: Arc<AtomicBool>,
    asked: Arc<Mutex<Vec<(String, u16)>>>,
    thread: Option<JoinHandle<()>>,
}

impl NameServer {
    fn start() -> Self {
        let [.., third, last] = std::process::id().to_be_bytes();
        let address = Ipv4Addr::new(127, 53, third, last);
        let socket = UdpSocket::bind((address, 53)).unwrap();
        let rest = Some(Duration::from_millis(50));
        socket.set_read_timeout(rest).unwrap();
        let (ended, asked) = (
            Arc::<AtomicBool>::default(),
            Arc::<Mutex<Vec<_>>>::default(),
        );
        let (end, heard) = (Arc::clone(&ended), Arc::clone(&asked));
        let thread = std::thread::spawn(move || {
            let mut packet = [0; 512];
            while !end.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut packet) else {
                    continue;
                };
                let (question, answer) = answer(&packet[..length]);
                heard.lock().unwrap().push(question);
                socket.send_to(&answer, from).unwrap();
            }
        });
        Self {
            address,
            ended,
            asked,
            thread: Some(thread),
        }
    }

    fn was_asked(&self, name: &str, kind: u16) -> bool {
        let asked = self.asked.lock().unwrap();
        asked.contains(&(name.to_owned(), kind))
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// What a query asks, and what to answer: loopback for the name, nothing for its other types, no other name.
fn answer(query: &[u8]) -> ((String, u16), Vec<u8>) {
    let mut labels = Vec::new();
    let mut at = 12;
    while query[at] != 0 {
        let length = usize::from(query[at]);
        labels.push(String::from_utf8_lossy(&query[at + 1..=at + length]).into_owned());
        at += 1 + length;
    }
    let name = labels.join(".");
    let kind = u16::from_be_bytes([query[at + 1], query[at + 2]]);
    let (known, found) = (name == NAME, name == NAME && kind == TYPE_A);
    let mut told = query[..2].to_vec();
    // An answer, recursion available, and whether there is such a name.
    told.extend([0x81, if known { 0x80 } else { 0x83 }]);
    told.extend([0, 1, 0, u8::from(found), 0, 0, 0, 0]);
    told.extend(&query[12..at + 5]);
    if found {
        // The name above, type A, of the internet, for a second, four bytes.
        told.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 127, 0, 0, 1]);
    }
    ((name, kind), told)
}

/// Starts a sidecar with this store, and waits until it has answered.
fn reaches(url: &str, options: &[&str]) {
    let metrics = format!("127.0.0.1:{}", free_port());
    let folder = Folder::new();
    let listen = format!("listen: {{ http: [\"unix:t.sock\"], metrics: [\"{metrics}\"] }}");
    let store = format!("store: {{ url: \"{url}\" }}");
    folder.write("sidecar.yaml", &format!("{listen}\n{store}\n{RULES}\n"));
    let mount = format!("--volume={}:/etc/tidegate:ro", folder.path(".").display());
    let options = [&["--network=host", &mount], options].concat();
    let container = storage().start(&options, &[]);
    let health = ["/tidegate", "health", "--to", &metrics];
    until("the store to answer", SOON, || {
        let told = container.probe(SOON, &health);
        told.contains("store: closed, answered").then_some(())
    });
}

#[test]
fn a_name_of_the_hosts_file_is_found() {
    let redis = RedisServer::start(&[]);
    let url = format!("redis://{NAME}:{}", redis.port());
    reaches(&url, &["--add-host=store.test:127.0.0.1"]);
}

#[test]
fn a_name_that_a_name_server_knows_is_found() {
    let (redis, names) = (RedisServer::start(&[]), NameServer::start());
    let url = format!("redis://{NAME}:{}", redis.port());
    reaches(&url, &[&format!("--dns={}", names.address)]);
    assert!(names.was_asked(NAME, TYPE_A), "{:?}", names.asked);
}

/// A server with a certificate for the name, and the authority that signed it where the image has its list.
#[test]
fn the_images_list_of_authorities_is_used() {
    let plan = ServerPlan::new();
    let openssl = |line: &str| {
        let mut openssl = Command::new("openssl");
        openssl.args(line.split(' ')).current_dir(plan.folder());
        done(&mut openssl);
    };
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(&format!(
        "req -x509 {key} -days 2 -subj /CN=tides -keyout ca.key -out ca.crt"
    ));
    openssl(&format!(
        "req -x509 {key} -days 2 -subj /CN=store -CA ca.crt -CAkey ca.key \
        -addext subjectAltName=DNS:{NAME} -addext basicConstraints=CA:FALSE \
        -keyout server.key -out server.crt"
    ));
    let path = |name: &str| plan.folder().join(name).display().to_string();
    let [certificate, key, ca] = ["server.crt", "server.key", "ca.crt"].map(path);
    let list = format!("--volume={ca}:/etc/ssl/certs/ca-certificates.crt:ro");
    let redis = plan
        .tls([&certificate, &key, &ca], "no")
        .client(&["--tls", "--sni", NAME, "--cacert", &ca])
        .start();
    let url = format!("rediss://{NAME}:{}", redis.port());
    reaches(&url, &["--add-host=store.test:127.0.0.1", &list]);
}
