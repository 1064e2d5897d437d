//! The controller's configuration: one TOML file, and flags written over it.
//!
//! ```text
//!   --config FILE ─► Config ─┐
//!   flags ───────────────────┴─ written over ─► Settings
//! ```
//!
//! Unknown keys are errors, so a misspelt one never passes for a set one.

use std::path::{Path, PathBuf};

use ::controller::{Settings, StorePlace, Webhook};
use anyhow::{Context as _, anyhow};
use api::Endpoint;
use serde::Deserialize;

use super::{Args, DEFAULT_LISTEN, store};

/// The keys of the file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// As `--data`.
    data: Option<PathBuf>,
    /// As `--listen`, a list.
    #[serde(default)]
    listen: Vec<String>,
    /// As `--advertise`.
    advertise: Option<String>,
    /// As `--store`.
    store: Option<String>,
    /// As `--on-event`.
    on_event: Option<String>,
    /// As `--webhook`.
    webhook: Option<String>,
}

/// What the file says, with flags written over it.
pub(super) fn settings(args: Args) -> anyhow::Result<Settings> {
    let Args { config, data, mut listen, advertise, store: store_place, on_event, webhook } = args;
    let (name, config) = match &config {
        Some(path) => (path.display().to_string(), read(path)?),
        None => (String::new(), Config::default()),
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
    let data = data.or(config.data);
    let data = data.context("say where it keeps what it knows: --data DIR, or data in --config")?;
    Ok(Settings { data, store, listen, advertise, on_event: on_event.or(config.on_event), webhook })
}

fn read(path: &Path) -> anyhow::Result<Config> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    toml::from_str(&text).map_err(|error| anyhow!("{name}: {error}"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn settings_of(name: &str, text: &str, flags: &[&str]) -> anyhow::Result<Settings> {
        let path = std::env::temp_dir().join(format!("sluice-{}-{name}.toml", std::process::id()));
        std::fs::write(&path, text)?;
        let words = ["controller", "--config", path.to_str().unwrap()];
        let line = Line::try_parse_from(words.iter().chain(flags))?;
        let settings = settings(line.args);
        std::fs::remove_file(path)?;
        settings
    }

    #[test]
    fn flags_are_written_over_what_the_file_says() {
        let text = "data = \"/a\"\nlisten = [\"unix:///a/s\", \"http://127.0.0.1:1\"]\n\
                    on_event = \"logger\"\nwebhook = \"http://h:1/x\"\n";
        let settings = settings_of("both", text, &["--data", "/b", "--on-event", "mail"]).unwrap();
        assert_eq!((settings.data, settings.listen.len()), ("/b".into(), 2));
        assert_eq!(settings.on_event.as_deref(), Some("mail"));
        assert_eq!(settings.webhook.unwrap().to_string(), "http://h:1/x");
        assert_eq!(settings.store, StorePlace::Data);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, text, says) in [
            ("key", "data = \"/a\"\nonevent = \"x\"\n", "onevent"),
            ("url", "data = \"/a\"\nwebhook = \"https://x\"\n", "webhook: \"https://x\""),
            ("store", "data = \"/a\"\nstore = \"redis\"\n", "store: give sqlite"),
            ("none", "", "--data DIR"),
        ] {
            let error = settings_of(name, text, &[]).unwrap_err().to_string();
            assert!(error.contains(says), "{name}: {error}");
        }
    }
}
