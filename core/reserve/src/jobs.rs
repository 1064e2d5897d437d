//! The jobs that are registered: whose they are, which attempt runs, and until when their tokens count.
//!
//! ```text
//!   register ─► new, a later attempt, or the same again ─┐
//!   end, expire(now) ────────────────────────────────────┴► take_changed ─► JobChange ─► the store
//! ```
//!
//! The caller passes the time, and the secret of a job's token, which is random. It is another one for
//! each attempt and each time that a job is registered, so a token never counts again.
//!
//! Invariants: a job has one row. A row is replaced by a later attempt of the same user only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;

use model::{JobId, Nanos, Time};
use serde::{Deserialize, Serialize};

use crate::request::ACCOUNT_MAX;

/// What is said of a job when it is registered.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRegistration {
    /// The name of the job, not empty.
    pub job: JobId,
    /// The number of the user.
    pub uid: u32,
    /// The primary group of the user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<u32>,
    /// The account of the batch system, at most 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// Which attempt to run the job this is.
    pub attempt: u32,
    /// The names of its nodes, at most [`JobRegistry::NODES_MAX`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// When it ends at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<Time>,
}

/// The secret of a job's token, which is not printed.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobSecret(String);

/// A registered job as it is stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobRecord {
    /// What was said of it; its nodes are sorted.
    pub registration: JobRegistration,
    /// When this attempt was registered.
    pub registered: Time,
    /// The secret of its token.
    pub secret: JobSecret,
}

/// A change of the table. A row with many nodes is several: the first one replaces what was there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JobChange {
    /// A job is registered with these nodes.
    Registered(JobRecord),
    /// More nodes of a registered job.
    Nodes(JobId, Vec<String>),
    /// A job has ended.
    Ended(JobId),
}

/// What a registration has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistrationOutcome {
    /// The job is new, or a later attempt of it is: it has another token.
    Registered,
    /// The same attempt has other nodes, another end, group or account, and the same token.
    Changed,
    /// All of it was known.
    Unchanged,
}

/// Why a job is not registered or ended. Nothing has changed then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JobError {
    /// A job without a name.
    #[error("the name of the job is empty: 1 to 128 bytes")]
    NoName,
    /// An account of a long name.
    #[error("an account of {0} bytes: at most 128 are accepted")]
    AccountName(usize),
    /// More nodes than a job may have.
    #[error("{0} nodes: a job has at most {max}", max = JobRegistry::NODES_MAX)]
    Nodes(usize),
    /// More nodes of a user's runs than are kept.
    #[error("{0} nodes of runs of one user: at most {max}", max = JobRegistry::RUN_NODES_MAX)]
    RunNodes(usize),
    /// An end that was long ago.
    #[error("the job has ended more than an hour ago")]
    HasEnded,
    /// The job is another user's.
    #[error("job {job} is registered to user {uid}; end it first")]
    OfAnother {
        /// The name of the job.
        job: JobId,
        /// The number of the user who has it.
        uid: u32,
    },
    /// A later attempt is registered.
    #[error("job {job} is registered with attempt {has}, which is later than {given}")]
    Superseded {
        /// The name of the job.
        job: JobId,
        /// The attempt that is registered.
        has: u32,
        /// The attempt that was given.
        given: u32,
    },
    /// The table is full.
    #[error("{max} jobs are registered: that is the maximum; end those that are over", max = JobRegistry::JOBS_MAX)]
    Full,
    /// The table has no room for more nodes.
    #[error(
        "names of nodes of registered jobs have {0} bytes: with these more than {max}; end jobs that are over",
        max = JobRegistry::NODE_BYTES_MAX
    )]
    NodeBytes(usize),
    /// The user has as many runs as it may.
    #[error("user {uid} has {max} runs: that is the maximum; end those that are over", max = JobRegistry::RUNS_MAX)]
    Runs {
        /// The number of the user.
        uid: u32,
    },
}

/// All jobs that are registered.
#[derive(Debug, Default)]
pub struct JobRegistry {
    by_id: BTreeMap<JobId, JobRecord>,
    expiries: BTreeSet<(Time, JobId)>,
    /// Of each user: its runs.
    runs: BTreeMap<u32, RunCount>,
    node_bytes: usize,
    changed: BTreeSet<JobId>,
}

/// The runs of one user, which are registered by itself.
#[derive(Clone, Copy, Debug, Default)]
struct RunCount {
    runs: usize,
    nodes: usize,
}

