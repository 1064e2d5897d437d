//! `sluice slurm check`: mistakes of a configuration, each with what would be right.
//!
//! ```text
//!   scontrol show config, licenses, burstbuffer ─┐
//!   slurm.toml and its files                     ├─► findings: error, warning ─► text or JSON
//!   PrologSlurmctld, what it does on a failure   │
//!   the controller: its calendar, its clock      ┘
//! ```

use std::collections::BTreeMap;

use model::{Nanos, Time};
use serde::Serialize;

use super::command;
use super::config::{OnFailure, SlurmConfig};
use crate::when;

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
        match command::scontrol(&["show", "config"]) {
            Ok(text) => {
                let found = settings(&text);
                check.settings(&found, config);
                let hook = found.get("PrologSlurmctld").map(std::fs::read_to_string);
                if let Some(Ok(text)) = hook {
                    check.prolog(&text, config);
                }
            }
            Err(error) => check.error("slurmctld", format!("{error:#}")),
        }
        match command::scontrol(&["show", "burstbuffer"]) {
            Ok(text) => check.burst_buffer(&text, config),
            Err(error) => check.warning("BurstBufferType", format!("{error:#}")),
        }
        let shown = command::scontrol(&["show", "licenses", "--oneliner"]);
        let line = |text: &String| {
            let mut lines = text.lines();
            let wanted = Some(config.licence.as_str());
            lines.find(|line| command::value(line, "LicenseName") == wanted).map(str::to_owned)
        };
        let licences = shown.as_ref().ok().and_then(line);
        let total = licences.and_then(|line| command::value(&line, "Total")?.parse::<u64>().ok());
        check.pool(config, total);
        check.controller_clock(config);
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
        let Some(timeout) = command::value(&text.replace('\n', " "), "OtherTimeout")
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

    /// Checks the script of PrologSlurmctld; one of the site without this setting is its own affair.
    fn prolog(&mut self, text: &str, config: &SlurmConfig) {
        let has_no_effect = text.lines().any(|line| line.trim() == "FAIL=no");
        if config.on_failure == OnFailure::Wait && has_no_effect {
            let message = "FAIL=no: on_failure = \"wait\" of slurm.toml has no effect there, and a \
                           job that passed the gate starts without being registered; use FAIL=yes";
            self.warning("PrologSlurmctld", message.into());
        }
        let limit = text.lines().find_map(|line| line.trim().strip_prefix("LIMIT="));
        if let Some(limit) = limit.and_then(|limit| limit.parse::<Nanos>().ok())
            && limit <= config.wait
        {
            let message = format!(
                "LIMIT={limit} is not longer than wait = {}: a job of srun or salloc that waits for \
                 its reservation starts without it",
                config.wait
            );
            self.error("PrologSlurmctld", message);
        }
    }

    /// Compares the clock of the controller with that of this machine, which is slurmctld's.
    fn controller_clock(&mut self, config: &SlurmConfig) {
        let asked = when::now();
        // That it does not answer is found with the pool.
        let Ok(calendar) = config.batch_client().and_then(|client| Ok(client.calendar("")?)) else {
            return;
        };
        self.clock(asked, Time::from_nanos(calendar.at_ns), when::now());
    }

    /// Checks the controller's time `at`, which it gave between two times of this machine.
    fn clock(&mut self, asked: Time, at: Time, answered: Time) {
        let (ahead, behind) = (at.since(answered), asked.since(at));
        let (apart, word) = if ahead > behind { (ahead, "ahead of") } else { (behind, "behind") };
        if apart > CLOCKS_MAX {
            let message = format!(
                "the clock of the controller is {apart} {word} this machine's: at most \
                 {CLOCKS_MAX} are right; synchronize both (NTP), or reservations and starts of jobs \
                 miss each other"
            );
            self.warning("clock", message);
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

/// How far the clocks of the controller and of slurmctld's machine may be apart.
const CLOCKS_MAX: Nanos = Nanos::from_secs(2);

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
    fn clocks_that_are_apart_by_more_than_two_seconds_are_found_with_the_difference() {
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let found = |asked, at_controller, answered| {
            let mut check = SlurmCheck::default();
            check.clock(at(asked), at(at_controller), at(answered));
            check.text()
        };
        for (asked, at_controller, answered) in [(100, 100, 100), (100, 102, 100), (100, 98, 101)] {
            assert_eq!(found(asked, at_controller, answered), "no mistakes found\n");
        }
        // An answer that took long says little: only what is certain counts.
        assert_eq!(found(100, 109, 110), "no mistakes found\n");
        assert!(
            found(100, 113, 110)
                .contains("warning: clock: the clock of the controller is 3s ahead of this")
        );
        assert!(found(100, 93, 110).contains("is 7s behind this machine's"));
    }

    #[test]
    fn a_site_that_waits_has_a_prolog_that_may_fail() {
        let base = "controller = \"http://127.0.0.1:5650\"";
        let wait = format!("{base}\non_failure = \"wait\"");
        for (config, text, is_found) in [
            (wait.as_str(), "LIMIT=540s\nFAIL=no\n", true),
            (wait.as_str(), "FAIL=yes\n", false),
            (wait.as_str(), "# FAIL=no\nexec sluice slurm prolog-slurmctld\n", false),
            (base, "FAIL=no\n", false),
        ] {
            let mut check = SlurmCheck::default();
            check.prolog(text, &toml::from_str(config).unwrap());
            let found = check.text().starts_with("warning: PrologSlurmctld: FAIL=no");
            assert_eq!(found, is_found, "{text}");
        }
        for (limit, is_found) in [("2s", true), ("4min", true), ("540s", false)] {
            let mut check = SlurmCheck::default();
            check.prolog(&format!("LIMIT={limit}\n"), &toml::from_str(base).unwrap());
            let found = check.text().starts_with("error: PrologSlurmctld: LIMIT=");
            assert_eq!(found, is_found, "{limit}: {}", check.text());
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
