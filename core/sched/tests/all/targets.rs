//! Several targets of one proxy: lanes of their own, and limits over all of them.

use crate::server::*;
use model::{
    Amount, Grants, KeyValue, Lane, Nanos, OpKind, PathSet, Scope, Share, SharePool, TargetId, Time,
};
use rules::{KeyField, Match};
use sluice_sched::{Arrival, Dispatched, Dispatcher, SubjectId};

const UNIT_NS: u64 = 1_000_000;
const OTHER: TargetId = TargetId::new(1);

/// Two targets of D = 4 slots each, whose requests take a millisecond.
struct Pair {
    sched: Dispatcher,
    now: Time,
    running: Vec<(Time, Dispatched)>,
    /// Requests that ended, by token.
    served: [u64; 4],
    /// A target of which no request ends.
    stuck: Option<TargetId>,
}

impl Pair {
    fn new(all: Vec<rules::Rule>, meters: Vec<rules::MeterRule>) -> Pair {
        let targets = [target(4, UNIT_NS), target(4, UNIT_NS)];
        let sched = Dispatcher::new(targets, rules(all, meters));
        Pair { sched, now: Time::ZERO, running: Vec::new(), served: [0; 4], stuck: None }
    }

    /// Queues `count` reads of a job at a target, under a token.
    fn queue(&mut self, target: TargetId, job: &str, token: u64, count: u64) {
        let subject = self.sched.subject(target, &who(job), PathSet::default());
        (0..count).for_each(|_| self.read(subject, token));
    }

    fn read(&mut self, subject: SubjectId, token: u64) {
        let (kind, lane) = (OpKind::Read, Lane::Device);
        let amount = Amount::new(UNIT_BYTES, 1);
        self.sched.enqueue(Arrival { subject, kind, amount, lane, token }, self.now);
    }

    /// Lets a time pass; each request that ends is followed by another one of its subject.
    fn run(&mut self, ms: u64) -> [u64; 4] {
        let (before, end) = (self.served, self.now + Nanos::from_millis(ms));
        loop {
            while let Some(next) = self.sched.poll_dispatch(self.now) {
                self.running.push((self.now + Nanos::new(UNIT_NS), next));
            }
            let stuck = self.stuck;
            let ends = self.running.iter().filter(|(_, one)| Some(one.target) != stuck);
            let times = [ends.map(|(at, _)| *at).min(), self.sched.next_deadline()];
            let Some(next) = times.into_iter().flatten().min().filter(|at| *at <= end) else {
                self.now = end;
                return std::array::from_fn(|at| self.served[at] - before[at]);
            };
            self.now = self.now.max(next);
            let now = self.now;
            let is_over =
                |(at, one): &mut (Time, Dispatched)| *at <= now && Some(one.target) != stuck;
            let ended: Vec<_> = self.running.extract_if(.., is_over).collect();
            for (_, one) in ended {
                self.served[one.token as usize] += 1;
                self.sched.complete(one.id, Amount::new(UNIT_BYTES, 1), now);
                self.read(one.subject, one.token);
            }
        }
    }
}

fn near(got: u64, wanted: u64) -> bool {
    got.abs_diff(wanted) <= wanted / 50
}

#[test]
fn a_limit_of_a_job_is_one_over_all_targets() {
    let mut pair = Pair::new(vec![limited("a", 100)], vec![]);
    pair.queue(T, "a", 0, 16);
    pair.queue(OTHER, "a", 1, 16);
    pair.run(2_000);
    let [here, there, ..] = pair.run(10_000);
    assert!(near(here + there, 1_000), "{here} and {there}");
    assert!(near(here, 500) && near(there, 500), "{here} and {there}");
}

#[test]
fn a_limit_is_left_to_the_target_that_asks() {
    let mut pair = Pair::new(vec![limited("a", 100)], vec![]);
    pair.queue(OTHER, "a", 1, 16);
    pair.run(2_000);
    let [_, there, ..] = pair.run(10_000);
    assert!(near(there, 1_000), "{there}");
}