impl JobRegistry {
    /// The most jobs that are registered.
    pub const JOBS_MAX: usize = 100_000;
    /// The most nodes of one job.
    pub const NODES_MAX: usize = 65_536;
    /// The most bytes of the names of the nodes of all jobs, with three more for each name: a snapshot of
    /// all records has 64 MiB at most.
    pub const NODE_BYTES_MAX: usize = 8 << 20;
    /// The most runs of one user.
    pub const RUNS_MAX: usize = 64;
    /// The most nodes of all runs of one user.
    pub const RUN_NODES_MAX: usize = 4_096;
    /// The beginning of the names of runs: jobs that users register themselves.
    pub const RUN_PREFIX: &str = "run.";
    /// How long after its end a job is kept, and its token counts.
    pub const GRACE: Nanos = Nanos::from_secs(3_600);

    /// The table of all records.
    pub fn restored(records: impl IntoIterator<Item = JobRecord>) -> JobRegistry {
        let mut table = JobRegistry::default();
        records.into_iter().for_each(|record| table.insert(record));
        table
    }

    /// Registers a job, with the secret of its token if it gets another one.
    ///
    /// # Errors
    /// If it is another user's, a later attempt is registered, a value is wrong or a bound is reached.
    pub fn register(
        &mut self,
        new: JobRegistration,
        secret: JobSecret,
        now: Time,
    ) -> Result<RegistrationOutcome, JobError> {
        let mut new = new;
        new.nodes.sort_unstable();
        new.nodes.dedup();
        check(&new, now)?;
        let before = self.by_id.get(&new.job);
        if let Some(JobRecord { registration: has, .. }) = before {
            let job = || new.job.clone();
            if has.uid != new.uid {
                return Err(JobError::OfAnother { job: job(), uid: has.uid });
            }
            if has.attempt > new.attempt {
                let (has, given) = (has.attempt, new.attempt);
                return Err(JobError::Superseded { job: job(), has, given });
            }
            if *has == new {
                return Ok(RegistrationOutcome::Unchanged);
            }
        }
        self.check_room(&new)?;
        let same = before.filter(|before| before.registration.attempt == new.attempt);
        let (outcome, registered, secret) = match same {
            Some(same) => (RegistrationOutcome::Changed, same.registered, same.secret.clone()),
            None => (RegistrationOutcome::Registered, now, secret),
        };
        self.remove(&new.job.clone());
        self.changed.insert(new.job.clone());
        self.insert(JobRecord { registration: new, registered, secret });
        Ok(outcome)
    }

    /// Ends a job, or with an attempt does nothing if a later one is registered. Returns what has
    /// ended.
    pub fn end(&mut self, job: &JobId, attempt: Option<u32>) -> Option<JobRecord> {
        let has = self.by_id.get(job)?.registration.attempt;
        if attempt.is_some_and(|attempt| attempt < has) {
            return None;
        }
        self.changed.insert(job.clone());
        self.remove(job)
    }

    /// Drops the jobs whose time is over, at most that many, and returns them.
    pub fn expire(&mut self, most: usize, now: Time) -> Vec<JobRecord> {
        let mut expired = Vec::new();
        while expired.len() < most
            && let Some((at, job)) = self.expiries.first().cloned()
            && at <= now
        {
            self.changed.insert(job.clone());
            expired.extend(self.remove(&job));
        }
        expired
    }

    /// The record of a registered job.
    pub fn get(&self, job: &JobId) -> Option<&JobRecord> {
        self.by_id.get(job)
    }

    /// The jobs above a name, in order.
    pub fn after(&self, job: &JobId) -> impl Iterator<Item = &JobRecord> {
        self.by_id.range((Bound::Excluded(job), Bound::Unbounded)).map(|(_, record)| record)
    }

    /// All jobs by name.
    pub fn iter(&self) -> impl Iterator<Item = &JobRecord> {
        self.by_id.values()
    }

    /// What has changed since the last call, for the store.
    pub fn take_changed(&mut self) -> Vec<JobChange> {
        let mut changes = Vec::new();
        for job in std::mem::take(&mut self.changed) {
            match self.by_id.get(&job) {
                None => changes.push(JobChange::Ended(job)),
                Some(record) => {
                    let mut nodes = record.registration.nodes.chunks(NODES_OF_CHANGE);
                    let mut record = record.without_nodes();
                    record.registration.nodes = nodes.next().unwrap_or_default().to_vec();
                    changes.push(JobChange::Registered(record));
                    changes.extend(nodes.map(|more| JobChange::Nodes(job.clone(), more.to_vec())));
                }
            }
        }
        changes
    }

