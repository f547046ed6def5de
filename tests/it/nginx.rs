//! Forward auth with real proxies: the blocks of `docs/guides/nginx.md` are their configuration.
//!
//! Only addresses are replaced, and timeouts are longer where they are not what is tested: this machine may be busy. Each
//! proxy has a folder and a loopback address of its own; the system's is not touched.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use tidegate_testing::{Client, Endpoint, Folder, Response, SOON, Sidecar, SidecarSetup, until};

use super::guides::{guide, tool};

const RULES: &str = r#"
- domain: edge
  descriptors:
    - { key: api_key, rate_limit: 2/day }
    - { key: remote_address, rate_limit: 2/day }
"#;

/// Headers of every answer that a limit was counted for.
const COUNTED: [&str; 5] = [
    "ratelimit-policy",
    "ratelimit",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
];

fn sidecar() -> Sidecar {
    // The workers of an nginx that root starts are somebody else.
    let setup = SidecarSetup::rules(RULES).listen_also(r#"unix_mode: "0666""#);
    setup.start()
}

/// An address that no other test uses: the port is the guide's, the host is of this process and this call.
fn own_address() -> SocketAddr {
    static COUNT: AtomicU8 = AtomicU8::new(1);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [.., high, low] = std::process::id().to_be_bytes();
    SocketAddr::from((Ipv4Addr::new(127, high, low, count), 8080))
}

/// The app behind the proxy: answers the length of the body that it received. `/403` and `/500` are answered with that.
fn app() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || serve(stream.unwrap()));
        }
    });
    address
}

fn serve(mut stream: TcpStream) -> Option<()> {
    let mut read = Vec::new();
    loop {
        let end = loop {
            match read.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None => more(&mut stream, &mut read)?,
            }
        };
        let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while read.len() < end + length {
            more(&mut stream, &mut read)?;
        }
        read.drain(..end + length);
        let path = head.split(' ').nth(1).unwrap_or_default();
        let status = match path {
            "/403" => "403 Forbidden",
            "/500" => "500 Internal Server Error",
            _ => "200 OK",
        };
        let body = format!("app read {length}");
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<()> {
    let mut buffer = [0; 4096];
    let length = stream.read(&mut buffer).ok().filter(|length| *length > 0)?;
    read.extend_from_slice(&buffer[..length]);
    Some(())
}

/// A proxy that runs until it is dropped.
struct Proxy {
    child: Child,
    address: SocketAddr,
    folder: Folder,
}

impl Proxy {
    /// Starts it, with all that it says in a file.
    fn start(mut command: Command, address: SocketAddr, folder: Folder) -> Self {
        let said = std::fs::File::create(folder.path("said")).unwrap();
        command.stdin(Stdio::null());
        command.stdout(said.try_clone().unwrap()).stderr(said);
        let mut proxy = Self {
            child: command.spawn().unwrap(),
            address,
            folder,
        };
        until("a proxy that listens", SOON, || {
            let ended = proxy.child.try_wait().unwrap();
            assert!(ended.is_none(), "{ended:?}: {}", proxy.said());
            Endpoint::Tcp(address).is_open().then_some(())
        });
        proxy
    }

    /// nginx with this as its `http` part.
    fn nginx(http: &str) -> Self {
        let (folder, address) = (Folder::new(), own_address());
        let http = http.replace("listen 127.0.0.1:8080;", &format!("listen {address};"));
        let http = http.replace("127.0.0.1:8000", &app().to_string());
        let places = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {name};\n"));
        folder.write(
            "nginx.conf",
            &format!(
                "daemon off; pid nginx.pid; error_log stderr;\nevents {{}}\n\
                 http {{\naccess_log off;\n{}\n{http}\n}}\n",
                places.concat()
            ),
        );
        let mut command = tool("nginx");
        command
            .arg("-p")
            .arg(folder.path(""))
            .args(["-c", "nginx.conf", "-e", "stderr"]);
        Self::start(command, address, folder)
    }

    /// Caddy with this site.
    fn caddy(site: &str) -> Self {
        let (folder, address) = (Folder::new(), own_address());
        let site = site.replace("127.0.0.1:8000", &app().to_string());
        let global = format!(
            "{{\n\tadmin off\n\tauto_https off\n\tdefault_bind {}\n}}\n",
            address.ip()
        );
        folder.write("Caddyfile", &(global + &site));
        let mut command = tool("caddy");
        command.args(["run", "--adapter", "caddyfile", "--config"]);
        command.arg(folder.path("Caddyfile"));
        // It keeps things where these say.
        for name in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
            command.env(name, folder.path(""));
        }
        Self::start(command, address, folder)
    }

    fn connect(&self) -> Client {
        Endpoint::Tcp(self.address).connect()
    }

    /// One request, on a connection of its own.
    fn get(&self, path: &str, key: &str) -> Response {
        let header = format!("X-Api-Key: {key}");
        self.connect().request("GET", path, &[&header], b"")
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path("said")).unwrap_or_default()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Asked, not killed: it takes its workers along.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-s", "TERM", &pid]).status();
        let _ = self.child.wait();
        if thread::panicking() {
            eprintln!("the proxy said:\n{}", self.said());
        }
    }
}

