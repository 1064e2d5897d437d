//! Active time: for how long a job had requests, and for how much of that a limit delayed some.
//!
//! ```text
//!   first request of a job ─► … ─► last one gone          arrived ─► … delayed by a limit … ─► sent
//!        └───────── active time ────────┘                    └────── delayed time ─────────────┘
//!   a pause of less than PAUSE_MAX counts               overlapping requests count once
//! ```
//!
//! A job has a subject on each node, and these have requests at the same time. So both times are
//! kept by job, and each piece is added to the account that the subject that ended it used last: the
//! sum over a job's accounts is the job's own time at this proxy. Delayed time may be counted too short where a request
//! waits within the wait of another one, never too long.

use model::{Nanos, Time};

use super::{IS_COUNTED, Observation};
use crate::index::{JobIndex, SubjectIndex, TableIndex as _};

/// The part of a job's active time that was added to one account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Activity {
    /// The time with requests that wait or run, and the pauses between them of less than a second.
    pub(super) active: Nanos,
    /// The part of it in which a meter or a cap on slots delayed at least one request.
    pub(super) delayed: Nanos,
}

/// A job with at least one subject.
#[derive(Debug)]
pub(super) struct ActiveJob {
    /// The number of its subjects.
    subjects: u32,
    /// Subjects with requests that have not completed.
    busy: u32,
    /// Up to when its active time is counted: the end of its last request while it has none.
    counted: Option<Time>,
    /// Up to when its delayed time is counted.
    delayed: Time,
}

impl Observation {
    /// Counts a new subject in at the job of its sibling, or at a new job.
    pub(super) fn join_job(&mut self, sibling: Option<SubjectIndex>, now: Time) -> JobIndex {
        let known = sibling.map(|sibling| self.subjects[sibling].job);
        let index = known.unwrap_or_else(|| {
            self.jobs.insert(ActiveJob { subjects: 0, busy: 0, counted: None, delayed: now })
        });
        self.jobs[index].subjects += 1;
        index
    }

    /// Counts a subject of a job out.
    pub(super) fn leave_job(&mut self, index: JobIndex) {
        let job = &mut self.jobs[index];
        job.subjects -= 1;
        if job.subjects == 0 {
            self.jobs.remove(index);
        }
    }

    /// Handles that a subject has requests from now on.
    pub(crate) fn begin_activity(&mut self, subject: SubjectIndex, now: Time) {
        if !IS_COUNTED {
            return;
        }
        let job = &mut self.jobs[self.subjects[subject].job];
        if job.busy == 0 {
            job.counted = job.counted.filter(|last| now.since(*last) < PAUSE_MAX).or(Some(now));
        }
        job.busy += 1;
    }

    /// Handles that the last request of a subject has gone.
    pub(crate) fn end_activity(&mut self, subject: SubjectIndex, now: Time) {
        if !IS_COUNTED {
            return;
        }
        let job = &mut self.jobs[self.subjects[subject].job];
        job.busy -= 1;
        if job.busy == 0 {
            self.count_active(subject, now);
        }
    }

    /// Handles that a request that a limit delayed since `arrived` is sent now, or still waits.
    pub(crate) fn count_delayed(&mut self, subject: SubjectIndex, arrived: Time, now: Time) {
        if !IS_COUNTED {
            return;
        }
        let record = &mut self.subjects[subject];
        let job = &mut self.jobs[record.job];
        record.accounts.current.activity.delayed += now.since(arrived.max(job.delayed));
        job.delayed = now;
    }

    /// Counts the active time of the job of a subject that has requests, for this subject.
    pub(crate) fn count_active(&mut self, subject: SubjectIndex, now: Time) {
        if !IS_COUNTED {
            return;
        }
        let record = &mut self.subjects[subject];
        let job = &mut self.jobs[record.job];
        let from = job.counted.replace(now).expect("a job with requests has begun");
        record.accounts.current.activity.active += now.since(from);
    }

    /// Of requests that a limit delays, each with its arrival, counts the first of each job.
    pub(crate) fn count_delays(
        &mut self,
        delayed: impl Iterator<Item = (Time, SubjectIndex)>,
        now: Time,
    ) {
        let mut first: Vec<Option<(Time, SubjectIndex)>> = vec![None; self.jobs.span()];
        for this in delayed {
            let first = &mut first[self.subjects[this.1].job.raw() as usize];
            *first = Some(first.map_or(this, |first| first.min(this)));
        }
        for (arrived, subject) in first.into_iter().flatten() {
            self.count_delayed(subject, arrived, now);
        }
    }
}

/// A pause between two requests of a job that is not shorter ends its active time: programs
/// compute between their requests, and one that waits for each reply has no request in between.
const PAUSE_MAX: Nanos = Nanos::from_secs(1);

#[cfg(test)]
mod tests {
    use model::{AccountSubject, Identity, JobId, Nid, PathSet, TargetId};

    use super::*;
    use crate::ids::SubjectId;
    use crate::observation::ClosedSubject;

    fn closed() -> ClosedSubject {
        let nid = Nid::local();
        let identity = Identity { job: JobId::default(), uid: 1, gid: 1, projid: None, nid };
        let (export, class) = Default::default();
        ClosedSubject {
            id: SubjectId::from_bits(0),
            target: TargetId::FIRST,
            subject: AccountSubject { identity, paths: PathSet::default(), export, class },
        }
    }

    #[test]
    fn a_job_is_forgotten_with_its_last_subject() {
        let mut seen = Observation::default();
        seen.add_target();
        let [a, b] = [0, 1].map(SubjectIndex::new);
        seen.add_subject(a, None, Time::ZERO);
        seen.add_subject(b, Some(a), Time::ZERO);
        assert_eq!(seen.jobs.iter().count(), 1);
        seen.drop_subject(a, &closed());
        assert_eq!(seen.jobs.iter().count(), 1);
        seen.drop_subject(b, &closed());
        assert_eq!(seen.jobs.iter().count(), 0);
    }
}
