//! The controller's configuration: one TOML file and flags, which take precedence.
//!
//! ```text
//!   --config FILE ─► ControllerConfig ─┐
//!   flags ─────────────────────────────┴─ written over ─► ControllerSettings
//! ```
//!
//! Unknown keys are errors, so a misspelt key is never ignored. Relative paths count from the
//! file's own directory.

use std::path::{Path, PathBuf};

use ::controller::{ControllerSettings, StorePlace, WallClock, Webhook};
use anyhow::{Context as _, anyhow, bail};
use http::{Credentials, Endpoint, HostName, TlsFiles};
use serde::Deserialize;

use super::reservations::ReservationConfig;
use super::{Args, DEFAULT_LISTEN, store};

/// The keys of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ControllerConfig {
    /// As `--data`.
    data: Option<PathBuf>,
    /// As `--listen`, a list.
    #[serde(default)]
    listen: Vec<String>,
    /// As `--allowed-host`, a list.
    #[serde(default)]
    allowed_hosts: Vec<HostName>,
    /// As `--advertise`.
    advertise: Option<String>,
    /// As `--store`.
    store: Option<String>,
    /// As `--on-event`.
    on_event: Option<String>,
    /// As `--webhook`.
    webhook: Option<String>,
    /// As `--tls-cert`, `--tls-key` and `--tls-client-ca`.
    tls_cert: Option<PathBuf>,
    tls_key: Option<PathBuf>,
    tls_client_ca: Option<PathBuf>,
    /// As `--ca`, `--token-file`, `--cert` and `--key`.
    ca: Option<PathBuf>,
    token_file: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    /// What may be reserved, and by whom.
    #[serde(default)]
    reservations: ReservationConfig,
}

/// Merges the file and the flags, which take precedence.
pub(super) fn settings(args: Args) -> anyhow::Result<ControllerSettings> {
    let (name, mut config) = match &args.config {
        Some(path) => (path.display().to_string(), read(path)?),
        None => (String::new(), ControllerConfig::default()),
    };
    let (tls, credentials) = (tls(&args, &mut config)?, credentials(&args, &mut config));
    let Args { data, mut listen, advertise, store: store_place, on_event, webhook, .. } = args;
    let allowed_hosts = match args.allowed_host {
        none if none.is_empty() => config.allowed_hosts,
        flags => flags,
    };
    let wrong = |key: &str, why: String| anyhow!("{name}: {key}: {why}");
    let place = |key: &str, text: &str| {
        text.parse::<Endpoint>().map_err(|error| wrong(key, error.to_string()))
    };
    if listen.is_empty() {
        let all = config.listen.iter().map(|text| place("listen", text));
        listen = all.collect::<Result<_, _>>()?;
    }
    if listen.is_empty() {
        listen.push(DEFAULT_LISTEN.parse()?);
    }
    let advertise = match (advertise, &config.advertise) {
        (None, Some(text)) => Some(place("advertise", text)?),
        (flag, _) => flag,
    };
    let store = match (store_place, &config.store) {
        (Some(flag), _) => flag,
        (None, Some(text)) => store(text).map_err(|why| wrong("store", why))?,
        (None, None) => StorePlace::Data,
    };
    let webhook = match (webhook, &config.webhook) {
        (None, Some(text)) => {
            let url = text.parse::<Webhook>();
            Some(url.map_err(|error| wrong("webhook", error.to_string()))?)
        }
        (flag, _) => flag,
    };
    let reservations = config.reservations.settings();
    let reservations = reservations.map_err(|why| wrong("reservations", why.to_string()))?;
    let data = data.or(config.data);
    let data = data.context("no state directory; give --data DIR, or data in --config")?;
    let on_event = on_event.or(config.on_event);
    let clock = WallClock::System;
    Ok(ControllerSettings {
        data,
        store,
        listen,
        allowed_hosts,
        tls,
        credentials,
        advertise,
        on_event,
        webhook,
        reservations,
        clock,
    })
}