/// The guide's configuration of nginx, asking at `door`: the one that fails closed, or the one that fails open.
fn http(door: &Endpoint, open: bool) -> String {
    patient(&hasty_http(door, open))
}

/// A configuration with more time for an answer.
fn patient(text: &str) -> String {
    assert_eq!(text.matches(" 100ms").count(), 1, "{text}");
    assert_eq!(text.matches(" 250ms").count(), 1, "{text}");
    text.replace(" 100ms", " 10s").replace(" 250ms", " 10s")
}

/// The same, with the guide's timeouts.
fn hasty_http(door: &Endpoint, open: bool) -> String {
    let blocks = guide("nginx.md", "nginx");
    let [closed, instead, ..] = &blocks[..] else {
        panic!("not two blocks: {blocks:?}");
    };
    let mut http = closed.clone();
    if open {
        let start = http.find("    location = /_limit {").unwrap();
        let length = http[start..].find("\n    }\n").unwrap() + "\n    }\n".len();
        http.replace_range(start..start + length, instead);
    }
    let to = match door {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => format!("unix:{}", path.display()),
    };
    assert_eq!(http.matches("server 127.0.0.1:7600;").count(), 1);
    http.replace("server 127.0.0.1:7600;", &format!("server {to};"))
}

/// Two pass and the third does not, each with what the limit is.
fn limits(proxy: &Proxy, key: &str) {
    for left in ["1", "0"] {
        let answer = proxy.get("/", key);
        assert_eq!((answer.status, answer.text().as_str()), (200, "app read 0"));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left));
        assert!(
            COUNTED.iter().all(|name| answer.header(name).is_some()),
            "{answer:?}"
        );
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = proxy.get("/", key);
    assert_eq!(denied.status, 429, "{key:?}: {denied:?}");
    assert!(
        COUNTED.iter().all(|name| denied.header(name).is_some()),
        "{denied:?}"
    );
    let wait: u32 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((43_000..=43_200).contains(&wait), "{wait}");
    assert_eq!(denied.header("content-type"), Some("application/json"));
    assert_eq!(denied.json()["error"]["code"], "RATE_LIMITED");
}

#[test]
fn nginx_limits_each_key() {
    let sidecar = sidecar();
    for door in sidecar.doors("http") {
        for open in [false, true] {
            let proxy = Proxy::nginx(&http(&door, open));
            let of = |name: &str| format!("{name}-{}-{open}", door.kind());
            limits(&proxy, &of("one"));
            limits(&proxy, &of("other"));
            // Whatever is in a key, it is a key.
            for hostile in [
                "x&peek=true",
                "x&hits_addend=0",
                "a b",
                "%26",
                "\"'#?/",
                "@x-api-key",
            ] {
                limits(&proxy, &of(hostile));
            }
        }
    }
}

