//! An HTTP/1.1 client that sends exactly the bytes it is given, over TCP or a Unix socket.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer takes: a test that hangs fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where a daemon listens.
#[derive(Clone, Debug)]
pub enum Endpoint {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl Endpoint {
    pub fn connect(&self) -> Client {
        self.try_connect()
            .unwrap_or_else(|error| panic!("connect to {self:?}: {error}"))
    }

    pub fn try_connect(&self) -> std::io::Result<Client> {
        let stream = match self {
            Self::Tcp(address) => SocketStream::Tcp(TcpStream::connect(address)?),
            Self::Unix(path) => SocketStream::Unix(UnixStream::connect(path)?),
        };
        let client = Client {
            stream,
            read: Vec::new(),
        };
        client.patience(PATIENCE);
        Ok(client)
    }

    pub fn is_open(&self) -> bool {
        self.try_connect().is_ok()
    }

    /// One GET on a connection of its own.
    pub fn get(&self, path: &str) -> Response {
        self.connect().get(path)
    }

    /// `tcp` or `unix`, for messages and file names.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            Self::Unix(_) => "unix",
        }
    }

    /// The address as `--to` takes it.
    pub fn to(&self) -> String {
        match self {
            Self::Tcp(address) => address.to_string(),
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

#[derive(Debug)]
enum SocketStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// One connection.
#[derive(Debug)]
pub struct Client {
    stream: SocketStream,
    /// Bytes that were read and not yet returned.
    read: Vec<u8>,
}

impl Client {
    /// How long a read or a write may take.
    pub fn patience(&self, patience: Duration) {
        let patience = Some(patience);
        match &self.stream {
            SocketStream::Tcp(stream) => stream
                .set_read_timeout(patience)
                .and_then(|()| stream.set_write_timeout(patience)),
            SocketStream::Unix(stream) => stream
                .set_read_timeout(patience)
                .and_then(|()| stream.set_write_timeout(patience)),
        }
        .unwrap();
    }

    /// Sends bytes. False if the other side has closed.
    pub fn send(&mut self, bytes: &[u8]) -> bool {
        match &mut self.stream {
            SocketStream::Tcp(stream) => stream.write_all(bytes),
            SocketStream::Unix(stream) => stream.write_all(bytes),
        }
        .is_ok()
    }

    /// Closes the sending half.
    pub fn end_sending(&self) {
        let _ = match &self.stream {
            SocketStream::Tcp(stream) => stream.shutdown(Shutdown::Write),
            SocketStream::Unix(stream) => stream.shutdown(Shutdown::Write),
        };
    }

    /// The next response, or `None` if the connection ended before one began.
    pub fn receive(&mut self) -> Option<Response> {
        let head = loop {
            if let Some(end) = find(&self.read, b"\r\n\r\n") {
                let rest = self.read.split_off(end + 4);
                break std::mem::replace(&mut self.read, rest);
            }
            if !self.more() {
                assert!(self.read.is_empty(), "half a head: {:?}", lossy(&self.read));
                return None;
            }
        };
        let mut response = Response::of_head(&head);
        let length: usize = match response.header("content-length") {
            Some(length) => length.parse().unwrap(),
            None => 0,
        };
        while self.read.len() < length {
            assert!(self.more(), "half a body: {:?}", lossy(&self.read));
        }
        let rest = self.read.split_off(length);
        response.body = std::mem::replace(&mut self.read, rest);
        Some(response)
    }

    /// The next line without its end, or `None` if the connection ended before one.
    pub fn line(&mut self) -> Option<String> {
        loop {
            if let Some(end) = find(&self.read, b"\r\n") {
                let rest = self.read.split_off(end + 2);
                let line = std::mem::replace(&mut self.read, rest);
                return Some(lossy(&line[..end]));
            }
            if !self.more() {
                return None;
            }
        }
    }

    /// Everything up to the end of the connection, whether or not it is HTTP.
    pub fn receive_any(&mut self) -> Option<String> {
        while self.more() {}
        let read = std::mem::take(&mut self.read);
        (!read.is_empty()).then(|| lossy(&read))
    }

    /// The next response, which has to come.
    pub fn response(&mut self) -> Response {
        self.receive().expect("connection closed, no response")
    }

    /// Whether the other side closed without sending more.
    pub fn is_closed(&mut self) -> bool {
        !self.more() && self.read.is_empty()
    }

    pub fn get(&mut self, path: &str) -> Response {
        self.request("GET", path, &[], b"")
    }

    pub fn post(&mut self, path: &str, body: &str) -> Response {
        self.request("POST", path, &[], body.as_bytes())
    }

    pub fn request(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Response {
        self.send(&request(method, path, headers, body));
        self.response()
    }

    /// Reads once. False at the end of the connection.
    fn more(&mut self) -> bool {
        let mut buffer = [0; 16 * 1024];
        let read = match &mut self.stream {
            SocketStream::Tcp(stream) => stream.read(&mut buffer),
            SocketStream::Unix(stream) => stream.read(&mut buffer),
        };
        match read {
            Ok(0) => false,
            Ok(length) => {
                self.read.extend_from_slice(&buffer[..length]);
                true
            }
            Err(error)
                if matches!(
                    error.kind(),
                    ErrorKind::ConnectionReset | ErrorKind::BrokenPipe
                ) =>
            {
                false
            }
            // A signal interrupted the read.
            Err(error) if error.kind() == ErrorKind::Interrupted => self.more(),
            Err(error) => panic!("read: {error}, after {:?}", lossy(&self.read)),
        }
    }
}

/// A request as bytes. A `Host` among `headers` replaces the usual one.
pub fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let mut text = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|header| header.starts_with("Host:")) {
        text += "Host: localhost\r\n";
    }
    for header in headers {
        text += &format!("{header}\r\n");
    }
    if method == "POST" || !body.is_empty() {
        text += &format!("Content-Length: {}\r\n", body.len());
    }
    let mut bytes = (text + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    fn of_head(head: &[u8]) -> Self {
        let head = std::str::from_utf8(head).unwrap();
        let mut lines = head.trim_end().split("\r\n");
        let status = lines
            .next()
            .and_then(|line| line.strip_prefix("HTTP/1.1 "))
            .and_then(|line| line.get(..3))
            .and_then(|status| status.parse().ok())
            .unwrap_or_else(|| panic!("no status line: {head:?}"));
        let headers = lines
            .map(|line| line.split_once(": ").expect(line))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        Self {
            status,
            headers,
            body: Vec::new(),
        }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let mut found = self.headers.iter().filter(|(known, _)| known == name);
        let value = found.next().map(|(_, value)| value.as_str());
        assert!(found.next().is_none(), "{name} twice: {self:?}");
        value
    }

    pub fn text(&self) -> String {
        lossy(&self.body)
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }

    /// `error.message`.
    pub fn message(&self) -> String {
        self.json()["error"]["message"]
            .as_str()
            .unwrap_or_else(|| panic!("no error.message: {} {}", self.status, self.text()))
            .to_owned()
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