/// Returns the files of the server certificate for `https://` addresses.
fn tls(args: &Args, config: &mut ControllerConfig) -> anyhow::Result<Option<TlsFiles>> {
    let cert = args.tls_cert.clone().or(config.tls_cert.take());
    let key = args.tls_key.clone().or(config.tls_key.take());
    let client_ca = args.tls_client_ca.clone().or(config.tls_client_ca.take());
    match (cert, key) {
        (Some(cert), Some(key)) => Ok(Some(TlsFiles { cert, key, client_ca })),
        (None, None) if client_ca.is_none() => Ok(None),
        _ => bail!("--tls-cert and --tls-key require each other; --tls-client-ca requires both"),
    }
}

/// Returns the credentials of a standby at its leader.
fn credentials(args: &Args, config: &mut ControllerConfig) -> Credentials {
    let flags = args.credentials.files();
    Credentials {
        ca: flags.ca.or(config.ca.take()),
        token_file: flags.token_file.or(config.token_file.take()),
        token: None,
        cert: flags.cert.or(config.cert.take()),
        key: flags.key.or(config.key.take()),
    }
}

fn read(path: &Path) -> anyhow::Result<ControllerConfig> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let mut config: ControllerConfig =
        toml::from_str(&text).map_err(|error| anyhow!("{name}: {error}"))?;
    // As with a proxy's, paths count from the file's own directory.
    let base = path.parent().unwrap_or(Path::new(""));
    let ControllerConfig {
        data, tls_cert, tls_key, tls_client_ca, ca, token_file, cert, key, ..
    } = &mut config;
    for path in [data, tls_cert, tls_key, tls_client_ca, ca, token_file, cert, key] {
        *path = path.take().map(|path| base.join(path));
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ConfigLine {
        #[command(flatten)]
        args: Args,
    }

    fn settings_of(name: &str, text: &str, flags: &[&str]) -> anyhow::Result<ControllerSettings> {
        let path = std::env::temp_dir().join(format!("sluice-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text)?;
        let words = ["controller", "--config", path.to_str().unwrap()];
        let line = ConfigLine::try_parse_from(words.iter().chain(flags))?;
        let settings = settings(line.args);
        std::fs::remove_file(path)?;
        settings
    }

    #[test]
    fn flags_are_written_over_what_the_file_says() {
        let text = "data = \"/a\"\nlisten = [\"unix:///a/s\", \"http://127.0.0.1:1\"]\n\
                    allowed_hosts = [\"io-1.site\"]\non_event = \"logger\"\nwebhook = \"http://h:1/x\"\n";
        let settings = settings_of("both", text, &["--data", "/b", "--on-event", "mail"]).unwrap();
        assert_eq!((settings.data, settings.listen.len()), ("/b".into(), 2));
        assert_eq!(settings.allowed_hosts, ["io-1.site".parse().unwrap()]);
        assert_eq!(settings.on_event.as_deref(), Some("mail"));
        assert_eq!(settings.webhook.unwrap().to_string(), "http://h:1/x");
        assert_eq!(settings.store, StorePlace::Data);
    }

    #[test]
    fn what_it_shows_comes_from_flags_and_file_alike() {
        let text = "data = \"d\"\ntls_cert = \"c.pem\"\ntls_key = \"/k\"\ntls_client_ca = \"/ca\"\n\
                    ca = \"/a\"\ntoken_file = \"/t\"\n";
        let flags = ["--tls-key", "/other", "--token-file", "/mine"];
        let settings = settings_of("tls", text, &flags).unwrap();
        let here = std::env::temp_dir();
        assert_eq!(settings.data, here.join("d"));
        let tls = settings.tls.unwrap();
        assert_eq!((tls.cert, tls.key), (here.join("c.pem"), "/other".into()));
        assert_eq!(tls.client_ca, Some("/ca".into()));
        let shown = settings.credentials;
        assert_eq!((shown.ca, shown.token_file), (Some("/a".into()), Some("/mine".into())));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, text, says) in [
            ("key", "data = \"/a\"\nonevent = \"x\"\n", "onevent"),
            ("url", "data = \"/a\"\nwebhook = \"https://x\"\n", "webhook: \"https://x\""),
            ("store", "data = \"/a\"\nstore = \"redis\"\n", "store: \"redis\" is not sqlite"),
            ("host", "data = \"/a\"\nallowed_hosts = [\"a:1\"]\n", "a:1"),
            ("none", "", "--data DIR"),
            ("half", "data = \"/a\"\ntls_cert = \"/c\"\n", "--tls-key"),
        ] {
            let error = settings_of(name, text, &[]).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
    }
}
