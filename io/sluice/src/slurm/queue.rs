//! The queue of Slurm, as `squeue` prints it.
//!
//! ```text
//!   squeue -O "JobID:…,UserID:…,…,admin_comment:…" ─► a line a job, columns of fixed width ─► SlurmJob
//! ```
//!
//! An array has a line for each task that is a job of its own, and one for all tasks that are not yet:
//! Slurm makes a task a job when it starts, or when it alone is changed.
//!
//! Columns have fixed widths, and none of them holds what a user names, such as the job's name: a
//! value can be taken for no other column.

use anyhow::{Context as _, bail};
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use model::{Nanos, Time};

use super::command;

/// A job in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlurmJob {
    /// The job ID that its tasks have in `SLURM_JOB_ID`.
    pub(super) id: String,
    /// The tasks of an array that it is; `None` of a job that is none.
    pub(super) array: Option<ArrayTasks>,
    pub(super) user: u32,
    pub(super) group: u32,
    /// How often it was requeued.
    pub(super) attempt: u32,
    /// Whether sbatch submitted it; srun and salloc wait at a terminal.
    pub(super) is_batch: bool,
    /// Whether Slurm requeues it after the death of a node.
    pub(super) is_requeued: bool,
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

/// Tasks of an array: one that is a job of its own, or all that are not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ArrayTasks {
    /// The job ID of the array, which the last of its tasks has, too.
    array: String,
    /// `3`, or `5-9`; a long list ends with `...`.
    tasks: String,
}

impl SlurmJob {
    /// Returns its name for `scontrol`, which acts on nothing else then: `4711`, `4711_3`, `4711_[5-9]`.
    /// Of tasks whose list is cut it is the whole array.
    pub(super) fn name(&self) -> String {
        match &self.array {
            None => self.id.clone(),
            Some(of) if of.tasks.contains("...") => of.array.clone(),
            Some(of) if self.is_many() => format!("{}_[{}]", of.array, of.tasks),
            Some(of) => format!("{}_{}", of.array, of.tasks),
        }
    }

    /// Whether it is several tasks of an array, none of which is a job of its own.
    pub(super) fn is_many(&self) -> bool {
        let tasks = self.array.as_ref().map(|of| of.tasks.as_str());
        tasks.is_some_and(|tasks| tasks.bytes().any(|byte| !byte.is_ascii_digit()))
    }

    /// Whether both are of one array.
    pub(super) fn is_of_array_of(&self, other: &SlurmJob) -> bool {
        let arrays = self.array.as_ref().zip(other.array.as_ref());
        arrays.is_some_and(|(own, other)| own.array == other.array)
    }

    /// Returns the name of the first of its tasks, if it is of an array.
    pub(super) fn first_task(&self) -> Option<String> {
        let of = self.array.as_ref()?;
        let first: String = of.tasks.chars().take_while(char::is_ascii_digit).collect();
        Some(format!("{}_{first}", of.array)).filter(|_| !first.is_empty())
    }
}

/// The states of a job that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SlurmState {
    /// It waits for its start.
    #[default]
    Pending,
    /// It has its nodes, and waits for the gate or its prologs.
    Configuring,
    /// It has its nodes, and its prologs have ended.
    Running,
    /// It has ended, or is ending.
    Over,
}

