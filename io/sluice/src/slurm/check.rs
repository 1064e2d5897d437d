//! `sluice slurm check`: mistakes of a configuration, each with what would be right.
//!
//! ```text
//!   scontrol show config, licenses, burstbuffer ─┐
//!   slurm.toml and its files                     ├─► findings: error, warning ─► text or JSON
//!   the controller: its calendar                 ┘
//! ```

use std::collections::BTreeMap;

use serde::Serialize;

use super::config::SlurmConfig;
use super::scontrol;

/// One mistake of a configuration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct SlurmFinding {
    /// `error`: jobs do not get what they reserve; `warning`: they may not.
    level: &'static str,
    /// The setting at fault.
    setting: String,
    /// What is wrong, and what would be right.
    message: String,
}

/// Everything that was found, in the order in which it is to be mended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct SlurmCheck {
    findings: Vec<SlurmFinding>,
}

impl SlurmCheck {
    /// Looks at Slurm, at the settings and at the controller.
    pub(super) fn run(config: &SlurmConfig) -> SlurmCheck {
        let mut check = SlurmCheck::default();
        match scontrol::run(&["show", "config"]) {
            Ok(text) => check.settings(&settings(&text), config),
            Err(error) => check.error("slurmctld", format!("{error:#}")),
        }
        match scontrol::run(&["show", "burstbuffer"]) {
            Ok(text) => check.burst_buffer(&text, config),
            Err(error) => check.warning("BurstBufferType", format!("{error:#}")),
        }
        let shown = scontrol::run(&["show", "licenses", "--oneliner"]);
        let line = |text: &String| {
            let mut lines = text.lines();
            let wanted = Some(config.licence.as_str());
            lines.find(|line| scontrol::value(line, "LicenseName") == wanted).map(str::to_owned)
        };
        let licences = shown.as_ref().ok().and_then(line);
        let total = licences.and_then(|line| scontrol::value(&line, "Total")?.parse::<u64>().ok());
        check.pool(config, total);
        if config.claim_window.get() < 2 * config.interval.get() {
            let message = format!(
                "{} is less than twice interval = {}: reservations lapse before follow moves them",
                config.claim_window, config.interval
            );
            check.warning("claim_window", message);
        }
        check
    }

    /// Whether there is an error.
    pub(super) fn has_errors(&self) -> bool {
        self.findings.iter().any(|finding| finding.level == "error")
    }

    /// Returns a line a finding, or that there is none.
    pub(super) fn text(&self) -> String {
        let line = |finding: &SlurmFinding| {
            format!("{}: {}: {}\n", finding.level, finding.setting, finding.message)
        };
        match self.findings.is_empty() {
            true => "no mistakes found\n".into(),
            false => self.findings.iter().map(line).collect(),
        }
    }

    /// Checks slurm.conf, as `scontrol show config` prints it.
    fn settings(&mut self, found: &BTreeMap<String, String>, config: &SlurmConfig) {
        let value = |key: &str| found.get(key).map_or("", String::as_str);
        let has = |key: &str, word: &str| {
            value(key).split(',').any(|item| item.split('=').next() == Some(word))
        };
        if value("SchedulerType") != "sched/backfill" {
            let message = format!(
                "{}: only sched/backfill plans starts that reservations can follow",
                value("SchedulerType")
            );
            self.error("SchedulerType", message);
        }
        if !has("SchedulerParameters", "bf_licenses") {
            let message = "bf_licenses is missing: a job that waits for licences is overtaken for \
                           ever by those that need fewer";
            self.error("SchedulerParameters", message.into());
        }
        if !has("JobSubmitPlugins", "lua") {
            let message = "lua is missing: job_submit.lua turns --qos-bw into licences and checks \
                           them against GRES";
            self.error("JobSubmitPlugins", message.into());
        }
        for (hook, what) in [
            ("PrologSlurmctld", "registers jobs and begins their reservations"),
            ("EpilogSlurmctld", "ends reservations with their credit"),
            ("Prolog", "gives jobs their tokens"),
            ("Epilog", "removes tokens of jobs"),
        ] {
            if ["", "(null)"].contains(&value(hook)) {
                self.error(hook, format!("is not set: sluice slurm {} {what}", command(hook)));
            }
        }
        if !has("PrologFlags", "Alloc") && !has("PrologFlags", "Contain") {
            let message = "Alloc is missing: the prolog of a node runs with the first step, and a \
                           job without one there has no token";
            self.warning("PrologFlags", message.into());
        }
        if value("ProctrackType") != "proctrack/cgroup" {
            let message = format!(
                "{}: without proctrack/cgroup mounts know jobs by their environment alone, which \
                 users can forge",
                value("ProctrackType")
            );
            self.warning("ProctrackType", message);
        }
        if value("BurstBufferType") != "burst_buffer/lua" {
            let message = "is not burst_buffer/lua: a job starts whether its reservation can begin \
                           or not, and is best effort until then";
            self.warning("BurstBufferType", message.into());
        }
        let licences = value("Licenses").split(',').map(|item| item.split(':').next());
        if !licences.into_iter().any(|name| name == Some(config.licence.as_str())) {
            let message = format!("{} is missing: add {}:MB/s", config.licence, config.licence);
            self.error("Licenses", message);
        }
    }

