//! What a job of Slurm reserves: the request for the controller.
//!
//! ```text
//!   sluice:bw=1GB/s:write;time=10min;path=/mnt/x;phases=…   of job_submit.lua, in the admin comment
//!   lustreqos:100                                           licences alone: 100 MB/s
//! ```
//!
//! Values are percent-encoded. Only job_submit and operators write admin comments, so what stands
//! there is what was checked at submission.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use api::{NewJob, NewReservation, WireRate};
use model::{Nanos, Rate};
use percent_encoding::percent_decode_str;

use super::config::SlurmConfig;
use super::queue::SlurmJob;
use crate::reserve::{ReservedDirection, bandwidth, phases_of, rates};

/// The bandwidth that a job asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobRequest {
    rate: Rate,
    direction: ReservedDirection,
    time: Option<Nanos>,
    path: Option<String>,
    phases: Option<String>,
}

/// Whether a job may have a request, from the beginning of its admin comment.
pub(super) fn may_have_one(job: &SlurmJob, config: &SlurmConfig) -> bool {
    job.comment.contains(WORD) || licences(&job.licences, &config.licence) > 0
}

/// Returns the MB/s that the licences of a job are for.
pub(super) fn licences(list: &str, name: &str) -> u64 {
    let counts = list.split(',').filter_map(|item| {
        let (found, count) = item.trim().split_once([':', '=']).unwrap_or((item.trim(), "1"));
        Some(count.parse::<u64>().ok()?).filter(|_| found == name)
    });
    counts.fold(0, u64::saturating_add)
}

/// Returns the job and the attempt of a key that [`key`] made.
pub(super) fn parsed_key(key: &str) -> Option<(String, u32)> {
    let (job, attempt) = key.strip_prefix("slurm-")?.split_once('-')?;
    let is_number = job.bytes().all(|byte| byte.is_ascii_digit());
    Some((job.to_owned(), attempt.parse().ok()?)).filter(|_| is_number)
}

/// Returns the key of the reservation of one attempt of a job: requests with it are one reservation.
pub(super) fn key(job: &SlurmJob) -> String {
    format!("slurm-{}-{}", job.id, job.attempt)
}

/// Returns the registration of a job that has begun on these nodes.
pub(super) fn registration(job: &SlurmJob, nodes: Vec<String>) -> NewJob {
    NewJob {
        user: Some(job.user),
        group: Some(job.group),
        account: job.account.clone(),
        attempt: job.attempt,
        nodes,
        ends_ns: job.ends.map(|ends| ends.as_nanos()),
    }
}

impl JobRequest {
    /// Returns what a job asks for, if it does.
    ///
    /// # Errors
    /// If job_submit.lua did not write what stands in the admin comment.
    pub(super) fn of(job: &SlurmJob, config: &SlurmConfig) -> anyhow::Result<Option<JobRequest>> {
        // job_submit.lua leaves no other word of this kind, and what follows it is of `follow`.
        let word = job.comment.split_whitespace().find_map(|word| word.strip_prefix(WORD));
        if let Some(word) = word {
            let parsed = JobRequest::parse(word);
            return parsed.map(Some).with_context(|| format!("admin comment of job {}", job.id));
        }
        let mb = licences(&job.licences, &config.licence);
        let Some(rate) = mb.checked_mul(1_000_000).and_then(Rate::bytes_per_sec) else {
            return Ok(None);
        };
        let direction = config.direction()?;
        Ok(Some(JobRequest { rate, direction, time: None, path: None, phases: None }))
    }

    fn parse(word: &str) -> anyhow::Result<JobRequest> {
        let (mut rate, mut time, mut path, mut phases) = (None, None, None, None);
        for item in word.split(';').filter(|item| !item.is_empty()) {
            let (name, value) = item.split_once('=').unwrap_or((item, ""));
            let value = percent_decode_str(value).decode_utf8();
            let value = value.with_context(|| format!("{name}: not UTF-8"))?.into_owned();
            match name {
                "bw" => rate = Some(directed(&value)?),
                "time" => time = Some(value.parse().map_err(|error| anyhow!("time: {error}"))?),
                "path" => path = Some(value),
                "phases" => phases = Some(value),
                _ => bail!("{name:?} is not bw, time, path or phases"),
            }
        }
        let (rate, direction) = rate.context("bw is missing")?;
        Ok(JobRequest { rate, direction, time, path, phases })
    }

