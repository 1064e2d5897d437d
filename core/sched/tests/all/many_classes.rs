//! What a call may cost when thousands of classes wait behind one meter: counted in heads
//! that it moves between the line and the ready ones, not in time.

use crate::server::{T, UNIT_BYTES, limit, ms, ops, rule, rules, shared, target, who};
use model::{Amount, Directory, FilePlace, KindSet, Lane, Nanos, OpKind, PathSet, Time};
use rules::{
    Entitlement, EntitlementId, EntitlementScope, EntitlementSource, Grantable, KeyField, Limit,
    Match, MeterRule, Rule,
};
use sluice_sched::{Arrival, Dispatched, Dispatcher, SubjectId};

const CLASSES: usize = 2_000;
/// Tries at once, or heads sent back by one call; and the one that the meter lets go in turn.
const MOVES_MAX: usize = 64 + 1;

/// Many classes in line at a meter of 1000 a second, four slots held by somebody else.
struct Crowd {
    sched: Dispatcher,
    others: Vec<Dispatched>,
    due: Time,
}

impl Crowd {
    fn new(burst: u64) -> Crowd {
        let by_job = Rule { per: vec![KeyField::Jobid], matcher: Match::any(), ..rule("jobs", 1) };
        let meter = shared("m", "j*", ops(1_000));
        let meter = MeterRule { limit: Limit { burst: Some(burst), ..limit(ops(1_000)) }, ..meter };
        let sched = Dispatcher::new([target(4, 1_000_000)], rules(vec![by_job], vec![meter]));
        let mut crowd = Crowd { sched, others: vec![], due: ms(1_200 - burst) };
        // 200 operations at once, of which the burst is saved: the rest is owed at 1 a ms.
        let debtor = crowd.subject("j");
        crowd.enqueue(debtor, OpKind::Getattr, 200);
        let first = crowd.sched.poll_dispatch(ms(1_000)).expect("nothing is owed");
        crowd.sched.complete(first.id, Amount::new(0, 200), ms(1_000));
        for job in 0..CLASSES {
            let subject = crowd.subject(&format!("j{job}"));
            crowd.enqueue(subject, OpKind::Getattr, 1);
        }
        let other = crowd.subject("other");
        for _ in 0..4 {
            crowd.enqueue(other, OpKind::Read, 1);
        }
        crowd.others = std::iter::from_fn(|| crowd.sched.poll_dispatch(ms(1_000))).collect();
        assert_eq!((crowd.others.len(), crowd.in_line()), (4, CLASSES));
        crowd
    }

    fn subject(&mut self, job: &str) -> SubjectId {
        self.sched.subject(T, &who(job), PathSet::default())
    }

    fn enqueue(&mut self, subject: SubjectId, kind: OpKind, ops: u64) {
        let bytes = if kind == OpKind::Read { UNIT_BYTES } else { 0 };
        let (amount, lane) = (Amount::new(bytes, ops), Lane::Device);
        self.sched.enqueue(Arrival { subject, kind, amount, lane, token: 0 }, ms(1_000));
    }

    /// Classes whose head waits at the meter.
    fn in_line(&self) -> usize {
        self.sched.classes().filter(|class| class.throttled).count()
    }

    /// Polls once; at most so many heads as a call may move have moved.
    fn poll(&mut self, now: Time) -> Option<Dispatched> {
        let before = self.in_line();
        let next = self.sched.poll_dispatch(now);
        let moved = before.abs_diff(self.in_line());
        assert!(moved <= MOVES_MAX, "one call moved {moved} heads");
        next
    }
}

#[test]
fn a_meter_with_its_whole_burst_lets_its_waiters_try_a_few_at_a_time() {
    let mut crowd = Crowd::new(100);
    assert_eq!(crowd.poll(crowd.due), None);
    assert_eq!(crowd.in_line(), CLASSES - 1, "one goes in its turn");
    // The whole burst is saved after 100 ms more.
    let saved = crowd.due + Nanos::from_millis(100);
    crowd.poll(saved);
    assert_eq!(crowd.in_line(), CLASSES - 1 - 64);
    crowd.poll(saved + Nanos::from_micros(9));
    assert_eq!(crowd.in_line(), CLASSES - 1 - 64);
    crowd.poll(saved + Nanos::from_micros(10));
    assert_eq!(crowd.in_line(), CLASSES - 1 - 65, "and one more each 10 us");
    let mut now = saved;
    while crowd.in_line() > 0 {
        now = now + Nanos::from_millis(1);
        crowd.poll(now);
    }
    assert_eq!(now.since(saved), Nanos::from_millis(31), "CLASSES / 64 calls");
}

