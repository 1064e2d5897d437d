//! Active time of jobs: for how long they had requests, and for how much of that a limit delayed some.

use std::sync::Arc;

use model::{Amount, Identity, JobId, Lane, Nanos, Nid, OpKind, PathSet, Service, Time};
use rules::RuleSet;

use crate::server::T;
use sluice_sched::{Arrival, Costs, Dispatcher, RequestId, SubjectId, TargetParams};

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
        Bed { dispatcher: Dispatcher::new([target], rules), now: Time::ZERO }
    }

    fn subject(&mut self, job: &str, uid: u32) -> SubjectId {
        let job = JobId::new(job).expect("a valid name");
        let who = Identity { job, uid, gid: 0, projid: None, nid: Nid::local() };
        self.dispatcher.subject(T, &who, PathSet::default())
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
        let mut sum = Service::default();
        let of = self.dispatcher.subjects().filter(|subject| subject.identity.job.as_str() == job);
        of.for_each(|subject| sum.add(&subject.service));
        (sum.active_ns / 1_000_000, sum.delayed_span_ns / 1_000_000)
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
