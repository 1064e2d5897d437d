//! Active time: for how long a job had requests, and for how much of that a limit delayed some.
//!
//! ```text
//!   first request of a job ─► … ─► last one gone          arrived ─► … delayed by a limit … ─► sent
//!        └───────── active time ────────┘                    └────── delayed time ─────────────┘
//!   a pause of less than PAUSE_MAX counts               overlapping requests count once
//! ```
//!
//! A job has a subject on each node, and these have requests at the same time. So both times are
//! kept by job, and each piece is added to the subject that ended it: the sum over a job's subjects
//! is the job's own time at this target. Delayed time may be counted too short where a request
//! waits within the wait of another one, never too long.

use std::ops::AddAssign;

use model::{JobId, Nanos, Time};

use crate::class::RequestStage;
use crate::dispatcher::Dispatcher;
use crate::wait::WAIT_MIN_NS;

/// The part of a job's active time that was added to one subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// The time with requests that wait or run, and the pauses between them of less than a second.
    pub active: Nanos,
    /// The part of it in which a meter or a cap on slots delayed at least one request.
    pub delayed: Nanos,
}

/// A job with at least one subject.
#[derive(Debug)]
pub(crate) struct ActiveJob {
    /// The number of its subjects.
    subjects: u32,
    /// Subjects with requests that have not completed.
    busy: u32,
    /// Up to when its active time is counted: the end of its last request while it has none.
    counted: Option<Time>,
    /// Up to when its delayed time is counted.
    delayed: Time,
}

impl AddAssign for Activity {
    fn add_assign(&mut self, other: Activity) {
        self.active += other.active;
        self.delayed += other.delayed;
    }
}

impl Dispatcher {
    /// Counts active and delayed time up to `now`, also for what still waits or runs. To be called
    /// before [`Dispatcher::subjects`] where [`SubjectReport::activity`](crate::SubjectReport) is
    /// read. Poll afterwards. O(subjects + requests).
    pub fn count_activity(&mut self, now: Time) {
        self.advance(now);
        let mut first: Vec<Option<(Time, u32)>> = vec![None; self.jobs.span()];
        for (_, request) in self.requests.iter() {
            let standing = &self.classes[request.class].lanes[usize::from(request.lane)];
            let metered = standing.waiting >> request.queue & 1 == 1;
            let waited = self.now.since(request.arrived).get();
            if request.stage == RequestStage::Queued && metered && waited >= WAIT_MIN_NS {
                let first = &mut first[self.subjects[request.subject].job as usize];
                let this = (request.arrived, request.subject);
                *first = Some(first.map_or(this, |first| first.min(this)));
            }
        }
        for (arrived, subject) in first.into_iter().flatten() {
            self.count_delayed(subject, arrived);
        }
        for index in 0..self.subjects.span() as u32 {
            if self.subjects.lives(index) && self.subjects[index].outstanding > 0 {
                self.count_active(index);
            }
        }
        self.finish_call();
    }

    /// The place of a job, for a new subject of it.
    pub(crate) fn job_of_new_subject(&mut self, job: &JobId) -> u32 {
        let known = self.names.subjects_from(Some(job)).next();
        let known = known.filter(|(who, _)| who.job == *job).and_then(|(_, at)| at.first());
        let now = self.now;
        let index = known.map(|(_, subject)| self.subjects[*subject].job).unwrap_or_else(|| {
            self.jobs.insert(ActiveJob { subjects: 0, busy: 0, counted: None, delayed: now })
        });
        self.jobs[index].subjects += 1;
        index
    }

    /// Counts a subject of a job out.
    pub(crate) fn leave_job(&mut self, index: u32) {
        let job = &mut self.jobs[index];
        job.subjects -= 1;
        if job.subjects == 0 {
            self.jobs.remove(index);
        }
    }

    /// Handles that a subject has requests from now on.
    pub(crate) fn begin_activity(&mut self, subject: u32) {
        let now = self.now;
        let job = &mut self.jobs[self.subjects[subject].job];
        if job.busy == 0 {
            job.counted = job.counted.filter(|last| now.since(*last) < PAUSE_MAX).or(Some(now));
        }
        job.busy += 1;
    }

    /// Handles that the last request of a subject has gone.
    pub(crate) fn end_activity(&mut self, subject: u32) {
        let job = &mut self.jobs[self.subjects[subject].job];
        job.busy -= 1;
        if job.busy == 0 {
            self.count_active(subject);
        }
    }

    /// Handles that a request that a limit delayed since `arrived` is sent now, or still waits.
    pub(crate) fn count_delayed(&mut self, subject: u32, arrived: Time) {
        let now = self.now;
        let subject = &mut self.subjects[subject];
        let job = &mut self.jobs[subject.job];
        subject.activity.delayed += now.since(arrived.max(job.delayed));
        job.delayed = now;
    }

    fn count_active(&mut self, subject: u32) {
        let now = self.now;
        let subject = &mut self.subjects[subject];
        let job = &mut self.jobs[subject.job];
        let from = job.counted.replace(now).expect("a job with requests has begun");
        subject.activity.active += now.since(from);
    }
}