#[test]
fn each_target_is_divided_by_weight_whatever_the_other_one_does() {
    let mut pair = Pair::new(vec![rule("a", 3), rule("b", 1)], vec![]);
    pair.queue(T, "a", 0, 16);
    pair.queue(T, "b", 1, 16);
    pair.queue(OTHER, "b", 3, 16);
    pair.run(1_000);
    let [a, b, _, alone] = pair.run(4_000);
    assert!(near(a, 12_000) && near(b, 4_000) && near(alone, 16_000), "{a} {b} {alone}");
}

#[test]
fn a_target_that_is_stuck_keeps_no_limit_from_the_other() {
    let mut pair = Pair::new(vec![limited("a", 100)], vec![]);
    pair.stuck = Some(OTHER);
    pair.queue(OTHER, "a", 1, 16);
    pair.run(1_000);
    pair.queue(T, "a", 0, 16);
    pair.run(1_000);
    let [here, there, ..] = pair.run(10_000);
    assert!(near(here, 1_000) && there == 0, "{here} and {there}");
}

#[test]
fn a_meter_that_jobs_share_is_divided_over_targets_by_their_classes() {
    let meter = shared("all", "a b", ops(200));
    let mut pair = Pair::new(vec![rule("a", 1), rule("b", 3)], vec![meter]);
    pair.queue(T, "a", 0, 16);
    pair.queue(OTHER, "b", 1, 16);
    pair.run(2_000);
    let [a, b, ..] = pair.run(10_000);
    assert!(near(a, 500) && near(b, 1_500), "{a} and {b}");
}

#[test]
fn a_grant_of_a_target_concerns_its_weights_and_one_of_limits_every_target() {
    let part = |percent: u64, members: u32| {
        let listed = vec![(Scope::rule("a", &[]), Some(Share::ratio(percent, 100)))];
        Grants { proxies: members, unlisted: Share::equal(members), listed }
    };
    let mut pair = Pair::new(vec![rule("a", 1), rule("b", 1)], vec![]);
    for (at, target) in [(0, T), (2, OTHER)] {
        pair.queue(target, "a", at, 16);
        pair.queue(target, "b", at + 1, 16);
    }
    pair.sched.set_grants(SharePool::Target(OTHER), &part(75, 2), pair.now);
    pair.run(1_000);
    let [a, b, more, less] = pair.run(4_000);
    assert!(near(a, 8_000) && near(b, 8_000), "{a} and {b} as the rules say");
    assert!(near(more, 9_600) && near(less, 6_400), "{more} and {less}: 1.5 : 1");

    let mut pair = Pair::new(vec![limited("a", 100)], vec![]);
    pair.queue(T, "a", 0, 16);
    pair.queue(OTHER, "a", 1, 16);
    pair.sched.set_grants(SharePool::Limits, &part(20, 2), pair.now);
    pair.run(2_000);
    let [here, there, ..] = pair.run(10_000);
    assert!(near(here + there, 200), "{here} and {there}");
}

#[test]
fn a_target_that_is_added_later_has_the_limits_that_are_known() {
    let mut pair = Pair::new(vec![limited("a", 100)], vec![]);
    pair.queue(T, "a", 0, 16);
    pair.run(2_000);
    let third = pair.sched.add_target(target(4, UNIT_NS));
    assert_eq!((third, pair.sched.targets().count()), (TargetId::new(2), 3));
    pair.queue(third, "a", 2, 16);
    pair.run(2_000);
    let [here, _, there, _] = pair.run(10_000);
    assert!(near(here + there, 1_000) && near(there, 500), "{here} and {there}");
    pair.sched.check_invariants();
}

#[test]
fn a_reservation_is_one_at_each_target() {
    let matcher = "jobid={a}".parse().expect("a valid value");
    let reserved = rules::Rule { reservation: Some(ops(2_000)), ..rules::Rule::new("a", matcher) };
    let mut pair = Pair::new(vec![reserved, rule("b", 9)], vec![]);
    for (at, target) in [(0, T), (2, OTHER)] {
        pair.queue(target, "a", at, 16);
        pair.queue(target, "b", at + 1, 16);
    }
    pair.run(2_000);
    let [here, _, there, _] = pair.run(10_000);
    assert!(here >= 19_600 && there >= 19_600, "{here} and {there}");
}

/// A class for each job, one of them at most, with a limit each.
fn one_class(limits: Vec<rules::Limit>) -> rules::Rule {
    let per = vec![KeyField::Jobid];
    rules::Rule { per, limits, max_classes: Some(1), ..rules::Rule::new("jobs", Match::any()) }
}

