//! `sluice cert`: certificates for controllers and proxies, where a site has no authority.
//!
//! ```text
//!   authority DIR ─► ca.key (0600), ca.pem ─┐
//!   issue DIR NAME ─────────────────────────┴ signs ─► NAME.key (0600), NAME.pem
//! ```

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, ensure};
use api::credentials::read_secret;
use clap::Subcommand;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};

use crate::when::{self, MomentArg, forms_of_expiry};

/// Makes certificates: an authority, and what it signs.
#[derive(Debug, clap::Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: CertAction,
}

const AFTER_HELP: &str = "\
Keep ca.key where controllers and proxies are not: whoever has it can be any of them. They and
their callers need ca.pem.

Examples:
  sluice cert authority /etc/sluice/tls
  sluice cert issue /etc/sluice/tls c1 --host c1.site --host 192.0.2.1
  sluice cert issue /etc/sluice/tls node17 --client --expires 30d";

#[derive(Debug, Subcommand)]
enum CertAction {
    /// Makes an authority: DIR/ca.pem and DIR/ca.key.
    #[command(after_help = forms_of_expiry!())]
    Authority {
        /// The directory, made if it is not there.
        dir: PathBuf,
        /// Until when it holds.
        #[arg(long, value_name = "TIME", default_value = "3650d", value_parser = when::expiry,
              allow_hyphen_values = true)]
        expires: MomentArg,
    },
    /// Makes a certificate that the authority in DIR signs: DIR/NAME.pem and DIR/NAME.key.
    #[command(after_help = forms_of_expiry!())]
    Issue {
        /// The authority's directory.
        dir: PathBuf,
        /// Whose it is: a controller's name, or with --client a proxy's, as of its --node.
        name: String,
        /// A name or address at which the controller is asked; may be repeated. NAME, if nothing
        /// is said.
        #[arg(long, value_name = "HOST", conflicts_with = "client")]
        host: Vec<String>,
        /// For a proxy, or a controller that stands by: with it they show who they are.
        #[arg(long)]
        client: bool,
        /// Until when it holds.
        #[arg(long, value_name = "TIME", default_value = "365d", value_parser = when::expiry,
              allow_hyphen_values = true)]
        expires: MomentArg,
    },
}

/// Runs `sluice cert`.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let made = match args.action {
        CertAction::Authority { dir, expires } => authority(&dir, &expires)?,
        CertAction::Issue { dir, name, host, client, expires } => {
            let of = if client { CertSubject::Client } else { CertSubject::Server(host) };
            issue(&dir, &name, of, &expires)?
        }
    };
    let text: String = made.iter().map(|path| format!("{}\n", path.display())).collect();
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}

enum CertSubject {
    /// With the hosts that it answers for.
    Server(Vec<String>),
    Client,
}

fn authority(dir: &Path, expires: &MomentArg) -> anyhow::Result<[PathBuf; 2]> {
    api::make_directory(dir, 0o755).with_context(|| format!("cannot make {}", dir.display()))?;
    let key = KeyPair::generate().context("cannot make a key")?;
    // Of two authorities of one name, neither side could tell which one signed.
    let mark = key.public_key_raw().iter().rev().take(4).map(|byte| format!("{byte:02x}"));
    let name = format!("sluice authority {}", mark.collect::<String>());
    let mut wanted = params(&name, Vec::new(), expires)?;
    wanted.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    wanted.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let signed = wanted.self_signed(&key).context("cannot sign the authority")?;
    keep(dir, "ca", &signed.pem(), &key)
}

fn issue(
    dir: &Path,
    name: &str,
    of: CertSubject,
    expires: &MomentArg,
) -> anyhow::Result<[PathBuf; 2]> {
    ensure!(
        api::is_name(name) && name != "ca",
        "{name:?} is no name: 1 to 63 letters, digits, '_', '-' and '.', beginning with a letter \
         or digit, and not ca"
    );
    let ca = (dir.join("ca.pem"), dir.join("ca.key"));
    let none = || format!("no authority in {}: sluice cert authority makes one", dir.display());
    let text = fs::read_to_string(&ca.0).with_context(none)?;
    let ca_key = String::from_utf8(read_secret(&ca.1).with_context(none)?);
    let ca_key = ca_key.ok().and_then(|text| KeyPair::from_pem(&text).ok());
    let ca_key = ca_key.with_context(|| format!("{} holds no private key", ca.1.display()))?;
    let issuer = Issuer::from_ca_cert_pem(&text, ca_key)
        .with_context(|| format!("{} holds no authority", ca.0.display()))?;
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
    keep(dir, name, &signed.pem(), &key)
}

/// A certificate for a name and hosts; from a little before now, as clocks differ.
fn params(
    name: &str,
    hosts: Vec<String>,
    expires: &MomentArg,
) -> anyhow::Result<CertificateParams> {
    let wrong = format!("{hosts:?}: a host is a name or an address");
    let mut params = CertificateParams::new(hosts).context(wrong)?;
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = (SystemTime::now() - CLOCKS_DIFFER).into();
    params.not_after = expires.system_time().into();
    Ok(params)
}

/// Writes NAME.key and NAME.pem; what is there already stays.
fn keep(dir: &Path, name: &str, pem: &str, key: &KeyPair) -> anyhow::Result<[PathBuf; 2]> {
    let paths = [dir.join(format!("{name}.pem")), dir.join(format!("{name}.key"))];
    for path in &paths {
        ensure!(!path.exists(), "{} is there already: remove it first", path.display());
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

/// By how much clocks of machines may differ.
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
        assert!(error.contains("ca.pem is there already"), "{error}");
        assert_eq!(fs::read(&made[1]).unwrap(), before);
        let made = issue(&dir, "c1", CertSubject::Server(Vec::new()), &day()).unwrap();
        assert_eq!(mode(&made[1]), 0o600);
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn what_cannot_be_issued_is_named() {
        let dir = folder("wrong");
        let error = issue(&dir, "c1", CertSubject::Client, &day()).unwrap_err().to_string();
        assert!(error.contains("sluice cert authority"), "{error}");
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
