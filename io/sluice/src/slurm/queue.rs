//! The queue of Slurm, as `squeue` prints it.
//!
//! ```text
//!   squeue -O "JobID:…,UserID:…,…,admin_comment:…" ─► a line a job, columns of fixed width ─► SlurmJob
//! ```
//!
//! Columns have fixed widths, and none of them holds what a user names, such as the job's name: a
//! value can be taken for no other column.

use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use model::{Nanos, Time};

/// A job in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlurmJob {
    /// The job ID that its tasks have in `SLURM_JOB_ID`.
    pub(super) id: String,
    pub(super) user: u32,
    pub(super) group: u32,
    /// How often it was requeued.
    pub(super) attempt: u32,
    /// Whether sbatch submitted it; srun and salloc wait at a terminal.
    pub(super) is_batch: bool,
    pub(super) nodes: u32,
    pub(super) state: SlurmState,
    /// Whether `slurm_bb_pre_run` refused its last start: Slurm then waits for two minutes.
    pub(super) is_refused: bool,
    /// Whether it waits for its user or an operator to release it.
    pub(super) is_held: bool,
    /// Whether it waits for resources alone, so that it may start at any time.
    pub(super) waits_for_resources: bool,
    /// When Slurm expects it to start, or when it started.
    pub(super) start: Option<Time>,
    /// When it may start at the earliest, if its user or `follow` said so.
    pub(super) eligible: Option<Time>,
    pub(super) ends: Option<Time>,
    pub(super) limit: Option<Nanos>,
    pub(super) account: Option<String>,
    /// A list such as `matlab:1,lustreqos:100`.
    pub(super) licences: String,
    /// What job_submit wrote, cut at the width that was asked for.
    pub(super) comment: String,
}

/// The states of a job that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlurmState {
    /// It waits for its start.
    #[default]
    Pending,
    /// It has its nodes.
    Running,
    /// It has ended, or is ending.
    Over,
}

/// A column of `squeue`: its name and its width.
struct SlurmColumn(&'static str, usize);

const COLUMNS: [SlurmColumn; 14] = [
    SlurmColumn("JobID", 12),
    SlurmColumn("UserID", 12),
    SlurmColumn("GroupID", 12),
    SlurmColumn("RestartCnt", 8),
    SlurmColumn("BatchFlag", 4),
    SlurmColumn("NumNodes", 8),
    SlurmColumn("State", 16),
    SlurmColumn("Reason", 40),
    SlurmColumn("StartTime", 20),
    SlurmColumn("EligibleTime", 20),
    SlurmColumn("EndTime", 20),
    SlurmColumn("TimeLimit", 20),
    SlurmColumn("Account", 130),
    SlurmColumn("Licenses", 1024),
];

/// The jobs that wait or run.
#[derive(Debug, Default)]
pub(super) struct SlurmQueue {
    /// Each with the beginning of what job_submit wrote.
    pub(super) jobs: Vec<SlurmJob>,
    /// Whether every line of `squeue` could be read: without that no job counts as gone.
    pub(super) is_complete: bool,
}

/// Returns the jobs that wait or run.
///
/// # Errors
/// If `squeue` fails.
pub(super) fn queue() -> anyhow::Result<SlurmQueue> {
    let lines = list(&["--all"], COMMENT_BEGINNING)?;
    let mut queue = SlurmQueue { jobs: Vec::new(), is_complete: true };
    for job in lines {
        match job {
            Ok(job) => queue.jobs.push(job),
            Err(error) => {
                tracing::warn!(error = %format!("{error:#}"), "cannot read a line of the queue");
                queue.is_complete = false;
            }
        }
    }
    Ok(queue)
}

/// Returns a job with all that job_submit wrote; `None` if Slurm does not have it.
///
/// # Errors
/// If `squeue` fails, or prints what it does not document.
pub(super) fn job(id: &str) -> anyhow::Result<Option<SlurmJob>> {
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_digit()) {
        bail!("{id:?} is not a job ID of Slurm, such as 4711");
    }
    let found = list(&["--all", "--states=all", "--jobs", id], COMMENT_MAX)?;
    for job in found {
        let job = job?;
        if job.id == id {
            return Ok(Some(job));
        }
    }
    Ok(None)
}