    /// Checks burst_buffer.conf, as `scontrol show burstbuffer` prints it.
    fn burst_buffer(&mut self, text: &str, config: &SlurmConfig) {
        let Some(timeout) = scontrol::value(&text.replace('\n', " "), "OtherTimeout")
            .and_then(|value| value.parse::<u64>().ok())
        else {
            return;
        };
        let wait = config.wait.to_duration().as_secs();
        if timeout <= wait {
            let message = format!(
                "{timeout} s is not longer than wait = {}: Slurm kills sluice slurm start of a job \
                 that waits at a terminal, and the job fails",
                config.wait
            );
            self.error("OtherTimeout", message);
        }
    }

    /// Checks that licences and the calendar are one pool.
    fn pool(&mut self, config: &SlurmConfig, licences: Option<u64>) {
        let target = config.batch_client().and_then(|client| config.pool_target(&client));
        let target = match target {
            Ok(Some(target)) => target,
            Ok(None) => {
                let message = "is not set, and the calendar has several targets: licences are not \
                               kept equal to one of them";
                return self.warning("target", message.into());
            }
            Err(error) => return self.error("controller", format!("{error:#}")),
        };
        let Ok(due) = config.licences_of(&target) else { return };
        if let Some(licences) = licences.filter(|licences| *licences != due) {
            let message = format!(
                "{}:{licences}, but {due} MB/s of target {} may be reserved: use {}:{due}",
                config.licence, target.name, config.licence
            );
            self.warning("Licenses", message);
        }
    }

    fn error(&mut self, setting: &str, message: String) {
        self.add("error", setting, message);
    }

    fn warning(&mut self, setting: &str, message: String) {
        self.add("warning", setting, message);
    }

    fn add(&mut self, level: &'static str, setting: &str, message: String) {
        self.findings.push(SlurmFinding { level, setting: setting.into(), message });
    }
}

/// The subcommand of a hook.
fn command(hook: &str) -> &'static str {
    match hook {
        "PrologSlurmctld" => "prolog-slurmctld",
        "EpilogSlurmctld" => "epilog-slurmctld",
        "Prolog" => "prolog",
        _ => "epilog",
    }
}

/// The keys and values of `scontrol show config`.
fn settings(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once('='));
    // Newer versions number the hooks: `Prolog[0]`.
    let key = |key: &str| key.trim().split('[').next().unwrap_or_default().to_owned();
    lines.map(|(name, value)| (key(name), value.trim().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Configuration data as of 2026-11-28T17:20:59\n\
        BurstBufferType         = burst_buffer/lua\nEpilog                  = /e\n\
        EpilogSlurmctld[0]      = /es\nJobSubmitPlugins        = lua\n\
        Licenses                = matlab:3,lustreqos:850\nProctrackType           = proctrack/cgroup\n\
        Prolog                  = /p\nPrologFlags             = Alloc,Contain\n\
        PrologSlurmctld         = /ps\n\
        SchedulerParameters     = bf_licenses,bf_interval=2\nSchedulerType           = sched/backfill\n";

    fn found(text: &str) -> Vec<(&'static str, String)> {
        let config = "controller = \"http://127.0.0.1:5650\"";
        let mut check = SlurmCheck::default();
        check.settings(&settings(text), &toml::from_str(config).unwrap());
        check.findings.into_iter().map(|it| (it.level, it.setting)).collect()
    }

    #[test]
    fn a_right_configuration_has_no_findings() {
        assert_eq!(found(GOOD), []);
        assert_eq!(SlurmCheck::default().text(), "no mistakes found\n");
    }

    #[test]
    fn each_mistake_is_found_alone() {
        for (right, wrong, level, setting) in [
            ("sched/backfill", "sched/builtin", "error", "SchedulerType"),
            ("bf_licenses,", "", "error", "SchedulerParameters"),
            ("= lua", "= (null)", "error", "JobSubmitPlugins"),
            ("= /ps", "= (null)", "error", "PrologSlurmctld"),
            ("= /es", "= (null)", "error", "EpilogSlurmctld"),
            ("= /p\n", "= (null)\n", "error", "Prolog"),
            ("= /e\n", "= (null)\n", "error", "Epilog"),
            ("Alloc,Contain", "X11", "warning", "PrologFlags"),
            ("proctrack/cgroup", "proctrack/linuxproc", "warning", "ProctrackType"),
            ("burst_buffer/lua", "(null)", "warning", "BurstBufferType"),
            ("lustreqos:850", "lustre:850", "error", "Licenses"),
        ] {
            let text = GOOD.replace(right, wrong);
            assert_ne!(text, GOOD, "{right}");
            assert_eq!(found(&text), [(level, setting.to_owned())], "{wrong}");
        }
    }

    #[test]
    fn a_timeout_that_ends_waiting_jobs_is_an_error() {
        let config =
            toml::from_str("controller = \"http://127.0.0.1:5650\"\nwait = \"5min\"").unwrap();
        let mut check = SlurmCheck::default();
        check.burst_buffer(
            "Name=lua DefaultPool=(null)\n  OtherTimeout=300 StageInTimeout=1",
            &config,
        );
        assert!(check.has_errors());
        assert!(
            check.text().starts_with("error: OtherTimeout: 300 s is not longer than wait = 5min")
        );
        let mut check = SlurmCheck::default();
        check.burst_buffer("Name=lua\n  OtherTimeout=301", &config);
        check.burst_buffer("", &config);
        assert!(!check.has_errors());
    }
}