#[test]
fn nginx_passes_bodies_and_the_apps_own_errors() {
    let sidecar = sidecar();
    let proxy = Proxy::nginx(&http(&sidecar.http(), false));
    let mut client = proxy.connect();
    let body = vec![b'x'; 300_000];
    let mut post = || client.request("POST", "/", &["X-Api-Key: post"], &body);
    let answers = [post(), post(), post(), post()];
    assert_eq!(
        answers.clone().map(|answer| answer.status),
        [200, 200, 429, 429]
    );
    assert_eq!(answers[0].text(), "app read 300000");
    for status in [403, 500] {
        let answer = proxy.get(&format!("/{status}"), "errors");
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (status, "app read 0")
        );
        assert!(answer.header("ratelimit").is_some(), "{answer:?}");
    }
    // Nobody asks from outside.
    assert_eq!(proxy.get("/_limit", "x").status, 404);
}

#[test]
fn nginx_fails_closed_or_open_as_configured() {
    for open in [false, true] {
        let sidecar = sidecar();
        for door in sidecar.doors("http") {
            let proxy = Proxy::nginx(&http(&door, open));
            // A key may be as long as it likes: that is no way around a limit.
            let key = format!("{}{}", "x".repeat(1025), door.kind());
            for left in ["1", "0"] {
                let answer = proxy.get("/", &key);
                let found = answer.header("x-ratelimit-remaining");
                assert_eq!((answer.status, found), (200, Some(left)), "{answer:?}");
            }
        }
        let [tcp, unix] = [0, 1].map(|nth| Proxy::nginx(&http(&sidecar.doors("http")[nth], open)));
        sidecar.kill();
        for proxy in [tcp, unix] {
            let answer = proxy.get("/", "gone");
            assert!(
                COUNTED.iter().all(|name| answer.header(name).is_none()),
                "{answer:?}"
            );
            if open {
                assert_eq!((answer.status, answer.text().as_str()), (200, "app read 0"));
            } else {
                assert_eq!(
                    (answer.status, answer.header("retry-after")),
                    (503, Some("1"))
                );
                assert_eq!(answer.json()["error"]["code"], "LIMITER_UNAVAILABLE");
            }
        }
    }
}

/// A daemon that took the connection and hangs is as one that is gone.
#[test]
fn nginx_does_not_wait_for_an_answer() {
    for (open, expected) in [(false, 503), (true, 200)] {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let door = Endpoint::Tcp(silent.local_addr().unwrap());
        let proxy = Proxy::nginx(&hasty_http(&door, open));
        assert_eq!(proxy.get("/", "hangs").status, expected);
    }
}

#[test]
fn nginx_takes_a_key_from_the_query() {
    let sidecar = sidecar();
    let map = guide("nginx.md", "nginx").swap_remove(2);
    let http = http(&sidecar.http(), false)
        .replace(
            "    location / {",
            "    location / {\n        set $api_key $limit_key;",
        )
        .replace("$http_x_api_key", "$api_key");
    let proxy = Proxy::nginx(&(map + &http));
    let statuses = |paths: [&str; 3]| paths.map(|path| proxy.get(path, "ignored").status);
    assert_eq!(
        statuses(["/?api_key=abc", "/?api_key=abc", "/?api_key=abc"]),
        [200, 200, 429]
    );
    // What would need decoding shares one bucket.
    assert_eq!(
        statuses(["/?api_key=%61bc", "/?api_key=a%26peek%3D1", "/"]),
        [200, 200, 429]
    );
}

#[test]
fn nginx_limits_each_address_whatever_the_client_says_it_is() {
    let sidecar = sidecar();
    let http = http(&sidecar.http(), false)
        .replace("#proxy_set_header X-F", "proxy_set_header X-F")
        .replace("&api_key=@x-api-key", "&remote_address=@x-forwarded-for");
    let proxy = Proxy::nginx(&http);
    let statuses = ["192.0.2.1", "192.0.2.2", "192.0.2.3"].map(|made_up| {
        let headers = [&format!("X-Forwarded-For: {made_up}")[..]];
        proxy.connect().request("GET", "/", &headers, b"").status
    });
    assert_eq!(statuses, [200, 200, 429]);
}

