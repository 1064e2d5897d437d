//! The settings of `sluice slurm`: one TOML file for slurmctld's machine and the nodes.
//!
//! Unknown keys are errors, so a misspelt key is never ignored. Relative paths count from the
//! file's own directory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use api::CalendarResource;
use clap::ValueEnum;
use http::{ApiClient, Credentials, Endpoints};
use model::Nanos;
use serde::Deserialize;

use super::pool;
use crate::reserve::ReservedDirection;

/// The keys of the file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SlurmConfig {
    /// URLs of the controllers, with commas between them.
    controller: String,
    /// Certificate authority of the controllers, for `https://` URLs.
    ca: Option<PathBuf>,
    /// File with a token of role `batch`, of SlurmUser; not on the nodes.
    token_file: Option<PathBuf>,
    /// The node's certificate and its key, for `sluice slurm prolog`.
    node_cert: Option<PathBuf>,
    node_key: Option<PathBuf>,
    /// The export on whose target licences and `--qos-bw` are.
    pub(super) export: Option<String>,
    /// The target whose reservable rate the licences are; may be absent if there is one.
    target: Option<String>,
    /// Mounts of the nodes and their exports, for `--qos-path`.
    #[serde(default)]
    pub(super) mounts: BTreeMap<String, String>,
    /// The name of the licences; one is 1 MB/s.
    #[serde(default = "licence")]
    pub(super) licence: String,
    /// What licences without `--qos-bw` are for.
    #[serde(default = "direction")]
    direction: String,
    /// How long after its start a reservation waits for its job.
    #[serde(default = "claim_window")]
    pub(super) claim_window: Nanos,
    /// The time between two looks of `sluice slurm follow` at the queue.
    #[serde(default = "interval")]
    pub(super) interval: Nanos,
    /// How long the bandwidth of a job is refused before the job is held.
    #[serde(default = "hold_after")]
    pub(super) hold_after: Nanos,
    /// How long srun and salloc wait for their reservation, with their nodes.
    #[serde(default = "wait")]
    pub(super) wait: Nanos,
    /// The longest time of one call of the controller.
    #[serde(default = "time_limit")]
    time_limit: Nanos,
    /// What a job does while no controller answers: `start` or `wait`.
    #[serde(default)]
    pub(super) on_failure: OnFailure,
    /// Where the tokens of jobs are on a node.
    #[serde(default = "run_dir")]
    pub(super) run_dir: PathBuf,
}

/// What a job does while no controller answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum OnFailure {
    /// It starts without its reservation.
    #[default]
    Start,
    /// It waits for a controller.
    Wait,
}

impl SlurmConfig {
    /// Reads the file.
    ///
    /// # Errors
    /// If it cannot be read or has a value that is not valid, which the message names.
    pub(super) fn read(path: &Path) -> anyhow::Result<SlurmConfig> {
        let name = path.display();
        let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let base = path.parent().unwrap_or(Path::new(""));
        SlurmConfig::parse(&text, base).with_context(|| name.to_string())
    }

    fn parse(text: &str, base: &Path) -> anyhow::Result<SlurmConfig> {
        let mut config: SlurmConfig = toml::from_str(text).map_err(|error| anyhow!("{error}"))?;
        let SlurmConfig { ca, token_file, node_cert, node_key, .. } = &mut config;
        for path in [ca, token_file, node_cert, node_key] {
            *path = path.take().map(|path| base.join(path));
        }
        config.endpoints()?;
        config.direction()?;
        if !config.run_dir.is_absolute() {
            bail!("run_dir: {:?} is not an absolute path", config.run_dir);
        }
        if config.node_cert.is_some() != config.node_key.is_some() {
            bail!("node_cert and node_key require each other");
        }
        let name = &config.licence;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || !name.chars().all(is_plain) {
            bail!("licence: {name:?} is not the name of licences, such as lustreqos");
        }
        for (key, value, least) in [
            ("interval", config.interval, Nanos::from_secs(1)),
            ("claim_window", config.claim_window, Nanos::from_secs(10)),
            ("time_limit", config.time_limit, Nanos::from_millis(100)),
        ] {
            if value < least {
                bail!("{key}: {value} is less than {least}");
            }
        }
        for (mount, export) in &config.mounts {
            if !mount.starts_with('/') || export.is_empty() || export.contains('/') {
                bail!(
                    "mounts: {mount:?} = {export:?} is not a mount and its export, such as \
                     \"/mnt/scratch\" = \"scratch\""
                );
            }
        }
        Ok(config)
    }

    /// Returns what licences without a direction are for.
    ///
    /// # Errors
    /// If the key has another value.
    pub(super) fn direction(&self) -> anyhow::Result<ReservedDirection> {
        let found = ReservedDirection::from_str(&self.direction, false);
        let wrong = |_| anyhow!("direction: {:?} is not read, write or both", self.direction);
        found.map_err(wrong)
    }