#[test]
fn a_meter_that_turns_short_is_not_found_out_by_all_who_try_in_one_call() {
    let mut crowd = Crowd::new(100);
    let mut now = crowd.due;
    while crowd.in_line() > 0 {
        now = now + Nanos::from_millis(1);
        crowd.poll(now);
    }
    now = now + Nanos::from_millis(100);
    for other in std::mem::take(&mut crowd.others) {
        crowd.sched.complete(other.id, Amount::new(UNIT_BYTES, 1), now);
    }
    // The burst of 100 and the request in hand, then all others are sent back.
    let (mut gone, mut calls) = (0, 0);
    while crowd.sched.has_work() {
        calls += 1;
        match crowd.poll(now) {
            Some(next) => {
                gone += 1;
                crowd.sched.complete(next.id, Amount::new(0, 1), now);
            }
            None => assert_eq!(
                crowd.sched.next_deadline().map(|at| at <= now),
                Some(crowd.sched.has_work())
            ),
        }
    }
    assert_eq!(gone, 101);
    assert!(calls >= gone + (CLASSES - gone) / MOVES_MAX, "{calls} calls");
    assert_eq!(crowd.in_line(), CLASSES - gone);
    assert!(crowd.sched.next_deadline().is_some_and(|at| at > now));
}

/// Without a burst to save, each unit would let everybody try and send them back.
#[test]
fn a_meter_without_a_burst_lets_nobody_try_while_its_turns_are_taken() {
    let mut crowd = Crowd::new(0);
    for other in std::mem::take(&mut crowd.others) {
        crowd.sched.complete(other.id, Amount::new(UNIT_BYTES, 1), ms(1_000));
    }
    let mut now = crowd.due;
    for turn in 1..=100 {
        let next = crowd.poll(now).expect("its turn");
        assert_eq!(crowd.in_line(), CLASSES - turn);
        crowd.sched.complete(next.id, Amount::new(0, 1), now);
        assert_eq!(crowd.poll(now), None);
        now = crowd.sched.next_deadline().expect("others wait");
        assert_eq!(now, crowd.due + Nanos::from_millis(turn as u64));
    }
}

#[test]
fn another_value_comes_to_thousands_of_classes_in_steps() {
    let set = |per_sec: u64, weight: u32| {
        let limits = vec![limit(ops(per_sec))];
        let per = vec![KeyField::Jobid];
        rules(vec![Rule { per, limits, matcher: Match::any(), ..rule("jobs", weight) }], vec![])
    };
    let mut sched = Dispatcher::new([target(4, 1_000_000)], set(5, 1));
    for job in 0..CLASSES {
        let subject = sched.subject(T, &who(&format!("j{job}")), PathSet::default());
        for token in 0..4 {
            let (kind, amount, lane) = (OpKind::Getattr, Amount::new(0, 1), Lane::Device);
            sched.enqueue(Arrival { subject, kind, amount, lane, token }, ms(1_000));
        }
    }
    let rates = |sched: &Dispatcher| {
        let rate = |job: usize| {
            let limits = sched.limits_of(&who(&format!("j{job}")), PathSet::default(), ms(1_000));
            limits[0].rate.per_sec()
        };
        let all: Vec<u64> = (0..CLASSES).map(rate).collect();
        [5, 7, 9].map(|rate| all.iter().filter(|known| **known == rate).count())
    };
    assert_eq!(rates(&sched), [CLASSES, 0, 0]);
    sched.set_rules(set(7, 2), ms(1_000));
    let [old, new, _] = rates(&sched);
    assert!(old > 0 && new <= 1_024, "{old} and {new}");
    // A change meanwhile is for all again.
    sched.set_rules(set(9, 2), ms(1_000));
    let mut polls = 0;
    while rates(&sched) != [0, 0, CLASSES] {
        assert_eq!(sched.next_deadline(), Some(ms(1_000)), "it is not over");
        sched.poll_dispatch(ms(1_000));
        sched.check_invariants();
        polls += 1;
        assert!(polls <= 2 * CLASSES / 1_024 + 2);
    }
    assert!(sched.classes().all(|class| class.weight.get() == 2));
}

/// A rule with a class for each job whose name begins with these letters.
fn by_job(jobs: &str) -> Vec<Rule> {
    let matcher: Match = format!("jobid={{{jobs}*}}").parse().expect("a condition");
    vec![Rule { per: vec![KeyField::Jobid], matcher, ..rule("jobs", 1) }]
}

