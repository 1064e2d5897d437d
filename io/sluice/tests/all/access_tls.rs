//! A controller over TLS: who is believed, and who is not let in.
//!
//! ```text
//!   sluice cert ─► ca, c1 (controller), a (proxy)      another authority, certificates that ended
//!   proxy a ─ certificate ─┐
//!   proxy b ─ token ───────┴─ TLS 1.3 ─► sluice controller ◄─ sluice rule --ca --token-file
//! ```

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use api::{ErrorCode, ProxyReport, Role};
use http::{ClientError, Credentials, Endpoint};
use rcgen::{CertificateParams, DnType, Issuer, KeyPair};
use rustls::CertificateError;

use crate::common::{Controller, PATIENCE, Proxy, Setup, until};
use crate::controlled::{LIMIT, api_of, limited};
use crate::entrusted::{client, first_token, secret, showing, sluice, text, token};
use testkit::TestFolder;

/// A controller with a certificate, its authority, and its administrator.
struct Site {
    folder: TestFolder,
    controller: Controller,
    root: String,
}

impl Site {
    fn start() -> Site {
        let folder = TestFolder::new();
        let tls = folder.path().join("tls");
        let dir = text(&tls);
        sluice(&["cert", "ca", dir]).unwrap();
        let hosts = ["--host", "127.0.0.1", "--host", "localhost"];
        sluice(&[&["cert", "issue", dir, "c1"], &hosts[..]].concat()).unwrap();
        sluice(&["cert", "issue", dir, "a", "--client"]).unwrap();
        let root = first_token(folder.path());
        let file = |name: &str| format!("{dir}/{name}");
        let (cert, key, ca) = (file("c1.pem"), file("c1.key"), file("ca.pem"));
        let flags = ["--tls-cert", &cert, "--tls-key", &key, "--tls-client-ca", &ca];
        let controller = Controller::with(folder.path(), "https://127.0.0.1:0", &flags, "ready");
        Site { folder, controller, root }
    }

    fn tls(&self) -> PathBuf {
        self.folder.path().join("tls")
    }

    fn ca(&self) -> Credentials {
        Credentials { ca: Some(self.tls().join("ca.pem")), ..Credentials::default() }
    }

    fn with_token(&self, token: &str) -> Credentials {
        Credentials { ca: self.ca().ca, ..showing(token) }
    }

    /// With the certificate of a name in a directory.
    fn with_certificate(&self, dir: &Path, name: &str) -> Credentials {
        let file = |kind: &str| Some(dir.join(format!("{name}.{kind}")));
        Credentials { cert: file("pem"), key: file("key"), ..self.ca() }
    }

    /// A certificate that ended a day ago.
    fn ended(&self, name: &str) {
        let read = |name: &str| fs::read_to_string(self.tls().join(name)).unwrap();
        let ca_key = KeyPair::from_pem(&read("ca.key")).unwrap();
        let issuer = Issuer::from_ca_cert_pem(&read("ca.pem"), ca_key).unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let day = Duration::from_secs(86_400);
        params.not_before = (SystemTime::now() - 2 * day).into();
        params.not_after = (SystemTime::now() - day).into();
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &issuer).unwrap();
        fs::write(self.tls().join(format!("{name}.pem")), signed.pem()).unwrap();
        secret(self.tls().join(format!("{name}.key")), &key.serialize_pem());
    }
}

/// A proxy of that name, with lines for its configuration.
fn proxy(test: &str, node: &str, url: &str, lines: &str) -> Proxy {
    let tables = "[[export]]\nname = \"x\"\ndir = \"data\"\ntarget = \"fs\"\n\
                  [[target]]\nname = \"fs\"\n";
    let top = format!("controller = \"{url}\"\nproxy_name = \"{node}\"\n{lines}");
    Setup::new(&format!("{test}-{node}")).top(&top).tables(tables).api().start()
}