fn list(which: &[&str], comment: usize) -> anyhow::Result<Vec<anyhow::Result<SlurmJob>>> {
    let columns = COLUMNS.iter().map(|SlurmColumn(name, width)| format!("{name}:{width}"));
    let columns: Vec<_> = columns.chain([format!("admin_comment:{comment}")]).collect();
    let mut squeue = Command::new("squeue");
    // Times are then of one zone, whatever the user's environment says.
    squeue.env("TZ", "UTC");
    // What would hide jobs, or change the form of the lines.
    let names = std::env::vars_os().map(|(name, _)| name);
    let is_of_squeue = |name: &std::ffi::OsString| {
        name.as_encoded_bytes().starts_with(b"SQUEUE_")
            || name == "SLURM_CLUSTERS"
            || name == "SLURM_TIME_FORMAT"
    };
    names.filter(is_of_squeue).for_each(|name| {
        squeue.env_remove(name);
    });
    squeue.args(["--noheader", "--Format", &columns.join(",")]).args(which).stdin(Stdio::null());
    let said = squeue.output().context("cannot run squeue")?;
    let (text, errors) = (String::from_utf8_lossy(&said.stdout), &said.stderr);
    if !said.status.success() {
        let errors = String::from_utf8_lossy(errors);
        // Of one job that it has forgotten.
        if errors.contains("Invalid job id") {
            return Ok(Vec::new());
        }
        bail!("squeue: {}: {}", said.status, errors.trim());
    }
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(parse).collect())
}

fn parse(line: &str) -> anyhow::Result<SlurmJob> {
    let mut rest = line;
    let mut next = |SlurmColumn(name, width): &SlurmColumn| {
        // squeue counts bytes.
        let mut end = (*width).min(rest.len());
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (value, after) = rest.split_at(end);
        rest = after;
        (*name, value.trim())
    };
    let mut job = SlurmJob::default();
    for column in &COLUMNS {
        let (name, value) = next(column);
        let number = || {
            let wrong = || format!("squeue: {name}: {value:?} is not a number in {line:?}");
            value.parse::<u32>().with_context(wrong)
        };
        match name {
            "JobID" => {
                number()?;
                job.id = value.into();
            }
            "UserID" => job.user = number()?,
            "GroupID" => job.group = number()?,
            "RestartCnt" => job.attempt = number()?,
            "BatchFlag" => job.is_batch = number()? > 0,
            // "1-4" while it waits for one to four.
            "NumNodes" => job.nodes = value.split('-').next().unwrap_or("").parse().unwrap_or(1),
            "State" => job.state = SlurmState::of(value),
            "Reason" => {
                job.is_refused = value.contains("pre_run");
                job.is_held = value.starts_with("JobHeld");
                let for_resources = ["None", "Resources", "Priority", "Licenses", "BeginTime"];
                job.waits_for_resources = job.is_refused || for_resources.contains(&value);
            }
            "StartTime" => job.start = time(value),
            "EligibleTime" => job.eligible = time(value),
            "EndTime" => job.ends = time(value),
            "TimeLimit" => job.limit = span(value),
            "Account" => job.account = known(value),
            _ => job.licences = known(value).unwrap_or_default(),
        }
    }
    job.comment = known(rest.trim()).unwrap_or_default();
    Ok(job)
}

impl SlurmState {
    fn of(text: &str) -> SlurmState {
        match text {
            "PENDING" | "REQUEUED" | "REQUEUE_HOLD" | "REQUEUE_FED" | "SPECIAL_EXIT" => {
                SlurmState::Pending
            }
            "RUNNING" | "CONFIGURING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "RESIZING"
            | "STAGE_OUT" => SlurmState::Running,
            _ => SlurmState::Over,
        }
    }
}