/// The keys of the classes at a target; that of the shared one is the last.
fn keys(pair: &Pair, target: TargetId) -> Vec<Vec<KeyValue>> {
    let classes = pair.sched.classes().filter(|class| class.target == target);
    let mut keys: Vec<_> = classes.map(|class| class.key).collect();
    keys.sort_by_key(|key| (key.is_empty(), format!("{key:?}")));
    keys
}

fn job(name: &str) -> Vec<KeyValue> {
    vec![KeyValue::Jobid(who(name).job)]
}

#[test]
fn a_job_beyond_max_classes_shares_a_class_and_a_limit_at_every_target() {
    let mut pair = Pair::new(vec![one_class(vec![limit(ops(100))])], vec![]);
    pair.queue(T, "a", 0, 16);
    pair.queue(T, "b", 1, 16);
    pair.queue(OTHER, "b", 2, 16);
    assert_eq!([keys(&pair, T), keys(&pair, OTHER)], [vec![job("a"), vec![]], vec![vec![]]]);
    pair.run(2_000);
    let [a, here, there, _] = pair.run(10_000);
    assert!(near(a, 1_000) && near(here + there, 1_000), "{a}, {here} and {there}");
    // A job that has a class has one at each target that it comes to.
    pair.queue(OTHER, "a", 3, 16);
    assert_eq!(keys(&pair, OTHER), [job("a"), vec![]]);
    pair.run(2_000);
    let [a, here, there, more] = pair.run(10_000);
    assert!(near(a + more, 1_000) && near(here + there, 1_000), "{a} {here} {there} {more}");
    pair.sched.check_invariants();
}

#[test]
fn a_job_that_shares_a_class_does_so_until_it_is_gone_everywhere() {
    let mut pair = Pair::new(vec![one_class(vec![limit(ops(100))])], vec![]);
    let take = |pair: &mut Pair, at, name| {
        let subject = pair.sched.subject(at, &who(name), PathSet::default());
        pair.read(subject, 0);
        let next = pair.sched.poll_dispatch(pair.now).expect("no limit is reached");
        pair.sched.complete(next.id, Amount::new(UNIT_BYTES, 1), pair.now);
        pair.now = pair.now + Nanos::from_millis(100);
        subject
    };
    let a = [T, OTHER].map(|at| take(&mut pair, at, "a"));
    let b = take(&mut pair, T, "b");
    pair.sched.release_subject(a[0]);
    let early = take(&mut pair, OTHER, "c");
    assert_eq!(keys(&pair, OTHER), [job("a"), vec![]], "a is still at one target");
    pair.sched.release_subject(early);
    pair.sched.release_subject(a[1]);
    // Nothing is of a any more, but b shares a class and its limit already.
    let again = take(&mut pair, OTHER, "b");
    assert_eq!(keys(&pair, OTHER), [job("a"), vec![]]);
    pair.sched.release_subject(b);
    pair.sched.release_subject(again);
    let own = [OTHER, T].map(|at| take(&mut pair, at, "b"));
    assert_eq!([keys(&pair, T), keys(&pair, OTHER)], [(); 2].map(|()| vec![job("b"), vec![]]));
    pair.sched.check_invariants();
    own.into_iter().for_each(|subject| pair.sched.release_subject(subject));
}

#[test]
fn more_classes_are_there_for_a_job_that_shared_one_at_once() {
    let mut pair = Pair::new(vec![one_class(vec![])], vec![]);
    for job in ["a", "b"] {
        [T, OTHER].into_iter().for_each(|at| pair.queue(at, job, 0, 16));
    }
    assert_eq!([keys(&pair, T), keys(&pair, OTHER)], [(); 2].map(|()| vec![job("a"), vec![]]));
    let more = rules::Rule { max_classes: Some(2), ..one_class(vec![]) };
    pair.sched.set_rules(rules(vec![more], vec![]), pair.now);
    pair.run(100);
    let both = || vec![job("a"), job("b"), vec![]];
    assert_eq!([keys(&pair, T), keys(&pair, OTHER)], [both(), both()]);
    pair.sched.check_invariants();
}