#[test]
fn proxies_with_certificates_and_with_tokens_are_one_controller_s() {
    let site = Site::start();
    let (url, tls) = (site.controller.url.clone(), site.tls());
    assert!(url.starts_with("https://127.0.0.1:"), "{url}");
    let root = client(&url, &site.with_token(&site.root));
    let proxies = secret(tls.join("proxies.token"), &token(&root, "proxies", Role::Proxy));
    let ca = format!("controller_ca = \"{}\"\n", tls.join("ca.pem").display());
    let certificate = |node: &str| {
        let file = |kind: &str| tls.join(format!("{node}.{kind}")).display().to_string();
        let (cert, key) = (file("pem"), file("key"));
        format!("{ca}controller_cert = \"{cert}\"\ncontroller_key = \"{key}\"")
    };
    let by_token = format!("{ca}controller_token_file = \"{}\"", proxies.display());
    let both = [
        proxy("tls-proxies", "a", &url, &certificate("a")),
        proxy("tls-proxies", "b", &url, &by_token),
    ];
    let known = || {
        let all = root.proxies().unwrap().proxies;
        all.into_iter().map(|proxy| proxy.name).collect::<Vec<_>>()
    };
    until("both are known", || known() == ["a", "b"]);
    let rules = root.set_rules(&limited(LIMIT)).unwrap();
    until("both have the rules", || {
        both.iter().all(|proxy| api_of(proxy).rules().unwrap().version == rules.version)
    });

    // Another token in the place of one that was revoked is found.
    root.revoke_token("proxies").unwrap();
    both[1].told("revoked");
    secret(proxies, &token(&root, "again", Role::Proxy));
    let rules = root.set_rules(&limited(LIMIT + 1)).unwrap();
    until("both have the other rules", || {
        both.iter().all(|proxy| api_of(proxy).rules().unwrap().version == rules.version)
    });

    // A certificate is one node's.
    let other = proxy("tls-proxies", "c", &url, &certificate("a"));
    other.told("certificate of a");
    assert_eq!(known(), ["a", "b"]);
    // And a proxy may do no more than proxies do.
    let node = client(&url, &site.with_certificate(&tls, "a"));
    node.rules().unwrap();
    let error = node.set_rules("").unwrap_err();
    assert_eq!(error.code(), ErrorCode::PermissionDenied, "{error}");
    let refused = |outcome: Result<(), ClientError>| {
        assert_eq!(outcome.unwrap_err().code(), ErrorCode::PermissionDenied);
    };
    // Nor what users of other nodes did: the key lies on a node.
    let taken = site.folder.path().join("ledger");
    refused(node.ledger_file(&mut fs::File::create(taken).unwrap()));
    refused(node.ledger_changes("born_ns=0&commit=0&term=0&boot=0&generation=0").map(drop));
    refused(node.events("since=0").map(drop));
    refused(node.usage("by=user").map(drop));
    let report = ProxyReport { epoch: 1, ..ProxyReport::default() };
    assert_eq!(node.report("b", &report).unwrap_err().code(), ErrorCode::PermissionDenied);
}

#[test]
fn commands_reach_it_with_the_authority_s_file_and_not_without() {
    let site = Site::start();
    let url = site.controller.url.as_str();
    let (ca, root) = (site.tls().join("ca.pem"), site.folder.path().join("root.token"));
    let root = secret(root, &site.root);
    let with = ["--controller", url, "--ca", text(&ca), "--token-file", text(&root)];
    let start = ["rule", "start", "jobs", "--match", "*", "--limit", "20MB/s"];
    sluice(&[&start, &with[..]].concat()).unwrap();
    let list = sluice(&[&["rule", "list"], &with[..]].concat()).unwrap();
    assert!(list.contains("jobs"), "{list}");
    // A name that the certificate does not have is another machine's.
    let by_name = url.replace("127.0.0.1", "localhost");
    let named = ["--controller", &by_name, "--ca", text(&ca), "--token-file", text(&root)];
    sluice(&[&["rule", "list"], &named[..]].concat()).unwrap();
    let error = sluice(&["rule", "list", "--controller", url]).unwrap_err();
    assert!(error.contains("--ca FILE") && error.contains("SLUICE_CA"), "{error}");
    let error = sluice(&["rule", "list", "--controller", url, "--ca", text(&ca)]).unwrap_err();
    assert!(error.contains("token"), "{error}");
    let error = sluice(&["rule", "list", "--controller", url, "--cert", "x"]).unwrap_err();
    assert!(error.contains("--key"), "{error}");
}

