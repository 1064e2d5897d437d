//! Reads and changes the rules of a running proxy, a controller or a file.
//!
//! ```text
//!   proxy: GET text, version ─► edit ─► PUT If-Match ─┬─► in force
//!             ▲                                       │
//!             └─────── 409: changed meanwhile ◄───────┘
//!   file:  lock ─► text ─► edit ─► FILE.new ─► rename over FILE
//!   -:     standard input ─► edit ─► standard output
//! ```

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use api::WireRules;
use http::{ApiClient, Endpoints, ServerAddress};
use proxy::SavedRuleFile;
use rules::{RuleEditError, RuleSet};

use crate::credentials::{CredentialArgs, named_controller};
use crate::failure::CommandError;

/// The proxy, controller or file with the rules.
#[derive(Debug, clap::Args)]
pub(super) struct RuleSource {
    /// Control socket of the proxy [default: unix:///run/sluice/proxy.sock, without a controller]
    #[arg(long, value_name = "unix:///PATH", conflicts_with_all = ["file", "controller"])]
    proxy: Option<ServerAddress>,
    /// URL of the controller: https://HOST:PORT, http://127.0.0.1:PORT or unix:///path, with commas
    /// between several [default: $SLUICE_CONTROLLER]
    #[arg(long, value_name = "URL", conflicts_with = "file")]
    controller: Option<Endpoints>,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Rule file to show or change in place of the rules in force; - for standard input and output.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Maximum number of attempts of a change that is retried because of concurrent changes. Each
/// failed attempt means that another change succeeded, so only a flood of changes reaches it.
const TRIES_MAX: usize = 100;

impl RuleSource {
    /// Reads the rules from the file, or from the proxy or controller.
    pub(super) fn read(&self) -> anyhow::Result<WireRules> {
        match &self.file {
            Some(file) => parse(&file.display().to_string(), &read_text(file)?),
            None => Ok(self.client()?.rules()?),
        }
    }

    /// Changes the text of the rules; returns the changed rules.
    pub(super) fn change(
        &self,
        save: bool,
        edit: impl Fn(&str) -> Result<String, RuleEditError>,
    ) -> anyhow::Result<WireRules> {
        let Some(file) = &self.file else { return self.change_in_force(save, edit) };
        let name = file.display().to_string();
        if self.is_standard() {
            return parse(&name, &in_file(&name, edit(&read_text(file)?))?);
        }
        let locked = SavedRuleFile::lock(file).with_context(|| format!("cannot change {name}"))?;
        let text = in_file(&name, edit(locked.text()))?;
        let rules = parse(&name, &text)?;
        locked.replace(&text).with_context(|| format!("cannot write {name}"))?;
        Ok(rules)
    }

    /// Replaces the text of the rules by a valid text, regardless of the old one.
    pub(super) fn replace(&self, save: bool, text: &str) -> anyhow::Result<WireRules> {
        match &self.file {
            Some(_) if self.is_standard() => parse("-", text),
            Some(file) => {
                let name = file.display().to_string();
                let locked =
                    SavedRuleFile::lock(file).with_context(|| format!("cannot change {name}"))?;
                locked.replace(text).with_context(|| format!("cannot write {name}"))?;
                parse(&name, text)
            }
            None => Ok(self.client()?.replace_rules(text, None, save)?),
        }
    }

    fn client(&self) -> anyhow::Result<ApiClient> {
        if let Some(proxy) = &self.proxy {
            return Ok(ApiClient::new(proxy)?);
        }
        let named = match &self.controller {
            Some(_) => None,
            None => named_controller()?,
        };
        match self.controller.as_ref().or(named.as_ref()) {
            Some(controller) => {
                Ok(ApiClient::at(controller)?.with(&self.credentials.credentials())?)
            }
            None => Ok(ApiClient::new(&crate::top::DEFAULT_API.parse()?)?),
        }
    }

    /// Returns whether the rules are in a file, where a change is permanent.
    pub(super) fn is_file(&self) -> bool {
        self.file.is_some()
    }

    /// Returns whether the rules come from standard input.
    pub(super) fn is_standard(&self) -> bool {
        self.file.as_deref() == Some(Path::new("-"))
    }

    fn change_in_force(
        &self,
        save: bool,
        edit: impl Fn(&str) -> Result<String, RuleEditError>,
    ) -> anyhow::Result<WireRules> {
        let client = self.client()?;
        for _ in 0..TRIES_MAX {
            let now = client.rules()?;
            let text = edit(&now.text)?;
            match client.replace_rules(&text, Some(&now.version), save) {
                Err(error) if error.is_stale() => continue,
                outcome => return Ok(outcome?),
            }
        }
        bail!("not changed: the rules were changed by others during {TRIES_MAX} attempts; retry")
    }
}

/// Reads the text of a file or of standard input.
pub(super) fn read_text(file: &Path) -> anyhow::Result<String> {
    if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("cannot read standard input")?;
        return Ok(text);
    }
    std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Parses the rules of a text; an error names the file and shows the line.
pub(super) fn parse(name: &str, text: &str) -> anyhow::Result<WireRules> {
    let set = RuleSet::parse(text).map_err(|error| CommandError::rules(&error, name))?;
    Ok(WireRules::of(text, &set))
}

/// Adds the file's name to an error of an edit.
fn in_file(name: &str, outcome: Result<String, RuleEditError>) -> anyhow::Result<String> {
    Ok(outcome.map_err(|error| CommandError::edit(&error, name))?)
}