    /// Connects as the batch system.
    ///
    /// # Errors
    /// If a file of the credentials cannot be used.
    pub(super) fn batch_client(&self) -> anyhow::Result<ApiClient> {
        let (ca, token_file) = (self.ca.clone(), self.token_file.clone());
        self.client(&Credentials { ca, token_file, ..Credentials::default() })
    }

    /// Connects as a node, with its certificate; without one as the batch system, which is enough
    /// where the node is slurmctld's machine.
    ///
    /// # Errors
    /// If a file of the credentials cannot be used.
    pub(super) fn node_client(&self) -> anyhow::Result<ApiClient> {
        if self.node_cert.is_none() {
            return self.batch_client();
        }
        let (ca, cert, key) = (self.ca.clone(), self.node_cert.clone(), self.node_key.clone());
        self.client(&Credentials { ca, cert, key, ..Credentials::default() })
    }

    /// Returns the target that the licences are of, with what is promised of it; `None` if there are
    /// several and none is named.
    ///
    /// # Errors
    /// If the controller does not answer, or does not know the target.
    pub(super) fn pool_target(
        &self,
        client: &ApiClient,
    ) -> anyhow::Result<Option<CalendarResource>> {
        let named = self.target.as_deref();
        let query = named.map_or(String::new(), |name| format!("target={}", api::escaped(name)));
        let calendar = client.calendar(&query).context("cannot read the calendar")?;
        let mut targets = calendar.resources.into_iter().filter(|found| found.kind == "target");
        match (targets.next(), targets.next(), named) {
            (Some(target), None, _) => Ok(Some(target)),
            (None, _, Some(name)) => bail!("target: the controller knows no target {name:?}"),
            (None, _, None) => bail!("the controller knows no target: no proxy reports to it"),
            (Some(_), Some(_), _) => Ok(None),
        }
    }

    /// Returns how many licences are what may be reserved of a target.
    ///
    /// # Errors
    /// If `direction` has another value.
    pub(super) fn licences_of(&self, target: &CalendarResource) -> anyhow::Result<u64> {
        Ok(pool::total(target, self.direction()? != ReservedDirection::Read))
    }

    /// Returns the longest time of one call.
    pub(super) fn time_limit(&self) -> Nanos {
        self.time_limit
    }

    fn client(&self, credentials: &Credentials) -> anyhow::Result<ApiClient> {
        let client = ApiClient::at(self.endpoints()?)?.with(credentials)?;
        Ok(client.with_time_limit(self.time_limit.to_duration()))
    }

    fn endpoints(&self) -> anyhow::Result<Endpoints> {
        self.controller.parse().with_context(|| format!("controller: {:?}", self.controller))
    }
}

fn licence() -> String {
    "lustreqos".into()
}

fn direction() -> String {
    "write".into()
}

fn claim_window() -> Nanos {
    Nanos::from_secs(60)
}

fn interval() -> Nanos {
    Nanos::from_secs(5)
}

fn hold_after() -> Nanos {
    Nanos::from_secs(600)
}

fn wait() -> Nanos {
    Nanos::from_secs(240)
}

fn time_limit() -> Nanos {
    Nanos::from_secs(2)
}

fn run_dir() -> PathBuf {
    PathBuf::from("/run/sluice/jobs")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<SlurmConfig, String> {
        let text = format!("controller = \"http://127.0.0.1:5650\"\n{text}");
        SlurmConfig::parse(&text, Path::new("/etc/sluice")).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn only_the_controller_must_be_named() {
        let config = parsed("").unwrap();
        assert_eq!(config.direction().unwrap(), ReservedDirection::Write);
        assert_eq!((config.licence.as_str(), config.on_failure), ("lustreqos", OnFailure::Start));
        assert_eq!(config.run_dir, Path::new("/run/sluice/jobs"));
        let config =
            parsed("token_file = \"t\"\non_failure = \"wait\"\n[mounts]\n\"/s\" = \"e\"\n");
        let config = config.unwrap();
        assert_eq!(config.token_file.as_deref(), Some(Path::new("/etc/sluice/t")));
        assert_eq!((config.on_failure, config.mounts["/s"].as_str()), (OnFailure::Wait, "e"));
    }

    #[test]
    fn values_that_are_not_valid_are_named() {
        for (text, told) in [
            ("licences = \"x\"", "licences"),
            ("licence = \"a b\"", "\"a b\" is not the name of licences"),
            ("direction = \"up\"", "\"up\" is not read, write or both"),
            ("interval = \"10ms\"", "interval: 10ms is less than 1s"),
            ("run_dir = \"jobs\"", "run_dir: \"jobs\" is not an absolute path"),
            ("node_cert = \"c\"", "node_cert and node_key require each other"),
            ("on_failure = \"die\"", "die"),
            ("[mounts]\nscratch = \"e\"", "\"scratch\" = \"e\" is not a mount and its export"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        let error = SlurmConfig::parse("controller = \"nowhere\"", Path::new("")).unwrap_err();
        assert!(format!("{error:#}").contains("controller: \"nowhere\""), "{error:#}");
    }
}