#[test]
fn wrong_authorities_and_certificates_that_ended_are_believed_by_neither_side() {
    let site = Site::start();
    let url = site.controller.url.as_str();
    let tls = site.tls();
    let elsewhere = site.folder.path().join("elsewhere");
    sluice(&["cert", "ca", text(&elsewhere)]).unwrap();
    sluice(&["cert", "issue", text(&elsewhere), "a", "--client"]).unwrap();
    let told = |credentials: &Credentials| client(url, credentials).rules().unwrap_err();
    // The caller does not believe the controller.
    let other = Credentials { ca: Some(elsewhere.join("ca.pem")), ..site.with_token(&site.root) };
    let ClientError::Connect { source, .. } = told(&other) else { panic!("it is not believed") };
    assert_eq!(certificate_error(&source), Some(&CertificateError::UnknownIssuer));
    // The controller does not believe the caller.
    for (dir, name) in [(&elsewhere, "a"), (&tls, "late"), (&tls, "c1")] {
        if name == "late" {
            site.ended(name);
        }
        let error = told(&site.with_certificate(dir, name));
        // What it says of that may be lost with the connection.
        assert!(matches!(error, ClientError::Exchange { .. }), "{name}: {error}");
    }
    let error = told(&site.ca());
    assert_eq!(error.code(), ErrorCode::Unauthenticated, "{error}");
    client(url, &site.with_certificate(&tls, "a")).rules().unwrap();

    // A controller whose own certificate has ended.
    site.ended("c2");
    let data = TestFolder::new();
    first_token(data.path());
    let (cert, key) = (tls.join("c2.pem"), tls.join("c2.key"));
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let ended = Controller::with(data.path(), "https://127.0.0.1:0", &flags, "ready");
    let error = client(&ended.url, &site.ca()).rules().unwrap_err();
    let ClientError::Connect { source, .. } = error else { panic!("{error}") };
    let why = certificate_error(&source);
    assert!(matches!(why, Some(CertificateError::ExpiredContext { .. })), "{why:?}");
}

/// What is wrong with the certificate of who was connected to.
fn certificate_error(error: &std::io::Error) -> Option<&CertificateError> {
    match error.get_ref()?.downcast_ref()? {
        rustls::Error::InvalidCertificate(error) => Some(error),
        _ => None,
    }
}

#[test]
fn nothing_older_than_tls_1_3_is_spoken() {
    let site = Site::start();
    let at = site.controller.url.strip_prefix("https://").unwrap();
    // A whole ClientHello of TLS 1.2 (RFC 5246, 7.4.1.2): two cipher suites that its servers
    // have, groups and signatures, and no extension supported_versions.
    let mut hello = vec![0x03, 0x03];
    hello.extend([7; 32]);
    hello.extend([0, 0, 4, 0xc0, 0x2f, 0xc0, 0x2b, 1, 0]);
    let extensions =
        [0, 10, 0, 4, 0, 2, 0, 0x17, 0, 13, 0, 6, 0, 4, 0x04, 0x03, 0x08, 0x04, 0, 11, 0, 2, 1, 0];
    hello.extend([0, extensions.len() as u8]);
    hello.extend(extensions);
    let mut record = vec![0x16, 0x03, 0x01, 0, hello.len() as u8 + 4, 1, 0, 0, hello.len() as u8];
    record.extend(hello);
    let answer = |bytes: &[u8]| {
        let mut stream = TcpStream::connect(at).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(bytes).unwrap();
        let mut answer = Vec::new();
        // What came before the other side hung up is what counts.
        let _ = stream.read_to_end(&mut answer);
        answer
    };
    // Alert, fatal: protocol_version.
    assert_eq!(answer(&record), [0x15, 0x03, 0x03, 0, 2, 2, 70]);
    // Who does not speak TLS at all is not answered in the clear.
    let plain = answer(b"GET /v1/status HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(!plain.starts_with(b"HTTP"), "{plain:?}");
    let error = client(&site.controller.url.replace("https", "http"), &Credentials::default());
    let error = error.controller_status().unwrap_err();
    assert!(matches!(error, ClientError::Exchange { .. }), "{error}");
    assert!(site.controller.url.parse::<Endpoint>().unwrap().is_local());
}

#[test]
fn a_key_that_others_may_read_is_refused_with_its_mode() {
    let site = Site::start();
    let (cert, key) = (site.tls().join("a.pem"), site.tls().join("a.key"));
    let mode = fs::metadata(&key).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o600);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    let data = TestFolder::new();
    let flags = ["--tls-cert", text(&cert), "--tls-key", text(&key)];
    let error = sluice(&[&["controller", "--data", text(data.path())], &flags[..]].concat());
    let error = error.unwrap_err();
    assert!(error.contains("a.key") && error.contains("0640"), "{error}");
    let ca = site.tls().join("ca.pem");
    let flags = ["--ca", text(&ca), "--cert", text(&cert), "--key", text(&key)];
    let list = ["rule", "list", "--controller", &site.controller.url];
    let error = sluice(&[&list[..], &flags].concat()).unwrap_err();
    assert!(error.contains("a.key") && error.contains("0640"), "{error}");
}
