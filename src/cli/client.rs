//! Sends one HTTP request to a running sidecar, over TCP or a Unix socket.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use tidegate_config::Address;

/// The longest time for a request, from connecting to the last byte of the answer.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// The longest answer. The longest page of a sidecar is far shorter.
const ANSWER_BYTES_MAX: usize = 4 << 20;

/// Why a request got no answer.
pub type ClientError = Box<dyn std::error::Error + Send + Sync>;

/// A request to a sidecar.
#[derive(Clone, Debug)]
pub struct SidecarRequest<'a> {
    /// The HTTP method.
    pub method: Method,
    /// The path, with its query.
    pub path: &'a str,
    /// The body, in JSON.
    pub body: Option<String>,
    /// The token of the admin listener, if it requires one.
    pub token: Option<&'a str>,
}

impl<'a> SidecarRequest<'a> {
    /// A `GET` of this path.
    pub fn get(path: &'a str) -> Self {
        Self {
            method: Method::GET,
            path,
            body: None,
            token: None,
        }
    }

    /// Sends the request on a new connection, and waits for the answer.
    pub fn send(self, to: &Address) -> Result<SidecarAnswer, ClientError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(self.send_async(to))
    }

    /// The same, from within a runtime.
    pub async fn send_async(self, to: &Address) -> Result<SidecarAnswer, ClientError> {
        let answer = async {
            match to {
                Address::Tcp(address) => self.send_over(TcpStream::connect(address).await?).await,
                Address::Unix(path) => self.send_over(UnixStream::connect(path).await?).await,
            }
        };
        tokio::time::timeout(REQUEST_TIME_MAX, answer).await?
    }

    async fn send_over<T>(self, stream: T) -> Result<SidecarAnswer, ClientError>
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
        Ok(SidecarAnswer { status, body })
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

/// The answer of a sidecar.
#[derive(Clone, Debug)]
pub struct SidecarAnswer {
    /// The HTTP status.
    pub status: StatusCode,
    /// The whole body.
    pub body: Bytes,
}
