//! Credentials of a caller, and the CA that it trusts to verify a controller.
//!
//! ```text
//!   --ca FILE ────────► authorities ─┐
//!   --cert, --key ────► certificate ─┴► rustls, TLS 1.3 ─► https:// endpoints
//!   --token-file FILE ► slc_… ───────► Authorization: Bearer, never unencrypted to others, and
//!                                      never to a controller that nobody named
//! ```
//!
//! The command, proxies and controllers use it, and the library of programs: it needs no runtime.
//!
//! Files are read when a client is made. A file with a secret is refused if other users may read
//! it, because they may have a copy already, or if another user could have written it.

use std::fmt;
use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};

use crate::{Endpoint, Endpoints, PrivateFileError, check_owner};

/// The token and certificate of a caller, and the CA that it trusts. The default is none, which
/// is enough for a controller of this machine that has no tokens.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Credentials {
    /// The CAs that sign the certificates of controllers, PEM.
    pub ca: Option<PathBuf>,
    /// The file with the token.
    pub token_file: Option<PathBuf>,
    /// The token itself; takes precedence over the file.
    pub token: Option<String>,
    /// The caller's certificate, PEM.
    pub cert: Option<PathBuf>,
    /// The file with the certificate's private key, PEM.
    pub key: Option<PathBuf>,
}

/// Why credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file that cannot be read.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: io::Error,
    },
    /// A secret that other users may read.
    #[error(
        "{} has mode {mode:04o}, so others may read it; make a new secret and chmod 600 it",
        path.display()
    )]
    Exposed {
        /// The file that others can read.
        path: PathBuf,
        /// Its permission bits, as in chmod(2).
        mode: u32,
    },
    /// A secret that another user could have written.
    #[error(transparent)]
    Private(#[from] PrivateFileError),
    /// A file without the expected content.
    #[error("{} contains no {what}", path.display())]
    Empty {
        /// The file without the content.
        path: PathBuf,
        /// The expected content, such as `private key as PEM`.
        what: &'static str,
    },
    /// Text that cannot be a token.
    #[error("{origin} is not a token such as slc_…: slc_ with letters, digits, _ and - after it")]
    Token {
        /// The file or variable.
        origin: String,
    },
    /// A certificate without its key, or a key without its certificate.
    #[error("a certificate and its key require each other; give both or neither")]
    Half,
    /// An `https://` endpoint without a CA to verify it.
    #[error(
        "cannot verify {at} without a CA; give the file of the CA that signed its certificate \
         (SLUICE_CA, or of a command --ca FILE)"
    )]
    NoAuthority {
        /// The endpoint to connect to.
        at: String,
    },
    /// A token that would be sent to another machine unencrypted.
    #[error("the token would be sent to {at} unencrypted; use https://{at}")]
    Clear {
        /// The endpoint as host and port.
        at: String,
    },
    /// A token, but no controller that it is for.
    #[error(
        "there is a token, but no controller is named: set SLUICE_CONTROLLER, or give a command \
         --controller URL, as the token would be sent to any process that listens at \
         {DEFAULT_CONTROLLER}"
    )]
    NoController,
    /// A certificate and a key that do not match or are not valid.
    #[error("{} and its key are not a valid certificate and private key", path.display())]
    Tls {
        /// The file with the certificate.
        path: PathBuf,
        /// The error of the TLS library.
        #[source]
        source: rustls::Error,
    },
    /// Certificates that are not valid as CA certificates.
    #[error("{} is not a valid CA certificate: PEM is expected", path.display())]
    Authority {
        /// The file with the CA certificates.
        path: PathBuf,
        /// The error of the TLS library.
        #[source]
        source: rustls::Error,
    },
}

impl Credentials {
    /// Returns the token, if there is one.
    ///
    /// # Errors
    /// If its file cannot be read, may be read by others or holds something else.
    pub fn token(&self) -> Result<Option<String>, CredentialsError> {
        let (text, place) = match (&self.token, &self.token_file) {
            (Some(token), _) => (token.clone(), "SLUICE_TOKEN".to_owned()),
            (None, Some(path)) => {
                let bytes = read_secret(path)?;
                (String::from_utf8_lossy(&bytes).into_owned(), path.display().to_string())
            }
            (None, None) => return Ok(None),
        };
        let token = text.trim();
        match is_token(token) {
            true => Ok(Some(token.to_owned())),
            false => Err(CredentialsError::Token { origin: place }),
        }
    }

