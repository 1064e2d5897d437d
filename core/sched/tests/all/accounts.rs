//! Accounts: what each subject was served in each of its classes.

use crate::server::*;
use model::{Amount, Bytes, Lane, Nanos, OpKind, PathSet, Service, Time};
use rules::{KeyField, Rule};
use sluice_sched::{AccountReport, Arrival, Dispatcher, SubjectId};

const UNIT_NS: u64 = 1_000_000;

/// A dispatcher with free slots, and the time.
struct Desk {
    sched: Dispatcher,
    now: Time,
}

impl Desk {
    fn new(all: Vec<Rule>) -> Desk {
        let sched = Dispatcher::new([target(64, UNIT_NS)], rules(all, vec![]));
        Desk { sched, now: Time::ZERO }
    }

    fn subject(&mut self, job: &str) -> SubjectId {
        self.sched.subject(T, &who(job), PathSet::default())
    }

    fn serve(&mut self, subject: SubjectId, kind: OpKind, bytes: u64) {
        let (amount, lane) = (Amount::new(bytes, 1), Lane::Device);
        self.sched.enqueue(Arrival { subject, kind, amount, lane, token: 0 }, self.now);
        let next = self.sched.poll_dispatch(self.now).expect("a slot is free");
        self.now = self.now + Nanos::new(UNIT_NS);
        self.sched.count_access(next.id, Bytes::new(bytes), false, 0);
        self.sched.complete(next.id, amount, self.now);
    }

    /// The class, bytes read and operations of each account of a job.
    fn accounts(&self, job: &str) -> Vec<(String, u64, u64)> {
        let of_job = |one: &AccountReport| one.subject.identity.job.as_str() == job;
        named(self.sched.accounts().filter(of_job))
    }
}

fn named(accounts: impl Iterator<Item = AccountReport>) -> Vec<(String, u64, u64)> {
    let of = |one: AccountReport| {
        (one.subject.class.to_string(), one.service.read_bytes, one.service.all_ops())
    };
    accounts.map(of).collect()
}

fn account(class: &str, read_bytes: u64, ops: u64) -> (String, u64, u64) {
    (class.into(), read_bytes, ops)
}

/// A rule for the reads of all jobs, a class for each.
fn reads() -> Rule {
    let matcher = "opcode={read}".parse().expect("a valid value");
    Rule { per: vec![KeyField::Jobid], ..Rule::new("reads", matcher) }
}

#[test]
fn each_class_of_a_subject_has_an_account_with_its_service() {
    let mut desk = Desk::new(vec![reads()]);
    let (a, b) = (desk.subject("a"), desk.subject("b"));
    (0..2).for_each(|_| desk.serve(a, OpKind::Read, 4096));
    desk.serve(a, OpKind::Getattr, 0);
    desk.serve(a, OpKind::Read, 4096);
    desk.serve(b, OpKind::Getattr, 0);
    assert_eq!(
        desk.accounts("a"),
        [account("reads jobid=a", 3 * 4096, 3), account("default", 0, 1)]
    );
    assert_eq!(desk.accounts("b"), [account("default", 0, 1)]);
    let sizes = desk.sched.accounts().next().expect("an account").service.reads.sizes;
    assert_eq!(sizes, [0, 3, 0, 0]);
}

#[test]
fn accounts_add_up_to_the_sums_of_their_subject() {
    let mut desk = Desk::new(vec![reads()]);
    let a = desk.subject("a");
    for kind in [OpKind::Read, OpKind::Getattr, OpKind::Write, OpKind::Read] {
        desk.serve(a, kind, if kind == OpKind::Getattr { 0 } else { 8192 });
    }
    let report = desk.sched.subjects().next().expect("one subject");
    let mut sum = Service::default();
    desk.sched.accounts().for_each(|one| sum.add(&one.service));
    assert_eq!(sum, report.service);
    assert_eq!((sum.read_bytes, sum.written_bytes), (2 * 8192, 8192));
    assert_eq!((sum.cost_ns, report.usage.requests), (report.usage.cost.get(), 4));
}

#[test]
fn service_stays_in_the_class_in_which_it_was() {
    let mut desk = Desk::new(vec![reads()]);
    let a = desk.subject("a");
    desk.serve(a, OpKind::Read, 4096);
    desk.sched.set_rules(rules(vec![], vec![]), desk.now);
    desk.serve(a, OpKind::Read, 4096);
    desk.sched.set_rules(rules(vec![reads()], vec![]), desk.now);
    desk.serve(a, OpKind::Read, 4096);
    assert_eq!(
        desk.accounts("a"),
        [account("reads jobid=a", 2 * 4096, 2), account("default", 4096, 1)]
    );
}

#[test]
fn a_subject_of_many_classes_has_one_account_for_the_rest() {
    let mut desk = Desk::new(vec![]);
    let a = desk.subject("a");
    for round in 0..40 {
        let rule = Rule::new(&format!("r{round:02}"), rules::Match::any());
        desk.sched.set_rules(rules(vec![rule], vec![]), desk.now);
        desk.serve(a, OpKind::Read, 10);
    }
    let mut accounts = desk.accounts("a");
    accounts.sort();
    assert_eq!(accounts.len(), 32);
    assert_eq!((&accounts[0], &accounts[31]), (&account("(other)", 90, 9), &account("r30", 10, 1)));
}

#[test]
fn the_accounts_of_a_forgotten_subject_are_taken_once() {
    let mut desk = Desk::new(vec![]);
    assert_eq!(desk.sched.take_closed_accounts(), Default::default());
    let serve = |desk: &mut Desk, from: usize, to: usize| {
        for number in from..to {
            let subject = desk.subject(&format!("j{number}"));
            desk.serve(subject, OpKind::Read, 10);
            desk.sched.release_subject(subject);
        }
    };
    // 1,024 that are idle stay for a while.
    serve(&mut desk, 0, 1_026);
    let closed = desk.sched.take_closed_accounts();
    let jobs: Vec<_> =
        closed.accounts.iter().map(|one| one.subject.identity.job.to_string()).collect();
    assert_eq!((jobs, closed.rest), (vec!["j0".to_owned(), "j1".into()], Service::default()));
    assert_eq!(named(closed.accounts.into_iter())[0], account("default", 10, 1));
    assert_eq!(desk.sched.take_closed_accounts(), Default::default());
    serve(&mut desk, 2_000, 2_000 + 4_100);
    let closed = desk.sched.take_closed_accounts();
    assert_eq!((closed.accounts.len(), closed.rest.read_bytes), (4_096, 4 * 10));
}

#[test]
fn accounts_that_nobody_takes_are_not_kept() {
    let mut desk = Desk::new(vec![]);
    for number in 0..1_100 {
        let subject = desk.subject(&format!("j{number}"));
        desk.serve(subject, OpKind::Read, 10);
        desk.sched.release_subject(subject);
    }
    assert_eq!(desk.sched.take_closed_accounts(), Default::default());
}
