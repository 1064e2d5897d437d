//! `sluice cert`: certificates of controllers and proxies for sites without an authority of their own.
//!
//! ```text
//!   ca DIR        ─► ca.key (0600), ca.pem ─┐
//!   issue DIR NAME ─────────────────────────┴ signs ─► NAME.key (0600), NAME.pem
//! ```

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use clap::Subcommand;
use http::credentials::read_secret;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::when::{self, MomentArg, forms_of_expiry};

/// Create a certificate authority and the certificates that it signs
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: CertAction,
}

const AFTER_HELP: &str = "\
Keep ca.key away from controllers and proxies: anybody with ca.key can impersonate any of them.
Controllers, proxies and their clients need ca.pem.

Examples:
  sluice cert ca /etc/sluice/tls
  sluice cert issue /etc/sluice/tls c1 --host c1.site --host 192.0.2.1
  sluice cert issue /etc/sluice/tls node17 --client --expires 30d";

#[derive(Debug, Subcommand)]
enum CertAction {
    /// Create a certificate authority: DIR/ca.pem and DIR/ca.key
    #[command(after_help = forms_of_expiry!())]
    Ca {
        /// Directory; created if it does not exist.
        dir: PathBuf,
        /// Expiry of the certificate.
        #[arg(long, value_name = "TIME", default_value = "3650d", value_parser = when::expiry,
              allow_hyphen_values = true)]
        expires: MomentArg,
    },
    /// Create a signed certificate: DIR/NAME.pem and DIR/NAME.key
    #[command(after_help = forms_of_expiry!())]
    Issue {
        /// Directory of the certificate authority.
        dir: PathBuf,
        /// Name of a controller or, with --client, of a proxy (its --name).
        name: String,
        /// Host name or address of the controller; may be repeated [default: NAME]
        #[arg(long, value_name = "HOST", conflicts_with = "client")]
        host: Vec<String>,
        /// Client certificate, for a proxy or a standby controller.
        #[arg(long)]
        client: bool,
        /// Expiry of the certificate.
        #[arg(long, value_name = "TIME", default_value = "365d", value_parser = when::expiry,
              allow_hyphen_values = true)]
        expires: MomentArg,
    },
}

/// Runs `sluice cert`: makes an authority, or a certificate signed by it.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let made = match args.action {
        CertAction::Ca { dir, expires } => authority(&dir, &expires)?,
        CertAction::Issue { dir, name, host, client, expires } => {
            let of = if client { CertSubject::Client } else { CertSubject::Server(host) };
            issue(&dir, &name, of, &expires)?
        }
    };
    let text: String = made.iter().map(|path| format!("{}\n", path.display())).collect();
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

enum CertSubject {
    /// A server certificate with its host names.
    Server(Vec<String>),
    Client,
}

fn authority(dir: &Path, expires: &MomentArg) -> anyhow::Result<[PathBuf; 2]> {
    api::make_directory(dir, 0o755).with_context(|| format!("cannot make {}", dir.display()))?;
    let key = KeyPair::generate().context("cannot make a key")?;
    // Two authorities with one name could not be distinguished by a certificate's issuer.
    let mark = key.public_key_raw().iter().rev().take(4).map(|byte| format!("{byte:02x}"));
    let name = format!("sluice authority {}", mark.collect::<String>());
    let mut wanted = params(&name, Vec::new(), expires)?;
    wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let signed = wanted.self_signed(&key).context("cannot sign the authority")?;
    write_new(dir, "ca", &signed.pem(), &key)
}