/// A pause between two requests of a job that is not shorter ends its active time: programs
/// compute between their requests, and one that waits for each reply has no request in between.
const PAUSE_MAX: Nanos = Nanos::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::{Amount, Identity, Lane, Nid, OpKind, PathSet, RuleSet};

    use super::*;
    use crate::{Arrival, Costs, RequestId, SubjectId, TargetParams};

    struct Bed {
        dispatcher: Dispatcher,
        now: Time,
    }

    impl Bed {
        fn new(rules: &str) -> Bed {
            let target = TargetParams {
                name: "t".into(),
                slots_max: 64,
                threads: 1,
                costs: Costs::default(),
                latency: None,
                recalibrate: false,
            };
            let rules: Arc<RuleSet> = RuleSet::parse(rules).expect("valid rules").into();
            Bed { dispatcher: Dispatcher::new(target, rules), now: Time::ZERO }
        }

        fn subject(&mut self, job: &str, uid: u32) -> SubjectId {
            let job = JobId::new(job).expect("a valid name");
            let who = Identity { job, uid, gid: 0, projid: None, nid: Nid::local() };
            self.dispatcher.subject(&who, PathSet::default())
        }

        fn pass(&mut self, millis: u64) -> &mut Bed {
            self.now = self.now + Nanos::from_millis(millis);
            self
        }

        fn enqueue(&mut self, subject: SubjectId) -> RequestId {
            let (kind, lane) = (OpKind::Getattr, Lane::Device);
            let arrival = Arrival { subject, kind, amount: Amount::new(0, 1), lane, token: 0 };
            self.dispatcher.enqueue(arrival, self.now)
        }

        /// Sends what may go.
        fn poll(&mut self) -> Vec<RequestId> {
            std::iter::from_fn(|| self.dispatcher.poll_dispatch(self.now).map(|d| d.id)).collect()
        }

        fn complete(&mut self, id: RequestId) {
            self.dispatcher.complete(id, Amount::new(0, 1), self.now);
        }

        fn serve(&mut self, subject: SubjectId, millis: u64) {
            let id = self.enqueue(subject);
            assert_eq!(self.poll(), [id]);
            self.pass(millis).complete(id);
        }

        /// Active and delayed milliseconds of a job.
        fn times(&self, job: &str) -> (u64, u64) {
            let mut sum = Activity::default();
            let of =
                self.dispatcher.subjects().filter(|subject| subject.identity.job.as_str() == job);
            of.for_each(|subject| sum += subject.activity);
            (sum.active.get() / 1_000_000, sum.delayed.get() / 1_000_000)
        }
    }

    #[test]
    fn short_pauses_are_active_time_and_long_ones_are_not() {
        let mut bed = Bed::new("");
        let a = bed.subject("a", 1);
        bed.pass(5_000).serve(a, 10);
        assert_eq!(bed.times("a"), (10, 0));
        bed.pass(999).serve(a, 1);
        assert_eq!(bed.times("a"), (1_010, 0), "a pause of 999 ms counts");
        bed.pass(1_000).serve(a, 5);
        assert_eq!(bed.times("a"), (1_015, 0), "one of a second does not");
    }

    #[test]
    fn subjects_of_one_job_share_its_time_and_other_jobs_have_their_own() {
        let mut bed = Bed::new("");
        let (one, two, other) = (bed.subject("a", 1), bed.subject("a", 2), bed.subject("b", 1));
        let first = bed.enqueue(one);
        bed.pass(10);
        let second = bed.enqueue(two);
        let of_other = bed.enqueue(other);
        assert_eq!(bed.poll(), [first, second, of_other]);
        bed.pass(20).complete(first);
        bed.pass(30).complete(second);
        bed.complete(of_other);
        assert_eq!((bed.times("a"), bed.times("b")), ((60, 0), (50, 0)));
        for subject in [one, two] {
            bed.dispatcher.release_subject(subject);
        }
    }

    #[test]
    fn what_still_runs_is_counted_up_to_now_and_only_once() {
        let mut bed = Bed::new("");
        let a = bed.subject("a", 1);
        let id = bed.enqueue(a);
        bed.poll();
        for passed in [100, 200] {
            bed.pass(100);
            bed.dispatcher.count_activity(bed.now);
            assert_eq!(bed.times("a"), (passed, 0));
        }
        bed.pass(50).complete(id);
        assert_eq!(bed.times("a"), (250, 0));
    }

    #[test]
    fn delayed_time_counts_requests_that_wait_together_once() {
        let rules = "[[rule]]\nname = \"slow\"\nmatch = \"jobid={a}\"\nlimit = \"10ops/s\"\n";
        let mut bed = Bed::new(rules);
        let (a, b) = (bed.subject("a", 1), bed.subject("b", 1));
        let of_b = bed.enqueue(b);
        let all: Vec<_> = (0..4).map(|_| bed.enqueue(a)).collect();
        let mut sent = bed.poll();
        assert!(sent.contains(&of_b) && sent.len() < 5, "{sent:?}");
        // Half of the time is counted while requests still wait.
        bed.pass(50);
        bed.dispatcher.count_activity(bed.now);
        assert_eq!(bed.times("a"), (50, 50));
        while sent.len() < 5 {
            bed.pass(1);
            sent.extend(bed.poll());
        }
        let last = bed.now.as_nanos() / 1_000_000;
        bed.pass(40);
        all.into_iter().for_each(|id| bed.complete(id));
        assert_eq!(bed.times("a"), (last + 40, last), "until the last one was sent");
        bed.complete(of_b);
        assert_eq!(bed.times("b"), (last + 40, 0));
    }

    #[test]
    fn a_job_is_forgotten_with_its_last_subject() {
        let mut bed = Bed::new("");
        for nth in 0..3_000 {
            let subject = bed.subject(&format!("j{nth}"), 1);
            bed.pass(1).serve(subject, 1);
            bed.dispatcher.release_subject(subject);
        }
        let (jobs, subjects) = (bed.dispatcher.jobs.iter(), bed.dispatcher.subjects.iter());
        assert_eq!(jobs.count(), subjects.count());
    }
}