#[test]
fn another_condition_moves_what_waits_in_steps_and_in_order_of_arrival() {
    let mut sched = Dispatcher::new([target(4, 1_000_000)], rules(by_job("j"), vec![]));
    let other = sched.subject(T, &who("other"), PathSet::default());
    let subjects: Vec<SubjectId> = (0..CLASSES)
        .map(|job| sched.subject(T, &who(&format!("j{job}")), PathSet::default()))
        .collect();
    let put = |sched: &mut Dispatcher, subject, token| {
        let (kind, amount, lane) = (OpKind::Read, Amount::new(UNIT_BYTES, 1), Lane::Device);
        sched.enqueue(Arrival { subject, kind, amount, lane, token }, ms(1_000))
    };
    for _ in 0..4 {
        put(&mut sched, other, u64::MAX);
    }
    let busy: Vec<Dispatched> = std::iter::from_fn(|| sched.poll_dispatch(ms(1_000))).collect();
    // Places in the table are not in order of arrival: what is cancelled leaves gaps.
    let gone: Vec<_> = (0..CLASSES).map(|_| put(&mut sched, other, 0)).collect();
    for id in gone.into_iter().step_by(3) {
        sched.cancel(id, ms(1_000));
    }
    for round in 0..2 {
        for (job, subject) in subjects.iter().enumerate() {
            put(&mut sched, *subject, (round * CLASSES + job) as u64);
        }
    }
    let of_rule = |sched: &Dispatcher, rule: &str| {
        let of = sched.classes().filter(|class| class.rule == rule);
        of.map(|class| class.queued as usize).sum::<usize>()
    };
    let before = of_rule(&sched, "default");
    assert_eq!(of_rule(&sched, "jobs"), 2 * CLASSES);
    // 1,111 of 2,000 jobs begin with j1.
    sched.set_rules(rules(by_job("j1"), vec![]), ms(1_000));
    let (mut polls, mut moved) = (0, of_rule(&sched, "default") - before);
    while sched.next_deadline() == Some(ms(1_000)) {
        assert_eq!(sched.poll_dispatch(ms(1_000)), None, "all slots are in use");
        let now = of_rule(&sched, "default") - before;
        assert!(now - moved <= 1_024 / 12, "one call moved {}", now - moved);
        (polls, moved) = (polls + 1, now);
    }
    sched.check_invariants();
    assert_eq!((moved, of_rule(&sched, "jobs")), (2 * 889, 2 * 1_111));
    assert!(polls > 20 && polls < 120, "{polls} calls");
    // What has moved is now in one class, in order of arrival.
    busy.into_iter().for_each(|one| sched.complete(one.id, Amount::new(UNIT_BYTES, 1), ms(1_000)));
    let mut tokens = Vec::new();
    while let Some(next) = sched.poll_dispatch(ms(1_000)) {
        let is_moved =
            next.token > 0 && !format!("j{}", next.token as usize % CLASSES).starts_with("j1");
        tokens.extend(is_moved.then_some(next.token));
        sched.complete(next.id, Amount::new(UNIT_BYTES, 1), ms(1_000));
    }
    assert!(tokens.is_sorted() && tokens.len() == 2 * 889 - 1, "{}", tokens.len());
}

/// A reserved directory each: all are branches of one class.
#[test]
fn hundreds_of_branches_are_served_as_they_are_due_and_then_in_order_of_arrival() {
    const BRANCHES: u64 = 300;
    for slots in [None, Some(2)] {
        let all = Rule { slots, ..Rule::new("all", Match::any()) };
        let mut sched = Dispatcher::new([target(4, 1_000_000)], rules(vec![all], vec![]));
        let (mut rows, mut subjects) = (vec![], vec![]);
        for number in 0..BRANCHES {
            let directory = Directory::new(format!("export/{number}").as_bytes());
            let place = FilePlace { paths: PathSet::default(), mark: directory.clone() };
            subjects.push(sched.subject(T, &who("a"), place));
            let scope = EntitlementScope { directory, ..EntitlementScope::default() };
            let (grants, source) = (Grantable::Reservation(ops(1)), EntitlementSource::Operator);
            let row = Entitlement::new(scope, grants, KindSet::ALL, source).expect("it reserves");
            rows.push((EntitlementId(number), Some(row)));
        }
        sched.set_entitlements(rows, ms(1_000), ms(1_000));
        let (kind, amount, lane) = (OpKind::Read, Amount::new(UNIT_BYTES, 1), Lane::Device);
        let mut put = |token| {
            // A stride coprime to their number visits the branches in an order of its own.
            let subject = subjects[(token * 7 % BRANCHES) as usize];
            sched.enqueue(Arrival { subject, kind, amount, lane, token }, ms(1_000))
        };
        let ids: Vec<_> = (0..3 * BRANCHES).map(&mut put).collect();
        for id in ids.into_iter().take(BRANCHES as usize).step_by(5) {
            sched.cancel(id, ms(1_000));
        }
        let mut tokens = Vec::new();
        while let Some(next) = sched.poll_dispatch(ms(1_000)) {
            tokens.push(next.token);
            sched.complete(next.id, amount, ms(1_000));
        }
        sched.check_invariants();
        let is_cancelled = |token: u64| token < BRANCHES && token.is_multiple_of(5);
        // The first request of each branch is due.
        let is_first = |token: u64| token < BRANCHES || is_cancelled(token - BRANCHES);
        let wanted = (0..3 * BRANCHES).filter(|token| !is_cancelled(*token));
        let (first, others): (Vec<_>, Vec<_>) = wanted.partition(|token| is_first(*token));
        assert_eq!(tokens, [first, others].concat());
    }
}
