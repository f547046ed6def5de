//! Opens a stream to a server, over TCP, TLS or a Unix socket. It knows nothing of what is sent on it.

use std::fmt;
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

use super::address::StoreAddress;

/// A stream of bytes in both directions.
pub(super) trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for S {}

/// Certificates in PEM, as the files hold them.
#[derive(Clone, Debug, Default)]
pub(super) struct Certificates {
    /// The authorities to trust. Without them, those of the system.
    pub(super) ca: Option<Vec<u8>>,
    /// The client's own certificate.
    pub(super) own: Option<OwnCertificate>,
}

/// The certificate chain of this client, and its private key.
#[derive(Clone)]
pub(super) struct OwnCertificate {
    pub(super) chain: Vec<u8>,
    pub(super) key: Vec<u8>,
}

impl fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OwnCertificate(..)")
    }
}

impl Certificates {
    /// A TLS client with these certificates. `None` if they cannot be read; the reason is left out, because it might
    /// quote the key.
    pub(super) fn connector(&self) -> Option<TlsConnector> {
        // With a second provider in the binary, from any dependency, there would be no default. It fails if one is
        // already installed, which is as good.
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
            Some(OwnCertificate { chain, key }) => {
                let chain = CertificateDer::pem_slice_iter(chain);
                let chain = chain.collect::<Result<Vec<_>, _>>().ok()?;
                let key = PrivateKeyDer::from_pem_slice(key).ok()?;
                config.with_client_auth_cert(chain, key).ok()?
            }
            None => config.with_no_client_auth(),
        };
        Some(TlsConnector::from(Arc::new(config)))
    }
}

/// Opens a stream to the server at `address`.
pub(super) async fn dial(
    address: &StoreAddress,
    tls: Option<&TlsConnector>,
) -> io::Result<Box<dyn ByteStream>> {
    match (address, tls) {
        (StoreAddress::Unix(path), _) => dial_unix(path).await,
        (StoreAddress::Tcp(host, port), None) => Ok(Box::new(dial_tcp(host, *port).await?)),
        (StoreAddress::Tcp(host, port), Some(tls)) => {
            let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
            let stream = dial_tcp(host, *port).await?;
            Ok(Box::new(tls.connect(name, stream).await?))
        }
    }
}

async fn dial_unix(path: &Path) -> io::Result<Box<dyn ByteStream>> {
    Ok(Box::new(UnixStream::connect(path).await?))
}

/// Tries all addresses of a host at once, because some may not answer. The first to connect wins.
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