    /// Returns the request for the controller, to start at `not_before_ns` or later.
    ///
    /// # Errors
    /// If the job has no end, or a path is below none of the mounts, or the phases are not valid.
    pub(super) fn reservation(
        &self,
        job: &SlurmJob,
        config: &SlurmConfig,
        not_before_ns: Option<u64>,
    ) -> anyhow::Result<NewReservation> {
        let length = self.time.or(job.limit).with_context(|| {
            format!("job {} has no time limit: give one, or --qos-time", job.id)
        })?;
        let [read, write]: [Option<WireRate>; 2] = rates(Some(self.direction), Some(self.rate));
        let (export, directory) = self.place(config)?;
        let phases = match &self.phases {
            Some(text) => phases_of(text, length).context("--qos-phases")?,
            None => Vec::new(),
        };
        // The times of phases count from the start, so such a reservation waits for nobody.
        let claim_window = if phases.is_empty() { config.claim_window } else { Nanos::ZERO };
        Ok(NewReservation {
            read,
            write,
            duration_ns: length.get(),
            not_before_ns,
            claim_window_ns: claim_window.get(),
            job: Some(job.id.clone()),
            user: Some(job.user),
            group: Some(job.group),
            account: job.account.clone(),
            export,
            directory,
            nodes: Some(job.nodes.clamp(1, 65_536)),
            phases,
            idempotency_key: Some(key(job)),
            ..NewReservation::default()
        })
    }

    /// Returns the export and the directory of `--qos-path`. Links are not resolved: slurmctld's
    /// machine has no mount of them.
    fn place(&self, config: &SlurmConfig) -> anyhow::Result<(Option<String>, Option<String>)> {
        let Some(path) = &self.path else { return Ok((config.export.clone(), None)) };
        let directory =
            |rest: &str| Some(rest.trim_matches('/').to_owned()).filter(|d| !d.is_empty());
        if !path.starts_with('/') {
            let (export, rest) = path.split_once('/').unwrap_or((path, ""));
            return Ok((Some(export.to_owned()), directory(rest)));
        }
        let above = config.mounts.iter().filter_map(|(mount, export)| {
            let rest = Path::new(path).strip_prefix(mount).ok()?;
            Some((mount.len(), export, rest.to_str()?))
        });
        let (_, export, rest) = above.max_by_key(|(length, ..)| *length).with_context(|| {
            let mounts: Vec<_> = config.mounts.keys().map(String::as_str).collect();
            format!(
                "--qos-path: {path:?} is not below a mount of slurm.toml: {}",
                mounts.join(", ")
            )
        })?;
        Ok((Some(export.clone()), directory(rest)))
    }
}

/// Parses `RATE`, `RATE:read` or `RATE:write`; without a direction the rate is for each of both.
fn directed(text: &str) -> anyhow::Result<(Rate, ReservedDirection)> {
    let (rate, direction) = match text.split_once(':') {
        None => (text, ReservedDirection::Both),
        Some((rate, "read")) => (rate, ReservedDirection::Read),
        Some((rate, "write")) => (rate, ReservedDirection::Write),
        Some((_, other)) => bail!("bw: {other:?} is not read or write"),
    };
    let rate = bandwidth(rate).map_err(|why| anyhow!("bw: {rate:?}: {why}"))?;
    Ok((rate, direction))
}