fn issue(
    dir: &Path,
    name: &str,
    of: CertSubject,
    expires: &MomentArg,
) -> anyhow::Result<[PathBuf; 2]> {
    ensure!(
        api::is_name(name) && name != "ca",
        "{name:?} is not a name of 1 to 63 letters, digits, '_', '-' and '.', beginning with a \
         letter or digit, other than ca"
    );
    let ca = (dir.join("ca.pem"), dir.join("ca.key"));
    let none = || {
        format!("no certificate authority in {0} (sluice cert ca {0} creates one)", dir.display())
    };
    let text = fs::read_to_string(&ca.0).with_context(none)?;
    let ca_key = String::from_utf8(read_secret(&ca.1).with_context(none)?);
    let ca_key = ca_key.ok().and_then(|text| KeyPair::from_pem(&text).ok());
    let ca_key = ca_key.with_context(|| format!("{} contains no private key", ca.1.display()))?;
    let issuer = Issuer::from_ca_cert_pem(&text, ca_key)
        .with_context(|| format!("{} contains no certificate of an authority", ca.0.display()))?;
    let (hosts, purpose) = match of {
        CertSubject::Client => (Vec::new(), ExtendedKeyUsagePurpose::ClientAuth),
        CertSubject::Server(hosts) if hosts.is_empty() => {
            (vec![name.to_owned()], ExtendedKeyUsagePurpose::ServerAuth)
        }
        CertSubject::Server(hosts) => (hosts, ExtendedKeyUsagePurpose::ServerAuth),
    };
    let key = KeyPair::generate().context("cannot make a key")?;
    let mut wanted = params(name, hosts, expires)?;
    wanted.is_ca = IsCa::ExplicitNoCa;
    wanted.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    wanted.extended_key_usages = vec![purpose];
    wanted.use_authority_key_identifier_extension = true;
    let signed = wanted.signed_by(&key, &issuer).context("cannot sign the certificate")?;
    write_new(dir, name, &signed.pem(), &key)
}

/// Builds parameters for a name and hosts, valid from shortly before now, as clocks differ.
fn params(
    name: &str,
    hosts: Vec<String>,
    expires: &MomentArg,
) -> anyhow::Result<CertificateParams> {
    let wrong = format!("{hosts:?} are not host names or addresses");
    let mut params = CertificateParams::new(hosts).context(wrong)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (SystemTime::now() - CLOCKS_DIFFER).into();
    params.not_after = expires.system_time().into();
    Ok(params)
}

/// Writes NAME.key and NAME.pem; fails if one exists.
fn write_new(dir: &Path, name: &str, pem: &str, key: &KeyPair) -> anyhow::Result<[PathBuf; 2]> {
    let paths = [dir.join(format!("{name}.pem")), dir.join(format!("{name}.key"))];
    for path in &paths {
        ensure!(!path.exists(), "{} exists already; remove it first", path.display());
    }
    for (path, text, mode) in
        [(&paths[1], key.serialize_pem(), 0o600), (&paths[0], pem.to_owned(), 0o644)]
    {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
        file.and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })
        .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(paths)
}

/// Tolerated difference between the clocks of machines.
const CLOCKS_DIFFER: Duration = Duration::from_secs(300);

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn folder(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("sluice-cert-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn day() -> MomentArg {
        when::expiry("1d").unwrap()
    }

    #[test]
    fn keys_are_their_owner_s_only_and_nothing_is_written_over() {
        let dir = folder("keys");
        let made = authority(&dir, &day()).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&made[1]), mode(&made[0])), (0o600, 0o644));
        let before = fs::read(&made[1]).unwrap();
        let error = authority(&dir, &day()).unwrap_err().to_string();
        assert!(error.contains("ca.pem exists already"), "{error}");
        assert_eq!(fs::read(&made[1]).unwrap(), before);
        let made = issue(&dir, "c1", CertSubject::Server(Vec::new()), &day()).unwrap();
        assert_eq!(mode(&made[1]), 0o600);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_cannot_be_issued_is_named() {
        let dir = folder("wrong");
        let error = issue(&dir, "c1", CertSubject::Client, &day()).unwrap_err().to_string();
        assert!(error.contains("sluice cert ca"), "{error}");
        let made = authority(&dir, &day()).unwrap();
        for name in ["", "ca", "../x", "a b"] {
            let error = issue(&dir, name, CertSubject::Client, &day()).unwrap_err().to_string();
            assert!(error.contains(&format!("{name:?}")), "{error}");
        }
        let error = issue(&dir, "c1", CertSubject::Server(vec!["ä".into()]), &day())
            .unwrap_err()
            .to_string();
        assert!(error.contains("\"ä\""), "{error}");
        fs::set_permissions(&made[1], fs::Permissions::from_mode(0o644)).unwrap();
        let error = format!("{:#}", issue(&dir, "c1", CertSubject::Client, &day()).unwrap_err());
        assert!(error.contains("mode 0644"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
