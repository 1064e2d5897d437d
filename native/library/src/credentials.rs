//! The token, the certificate and the CA of a handle, by the rules of the command: a secret that
//! others may read, or that another user may have written, is refused.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::check_owner;
use rustix::fs::OFlags;
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use crate::error::CallError;

/// The files of a caller; each may be absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct CredentialFiles {
    pub(crate) ca: Option<PathBuf>,
    pub(crate) token: Option<PathBuf>,
    pub(crate) cert: Option<PathBuf>,
    pub(crate) key: Option<PathBuf>,
}

impl CredentialFiles {
    /// Reads the token.
    pub(crate) fn read_token(&self) -> Result<Option<String>, CallError> {
        let Some(path) = &self.token else { return Ok(None) };
        let bytes = read_bounded(path, true)?;
        let text = String::from_utf8_lossy(&bytes);
        let token = text.trim();
        match is_token(token) {
            true => Ok(Some(token.to_owned())),
            false => Err(CallError::settings(format!(
                "{} holds no token such as slc_…: slc_ with letters, digits, _ and - after it",
                path.display()
            ))),
        }
    }

    /// Makes the configuration of TLS 1.3; none without a CA.
    pub(crate) fn read_tls(&self) -> Result<Option<Arc<ClientConfig>>, CallError> {
        let pair = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => {
                let text = "a certificate and its key require each other; give both or neither";
                return Err(CallError::settings(text));
            }
        };
        let Some(ca) = &self.ca else { return Ok(None) };
        let mut roots = RootCertStore::empty();
        for certificate in read_certificates(ca)? {
            roots.add(certificate).map_err(|error| {
                CallError::settings(format!("{} is not a CA certificate: {error}", ca.display()))
            })?;
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .map_err(CallError::settings)?
            .with_root_certificates(roots);
        let mut config = match pair {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let text = read_bounded(key, true)?;
                let key = PrivateKeyDer::from_pem_slice(&text).map_err(|_| {
                    CallError::settings(format!("{} holds no private key", key.display()))
                })?;
                config.with_client_auth_cert(read_certificates(cert)?, key).map_err(|error| {
                    CallError::settings(format!("{} does not fit: {error}", cert.display()))
                })?
            }
        };
        // A ticket would be state that calls and a forked child share.
        config.resumption = Resumption::disabled();
        Ok(Some(Arc::new(config)))
    }
}

fn is_token(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let rest = text.strip_prefix("slc_").unwrap_or_default();
    !rest.is_empty() && rest.len() <= TOKEN_BYTES_MAX && rest.bytes().all(plain)
}

fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CallError> {
    let text = read_bounded(path, false)?;
    match CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(CallError::settings(format!("{} holds no certificate as PEM", path.display()))),
    }
}

fn read_bounded(path: &Path, secret: bool) -> Result<Vec<u8>, CallError> {
    let shown = path.display();
    let failed = |error| CallError::settings(format!("cannot read {shown}: {error}"));
    // It does not wait for a pipe.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(CallError::settings(format!("{shown} is not a regular file")));
    }
    let mode = found.mode() & 0o7777;
    if secret && mode & 0o077 != 0 {
        return Err(CallError::settings(format!(
            "{shown} has mode {mode:04o}, so others may read it; make a new secret and chmod 600 it"
        )));
    }
    if secret {
        check_owner(path, found.uid()).map_err(CallError::settings)?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    match bytes.len() as u64 > FILE_BYTES_MAX {
        true => Err(CallError::settings(format!("{shown} has more than {FILE_BYTES_MAX} bytes"))),
        false => Ok(bytes),
    }
}

/// The longest text after the prefix of a token.
const TOKEN_BYTES_MAX: usize = 128;
/// The largest file of certificates, keys or tokens.
const FILE_BYTES_MAX: u64 = 256 << 10;