    /// Returns the token that is sent to these endpoints, if there is one.
    ///
    /// # Errors
    /// If it cannot be read, or would be sent to another machine unencrypted.
    pub fn token_for(&self, endpoints: &Endpoints) -> Result<Option<String>, CredentialsError> {
        let token = self.token()?;
        match endpoints.all().iter().find(|at| token.is_some() && !at.is_private()) {
            Some(at) => Err(CredentialsError::Clear { at: at.name() }),
            None => Ok(token),
        }
    }

    /// Returns the controllers that are named, or [`DEFAULT_CONTROLLER`].
    ///
    /// # Errors
    /// If none is named and there is a token: any user of the machine may listen at the default
    /// endpoint while the controller does not.
    pub fn controllers(&self, named: Option<Endpoints>) -> Result<Endpoints, CredentialsError> {
        match named {
            Some(named) => Ok(named),
            None if self.token.is_some() || self.token_file.is_some() => {
                Err(CredentialsError::NoController)
            }
            None => Ok(DEFAULT_CONTROLLER.parse().expect("it is an endpoint")),
        }
    }

    /// Returns the TLS configuration, if a CA is given.
    ///
    /// # Errors
    /// If a file cannot be read or is not valid.
    pub fn tls(&self) -> Result<Option<Arc<ClientConfig>>, CredentialsError> {
        let pair = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            _ => return Err(CredentialsError::Half),
        };
        let Some(ca) = &self.ca else { return Ok(None) };
        let roots = read_authorities(ca)?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&TLS13])
            .expect("the provider speaks TLS 1.3")
            .with_root_certificates(roots);
        let config = match pair {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = read_certificates(cert)?;
                let wrong = |source| CredentialsError::Tls { path: cert.clone(), source };
                config.with_client_auth_cert(chain, read_key(key)?).map_err(wrong)?
            }
        };
        Ok(Some(Arc::new(config)))
    }
}

/// Shows whether there is a token, not its text.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("ca", &self.ca)
            .field("token_file", &self.token_file)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("cert", &self.cert)
            .field("key", &self.key)
            .finish()
    }
}

/// The error of an `https://` endpoint without a CA.
pub fn no_ca(at: &Endpoint) -> CredentialsError {
    CredentialsError::NoAuthority { at: at.name() }
}

/// The controller of this machine, where none is named.
pub const DEFAULT_CONTROLLER: &str = "http://127.0.0.1:5650";
/// The prefix of every token, so that a search for leaked tokens finds them.
pub const TOKEN_PREFIX: &str = "slc_";

/// Whether this has the form of a token.
fn is_token(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    let rest = text.strip_prefix(TOKEN_PREFIX).unwrap_or_default();
    !rest.is_empty() && rest.len() <= TOKEN_BYTES_MAX && rest.bytes().all(plain)
}

/// The algorithms of TLS, those of ring.
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// The certificates of a PEM file, in its order.
///
/// # Errors
/// If it cannot be read or holds none.
pub fn read_certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let text = read_bounded(path, false)?;
    let certificates = CertificateDer::pem_slice_iter(&text).collect::<Result<Vec<_>, _>>();
    match certificates {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(CredentialsError::Empty { path: path.into(), what: "certificate as PEM" }),
    }
}

/// Reads the CA certificates of a PEM file.
///
/// # Errors
/// If it cannot be read, or one of them is not valid.
pub fn read_authorities(path: &Path) -> Result<RootCertStore, CredentialsError> {
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(path)? {
        let wrong = |source| CredentialsError::Authority { path: path.into(), source };
        roots.add(certificate).map_err(wrong)?;
    }
    Ok(roots)
}

/// Reads the private key of a PEM file that other users may not read.
///
/// # Errors
/// If it cannot be read, others may read it, or it holds none.
pub fn read_key(path: &Path) -> Result<PrivateKeyDer<'static>, CredentialsError> {
    let nothing = |_| CredentialsError::Empty { path: path.into(), what: "private key as PEM" };
    PrivateKeyDer::from_pem_slice(&read_secret(path)?).map_err(nothing)
}

/// Reads a file that other users may not read.
///
/// # Errors
/// If it cannot be read, other users may read it, or another user could have written it.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, CredentialsError> {
    read_bounded(path, true)
}

fn read_bounded(path: &Path, secret: bool) -> Result<Vec<u8>, CredentialsError> {
    let failed = |source| CredentialsError::Read { path: path.into(), source };
    // It does not wait for a pipe.
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(failed)?;
    let found = file.metadata().map_err(failed)?;
    if !found.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    let mode = found.mode() & 0o7777;
    if secret && mode & 0o077 != 0 {
        return Err(CredentialsError::Exposed { path: path.into(), mode });
    }
    if secret {
        check_owner(path, found.uid())?;
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(failed(io::Error::other(format!("more than {FILE_BYTES_MAX} bytes"))));
    }
    Ok(bytes)
}