    fn check_room(&self, new: &JobRegistration) -> Result<(), JobError> {
        let before = self.by_id.get(&new.job).map(|record| &record.registration);
        let nodes_before = before.map_or(0, |before| before.nodes.len());
        if before.is_none() && self.by_id.len() >= JobRegistry::JOBS_MAX {
            return Err(JobError::Full);
        }
        let others = self.node_bytes - before.map_or(0, JobRegistration::node_bytes);
        if others + new.node_bytes() > JobRegistry::NODE_BYTES_MAX {
            return Err(JobError::NodeBytes(others));
        }
        if !new.is_run() {
            return Ok(());
        }
        let has = self.runs.get(&new.uid).copied().unwrap_or_default();
        if before.is_none() && has.runs >= JobRegistry::RUNS_MAX {
            return Err(JobError::Runs { uid: new.uid });
        }
        let nodes = has.nodes - nodes_before + new.nodes.len();
        if nodes > JobRegistry::RUN_NODES_MAX {
            return Err(JobError::RunNodes(nodes));
        }
        Ok(())
    }

    fn insert(&mut self, record: JobRecord) {
        let of = &record.registration;
        if let Some(at) = record.expires() {
            self.expiries.insert((at, of.job.clone()));
        }
        self.node_bytes += of.node_bytes();
        if of.is_run() {
            let count = self.runs.entry(of.uid).or_default();
            count.runs += 1;
            count.nodes += of.nodes.len();
        }
        self.by_id.insert(of.job.clone(), record);
    }

    fn remove(&mut self, job: &JobId) -> Option<JobRecord> {
        let record = self.by_id.remove(job)?;
        let of = &record.registration;
        if let Some(at) = record.expires() {
            self.expiries.remove(&(at, of.job.clone()));
        }
        self.node_bytes -= of.node_bytes();
        if of.is_run()
            && let Some(count) = self.runs.get_mut(&of.uid)
        {
            count.runs -= 1;
            count.nodes -= of.nodes.len();
            if count.runs == 0 {
                self.runs.remove(&of.uid);
            }
        }
        Some(record)
    }
}

impl JobRegistration {
    /// Whether it is a run: a job that its user registers.
    pub fn is_run(&self) -> bool {
        self.job.as_str().starts_with(JobRegistry::RUN_PREFIX)
    }

    /// The bytes of the names of its nodes, as they are stored.
    fn node_bytes(&self) -> usize {
        self.nodes.iter().map(|name| name.len() + 3).sum()
    }
}

impl JobRecord {
    /// When its token is no longer valid and it is dropped; `None`: when it is ended.
    pub fn expires(&self) -> Option<Time> {
        self.registration.ends.map(|ends| ends + JobRegistry::GRACE)
    }

    /// Whether a node is one of the job's.
    pub fn has_node(&self, name: &str) -> bool {
        self.registration.nodes.binary_search_by(|node| node.as_str().cmp(name)).is_ok()
    }

    fn without_nodes(&self) -> JobRecord {
        let JobRegistration { job, uid, gid, account, attempt, ends, .. } = &self.registration;
        JobRecord {
            registration: JobRegistration {
                job: job.clone(),
                uid: *uid,
                gid: *gid,
                account: account.clone(),
                attempt: *attempt,
                nodes: Vec::new(),
                ends: *ends,
            },
            registered: self.registered,
            secret: self.secret.clone(),
        }
    }
}

impl JobChange {
    /// Applies it to the records of all jobs.
    pub fn apply(self, to: &mut BTreeMap<JobId, JobRecord>) {
        match self {
            JobChange::Registered(record) => {
                to.insert(record.registration.job.clone(), record);
            }
            JobChange::Nodes(job, nodes) => {
                if let Some(record) = to.get_mut(&job) {
                    record.registration.nodes.extend(nodes);
                }
            }
            JobChange::Ended(job) => drop(to.remove(&job)),
        }
    }
}

impl JobSecret {
    /// A secret of that text, which nobody can guess.
    pub fn new(text: String) -> JobSecret {
        JobSecret(text)
    }

    /// The text, to be shown to those who may have it only.
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for JobSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JobSecret(…)")
    }
}

fn check(new: &JobRegistration, now: Time) -> Result<(), JobError> {
    if new.job.as_str().is_empty() {
        return Err(JobError::NoName);
    }
    if let Some(name) = new.account.as_ref().filter(|name| name.len() > ACCOUNT_MAX) {
        return Err(JobError::AccountName(name.len()));
    }
    if new.nodes.len() > JobRegistry::NODES_MAX {
        return Err(JobError::Nodes(new.nodes.len()));
    }
    match new.ends.is_some_and(|ends| ends + JobRegistry::GRACE <= now) {
        true => Err(JobError::HasEnded),
        false => Ok(()),
    }
}

/// The most nodes of one change: a record of a store holds 1 MiB.
const NODES_OF_CHANGE: usize = 1_024;
