//! One request to a running sidecar, over TCP or a Unix socket.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use tidegate_config::Address;

/// How long to wait for an answer, from connecting to its last byte.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest answer. A sidecar's longest page is far below.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Why there is no answer.
pub type Fault = Box<dyn std::error::Error + Send + Sync>;

/// What to ask.
#[derive(Clone, Debug)]
pub struct Question<'a> {
    /// `GET`, or what else.
    pub method: Method,
    /// The path, with its query.
    pub path: &'a str,
    /// JSON to send, if any.
    pub body: Option<String>,
    /// What the admin listener asks for, if it does.
    pub token: Option<&'a str>,
}

impl<'a> Question<'a> {
    /// What is at this path?
    pub fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            token: None,
        }
    }

    /// Asks, on a connection of its own.
    pub fn ask(self, to: &Address) -> Result<Answer, Fault> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.send(to))
    }

    /// Asks where others wait, too.
    pub async fn send(self, to: &Address) -> Result<Answer, Fault> {
        let answer = async {
            match to {
                Address::Tcp(address) => self.send_over(TcpStream::connect(address).await?).await,
                Address::Unix(path) => self.send_over(UnixStream::connect(path).await?).await,
            }
        };
        tokio::time::timeout(PATIENCE, answer).await?
    }

    async fn send_over<T>(self, stream: T) -> Result<Answer, Fault>
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let request = self.request()?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let body = body.collect().await?.to_bytes();
        connection.abort();
        Ok(Answer { status, body })
    }

    fn request(self) -> Result<Request<Full<Bytes>>, hyper::http::Error> {
        let mut request = Request::builder()
            .method(self.method)
            .uri(self.path)
            .header(HOST, "localhost");
        if let Some(token) = self.token {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        if self.body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        request.body(Full::new(Bytes::from(self.body.unwrap_or_default())))
    }
}

/// What was answered.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}
