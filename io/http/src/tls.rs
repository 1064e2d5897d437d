//! TLS of a server, and the identity in a client's certificate.
//!
//! ```text
//!   --tls-cert, --tls-key ─► the server's certificate ┐
//!   --tls-client-ca ───────► the CA of proxies ───────┴► rustls, TLS 1.3 only
//!   client's certificate ──► common name = node, and its expiry
//! ```

use std::path::PathBuf;
use std::sync::Arc;

use api::credentials::{provider, read_authorities, read_certificates, read_key};
use api::{CredentialsError, is_name};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use rustls::server::WebPkiClientVerifier;
use rustls::version::TLS13;
use tokio_rustls::TlsAcceptor;
use x509_parser::parse_x509_certificate;

/// The files that a server needs for `https://` endpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// Its certificate, and those between it and the CA, PEM.
    pub cert: PathBuf,
    /// Its key, PEM, that other users may not read.
    pub key: PathBuf,
    /// The CA of proxies' certificates, PEM; `None`: proxies use tokens.
    pub client_ca: Option<PathBuf>,
}

/// The TLS of a server, made of its files.
#[derive(Clone, Debug)]
pub struct ServerTls(Arc<ServerConfig>);

/// The identity of a client by its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The name of the proxy that the certificate is for.
    pub node: String,
    /// Its expiry, in seconds since 1970: a connection may live for longer.
    pub ends_s: u64,
}

impl TlsFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If one cannot be read or is not valid, or others may read the key.
    pub fn read(&self) -> Result<ServerTls, CredentialsError> {
        let chain = read_certificates(&self.cert)?;
        let key = read_key(&self.key)?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider speaks TLS 1.3");
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let roots = Arc::new(read_authorities(path)?);
                // A client without a certificate needs a token; one with a wrong certificate is
                // refused.
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider())
                    .allow_unauthenticated()
                    .build()
                    .expect("there is an authority, and no list of revoked certificates");
                config.with_client_cert_verifier(verifier)
            }
        };
        let wrong = |source| CredentialsError::Tls { path: self.cert.clone(), source };
        let config = config.with_single_cert(chain, key).map_err(wrong)?;
        Ok(ServerTls(Arc::new(config)))
    }
}

impl ServerTls {
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        self.0.clone().into()
    }
}

impl ClientCertificate {
    /// Returns the identity in a certificate that rustls has checked; `None` if its common name
    /// cannot be a proxy's.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Option<ClientCertificate> {
        let (_, parsed) = parse_x509_certificate(certificate).ok()?;
        let mut names = parsed.subject().iter_common_name();
        let node = names.next()?.as_str().ok().filter(|name| is_name(name))?.to_owned();
        let ends = parsed.validity().not_after.timestamp();
        // With two names it is ambiguous.
        let only = names.next().is_none();
        only.then_some(ClientCertificate { node, ends_s: u64::try_from(ends).unwrap_or(0) })
    }
}
