//! Checks whether a controller may listen at its configured endpoints.
//!
//! ```text
//!   unix:///path, http://127.0.0.1:PORT ─► always: without tokens every local user is admin
//!   https://anywhere ────────────────────► with a certificate, and beyond loopback with a token
//!                                          on record
//!   http://other hosts ────────────────────► never
//! ```

use std::path::Path;

use http::{Endpoint, ServerTls};

use super::offline::open_store;
use super::records::Records;
use super::{ControllerSettings, ControllerStartError, StorePlace};

/// Checks the endpoints; returns the TLS configuration if a certificate is named.
///
/// # Errors
/// If other machines can reach an endpoint without TLS or without tokens: the error has the
/// commands that create both.
pub(super) fn check(
    settings: &ControllerSettings,
) -> Result<Option<ServerTls>, ControllerStartError> {
    let tls = settings.tls.as_ref().map(|files| files.read()).transpose()?;
    let beyond = settings.listen.iter().find(|endpoint| !endpoint.is_local());
    let plain = |endpoint: &&Endpoint| matches!(endpoint, Endpoint::Http { .. });
    let open = settings.listen.iter().filter(|endpoint| !endpoint.is_local()).find(plain);
    if let Some(endpoint) = open {
        let lacks = "its traffic is not encrypted; use TLS and require a token. Run once:";
        return Err(refused(endpoint, lacks, settings, true));
    }
    if let Some(endpoint) = nameless(settings) {
        return Err(ControllerStartError::Nameless { endpoint: endpoint.clone() });
    }
    if tls.is_none()
        && let Some(endpoint) = settings.listen.iter().find(|at| at.scheme() == "https")
    {
        let commands = commands(endpoint, settings, beyond.is_some());
        return Err(ControllerStartError::NoCertificate { endpoint: endpoint.clone(), commands });
    }
    if let Some(endpoint) = beyond {
        let store = open_store(&settings.data, &settings.store, None)?;
        if Records::open(store)?.tokens().is_empty() {
            let lacks = "there are no tokens, so all of them could change the rules. Run once:";
            return Err(refused(endpoint, lacks, settings, false));
        }
    }
    Ok(tls)
}

/// Returns the endpoint to which other controllers cannot connect.
fn nameless(settings: &ControllerSettings) -> Option<&Endpoint> {
    let several = matches!(settings.store, StorePlace::Etcd(_)) && settings.advertise.is_none();
    let any = |at: &&Endpoint| {
        at.host_and_port().is_some_and(|(host, _)| ["0.0.0.0", "::"].contains(&host))
    };
    settings.listen.iter().find(any).filter(|_| several)
}

fn refused(
    endpoint: &Endpoint,
    lacks: &'static str,
    settings: &ControllerSettings,
    certificate: bool,
) -> ControllerStartError {
    let commands = match certificate {
        true => commands(endpoint, settings, true),
        false => format!("  {}", token(settings)),
    };
    ControllerStartError::Open { endpoint: endpoint.clone(), lacks, commands }
}

/// Returns the commands that make a certificate, a token if one is needed, and start.
fn commands(endpoint: &Endpoint, settings: &ControllerSettings, with_token: bool) -> String {
    let uname = rustix::system::uname();
    let name = uname.nodename().to_str().ok().filter(|name| api::is_name(name));
    let name = name.unwrap_or("controller");
    let dir = settings.data.join("tls");
    let (dir, data) = (shown(&dir), shown(&settings.data));
    let mut lines = vec![
        format!("sluice cert ca {dir}"),
        format!("sluice cert issue {dir} {name} --host {name} --host localhost --host 127.0.0.1"),
    ];
    if with_token {
        lines.push(token(settings));
    }
    let at = endpoint.name();
    lines.push(format!(
        "sluice controller --data {data}{} --listen https://{at} --tls-cert {dir}/{name}.pem \
         --tls-key {dir}/{name}.key",
        store(settings)
    ));
    lines.iter().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

fn token(settings: &ControllerSettings) -> String {
    let data = shown(&settings.data);
    format!("sluice token create admin --role admin --data {data}{}", store(settings))
}

/// Returns the flag that names the store, if it is not the default.
fn store(settings: &ControllerSettings) -> String {
    match &settings.store {
        StorePlace::Data => String::new(),
        StorePlace::Etcd(etcd) => format!(" --store etcd:{}", etcd.endpoints.join(",")),
    }
}

/// Quotes a path for a shell.
fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+,:@".contains(&byte);
    if text.bytes().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use http::Credentials;

    use super::*;
    use crate::etcd::EtcdClient;
    use testkit::TestFolder;

    fn settings(folder: &TestFolder, listen: &str) -> ControllerSettings {
        ControllerSettings {
            data: folder.path().join("it's"),
            store: StorePlace::Data,
            listen: vec![listen.parse().unwrap()],
            tls: None,
            allowed_hosts: Vec::new(),
            credentials: Credentials::default(),
            advertise: None,
            on_event: None,
            webhook: None,
            reservations: crate::ReservationSettings::default(),
            clock: crate::WallClock::System,
        }
    }

    #[test]
    fn this_machine_s_places_need_nothing() {
        let folder = TestFolder::new();
        for listen in ["http://127.0.0.1:0", "http://[::1]:0", "http://localhost:0", "unix:///s"] {
            assert!(check(&settings(&folder, listen)).unwrap().is_none(), "{listen}");
        }
    }

    #[test]
    fn other_places_are_refused_with_commands_that_a_shell_takes() {
        let folder = TestFolder::new();
        for listen in ["http://192.0.2.1:5650", "http://0.0.0.0:5650", "http://io-1.site:5650"] {
            let error = check(&settings(&folder, listen)).unwrap_err();
            assert!(matches!(error, ControllerStartError::Open { .. }), "{error}");
            let said = error.to_string();
            let data = format!("--data '{}/it'\\''s'", folder.path().display());
            assert!(said.contains(&data) && said.contains("sluice cert issue"), "{said}");
            assert!(said.contains(&listen.replace("http", "https")), "{said}");
        }
        let error = check(&settings(&folder, "https://127.0.0.1:0")).unwrap_err();
        let said = error.to_string();
        assert!(matches!(error, ControllerStartError::NoCertificate { .. }), "{said}");
        assert!(!said.contains("sluice token"), "on loopback nobody needs one: {said}");
    }

    #[test]
    fn of_several_each_must_have_a_place_that_the_others_can_ask() {
        let folder = TestFolder::new();
        let endpoints = vec!["http://127.0.0.1:1".to_owned()];
        let etcd = EtcdClient { endpoints, prefix: "/sluice".into(), user: None };
        let mut several = settings(&folder, "https://0.0.0.0:5650");
        several.store = StorePlace::Etcd(etcd);
        let error = check(&several).unwrap_err();
        assert!(matches!(error, ControllerStartError::Nameless { .. }), "{error}");
        several.advertise = Some("https://c1.site:5650".parse().unwrap());
        let said = check(&several).unwrap_err().to_string();
        assert!(said.contains("--store etcd:http://127.0.0.1:1"), "{said}");
    }
}