/// The beginning of the word of job_submit.lua.
pub(super) const WORD: &str = "sluice:";

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> SlurmConfig {
        toml::from_str(&format!("controller = \"http://127.0.0.1:5650\"\n{text}")).unwrap()
    }

    fn job(comment: &str, licences: &str) -> SlurmJob {
        SlurmJob {
            id: "7".into(),
            user: 5,
            nodes: 2,
            limit: Some(Nanos::from_secs(60)),
            comment: comment.into(),
            licences: licences.into(),
            ..SlurmJob::default()
        }
    }

    fn requested(comment: &str, licences: &str) -> anyhow::Result<Option<NewReservation>> {
        let config = config("export = \"e\"\n[mounts]\n\"/mnt\" = \"m\"\n\"/mnt/s\" = \"s\"\n");
        let job = job(comment, licences);
        assert!(may_have_one(&job, &config) || (comment.is_empty() && licences != "lustreqos:3"));
        let request = JobRequest::of(&job, &config)?;
        request.map(|request| request.reservation(&job, &config, Some(9))).transpose()
    }

    #[test]
    fn the_word_of_job_submit_is_the_request() {
        let word = "any text sluice:bw=1GB/s:write;time=10min;path=/mnt/s/run%207;\
                    phases=%5B%5Bphase%5D%5D%0Astart=%221s%22%0Aduration=%222s%22%0Awrite=%222GB/s%22";
        let new = requested(word, "lustreqos:1000").unwrap().unwrap();
        assert_eq!((new.read, new.write), (None, Some(WireRate::Bytes(1_000_000_000))));
        assert_eq!((new.duration_ns, new.claim_window_ns), (600_000_000_000, 0));
        assert_eq!((new.export.as_deref(), new.directory.as_deref()), (Some("s"), Some("run 7")));
        assert_eq!((new.user, new.job.as_deref(), new.nodes), (Some(5), Some("7"), Some(2)));
        assert_eq!(new.phases[0].write, Some(WireRate::Bytes(2_000_000_000)));
        assert_eq!(new.idempotency_key.as_deref(), Some("slurm-7-0"));
        let new = requested("sluice:bw=1MB/s;path=x/y/z", "").unwrap().unwrap();
        assert_eq!((new.read, new.write), (new.write, Some(WireRate::Bytes(1_000_000))));
        assert_eq!((new.export.as_deref(), new.directory.as_deref()), (Some("x"), Some("y/z")));
        assert_eq!(new.duration_ns, 60_000_000_000, "the time limit");
    }

    #[test]
    fn licences_alone_are_a_rate_of_the_configured_direction() {
        let new = requested("", "matlab:1,lustreqos:100").unwrap().unwrap();
        assert_eq!((new.read, new.write), (None, Some(WireRate::Bytes(100_000_000))));
        assert_eq!((new.export.as_deref(), new.not_before_ns), (Some("e"), Some(9)));
        assert_eq!(requested("", "matlab:1").unwrap(), None);
        assert_eq!(licences("lustreqos", "lustreqos"), 1);
        assert_eq!(licences("lustreqos:2,lustreqos=3,x:9", "lustreqos"), 5);
    }

    #[test]
    fn what_stands_behind_the_request_does_not_change_it() {
        let new = requested("x sluice:bw=1MB/s:write held: \"a sluice:bw=9GB/s:write b\"", "");
        let new = new.unwrap().unwrap();
        assert_eq!(new.write, Some(WireRate::Bytes(1_000_000)));
    }

    #[test]
    fn what_cannot_be_requested_is_named() {
        for (word, told) in [
            ("sluice:time=1s", "bw is missing"),
            ("sluice:bw=1GB/s:up", "\"up\" is not read or write"),
            ("sluice:bw=1ops/s", "bw: \"1ops/s\""),
            ("sluice:bw=1MB/s;rate=2", "\"rate\" is not bw, time"),
            ("sluice:bw=1MB/s;time=soon", "time: "),
            (
                "sluice:bw=1MB/s;path=/home/x",
                "\"/home/x\" is not below a mount of slurm.toml: /mnt",
            ),
            ("sluice:bw=1MB/s;phases=x", "--qos-phases"),
        ] {
            let error = format!("{:#}", requested(word, "").unwrap_err());
            assert!(error.contains(told), "{word}: {error}");
        }
        let endless = SlurmJob { limit: None, ..job("sluice:bw=1MB/s", "") };
        let config = config("");
        let request = JobRequest::of(&endless, &config).unwrap().unwrap();
        let error = request.reservation(&endless, &config, None).unwrap_err().to_string();
        assert!(error.contains("no time limit"), "{error}");
    }
}
