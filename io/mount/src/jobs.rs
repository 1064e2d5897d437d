//! Whose request is it: from the thread that the kernel names to its job and groups.
//!
//! ```text
//!   find(thread) ─► table: lives, same program, read within 1 s? ─yes─────────────────► then
//!                     │no
//!                     └─► status (groups) ─► sources in order ─┬─ cgroup, fixed: at once ─► then
//!                                            the first wins    └─ environ: readers, later ─► then
//! ```
//!
//! A thread is identified by a descriptor of its /proc directory, never by its number alone
//! (see `task.rs`). One system call at each use proves that it lives and runs the same
//! program; an exec of the same program and new groups are seen after [`FRESH`]. A cgroup cannot
//! be forged by a user, an environment can.
//!
//! Invariants: no lock is held while `then` runs. Only the readers read an environment, because
//! that may block on this very mount (see `environment.rs`). At most [`THREADS_MAX`] threads are
//! remembered, and no more than a quarter of the process's descriptors.

mod called;
mod cgroup;
mod environment;
mod sources;
mod table;
mod task;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use model::JobId;
use rustix::io::Errno;

use environment::{EnvironQuery, EnvironReaders};
use sources::{JobSource, KNOWN_VARIABLES};
use table::JobTable;
use task::{TaskId, TaskStatus};

pub(crate) use called::{by_descriptor, makes_a_name};
pub(crate) use sources::JobSources;

/// Finds out which job and groups the threads of this machine belong to.
#[derive(Debug)]
pub(crate) struct JobResolver {
    proc: OwnedFd,
    sources: Vec<ResolverSource>,
    /// None where no source is an environment.
    readers: Option<EnvironReaders>,
    table: Mutex<JobTable<Arc<CachedJob>>>,
    no_job: Arc<CallerJob>,
    warnings: WarnOnce,
}

/// Job and groups of a request, besides its user and group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CallerJob {
    /// Empty where no source had a name.
    pub(crate) job: JobId,
    /// Supplementary groups, as the kernel orders them.
    pub(crate) groups: Arc<[u32]>,
}

/// Where a name is looked for, ready for use.
#[derive(Debug)]
enum ResolverSource {
    Cgroup(Vec<cgroup::CgroupPattern>),
    /// The first of these variables that is set and not empty.
    Environment(Arc<[String]>),
    Fixed(JobId),
}

/// Cached result for a thread, and its time.
#[derive(Debug)]
struct CachedJob {
    task: Arc<TaskId>,
    program: Option<Box<[u8]>>,
    read_at: Instant,
    caller: Arc<CallerJob>,
}

/// A thread that is being found out about.
struct Search {
    thread: u32,
    task: Arc<TaskId>,
    program: Option<Box<[u8]>>,
    read_at: Instant,
    status: TaskStatus,
    /// The former result, to be kept if it is still valid.
    before: Option<Arc<CallerJob>>,
    /// The source that is asked next.
    next: usize,
    then: OnJob,
}

type OnJob = Box<dyn FnOnce(&Arc<CallerJob>) + Send>;

/// Warnings that are logged once.
#[derive(Debug, Default)]
struct WarnOnce {
    bad_name: AtomicBool,
    no_access: AtomicBool,
}

impl JobResolver {
    /// Looks for jobs in these sources.
    ///
    /// # Errors
    /// If /proc cannot be opened or threads cannot be started.
    pub(crate) fn new(sources: &JobSources) -> io::Result<Arc<JobResolver>> {
        JobResolver::with_proc(Path::new("/proc"), sources)
    }

    /// Looks for jobs in a tree that is like /proc.
    fn with_proc(proc: &Path, sources: &JobSources) -> io::Result<Arc<JobResolver>> {
        let sources: Vec<_> = sources.as_slice().iter().map(ResolverSource::new).collect();
        let reads = sources.iter().any(|source| matches!(source, ResolverSource::Environment(_)));
        let descriptors = api::descriptor_limit() / 4;
        let bound = usize::try_from(descriptors).unwrap_or(THREADS_MAX).min(THREADS_MAX);
        Ok(Arc::new(JobResolver {
            proc: File::open(proc)?.into(),
            sources,
            readers: reads.then(EnvironReaders::start).transpose()?,
            table: Mutex::new(JobTable::new(bound)),
            no_job: Arc::default(),
            warnings: WarnOnce::default(),
        }))
    }

    /// Resolves the job and groups of a thread. Calls `then` before it returns if that is known or
    /// quickly read, else later from another thread, after some 100 ms at the latest. Thread 0 (the
    /// kernel's own writing, and other process namespaces) and threads that are dead have no job
    /// and no groups.
    pub(crate) fn find(
        self: &Arc<Self>,
        thread: u32,
        then: impl FnOnce(&Arc<CallerJob>) + Send + 'static,
    ) {
        if thread == 0 {
            return then(&self.no_job);
        }
        let known = self.table().get(thread).cloned();
        if let Some(known) = known.as_ref().filter(|known| known.is_current()) {
            return then(&known.caller);
        }
        match self.search(thread, known) {
            Ok((task, status, before)) => self.try_next_source(Search {
                thread,
                // Before anything that depends on it is read.
                program: task.program(),
                task,
                read_at: Instant::now(),
                status,
                before,
                next: 0,
                then: Box::new(then),
            }),
            Err(error) => {
                self.warnings.no_access(&error);
                then(&self.no_job);
            }
        }
    }