/// The question without headers, for what nginx knows by itself.
#[test]
fn nginx_asks_the_plain_check_for_an_address() {
    let sidecar = sidecar();
    let blocks = guide("nginx.md", "nginx");
    let plain = blocks.last().unwrap();
    let asked =
        "proxy_pass http://tidegate/v1/forward?domain=edge&deny_status=403&api_key=@x-api-key;";
    let http = http(&sidecar.http(), false).replace(asked, plain.trim());
    let proxy = Proxy::nginx(&http);
    limits(&proxy, "any");
    let other = proxy.get("/", "another-key");
    assert_eq!(other.status, 429, "one address: {other:?}");
}

#[test]
fn nginx_may_be_told_401() {
    let sidecar = sidecar();
    let http = http(&sidecar.http(), false)
        .replace("deny_status=403", "deny_status=401")
        .replace("error_page 403", "error_page 401");
    limits(&Proxy::nginx(&http), "x");
}

/// The guide's site for Caddy, asking at `door`.
fn site(nth: usize, door: &Endpoint) -> String {
    let site = &guide("nginx.md", "caddyfile")[nth];
    assert_eq!(site.matches("127.0.0.1:7600").count(), 1);
    let to = match door {
        Endpoint::Tcp(address) => address.to_string(),
        Endpoint::Unix(path) => format!("unix/{}", path.display()),
    };
    site.replace("127.0.0.1:7600", &to)
}

#[test]
fn caddy_limits_and_fails_closed() {
    let sidecar = sidecar();
    let proxies = sidecar.doors("http").into_iter().map(|door| {
        let proxy = Proxy::caddy(&site(0, &door));
        let key = format!("x&peek=true {}", door.kind());
        let answers = [0; 3].map(|_| proxy.get("/", &key));
        assert_eq!(answers.clone().map(|answer| answer.status), [200, 200, 429]);
        assert_eq!(answers[0].text(), "app read 0");
        let [.., denied] = answers;
        assert!(
            COUNTED.iter().all(|name| denied.header(name).is_some()),
            "{denied:?}"
        );
        assert!(denied.header("retry-after").is_some());
        assert_eq!(denied.json()["error"]["code"], "RATE_LIMITED");
        proxy
    });
    let proxies: Vec<_> = proxies.collect();
    sidecar.kill();
    for proxy in proxies {
        assert_eq!(proxy.get("/", "gone").status, 502);
    }
}

#[test]
fn caddy_tells_what_is_left_and_fails_open() {
    let sidecar = sidecar();
    let site = patient(&site(1, &sidecar.http()));
    let proxy = Proxy::caddy(&site);
    let body = vec![b'x'; 300_000];
    let post = |nth| {
        let made_up = format!("X-Forwarded-For: 192.0.2.{nth}");
        proxy.connect().request("POST", "/", &[&made_up], &body)
    };
    for left in [1, 0] {
        let answer = post(left);
        assert_eq!(
            (answer.status, answer.text().as_str()),
            (200, "app read 300000")
        );
        let state = answer.header("ratelimit").unwrap();
        assert!(
            state.starts_with(&format!("\"edge/remote_address\";r={left};")),
            "{state}"
        );
        assert!(answer.header("ratelimit-policy").is_some());
    }
    let denied = post(2);
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").is_some(), "{denied:?}");
    // What no rule is for passes.
    let unmatched = Proxy::caddy(&site.replace("domain=edge", "domain=nobody"));
    let answer = unmatched.get("/", "x");
    assert_eq!((answer.status, answer.text().as_str()), (200, "app read 0"));
    assert_eq!(answer.header("ratelimit"), None);
    sidecar.kill();
    let answer = post(3);
    assert_eq!(
        (answer.status, answer.text().as_str()),
        (200, "app read 300000")
    );
    assert_eq!(answer.header("ratelimit"), None);
}