/// A value that is not one of the words for none.
fn known(value: &str) -> Option<String> {
    let none = ["", "(null)", "N/A", "None"];
    Some(value.to_owned()).filter(|value| !none.contains(&value.as_str()))
}

/// A time as Slurm prints it, `2026-11-28T14:00:00`, in UTC.
fn time(value: &str) -> Option<Time> {
    let civil: DateTime = value.parse().ok()?;
    let at = TimeZone::UTC.to_timestamp(civil).ok()?.as_nanosecond();
    Some(Time::from_nanos(u64::try_from(at).ok()?))
}

/// A span as Slurm prints it: `[D-]HH:MM:SS`, `MM:SS` or `M:SS`.
fn span(value: &str) -> Option<Nanos> {
    let (days, clock) = match value.split_once('-') {
        Some((days, clock)) => (days.parse::<u64>().ok()?, clock),
        None => (0, value),
    };
    let mut seconds = 0;
    for part in clock.split(':') {
        seconds = seconds * 60 + part.parse::<u64>().ok()?;
    }
    Some(Nanos::from_secs(days.checked_mul(86_400)?.checked_add(seconds)?))
}

/// What is read of each job's admin comment in a list: enough to see whether there is one.
const COMMENT_BEGINNING: usize = 40;
/// The longest admin comment that is read: job_submit.lua writes less.
const COMMENT_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(values: [&str; 14], comment: &str) -> String {
        let padded = COLUMNS.iter().zip(values);
        let mut line: String =
            padded.map(|(SlurmColumn(_, width), value)| format!("{value:<width$}")).collect();
        line.push_str(comment);
        line
    }

    #[test]
    fn a_line_of_squeue_is_a_job() {
        let waits = [
            "4711",
            "1000",
            "100",
            "2",
            "1",
            "2-4",
            "PENDING",
            "Burst buffer pre_run error",
            "2026-11-28T14:00:00",
            "N/A",
            "2026-11-28T15:00:00",
            "1-02:03:04",
            "phys",
            "matlab:1,lustreqos:100",
        ];
        let job = parse(&line(waits, "site sluice:bw=1GB/s:write ")).unwrap();
        let hour = Nanos::from_secs(3600);
        let start = Time::from_nanos(1_795_874_400_000_000_000);
        let expected = SlurmJob {
            id: "4711".into(),
            user: 1000,
            group: 100,
            attempt: 2,
            is_batch: true,
            nodes: 2,
            state: SlurmState::Pending,
            is_refused: true,
            is_held: false,
            waits_for_resources: true,
            start: Some(start),
            eligible: None,
            ends: Some(start + hour),
            limit: Some(Nanos::from_secs(93_784)),
            account: Some("phys".into()),
            licences: "matlab:1,lustreqos:100".into(),
            comment: "site sluice:bw=1GB/s:write".into(),
        };
        assert_eq!(job, expected);
        let runs = [
            "5",
            "0",
            "0",
            "0",
            "0",
            "1",
            "RUNNING",
            "JobHeldAdmin",
            "N/A",
            "N/A",
            "N/A",
            "UNLIMITED",
            "(null)",
            "(null)",
        ];
        let job = parse(&line(runs, "(null)")).unwrap();
        assert_eq!((job.state, job.limit, job.account), (SlurmState::Running, None, None));
        assert!(job.licences.is_empty() && job.comment.is_empty());
        assert!(job.is_held && !job.is_refused);
    }

    #[test]
    fn spans_have_days_hours_minutes_and_seconds() {
        for (text, seconds) in [("30:00", 1800), ("1:00:00", 3600), ("2-00:00:01", 172_801)] {
            assert_eq!(span(text), Some(Nanos::from_secs(seconds)), "{text}");
        }
        for text in ["UNLIMITED", "Partition_Limit", "NOT_SET", ""] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn a_line_that_squeue_does_not_document_is_an_error() {
        let error = parse("slurmctld is down").unwrap_err();
        assert!(format!("{error:#}").contains("JobID"), "{error:#}");
        assert!(job("1; reboot").is_err() && job("").is_err());
    }
}