    /// The task that has this number, its status, and what was known of it.
    fn search(
        &self,
        thread: u32,
        known: Option<Arc<CachedJob>>,
    ) -> io::Result<(Arc<TaskId>, TaskStatus, Option<Arc<CallerJob>>)> {
        if let Some(known) = known
            && let Ok(status) = known.task.status()
        {
            return Ok((known.task.clone(), status, Some(known.caller.clone())));
        }
        let task = Arc::new(TaskId::open(&self.proc, thread)?);
        let status = task.status()?;
        Ok((task, status, None))
    }

    /// Asks the sources that are left, until one has a name or one answers later.
    fn try_next_source(self: &Arc<Self>, mut search: Search) {
        while let Some(source) = self.sources.get(search.next) {
            search.next += 1;
            let job = match source {
                ResolverSource::Fixed(job) => Some(job.clone()),
                ResolverSource::Cgroup(patterns) => {
                    let text = search.task.read(c"cgroup").unwrap_or_default();
                    cgroup::job_in(&text, patterns).and_then(|name| self.job(name.as_bytes()))
                }
                // A program that may not be read has an environment that may not be read either,
                // and threads of the kernel have neither.
                ResolverSource::Environment(_) if search.program.is_none() => None,
                ResolverSource::Environment(variables) => {
                    return self.read_environment(search, variables.clone());
                }
            };
            if let Some(job) = job {
                return self.found(search, job);
            }
        }
        self.found(search, JobId::default());
    }

    fn read_environment(self: &Arc<Self>, search: Search, variables: Arc<[String]>) {
        let (task, process, jobs) = (search.task.clone(), search.status.process, self.clone());
        let then = Box::new(move |value: Option<Vec<u8>>| {
            match value.and_then(|value| jobs.job(&value)) {
                Some(job) => jobs.found(search, job),
                None => jobs.try_next_source(search),
            }
        });
        let readers = self.readers.as_ref().expect("made for sources that are environments");
        readers.submit(EnvironQuery { task, process, variables, then });
    }

    /// A job's name, if it can be one.
    fn job(&self, name: &[u8]) -> Option<JobId> {
        let job = std::str::from_utf8(name).ok().and_then(JobId::new);
        if job.is_none() && !self.warnings.bad_name.swap(true, Ordering::Relaxed) {
            let name = String::from_utf8_lossy(&name[..name.len().min(JobId::MAX_LEN)]);
            tracing::warn!(%name, "invalid job ID treated as no job (logged once)");
        }
        job.filter(|job| !job.as_str().is_empty())
    }

    fn found(&self, search: Search, job: JobId) {
        let Search { thread, task, program, read_at, status, before, then, .. } = search;
        let caller = CallerJob { job, groups: status.groups };
        let caller = before.filter(|before| **before == caller).unwrap_or_else(|| caller.into());
        let known = CachedJob { task, program, read_at, caller: caller.clone() };
        let former = self.table().put(thread, Arc::new(known));
        // It may hold the last use of a descriptor, which is closed here, without the lock.
        drop(former);
        then(&caller);
    }

    fn table(&self) -> MutexGuard<'_, JobTable<Arc<CachedJob>>> {
        // Nothing that could panic runs under the lock but the table's own assertions.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResolverSource {
    fn new(source: &JobSource) -> ResolverSource {
        match source {
            JobSource::Known => ResolverSource::Cgroup(cgroup::known()),
            JobSource::Cgroup(pattern) => ResolverSource::Cgroup(vec![pattern.clone()]),
            JobSource::KnownVariable => {
                ResolverSource::Environment(KNOWN_VARIABLES.map(String::from).into())
            }
            JobSource::Variable(name) => ResolverSource::Environment([name.clone()].into()),
            JobSource::Fixed(job) => ResolverSource::Fixed(job.clone()),
        }
    }
}

impl CachedJob {
    /// The thread lives, runs the program that it did, and was read lately.
    fn is_current(&self) -> bool {
        self.read_at.elapsed() < FRESH
            && self.program.as_ref().is_some_and(|program| self.task.runs(program))
    }
}

impl WarnOnce {
    fn no_access(&self, error: &io::Error) {
        let dead =
            [Errno::NOENT, Errno::SRCH].contains(&Errno::from_io_error(error).unwrap_or(Errno::IO));
        if !dead && !self.no_access.swap(true, Ordering::Relaxed) {
            tracing::warn!(%error, "cannot read the job of a request; using none (logged once)");
        }
    }
}

/// How long what was read is believed while the thread lives and runs the same program.
const FRESH: Duration = Duration::from_secs(1);
/// Threads that are remembered, each with a descriptor.
const THREADS_MAX: usize = 16_384;
