//! A backlog of many classes, for the benchmark and for counting instructions.

use std::sync::Arc;

use model::{
    Amount, Directory, FilePlace, Identity, JobId, KindSet, Lane, Nanos, Nid, OpKind, PathSet,
    Rate, TargetId, Time,
};
use rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, KeyField, Limit,
    Match, MeterRule, Rule, RuleSet,
};
use sluice_sched::{Arrival, Costs, Dispatcher, MeterPayers, SubjectId, TargetParams};

pub(crate) struct Load {
    sched: Dispatcher,
    subjects: Vec<SubjectId>,
    next: usize,
    now: Time,
    lane: Lane,
}

fn identity(i: usize) -> Identity {
    let job = JobId::new(&format!("job.{i}")).expect("a short name");
    Identity { job, uid: i as u32, gid: 100, projid: None, nid: Nid::local() }
}

/// One class for each job; with `rate`, one meter that all of them pay.
fn rules(rate: Option<Rate>) -> Arc<RuleSet> {
    let mut set = RuleSet::default();
    set.rules.push(Rule { per: vec![KeyField::Jobid], ..Rule::new("jobs", Match::any()) });
    let limit = rate.map(|rate| Limit { kinds: KindSet::ALL, rate, burst: None });
    set.meters.extend(limit.map(|limit| MeterRule {
        name: "all".into(),
        matcher: Match::any(),
        per: vec![],
        limit,
    }));
    Arc::new(set)
}

/// `classes` classes with two requests queued each.
pub(crate) fn backlog(classes: usize, rate: Option<Rate>, lane: Lane) -> Load {
    let mut sched = dispatcher(rules(rate));
    let subject = |i| sched.subject(TargetId::FIRST, &identity(i), PathSet::default());
    let subjects = (0..classes).map(subject).collect();
    filled(sched, subjects, lane)
}

/// One class with `branches` branches, of a reserved directory each, with two requests queued in
/// each; with `slots`, a cap on its slots.
pub(crate) fn branches(branches: usize, slots: Option<u32>) -> Load {
    let mut set = RuleSet::default();
    set.rules.push(Rule { slots, ..Rule::new("all", Match::any()) });
    let mut sched = dispatcher(Arc::new(set));
    let directory = |i| Directory::new(format!("export/d{i}").as_bytes()).expect("a short name");
    let row = |i| {
        let scope =
            EntitlementScope { directory: Some(directory(i)), ..EntitlementScope::default() };
        let grants = Grantable::Reservation(Rate::ops_per_sec(10).expect("above zero"));
        let (kinds, source) = (KindSet::ALL, EntitlementSource::Operator);
        let row = Entitlement::new(scope, grants, kinds, source).expect("it reserves");
        (EntitlementId(i as u64), Some(row))
    };
    let now = Time::from_nanos(1_000_000_000);
    sched.set_entitlements((0..branches).map(row).collect(), now, now);
    let subject = |i| {
        let place = FilePlace { paths: PathSet::default(), mark: Some(directory(i)) };
        sched.subject(TargetId::FIRST, &identity(branches / 2), place)
    };
    let subjects = (0..branches).map(subject).collect();
    filled(sched, subjects, Lane::Device)
}

fn dispatcher(rules: Arc<RuleSet>) -> Dispatcher {
    let costs = Costs::default();
    let target = TargetParams {
        name: "t".into(),
        slots_max: 64,
        threads: 8,
        costs,
        latency: None,
        recalibrate: false,
    };
    Dispatcher::new([target], rules)
}

/// Two requests of each subject wait.
fn filled(sched: Dispatcher, subjects: Vec<SubjectId>, lane: Lane) -> Load {
    let now = Time::from_nanos(1_000_000_000);
    let mut load = Load { sched, subjects, next: 0, now, lane };
    for _ in 0..2 * load.subjects.len() {
        load.enqueue();
    }
    load
}

impl Load {
    fn enqueue(&mut self) {
        // A stride coprime to the count visits the classes in an order unlike the heap's.
        self.next = (self.next + 7_919) % self.subjects.len();
        let subject = self.subjects[self.next];
        self.arrive(subject);
    }

    fn arrive(&mut self, subject: SubjectId) {
        let amount = Amount::new(4096, 1);
        let arrival = Arrival { subject, kind: OpKind::Read, amount, lane: self.lane, token: 0 };
        self.sched.enqueue(arrival, self.now);
    }

    /// One request through all three calls; its class stays backlogged. Where a meter lets
    /// nobody go, time passes until it does.
    pub(crate) fn cycle(&mut self) {
        self.now = self.now + Nanos::new(1_500);
        let next = loop {
            match self.sched.poll_dispatch(self.now) {
                Some(next) => break next,
                None => self.now = self.sched.next_deadline().expect("there is a backlog"),
            }
        };
        self.arrive(next.subject);
        self.sched.complete(next.id, Amount::new(4096, 1), self.now);
    }

    /// What holds one of the jobs: what its own user is told.
    pub(crate) fn why(&self) -> usize {
        let who = identity(self.subjects.len() / 2);
        let payers = MeterPayers { job: Some(&who.job), user: Some(who.uid) };
        let standings = self.sched.subject_details(self.now, payers);
        self.sched.wait_reports_of(&standings, self.now).len() + standings.len()
    }
}