/// A column of `squeue`: its name and its width.
struct SlurmColumn(&'static str, usize);

const COLUMNS: [SlurmColumn; 17] = [
    SlurmColumn("JobID", 12),
    SlurmColumn("ArrayJobID", 12),
    SlurmColumn("ArrayTaskID", 80),
    SlurmColumn("UserID", 12),
    SlurmColumn("GroupID", 12),
    SlurmColumn("RestartCnt", 8),
    SlurmColumn("BatchFlag", 4),
    SlurmColumn("Requeue", 4),
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

/// Returns the names of the nodes of a job that runs, `cn[1-3]` written out by Slurm itself.
///
/// # Errors
/// If Slurm's commands fail, or the job is gone.
pub(super) fn nodes_of(job: &SlurmJob) -> anyhow::Result<Vec<String>> {
    let columns = format!("JobID:12,NodeList:{NODES_MAX}");
    let text = command::squeue(&["--noheader", "--all", "--jobs", &job.id, "--Format", &columns])?;
    let of_job = |line: &str| {
        let (id, nodes) = line.split_at_checked(12)?;
        Some(nodes.trim().to_owned()).filter(|nodes| id.trim() == job.id && !nodes.is_empty())
    };
    let list = text.lines().find_map(of_job);
    let list = list.with_context(|| format!("squeue shows no nodes of job {}", job.id))?;
    host_names(&list)
}

/// Returns the names of a list of nodes such as `cn[1-3]`.
///
/// # Errors
/// If `scontrol` does not accept the list.
pub(super) fn host_names(list: &str) -> anyhow::Result<Vec<String>> {
    let names = command::scontrol(&["show", "hostnames", list])?;
    Ok(names.lines().map(str::to_owned).collect())
}

fn list(which: &[&str], comment: usize) -> anyhow::Result<Vec<anyhow::Result<SlurmJob>>> {
    let columns = COLUMNS.iter().map(|SlurmColumn(name, width)| format!("{name}:{width}"));
    let columns: Vec<_> = columns.chain([format!("admin_comment:{comment}")]).collect();
    let columns = columns.join(",");
    // Without --array-unique all tasks of an array that wait would be one line.
    let shape = ["--noheader", "--array-unique", "--Format", columns.as_str()];
    let text = match command::squeue(&[&shape, which].concat()) {
        Ok(text) => text,
        // Of one job that it has forgotten.
        Err(error) if error.to_string().contains("Invalid job id") => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
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
    let (mut job, mut array) = (SlurmJob::default(), String::new());
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
            "ArrayJobID" => array = value.into(),
            "ArrayTaskID" => job.array = array_tasks(&array, value),
            "UserID" => job.user = number()?,
            "GroupID" => job.group = number()?,
            "RestartCnt" => job.attempt = number()?,
            "BatchFlag" => job.is_batch = number()? > 0,
            "Requeue" => job.is_requeued = number()? > 0,
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
            "CONFIGURING" => SlurmState::Configuring,
            "RUNNING" | "SUSPENDED" | "STOPPED" | "SIGNALING" | "RESIZING" | "STAGE_OUT" => {
                SlurmState::Running
            }
            _ => SlurmState::Over,
        }
    }
}

/// The tasks of an array, without how many of them may run at a time: `5-9%2`.
fn array_tasks(array: &str, tasks: &str) -> Option<ArrayTasks> {
    let tasks = tasks.split('%').next().unwrap_or_default();
    let is_task = tasks.starts_with(|first: char| first.is_ascii_digit());
    is_task.then(|| ArrayTasks { array: array.into(), tasks: tasks.into() })
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
/// The longest list of nodes that is read.
const NODES_MAX: usize = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn line(values: [&str; 17], comment: &str) -> String {
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
            "4700",
            "11",
            "1000",
            "100",
            "2",
            "1",
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
            array: Some(ArrayTasks { array: "4700".into(), tasks: "11".into() }),
            user: 1000,
            group: 100,
            attempt: 2,
            is_batch: true,
            is_requeued: true,
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
            "5",
            "N/A",
            "0",
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
        assert_eq!((job.array, job.is_requeued), (None, false));
    }

    #[test]
    fn a_task_and_tasks_that_are_no_jobs_yet_have_names_that_are_theirs_alone() {
        let of = |tasks: &str| SlurmJob {
            id: "20".into(),
            array: array_tasks("20", tasks),
            ..SlurmJob::default()
        };
        for (tasks, name, first, is_many) in [
            ("3", "20_3", Some("20_3"), false),
            ("5-9%2", "20_[5-9]", Some("20_5"), true),
            ("1,3,7-8", "20_[1,3,7-8]", Some("20_1"), true),
            ("0-4:2", "20_[0-4:2]", Some("20_0"), true),
            ("1,3,5,7,9,11,...", "20", Some("20_1"), true),
            ("N/A", "20", None, false),
        ] {
            let job = of(tasks);
            let found = (job.name(), job.first_task(), job.is_many());
            assert_eq!(found, (name.to_owned(), first.map(str::to_owned), is_many), "{tasks}");
        }
        assert!(of("3").is_of_array_of(&of("5-9")));
        assert!(!of("N/A").is_of_array_of(&of("N/A")));
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
