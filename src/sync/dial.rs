//! A stream to a server, over TCP, TLS or a Unix socket.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;

use super::address::Address;

/// Bytes there and back.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Certificates as files have them: PEM.
#[derive(Clone, Debug, Default)]
pub(super) struct Certificates {
    /// Whom to trust; without one the system's list.
    pub(super) ca: Option<Vec<u8>>,
    /// Our certificate and its key.
    pub(super) own: Option<(Vec<u8>, Vec<u8>)>,
}

impl Certificates {
    /// What speaks TLS with them. `None` if they are none; why is not said, because it might quote the key.
    pub(super) fn connector(&self) -> Option<TlsConnector> {
        // Another dependency may bring a second provider, and then none would be the default. A failure says there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut trusted = RootCertStore::empty();
        match &self.ca {
            Some(pem) => {
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    trusted.add(certificate.ok()?).ok()?;
                }
            }
            None => {
                trusted.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let config = ClientConfig::builder().with_root_certificates(trusted);
        let config = match &self.own {
            Some((certificates, key)) => {
                let chain = CertificateDer::pem_slice_iter(certificates);
                let chain = chain.collect::<Result<Vec<_>, _>>().ok()?;
                let key = PrivateKeyDer::from_pem_slice(key).ok()?;
                config.with_client_auth_cert(chain, key).ok()?
            }
            None => config.with_no_client_auth(),
        };
        Some(TlsConnector::from(Arc::new(config)))
    }
}

/// A new stream to the server at `address`.
pub(super) async fn dial(
    address: &Address,
    tls: Option<&TlsConnector>,
) -> io::Result<Box<dyn Stream>> {
    match (address, tls) {
        (Address::Unix(path), _) => dial_unix(path).await,
        (Address::Tcp(host, port), None) => Ok(Box::new(dial_tcp(host, *port).await?)),
        (Address::Tcp(host, port), Some(tls)) => {
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let stream = dial_tcp(host, *port).await?;
            Ok(Box::new(tls.connect(name, stream).await?))
        }
    }
}

async fn dial_unix(path: &Path) -> io::Result<Box<dyn Stream>> {
    Ok(Box::new(UnixStream::connect(path).await?))
}

/// All addresses of a host at once: one of them may not answer.
async fn dial_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut dialled = JoinSet::new();
    for address in lookup_host((host, port)).await? {
        dialled.spawn(TcpStream::connect(address));
    }
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(ended) = dialled.join_next().await {
        match ended.map_err(io::Error::other).flatten() {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => failure = error,
        }
    }
    Err(failure)
}