/// The longest text after the prefix: 32 random bytes take 43.
const TOKEN_BYTES_MAX: usize = 128;
/// The largest file of certificates, keys or tokens: a hundred authorities.
const FILE_BYTES_MAX: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn file(name: &str, text: &str, mode: u32) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sluice-{}-{name}", std::process::id()));
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn a_token_comes_from_its_variable_before_its_file_and_without_blanks() {
        let path = file("token", "slc_abc-_9\n", 0o600);
        let mut credentials = Credentials { token_file: Some(path), ..Credentials::default() };
        assert_eq!(credentials.token().unwrap().as_deref(), Some("slc_abc-_9"));
        credentials.token = Some("slc_x".into());
        assert_eq!(credentials.token().unwrap().as_deref(), Some("slc_x"));
        assert!(!format!("{credentials:?}").contains("slc_x"));
        assert_eq!(Credentials::default().token().unwrap(), None);
    }

    #[test]
    fn a_secret_that_others_may_read_is_refused_with_its_mode() {
        for mode in [0o640, 0o604, 0o660] {
            let path = file(&format!("exposed-{mode:o}"), "slc_a", mode);
            let credentials = Credentials { token_file: Some(path), ..Credentials::default() };
            let error = credentials.token().unwrap_err().to_string();
            assert!(error.contains(&format!("mode {mode:04o}")), "{error}");
        }
    }

    #[test]
    fn a_secret_that_somebody_else_put_there_is_refused() {
        if !testkit::root_here() {
            return;
        }
        let path = file("planted", "slc_a", 0o600);
        std::os::unix::fs::chown(&path, Some(65_534), None).unwrap();
        let refused = read_secret(&path).unwrap_err();
        assert!(matches!(
            refused,
            CredentialsError::Private(PrivateFileError::Owner { uid: 65_534, .. })
        ));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_is_no_token_is_not_sent_and_not_shown() {
        for text in ["", "abc", "slc_", "slc_a b", "slc_a\r\nx: y", &format!("slc_{:0200}", 1)] {
            let token = Some(text.to_owned());
            let credentials = Credentials { token, ..Credentials::default() };
            let error = credentials.token().unwrap_err().to_string();
            assert!(error.starts_with("SLUICE_TOKEN is not a token"), "{error}");
        }
    }

    #[test]
    fn a_token_goes_to_a_controller_that_was_named_and_never_unencrypted_to_others() {
        let none = Credentials::default();
        assert_eq!(none.controllers(None).unwrap().to_string(), DEFAULT_CONTROLLER);
        let of_variable = Credentials { token: Some("slc_a".into()), ..Credentials::default() };
        let file = Some(file("named", "slc_a", 0o600));
        let of_file = Credentials { token_file: file, ..Credentials::default() };
        for credentials in [of_variable, of_file] {
            let error = credentials.controllers(None).unwrap_err();
            assert!(matches!(error, CredentialsError::NoController));
            assert!(error.to_string().contains("SLUICE_CONTROLLER"), "{error}");
            let named: Endpoints = "http://127.0.0.1:5650,http://io:1".parse().unwrap();
            assert_eq!(credentials.controllers(Some(named.clone())).unwrap(), named);
            let error = credentials.token_for(&named).unwrap_err().to_string();
            assert!(error.contains("use https://io:1"), "{error}");
            assert_eq!(none.token_for(&named).unwrap(), None);
            let named = "http://127.0.0.1:5650,https://io:1".parse().unwrap();
            assert_eq!(credentials.token_for(&named).unwrap().as_deref(), Some("slc_a"));
        }
    }

    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = testkit::TestFolder::new();
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(matches!(read_secret(&path), Err(CredentialsError::Read { .. })));
    }

    #[test]
    fn files_that_hold_something_else_are_named() {
        let path = file("no-pem", "hello", 0o600);
        assert!(read_certificates(&path).unwrap_err().to_string().contains("no certificate"));
        assert!(read_key(&path).unwrap_err().to_string().contains("no private key"));
        let missing = read_authorities(Path::new("/nonexistent/ca")).unwrap_err().to_string();
        assert_eq!(missing, "cannot read /nonexistent/ca");
        let half = Credentials { cert: Some(path), ..Credentials::default() };
        assert!(matches!(half.tls(), Err(CredentialsError::Half)));
    }
}
